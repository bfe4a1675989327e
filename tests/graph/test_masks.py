"""Masks that say no more than is_causal, on graphs as they are recorded on a GPU. No GPU is needed: nothing runs but
the masks, on the CPU.
"""

import math
from types import SimpleNamespace

import pytest
import torch

from tcompile.compiler.graph.aten import AtenGraph
from tcompile.compiler.graph.meta.core import TensorMeta, contiguous_strides
from tcompile.compiler.rewrite.fold import constant_folding
from tcompile.compiler.rewrite.known_masks import known_masks

aten = torch.ops.aten
CUDA = torch.device("cuda", 0)


def meta(*shape, dtype=torch.float16, device=CUDA):
    return TensorMeta(shape, tuple(contiguous_strides(shape)), dtype, device)


def graph(kind, n=16, keys=None, backward=False, low=-math.inf):
    g = torch.fx.Graph()
    keys = keys or n

    def call(op, *args, shape=None, dtype=torch.float16, **kwargs):
        node = g.call_function(op, args, kwargs)
        node.meta["val"] = meta(*(shape or ()), dtype=dtype)
        return node

    q = g.placeholder("q")
    q.meta["val"] = meta(2, 4, n, 64)
    k = g.placeholder("k")
    k.meta["val"] = meta(2, 4, keys, 64)
    rows = call(aten.arange.start_step, 0, n, 1, device=CUDA, shape=(n,), dtype=torch.int64)
    columns = call(aten.arange.start_step, 0, keys, 1, device=CUDA, shape=(keys,), dtype=torch.int64)
    down = call(aten.unsqueeze.default, rows, 1, shape=(n, 1), dtype=torch.int64)
    op = {"causal": aten.ge.Tensor, "strict": aten.gt.Tensor, "window": aten.le.Tensor, "all": aten.eq.Tensor}[kind]
    allowed = call(op, down, columns, shape=(n, keys), dtype=torch.bool)
    if kind == "all":
        allowed = call(
            aten.logical_or.default,
            allowed,
            call(aten.logical_not.default, allowed, shape=(n, keys), dtype=torch.bool),
            shape=(n, keys),
            dtype=torch.bool,
        )
    zero, lowest = (g.get_attr(name) for name in ("constant0", "constant1"))
    for c in (zero, lowest):
        c.meta["val"] = meta(device=torch.device("cpu"))
    mask = call(aten.where.self, allowed, zero, lowest, shape=(n, keys))
    mask = call(aten.expand.default, mask, [2, 4, n, keys], shape=(2, 4, n, keys))
    out = call(
        aten._scaled_dot_product_cudnn_attention.default, q, k, k, mask, backward, scale=0.125, shape=(2, 4, n, 64)
    )
    results = [out]
    if backward:
        results.append(
            call(
                aten._scaled_dot_product_cudnn_attention_backward.default,
                q,
                q,
                k,
                k,
                out,
                q,
                q,
                q,
                mask,
                None,
                None,
                n,
                n,
                0.0,
                False,
                shape=(2, 4, n, 64),
            )
        )
    g.output(tuple(results))
    constants = {
        "constant0": torch.tensor(0.0, dtype=torch.float16),
        "constant1": torch.tensor(low, dtype=torch.float16),
    }
    return AtenGraph(g, [], [], constants=constants, env=SimpleNamespace(hints={}))


@pytest.mark.parametrize("fold", [False, True])
@pytest.mark.parametrize("backward", [False, True])
def test_a_causal_mask_becomes_is_causal(backward, fold):
    a = graph("causal", backward=backward)
    if fold:
        constant_folding(a)
        assert not a.constants  # the two numbers are numbers
    known_masks(a)
    out = a.results[0]
    assert out.args[3] is None and out.args[6] is True and out.kwargs == {"scale": 0.125}
    if backward:
        assert a.results[1].args[8] is None and a.results[1].args[14] is True
    assert not any(n.target is aten.where.self for n in a.graph.nodes)


def test_the_least_number_masks_as_well_and_a_bias_does_not():
    for low, causal in ((-65504.0, True), (-1000.0, False)):
        a = graph("causal", low=low)
        known_masks(a)
        assert (a.results[0].args[3] is None) == causal


def test_a_mask_that_masks_nothing_goes():
    a = graph("all")
    known_masks(a)
    out = a.results[0]
    assert out.args[3] is None and len(out.args) == 5


@pytest.mark.parametrize("kind, keys", [("strict", 16), ("window", 16), ("causal", 24)])
def test_other_masks_stay(kind, keys):
    a = graph(kind, keys=keys)
    known_masks(a)
    assert isinstance(a.results[0].args[3], torch.fx.Node) and len(a.results[0].args) == 5


def test_a_mask_made_of_an_input_stays():
    a = graph("causal")
    with a.graph.inserting_after(next(n for n in a.graph.nodes if n.name == "k")):
        given = a.graph.placeholder("given")
    given.meta["val"] = meta(16, 16, dtype=torch.bool)
    where = next(n for n in a.graph.nodes if n.target is aten.where.self)
    where.args = (given, *where.args[1:])
    known_masks(a)
    assert isinstance(a.results[0].args[3], torch.fx.Node)

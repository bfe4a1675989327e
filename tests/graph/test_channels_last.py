"""Layouts of convolutions on a GPU, on graphs of TensorMetas: no GPU is needed."""
import operator
from types import SimpleNamespace

import torch

from tcompile.compiler.graph.aten import AtenGraph
from tcompile.compiler.graph.meta.core import TensorMeta, channels_last_strides, contiguous_strides
from tcompile.compiler.graph.passes.layout import channels_last

aten = torch.ops.aten
CUDA = torch.device("cuda", 0)


def meta(*shape):
    return TensorMeta(shape, tuple(contiguous_strides(shape)), torch.float32, CUDA)


def is_turned(n):
    return tuple(n.meta["val"].stride) == tuple(channels_last_strides(n.meta["val"].shape))


def graph(taps):
    g = torch.fx.Graph()
    x, w, t = (g.placeholder(n) for n in ("x", "w", "tangent_0"))
    x.meta["val"], w.meta["val"], t.meta["val"] = meta(4, 32, 8, 8), meta(32, 32, taps, taps), meta(4, 32, 8, 8)
    rest = ([1, 1], [taps // 2] * 2, [1, 1], False, [0, 0], 1)
    y = g.call_function(aten.convolution.default, (x, w, None, *rest))
    y.meta["val"] = meta(4, 32, 8, 8)
    z = g.call_function(aten.relu.default, (y,))
    z.meta["val"] = meta(4, 32, 8, 8)
    b = g.call_function(aten.convolution_backward.default, (t, x, w, None, *rest, [True, True, False]))
    b.meta["val"] = (meta(4, 32, 8, 8), meta(32, 32, taps, taps), None)
    out = []
    for k in (0, 1):
        i = g.call_function(operator.getitem, (b, k))
        i.meta["val"] = b.meta["val"][k]
        out.append(i)
    g.output((z, *out))
    return AtenGraph(g, [], [], env=SimpleNamespace(hints={}))


def test_a_weight_of_many_taps_is_turned_once_and_its_gradient_turned_back():
    a = graph(3)
    channels_last(a)
    convs = [n for n in a.graph.nodes if n.target in (aten.convolution.default, aten.convolution_backward.default)]
    weights = {convs[0].args[1], convs[1].args[2]}
    assert len(weights) == 1 and next(iter(weights)).target is aten.clone.default and is_turned(next(iter(weights)))
    gradient = a.results[2]
    assert gradient.target is aten.clone.default and not is_turned(gradient) and is_turned(gradient.args[0])
    assert is_turned(convs[0]) and not is_turned(a.results[0]) and not is_turned(a.results[1])      # results keep eager's strides
    a.graph.lint()


def test_one_tap_is_the_same_in_both_orders():
    a = graph(1)
    channels_last(a)
    assert not any(n.target is aten.clone.default for n in a.graph.nodes)
    assert a.results[2].target is operator.getitem

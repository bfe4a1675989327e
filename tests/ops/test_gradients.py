"""Gradients of the common operators through compiled code, against eager's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import tcompile

from ..oracles.opdb import COMMON, SEED, op_infos, samples

SAMPLES = 2
WITHOUT = ("eq", "lt", "logical_and", "argmax")  # no gradient
ALIKE = """
    sub neg sin cos tanh minimum unsqueeze squeeze std amin nn.functional.relu stack view expand chunk bmm flip log
    sqrt permute mean""".split()  # as their neighbours
NAMES = [n for n in COMMON if n not in WITHOUT and n not in ALIKE]


def gradients(fn: Callable, tensors: list, weighted: bool) -> tuple[list, list]:
    """(results, gradients of the floating tensors); weighted: tangents that differ, else the ones that .sum() gives
    (strides 0).
    """
    leaves = [t.detach().clone(memory_format=torch.preserve_format) for t in tensors]
    leaves = [t.requires_grad_() if t.is_floating_point() else t for t in leaves]
    torch.manual_seed(SEED)
    out = fn(*leaves)
    flat = [x for x in torch.utils._pytree.tree_leaves(out) if isinstance(x, torch.Tensor)]
    total: Any = 0
    for x in flat:
        if x.requires_grad:
            w = torch.linspace(-1, 2, x.numel(), dtype=x.dtype).reshape(x.shape) if weighted else 1
            total = total + (x * w).sum()
    if isinstance(total, torch.Tensor):
        total.backward()
    return flat, [t.grad if t.requires_grad else None for t in leaves]


def check_gradients(info: Any, limit: int, dynamic: bool = False, **tolerance: float) -> int:
    """Samples that agreed; AssertionError where one does not."""
    n = 0
    for k, s in enumerate(samples(info, torch.float32, spread=True)):
        try:
            want, want_grads = gradients(s.fn, s.tensors, k % 2 == 0)
        except (RuntimeError, ValueError):  # op_db's samples that eager has no gradient for
            continue
        if n == limit:
            break
        tcompile.reset()
        got, got_grads = gradients(tcompile.compile(s.fn, fullgraph=True, dynamic=dynamic), s.tensors, k % 2 == 0)
        assert len(want) == len(got), s.text
        for w, g in zip(want, got):
            torch.testing.assert_close(
                g.detach(), w.detach(), equal_nan=True, **tolerance, msg=lambda m: f"{s.text}: result: {m}"
            )
            assert g.requires_grad == w.requires_grad, f"{s.text}: requires_grad {g.requires_grad}"
        for i, (w, g) in enumerate(zip(want_grads, got_grads)):
            assert (w is None) == (g is None), f"{s.text}: gradient of input {i}: eager {w}, here {g}"
            if w is not None:
                torch.testing.assert_close(
                    g, w, equal_nan=True, **tolerance, msg=lambda m: f"{s.text}: gradient of input {i}: {m}"
                )
        n += 1
    return n


@pytest.mark.parametrize("name", NAMES)
def test_gradients(name):
    assert check_gradients(op_infos()[name], SAMPLES)


@pytest.mark.parametrize(
    "name",
    ["mul", "pow", "sum", "softmax", "nn.functional.layer_norm", "matmul", "nn.functional.linear", "cat", "gather"],
)
def test_symbolic_sizes(name):
    assert check_gradients(op_infos()[name], 1, dynamic=True)

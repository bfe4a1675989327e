"""Matrix products of symbolic sizes before torch 2.12, whose C++ asks for the numbers of sizes there (at::matmul,
at::linear), also inside of other composite operators: attention, recurrent networks. A dispatch key that TraceTensors
of symbolic sizes carry takes these two operators to the Python functions below. It is one that torch keeps for tests,
and every other operator falls through it."""

from __future__ import annotations

from typing import Any, Sequence

import torch

__all__ = ["symbolic_keys"]

_KEY = "TESTING_ONLY_GenericWrapper"
_unsafe_view = torch.ops.aten._unsafe_view  # as torch has it: to autograd and callers the result is no view
_libraries: list[torch.library.Library] = []  # they live as long as what they register


def symbolic_keys() -> Any:
    """The extra dispatch keys of a TraceTensor of symbolic sizes; None where torch needs none."""
    if tuple(map(int, torch.__version__.split(".")[:2])) >= (2, 12):
        return None
    every = torch.library.Library("_", "IMPL", _KEY)
    every.fallback(torch.library.fallthrough_kernel)
    aten = torch.library.Library("aten", "IMPL", _KEY)
    aten.impl("matmul", _matmul)
    aten.impl("linear", _linear)
    _libraries.extend((every, aten))
    return torch._C.DispatchKeySet(torch._C._dispatch_key_parse(_KEY))


def _natively(fn: Any, *args: Any) -> torch.Tensor:
    with torch._C._ExcludeDispatchKeyGuard(torch._C.DispatchKeySet(torch._C._dispatch_key_parse(_KEY))):
        return fn(*args)


def _matmul(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    if a.dim() < 1 or b.dim() < 1 or max(a.dim(), b.dim()) < 3:
        return _natively(torch.matmul, a, b)
    if b.dim() <= 2:
        rows = a.reshape(_product(a.shape[:-1]), a.shape[-1])
        return (
            _unsafe_view(rows.mv(b), a.shape[:-1])
            if b.dim() == 1
            else _unsafe_view(rows.mm(b), [*a.shape[:-1], b.shape[1]])
        )
    if a.dim() == 1:
        return _matmul(a.unsqueeze(0), b).squeeze(-2)
    batch = _broadcast(a.shape[:-2], b.shape[:-2])
    n = _product(batch)
    left = a.expand(*batch, *a.shape[-2:]).reshape(n, *a.shape[-2:])
    right = b.expand(*batch, *b.shape[-2:]).reshape(n, *b.shape[-2:])
    return _unsafe_view(left.bmm(right), [*batch, a.shape[-2], b.shape[-1]])


def _linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    if x.dim() < 3 or weight.dim() != 2 or bias is not None and bias.dim() != 1:
        return _natively(torch._C._nn.linear, x, weight, bias)
    rows = x.reshape(_product(x.shape[:-1]), x.shape[-1])
    out = rows.mm(weight.t()) if bias is None else torch.addmm(bias, rows, weight.t())
    return _unsafe_view(out, [*x.shape[:-1], weight.shape[0]])


def _product(sizes: Sequence[Any]) -> Any:
    n: Any = 1
    for size in sizes:
        n = n * size
    return n


def _broadcast(a: Sequence[Any], b: Sequence[Any]) -> list[Any]:
    """The common shape; where there is none, bmm says what does not fit."""
    width = max(len(a), len(b))
    padded = zip((1,) * (width - len(a)) + tuple(a), (1,) * (width - len(b)) + tuple(b))
    return [q if type(p) is int and p == 1 else p for p, q in padded]

"""What tests of guards build them from."""

from __future__ import annotations

from tcompile.compiler.guards import TensorSpec
from tcompile.compiler.guards import source as S

X, Y = S.local(0, "x"), S.local(1, "y")


def func(x=None):
    return x


def spec_of(t, **changes):
    """The TensorSpec of a tensor, with these fields otherwise."""
    fields = dict(
        type=type(t),
        dtype=t.dtype,
        device=t.device,
        requires_grad=t.requires_grad,
        shape=tuple(t.shape),
        stride=tuple(t.stride()),
        is_conj=t.is_conj(),
        is_neg=t.is_neg(),
    )
    return TensorSpec(**{**fields, **changes})

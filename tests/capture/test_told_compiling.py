"""Code that asks whether it is being compiled hears yes, as under stock. Where it fails for that, it hears no, as in
eager.
"""

import contextvars

import pytest
import torch

import tcompile

_SEEN = contextvars.ContextVar("seen", default=0)
X = torch.randn(4, 4)


def left_out(x, mask=None):
    """A default that a library makes in eager alone."""
    if mask is None and not torch.compiler.is_compiling():
        mask = torch.ones(4)
    return torch.relu(x) * mask[:, None]


def on_its_way_out(x, mask=None):
    """The same, where the error meets a break before it leaves."""
    y = x.sin()
    token = None
    try:
        if mask is None and not torch.compiler.is_compiling():
            mask = torch.ones(4)
        return y * mask[:, None]
    finally:
        if token is None:
            _SEEN.set(_SEEN.get() + 1)


@pytest.mark.parametrize("fn", [left_out, on_its_way_out])
def test_what_fails_for_being_compiled_is_not_told(fn):
    with tcompile.record() as record:
        got = tcompile.compile(fn)(X)
    torch.testing.assert_close(got, fn(X))
    assert record.report().graphs


def test_what_does_not_fail_is_told():
    def fn(x):
        return x * 2 if torch.compiler.is_compiling() else x * 3

    assert torch.equal(tcompile.compile(fn, fullgraph=True)(X), X * 2)


def test_an_error_of_the_program_stays_one():
    def fn(x):
        if torch.compiler.is_compiling():
            x = x + 1
        if x.shape[0] == 4:
            raise ValueError("four rows")
        return x * 2

    compiled = tcompile.compile(fn)
    for _ in range(2):
        with pytest.raises(ValueError, match="four rows"):
            compiled(X)
    torch.testing.assert_close(compiled(X[:3]), (X[:3] + 1) * 2)

"""Would a described call be compiled anew? The answer is what then happens."""

from __future__ import annotations

import pytest
import tcompile
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tcompile.compiler import events
from tcompile.compiler.guards import TensorDescription, describe, would_recompile


def fn(x, y, n=2, flag=None, scale=1.0):
    z = torch.cat([x, y]) * n + scale
    if flag:
        z = z + 1
    return z.sum(0) if x.shape[0] > 5 else z.mean(0)


def entries_of(compiled):
    return [e.program.guards for e in compiled.cache.entries]


NAMES = ("x", "y", "n", "flag", "scale")
tensors = st.builds(
    lambda rows, cols, double, grad, layout: (rows, cols, double, grad, layout),
    st.sampled_from([0, 1, 2, 3, 5, 6, 9]),
    st.sampled_from([1, 3, 3, 3, 4]),
    st.sampled_from([False, False, False, True]),
    st.sampled_from([False, False, False, True]),
    st.sampled_from(["plain", "plain", "t", "columns"]),
)
calls = st.tuples(
    tensors,
    tensors,
    st.sampled_from([2, 2, 3, 7, 1, True]),
    st.sampled_from([None, None, True, False]),
    st.sampled_from([1.0, 0.5, 2.0, 1]),
)


def tensor(rows, cols, double, grad, layout):
    t = torch.randn(rows, cols, dtype=torch.float64 if double else torch.float32)
    if layout == "t":
        t = t.t().contiguous().t()
    elif layout == "columns":
        t = torch.cat([t, t], 1)[:, :cols]
    return t.requires_grad_(grad)


@settings(max_examples=60, deadline=None)
@given(st.lists(calls, min_size=1, max_size=6))
@example(
    [
        ((*x, False, False, "plain"), (*y, False, False, "plain"), 2, None, 1.0)
        for x, y in (((0, 1), (0, 1)), ((1, 3), (0, 4)), ((1, 3), (0, 3)))
    ]
)
def test_the_forecast_comes_true(sequence):
    compiled = tcompile.compile(fn, backend="eager", options={"recompile_limit": 64})
    for x, y, n, flag, scale in sequence:
        args = (tensor(*x), tensor(*y), n, flag, scale)
        before = entries_of(compiled)
        forecast = would_recompile(before, {k: describe(v) for k, v in zip(NAMES, args)})
        made = []
        # what follows a break (an operator's error, say) is a function of its own, with entries that the forecast for
        # `fn` does not speak of
        with events.listen(
            lambda e, made=made: made.append(e) if e.kind == "entry" and e.func.__code__ is fn.__code__ else None
        ):
            try:
                compiled(*args)
            except RuntimeError:
                continue  # sizes that do not fit each other: eager's error
        if compiled.cache.entries:
            assert forecast.recompiles == bool(made)
        if before and made:  # of several that fail, which one is named first may differ
            assert forecast.reason is not None and forecast.reason.expected_text and forecast.reason.got_text


def test_what_is_left_out_is_taken_as_expected():
    compiled = tcompile.compile(fn, backend="eager")
    compiled(torch.randn(4, 3), torch.randn(4, 3))
    entries = entries_of(compiled)
    assert not would_recompile(entries, {}).recompiles
    assert not would_recompile(entries, {"x": TensorDescription((4, 3))}).recompiles
    f = would_recompile(entries, {"x": TensorDescription((6, 3))})
    assert f.recompiles and f.reason.detail == "shape[0]" and "mark_dynamic(x, 0)" in f.reason.suggestion
    assert would_recompile(entries, {"x": TensorDescription(dtype=torch.float64)}).reason.detail == "dtype"
    assert would_recompile(entries, {"x": TensorDescription(device="cuda")}).reason.detail == "device"
    assert would_recompile(entries, {"x": TensorDescription((4, 3), stride=(1, 4))}).reason.detail == "stride[0]"
    assert would_recompile(entries, {"n": 5}).reason.expected_text == "`n` was 2"
    assert would_recompile(entries, {"x": 3}).reason.detail == "type"
    assert would_recompile([], {"n": 5}).recompiles and would_recompile([], {}).reason is None
    compiled(torch.randn(6, 3), torch.randn(7, 3))
    entries = entries_of(compiled)
    assert not would_recompile(entries, {"x": TensorDescription((8, 3)), "y": TensorDescription((9, 3))}).recompiles
    f = would_recompile(entries, {"x": TensorDescription((3, 3)), "y": TensorDescription((3, 3))})
    assert f.recompiles and any("s0" in (r.expected_text or "") for r in f.failures)
    with pytest.raises(TypeError, match="describe"):
        would_recompile(entries, {"x": torch.ones(3)})

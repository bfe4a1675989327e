"""The clock over compiled calls: what it sees of a call, that it changes nothing, and what it costs."""

import pytest
import tcompile
import torch
from tcompile.compiler.runtime.trace import available, trace

from ..pace import seconds

pytestmark = pytest.mark.skipif(not available(), reason="the C extension is not built")


LIBRARY = {"cpu_products": "library"}  # on some processors products are generated kernels


def kinds(t, kind):
    return [s for s in t.spans if s.kind == kind]


def test_a_call_has_its_guards_its_graph_and_each_step():
    def f(x, w):
        return torch.softmax(x @ w, -1) @ w

    x, w = torch.randn(64, 64), torch.randn(64, 64)
    compiled = tcompile.compile(f, options=LIBRARY)
    expected = compiled(x, w)
    got = []
    t = trace(lambda: got.append(compiled(x, w)))
    torch.testing.assert_close(got[0], expected, rtol=0, atol=0)
    assert len(kinds(t, "guards")) == len(kinds(t, "entry")) == len(kinds(t, "graph")) == 1
    assert [s.name for s in kinds(t, "library")] == ["aten.mm.default"] * 2
    assert [s.step.kernel.origins[-1] for s in kinds(t, "kernel")] == ["div"]
    for i, s in enumerate(t.spans):
        assert 0 <= s.begin and s.begin + s.seconds <= t.seconds + 1e-6
        if i:
            parent = t.spans[s.parent]
            assert (
                s.parent < i and parent.begin <= s.begin and s.begin + s.seconds <= parent.begin + parent.seconds + 1e-9
            )


def test_backward_and_a_break_lie_in_the_call():
    def f(x, w):
        h = torch.relu(x @ w)
        if h.sum().item() > 1e9:
            h = h * 2
        return (h * h).sum()

    x, w = torch.randn(32, 32), torch.randn(32, 32, requires_grad=True)
    compiled = tcompile.compile(f)
    for _ in range(2):
        compiled(x, w).backward()
    t = trace(lambda: compiled(x, w).backward())
    graphs = kinds(t, "graph")
    assert len(graphs) >= 4  # two forward, two backward
    assert len({id(s.schedule) for s in graphs}) == len(graphs)


def test_a_step_that_writes_its_inputs_is_told_apart_from_memory():
    w = torch.nn.Parameter(torch.randn(300, 300))
    opt = torch.optim.SGD([w], lr=0.1)

    def step(x):
        opt.zero_grad()
        (x @ w).square().mean().backward()
        opt.step()

    compiled = tcompile.compile(step, options=LIBRARY)
    x = torch.randn(300, 300)
    for _ in range(3):
        compiled(x)
    before = w.detach().clone()
    t = trace(lambda: compiled(x))
    assert not torch.equal(before, w)
    assert {"kernel", "library"} <= {s.kind for s in t.spans}


def test_one_at_a_time_and_an_error_ends_it():
    def wrong():
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        trace(wrong)
    with pytest.raises(RuntimeError, match="being traced already"):
        trace(lambda: trace(lambda: None))
    with pytest.raises(ValueError, match="number of rows"):
        trace(lambda: None, most=0)
    assert len(trace(lambda: None).spans) == 1


def test_rows_without_room_are_counted():
    compiled = tcompile.compile(lambda x: torch.relu(x @ x) + 1)
    x = torch.randn(8, 8)
    compiled(x)
    t = trace(lambda: [compiled(x) for _ in range(10)], most=5)
    assert len(t.spans) == 6 and t.lost > 20


def test_a_traced_call_of_a_millisecond_costs_at_most_twice_its_time():
    layers = [torch.randn(128, 128) for _ in range(24)]

    def f(x):
        for w in layers:
            x = torch.tanh(x @ w)
        return x

    compiled = tcompile.compile(f)
    x = torch.randn(512, 128)
    compiled(x)

    plain, traced = [], []
    for _ in range(15):
        plain.append(seconds(lambda: compiled(x)))
        traced.append(seconds(lambda: trace(lambda: compiled(x), most=1000)))
    assert min(plain) > 1e-3
    assert min(traced) < 2 * min(plain), (min(traced), min(plain))

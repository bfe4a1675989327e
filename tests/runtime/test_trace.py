"""The clock over compiled calls: what it sees of a call, that it changes nothing, and what it costs."""

import statistics
import time

import pytest
import tcompile
import torch
from tcompile.compiler.runtime.trace import available, trace


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


@pytest.mark.parametrize("width", [64, 160, 320])  # a call of about 1, 5 and 40 ms
def test_a_traced_call_costs_little_more_than_its_time(width):
    """By what this thread works: other programs share the cores."""
    w = torch.randn(width, width) / width**0.5

    def f(x):
        for _ in range(40):
            x = torch.tanh(x @ w) + x.mean(0)
        return x

    assert_cheap(f, torch.randn(width, width), runs=9)


def test_a_traced_call_of_many_short_steps_costs_at_most_twice_its_time():
    """A thousand rows: they are put together when somebody asks for them, since of many calls one is looked at."""
    parts = torch.randn(300, 16, 16).unbind()
    spans = assert_cheap(lambda *parts: [(x.flip(0) @ x).sum() for x in parts], *parts, runs=25)
    assert len(spans) > 1000  # (and the first room for rows was too little)


def assert_cheap(f, *args, runs):
    compiled = tcompile.compile(f)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        compiled(*args)
        plain, traced = [], []
        for _ in range(runs):
            times = time.thread_time(), compiled(*args), time.thread_time(), trace(lambda: compiled(*args))
            plain.append(times[2] - times[0])
            traced.append(time.thread_time() - times[2])
    finally:
        torch.set_num_threads(threads)
    assert statistics.median(traced) < 2 * statistics.median(plain), (traced, plain)
    return times[3].spans

"""The memory plan: reuse, in place, mutation, outputs that stay."""

import torch

from tcompile.compiler.graph.aten import GraphOutput
from ..oracles.loop_interpreter import run_schedule
from tcompile.compiler.fusion.schedule import Alloc, Free, Launch

from ..lowering.helper import Builder, aten_graph, check, compile_fn, lower, schedule, verify_schedule

aten = torch.ops.aten


def allocs(s):
    return [x for x in s.steps if isinstance(x, Alloc)]


def test_dead_memory_is_reused():
    def f(x, w):
        for _ in range(6):
            x = torch.relu(x @ w) + 1
        return x

    x, w = torch.randn(16, 16), torch.randn(16, 16)
    s = check(f, x, w, rtol=1e-4, atol=1e-4)  # (six products on end)
    assert len([a for a in allocs(s) if a.reuse is None]) <= 3
    assert s.peak_bytes <= 3 * 16 * 16 * 4


def test_a_part_of_a_large_cat_does_not_open_its_memory_early():
    """The first part is known long before the others, and would have the whole lie in memory. A small whole may."""

    def dense_block(x, w):
        parts = [x + 1]
        for _ in range(7):
            parts.append(torch.linalg.inv(parts[-1] @ w))
        return torch.tanh(torch.cat(parts, 1)) @ torch.cat([w] * 8)

    def calls_before_the_whole(n):
        steps = compile_fn(dense_block, torch.randn(n, n), torch.randn(n, n)).steps
        whole = next(k for k, x in enumerate(steps) if isinstance(x, Alloc) and tuple(x.buffer.shape) == (n, 8 * n))
        return sum("inv" in str(getattr(x, "op", "")) for x in steps[:whole])

    assert calls_before_the_whole(256) == 7
    assert calls_before_the_whole(16) == 0


def test_no_memory_is_held_over_the_peak_for_a_later_use():
    """Two products of one size lie around two larger ones: these are the peak."""

    def f(x, w, y, v):
        before = (x @ w).sum(0)
        larger = torch.relu((y + before) @ v) @ v
        return ((x + larger.sum(0)) @ w).sum(0)

    shapes = ((64, 64), (64, 64), (96, 64), (64, 64))
    s = check(f, *(torch.randn(*shape) / 8 for shape in shapes), rtol=1e-3, atol=1e-3)
    assert s.peak_bytes <= 2 * 96 * 64 * 4


def test_epilogue_writes_in_place():
    s = check(lambda x, w: torch.relu(x @ w).sum(0) + torch.relu(x @ w)[0], torch.randn(40, 5), torch.randn(5, 4))
    s = check(lambda x, w: torch.relu(x @ w) @ w.t(), torch.randn(6, 5), torch.randn(5, 4))
    relu = next(a for a in allocs(s) if a.buffer.name.startswith("relu"))
    assert relu.reuse is not None and relu.reuse.name.startswith("mm")


def test_outputs_get_memory_of_their_own():
    def f(x, w):
        a = x @ w
        b = torch.relu(a)
        return b, torch.relu(b @ w) + 1

    s = check(f, torch.randn(4, 4), torch.randn(4, 4))
    outs = {o.value for o in s.outputs}
    assert all(a.reuse is None for a in allocs(s) if a.buffer in outs)
    assert not any(isinstance(x, Free) and x.buffer in outs for x in s.steps)
    assert not any(a.reuse in outs for a in allocs(s))


def mutated(fn, *inputs):
    """fn returns (new value of input 0, *outputs)."""
    g = aten_graph(fn, *inputs)
    g.mutations = [(0, g.outputs[0].value)]
    g.outputs = [GraphOutput(kind="input", value=0)] + g.outputs[1:]
    s = schedule(lower(g, {}), {})
    verify_schedule(s)
    return s


def test_a_mutated_input_is_written_in_place_where_nothing_reads_it_later():
    x, y = torch.randn(5, 4), torch.randn(5, 4)
    s = mutated(lambda x, y: (x + y, (x + y).sin()), x, y)
    assert s.mutations == [] and s.written == [0]
    want = x + y
    got = run_schedule(s, [x, y])
    assert got[0] is x
    torch.testing.assert_close(x, want)
    torch.testing.assert_close(got[1], want.sin())


def test_a_mutated_input_that_is_read_elsewhere_is_copied_at_the_end():
    x, y = torch.randn(4, 4), torch.randn(4, 4)
    s = mutated(lambda x, y: (x.t() + y, x * 2), x, y)  # read at another index
    assert [i for i, _ in s.mutations] == [0] and s.written == []
    want, other = x.t() + y, x * 2
    got = run_schedule(s, [x, y])
    torch.testing.assert_close(x, want)
    torch.testing.assert_close(got[1], other)


def test_mutated_inputs_that_swap():
    x, y = torch.randn(6), torch.randn(6)
    g = aten_graph(lambda x, y: (x + 0, y + 0), x, y)
    a, b = (n for n in g.graph.nodes if n.op == "placeholder")
    g.outputs, g.mutations = [], [(0, b), (1, a)]
    s = schedule(lower(g, {}), {})
    verify_schedule(s)
    wx, wy = y.clone(), x.clone()
    run_schedule(s, [x, y])
    torch.testing.assert_close((x, y), (wx, wy))


def test_a_result_never_shares_memory_with_an_input_or_another_result():
    x = torch.randn(3, 4)
    g = aten_graph(lambda x: (x + 1, x + 1), x)
    p = next(n for n in g.graph.nodes if n.op == "placeholder")
    add = g.outputs[0].value
    g.outputs = [
        GraphOutput(kind="buffer", value=p),
        GraphOutput(kind="buffer", value=add),
        GraphOutput(kind="buffer", value=add),
    ]
    s = schedule(lower(g, {}), {})
    verify_schedule(s)
    a, b, c = run_schedule(s, [x])
    assert a is not x and a.data_ptr() != x.data_ptr() and b is c
    torch.testing.assert_close((a, b), (x, x + 1))


def test_view_outputs():
    x = torch.randn(3, 4)
    g = aten_graph(lambda x: (x + 1,), x)
    add = g.outputs[0].value
    g.outputs = [
        GraphOutput(kind="view", value=(add, (4, 3), (1, 4), 0)),
        GraphOutput(kind="view", value=(0, (4, 3), (1, 4), 0)),
        GraphOutput(kind="buffer", value=add),
        GraphOutput(kind="const", value=None),
        GraphOutput(kind="int", value=3),
    ]
    s = schedule(lower(g, {}), {})
    verify_schedule(s)
    a, b, c, n, k = run_schedule(s, [x])
    assert a.data_ptr() == c.data_ptr() and b.data_ptr() == x.data_ptr() and n is None and k == 3
    torch.testing.assert_close((a, b), ((x + 1).t(), x.t()))


def test_symbolic_sizes_reuse_equal_expressions():
    from tcompile.compiler.symbolic.expr import symbol

    n = symbol("s0")
    b = Builder(s0=12)
    x, w = b.input((n, 8)), b.input((8, 8))
    h = x
    for _ in range(5):
        h = b.call(aten.mm.default, h, w, shape=(n, 8))
        h = b.call(aten.relu.default, h, shape=(n, 8))
    s = b.schedule(h)
    assert len([a for a in allocs(s) if a.reuse is None]) <= 3
    xs = torch.randn(12, 8), torch.randn(8, 8)
    want = xs[0]
    for _ in range(5):
        want = torch.relu(want @ xs[1])
    torch.testing.assert_close(run_schedule(s, xs)[0], want)
    assert sum(isinstance(x, Launch) for x in s.steps) == 5


def memory(o):
    return o.value[0] if o.kind == "view" else o.value


def test_results_lie_in_tensors_of_their_own():
    x, w = torch.randn(2, 3, 4), torch.randn(2, 4, 5)
    s = check(lambda x, w: torch.relu(x @ w).view(6, 5), x, w, n_kernels=1)
    out = memory(s.outputs[0])
    assert any(isinstance(a, Alloc) and a.buffer is out for a in s.steps)
    s = check(lambda x, w: x.view(2, 1, 3, 4) @ w.view(2, 1, 4, 5), x, w)
    out = memory(s.outputs[0])
    assert any(isinstance(a, Alloc) and a.buffer is out for a in s.steps) and not any(
        isinstance(a, Launch) for a in s.steps
    )


def test_views_are_released_with_their_memory():
    def f(x, w):
        for _ in range(3):
            x = torch.softmax(x.view(4, 2, 8), -1).view(8, 8) @ w
        return x.sum()

    s = check(f, torch.randn(8, 8), torch.randn(8, 8))
    made = {a.buffer for a in s.steps if type(a).__name__ == "View" and a.base.kind == "temp"}
    freed = {a.buffer for a in s.steps if isinstance(a, Free)}
    assert made <= freed


def test_a_weight_s_copy_is_made_where_it_is_read():
    """Ten calls before its reader a copy would lie in memory for nothing: of inputs alone, it keeps nothing alive."""

    def f(x, w, v):
        turned = v.t().contiguous()
        for _ in range(10):
            x = torch.relu(x @ w)
        return x @ turned

    s = check(f, torch.randn(64, 64), torch.randn(64, 64) / 8, torch.randn(640, 64), rtol=1e-4, atol=1e-4)
    size = 64 * 64 * 4
    assert s.peak_bytes <= 21 * size, "the last product's operands and result"
    calls = [x for x in s.steps if not isinstance(x, (Alloc, Free))]
    copy = next(
        k for k, x in enumerate(calls) if isinstance(x, Launch) and any(b.shape == (64, 640) for b in x.outputs)
    )
    assert copy >= len(calls) - 3

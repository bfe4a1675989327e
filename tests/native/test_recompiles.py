"""What a recompile teaches, and what never fills the limit: sizes, strides, ints and floats together; cells that run
again.
"""

from __future__ import annotations

import types

import pytest
import tcompile
import torch
from tcompile.compiler import events
from tcompile.compiler.config import Options
from tcompile.compiler.frontend.hook import run_code
from tcompile.compiler.native import native

needs_hook = pytest.mark.skipif(native is None, reason="cells need the frame hook, which is the C extension's")


@pytest.fixture
def seen():
    """The events of entries, limits and fallbacks."""
    out: list[events.Event] = []
    with events.listen(lambda e: out.append(e) if e.kind in ("entry", "limit", "fallback", "recompile") else None):
        yield out


def entries(seen):
    return sum(e.kind == "entry" for e in seen)


def sweep(fn, calls, seen, **options):
    """Compile `fn`, compare each call with eager; how many entries it took."""
    tcompile.reset()
    seen.clear()
    compiled = tcompile.compile(fn, **options)
    for args in calls:
        want, got = fn(*args), compiled(*args)
        torch.testing.assert_close(got, want)
        assert got.stride() == want.stride()
    return entries(seen)


def r(*shape):
    return torch.randn(*shape)


@pytest.mark.parametrize("backend", ["eager", "tcompile"])
def test_what_changes_together_is_learned_together(seen, backend):
    calls = [(r(k, 3), r(k, 3), k, k / 2) for k in (4, 5, 6, 9)]
    assert sweep(lambda x, y, n, s: (x + y) * n + s, calls, seen, backend=backend) == 2
    calls = [([r(k, 3), r(2 * k, 3)],) for k in (2, 3, 4, 5)]
    assert sweep(lambda xs: torch.cat(xs) * 2, calls, seen, backend=backend) == 2


@pytest.mark.parametrize("backend", ["eager", "tcompile"])
def test_strides_become_symbols(seen, backend):
    columns = [(r(10, k)[:, :3],) for k in (5, 6, 7, 8)]
    assert sweep(lambda x: torch.softmax(x + 1, -1), columns, seen, backend=backend) == 2
    assert sweep(lambda x: x.sum(-1), [*columns, (r(10, 3),)], seen, backend=backend) == 2
    images = [(r(2, 3, 6, k)[..., :4],) for k in (8, 9, 11, 20)]
    assert sweep(lambda x: x.reshape(2, -1) * 2, images, seen, backend=backend) == 2


@pytest.mark.parametrize("backend", ["eager", "tcompile"])
def test_a_dimension_of_size_1_has_a_stride_that_follows(seen, backend):
    """A batch of one: each token of a generation was a recompile, since the cache's first stride grows."""
    caches = [(r(1, 8, k, 4),) for k in range(5, 12)]
    assert sweep(lambda x: torch.softmax(x + 1, -1), caches, seen, backend=backend) == 2
    assert sweep(lambda x: x.transpose(0, 1), caches, seen, backend=backend) == 2
    between = [(r(8, k, 1, 4).transpose(1, 2),) for k in range(5, 12)]
    assert sweep(lambda x: x.relu(), between, seen, backend=backend) == 2
    within = [(r(1, 8, k + 2, 4)[:, :, :k],) for k in range(5, 12)]
    assert sweep(lambda x: x.relu() * 2, within, seen, backend=backend) == 2
    wider = [(r(4, 8, k, 4)[:1, ::2],) for k in range(5, 12)]  # a stride that is another multiple of the size
    assert sweep(lambda x: x.relu() * 2, wider, seen, backend=backend) == 2


@pytest.mark.parametrize("backend", ["eager", "tcompile"])
def test_a_row_at_a_place_that_varies_is_multiplied(seen, backend):
    """The last token of a prompt: torch 2.11 asks such a view for plain numbers, and the frame ran uncompiled."""
    w = r(5, 4)
    prompts = [(r(1, k, 4),) for k in (3, 5, 9)]
    for product in (
        lambda x: torch.nn.functional.linear((x + 1)[:, -1:, :], w),
        lambda x: (x + 1)[:, -1:] @ w.t(),
        lambda x: torch.matmul(w, x[:, -1:].transpose(1, 2)),
    ):
        assert sweep(product, prompts, seen, backend=backend, dynamic=True) == 1
        assert not any(e.kind == "fallback" for e in seen)


def test_equal_sizes_that_part_later(seen):
    calls = [(r(4, 3), r(4, 3)), (r(5, 3), r(5, 3)), (r(5, 3), r(6, 3)), (r(7, 3), r(2, 3))]
    assert sweep(lambda x, y: torch.cat([x * 2, y + 1]), calls, seen, backend="eager") == 2
    # here both sizes are one by broadcasting: that is guarded
    calls = [(r(4, 3), r(4, 3)), (r(5, 3), r(5, 3)), (r(6, 3), r(6, 3)), (r(6, 3), r(1, 3)), (r(1, 3), r(6, 3))]
    assert sweep(lambda x, y: x + y, calls, seen, backend="eager") == 4


def test_marks(seen):
    x = r(4, 3)
    tcompile.mark_dynamic(x, 0)
    assert sweep(lambda x: x * 2, [(x,), (r(5, 3),), (r(6, 3),)], seen, backend="eager") == 1
    x = r(4, 3)
    tcompile.maybe_mark_dynamic(x, (0, 1))
    assert sweep(lambda x: x * 2, [(x,), (r(5, 4),), (r(6, 7),)], seen, backend="eager") == 1
    calls = [(r(k, 3),) for k in (4, 5, 6)]
    for (y,) in calls:
        tcompile.mark_static(y, 0)
    assert sweep(lambda x: x * 2, calls, seen, backend="eager") == 3
    assert sweep(lambda x: x * 2, calls, seen, backend="eager", dynamic=True) == 3
    for mark in (tcompile.mark_dynamic, tcompile.maybe_mark_dynamic, tcompile.mark_static):
        with pytest.raises(IndexError, match="dim is an int from -2 to 1"):
            mark(x, 2)
        with pytest.raises(TypeError, match="takes a tensor"):
            mark([1], 0)


def test_the_limit_is_loud_and_final(seen):
    def fn(x, key):
        return x + len(key)

    compiled = tcompile.compile(fn, backend="eager", options={"recompile_limit": 3})
    x = r(3)
    with tcompile.record() as builder:
        for k in range(6):
            torch.testing.assert_close(compiled(x, "a" * k), fn(x, "a" * k))
    report = builder.report()
    assert entries(seen) == 3 and sum(e.kind == "limit" for e in seen) == 1
    assert any(e.kind == "fallback" and "recompile limit (3)" in e.reason for e in seen)
    assert report.summary.status == "partly" and "recompile limit" in str(report)
    assert [f.status for f in report.frames] == ["limit"]


class Layer:
    def __init__(self, ready):
        self.ready = ready


def test_flags_in_a_list(seen):
    """Flags of a batch are others in each call, so that the list is not read; what objects in a list hold is."""

    def of_objects(x, layers):
        for layer in layers:
            x = x * 2 if layer.ready else x + 1
        return x

    flags = [[bool(k >> i & 1) for i in range(6)] for k in (1, 9, 22, 40, 63)]
    assert sweep(lambda x, flags: x + torch.tensor(flags), [(r(6), f) for f in flags], seen, backend="eager") == 3
    calls = [(r(3), [Layer(ready) for _ in range(6)]) for ready in (False, True)]
    assert sweep(of_objects, calls, seen, backend="eager") == 2


# ---- cells
CELL = """
def helper(x, k=2):
    return torch.relu(x) * k
def step(x):
    return helper(x).sum() + SCALE
out = [step(torch.full((3, 4), float(i))) for i in range(3)]
"""


def run_cell(text, namespace, number, backend="eager", **options):
    code = compile(text, f"<ipython-input-{number}-c0ffee>", "exec")
    run_code(code, namespace, Options.make(backend=backend, options=options or None))
    return namespace["out"]


@needs_hook
def test_a_cell_that_runs_again_compiles_nothing(seen):
    tcompile.reset()
    ns = {"torch": torch, "SCALE": 1.0}
    first = run_cell(CELL, ns, 1)
    made = entries(seen)
    assert made
    for number in range(2, 14):
        again = run_cell(CELL, ns, number)
        torch.testing.assert_close(again, first)
    assert entries(seen) == made and not any(e.kind == "limit" for e in seen)


@needs_hook
def test_a_helper_defined_again_leaves_its_callers_compiled(seen):
    tcompile.reset()
    ns = {"torch": torch, "SCALE": 1.0}
    helper = "def helper(x, k=2):\n    return torch.relu(x) * k\nout = 0"
    callers = "def step(x):\n    return helper(x).sum() + SCALE\nout = 0"
    call = "out = step(X)"
    ns["X"] = r(3, 4)
    for n, text in enumerate((helper, callers, call)):
        run_cell(text, ns, n)
    made = entries(seen)
    for n in range(12):
        run_cell(helper, ns, 10 + n)
        torch.testing.assert_close(run_cell(call, ns, 30 + n), torch.relu(ns["X"]).sum() * 2 + 1)
    assert entries(seen) == made
    run_cell(helper.replace("k=2", "k=3"), ns, 60)
    torch.testing.assert_close(run_cell(call, ns, 61), torch.relu(ns["X"]).sum() * 3 + 1)


@needs_hook
def test_cells_that_change_never_reach_the_limit(seen):
    tcompile.reset()
    ns = {"torch": torch}
    for n in range(20):
        ns["SCALE"] = n * 1j if n % 2 else float(n)  # each run another value, of two types
        want = [torch.relu(torch.full((3, 4), float(i))).sum() * 2 + ns["SCALE"] for i in range(3)]
        torch.testing.assert_close(run_cell(CELL, ns, n, recompile_limit=3), want)
    for n in range(20):
        text = CELL.replace("* k", f"* k + {n}")
        want = [(torch.relu(torch.full((3, 4), float(i))) * 2 + n).sum() + ns["SCALE"] for i in range(3)]
        torch.testing.assert_close(run_cell(text, ns, 100 + n, recompile_limit=3), want)
    assert not any(e.kind == "limit" for e in seen)


@needs_hook
def test_one_code_object_over_two_namespaces():
    code = compile("def f(x):\n    y = x * K\n    if y.sum() > 1e9: print()\n    return y + K", "shared", "exec")
    spaces = [{"K": 2}, {"K": 3}]
    for space in spaces:
        exec(code, space)
    x = r(3)
    with tcompile.enable(backend="eager"):
        for _ in range(3):
            for space in spaces:
                torch.testing.assert_close(space["f"](x), x * space["K"] + space["K"])


@needs_hook
def test_equal_functions_of_two_files_report_their_own():
    text = "def f(x):\n    y = x * 2\n    if y.sum() > 1e9: print()\n    return y + 1"
    spaces = [{}, {}]
    for name, space in zip(("first.py", "second.py"), spaces):
        exec(compile(text, name, "exec"), space)
    files = []
    for space in spaces:
        with tcompile.record() as builder, tcompile.enable(backend="eager"):
            space["f"](r(3))
        files.append({b.file for b in builder.report().graph_breaks})
    assert files == [{"first.py"}, {"second.py"}]


def test_functions_made_from_one_code_object():
    def make(k):
        def f(x):
            y = x * k
            if y.sum() > 1e9:
                print()
            return y + k

        return f

    x = r(3)
    assert make(1).__code__ is make(2).__code__ and isinstance(make(1), types.FunctionType)
    compiled = [tcompile.compile(make(k), backend="eager") for k in (2, 3)]
    for _ in range(2):
        for k, c in zip((2, 3), compiled):
            torch.testing.assert_close(c(x), x * k + k)

"""Compiled graphs: the C program, the Python plan, ctypes; threads, forks, errors."""

import gc
import multiprocessing
import sys
import threading
import weakref

import pytest
import torch

from tcompile.compiler.fusion.schedule import Alloc, Extern, Free, Launch, OutputSpec, Schedule, View
from tcompile.compiler.codegen.generate import generate
from tcompile.compiler.codegen.generated import Generated
from tcompile.compiler.config import Options
from tcompile.compiler.lowering.ir import Buffer
from tcompile.compiler.native import native
from tcompile.compiler.runtime import build_graph as build_module
from tcompile.compiler.runtime import cpu_kernels
from tcompile.compiler.runtime.compiled_graph import python_plan
from tcompile.compiler.runtime.native_program import ProgramBuilder
from tcompile.compiler.symbolic.expr import as_expr

from .helper import add_constant, chain_schedule, compiled, flat, s0

needs_native = pytest.mark.skipif(native is None, reason="the C extension is not built")


@needs_native
@pytest.mark.parametrize("n", [0, 1, 10, 100_000])
def test_kernels_and_temporaries_run_in_c(n):
    graph = compiled(chain_schedule(n, 1.0, 2.0, 3.0))
    assert graph.how == "program" and len(graph.kernels) == 3 and graph.extern_count == 0
    x = torch.randn(n)
    (out,) = graph(x)
    assert (
        out.equal(x + 1 + 2 + 3) and out.dtype == x.dtype and out.stride() == x.stride() and type(out) is torch.Tensor
    )
    out.resize_(5)  # a tensor like any other


@needs_native
def test_symbolic_sizes_are_computed_in_c():
    graph = compiled(chain_schedule(s0, 1.0, 2.0))
    assert graph.how == "program"
    for n in (2, 10, 5000):
        x = torch.randn(n)
        assert graph(x)[0].equal(x + 1 + 2)


@pytest.mark.parametrize("how", ["python", "ctypes"])
def test_other_ways_to_run_the_same_plan(how, monkeypatch):
    if how == "ctypes":
        monkeypatch.setattr(cpu_kernels, "native_ready", lambda: False)
        monkeypatch.setattr(build_module, "native_ready", lambda: False)
    graph = compiled(chain_schedule(s0, 1.0, 2.0))
    run = graph.call if how == "ctypes" else python_plan(graph.generated, graph.kernels)
    x = torch.randn(77)
    assert run(x)[0].equal(x + 1 + 2)
    if how == "ctypes":
        assert graph.how == "python" and all(isinstance(k, cpu_kernels.PythonKernel) for k in graph.kernels.values())


def test_plan_is_readable():
    graph = compiled(chain_schedule(10, 1.0, 2.0))
    assert graph.plan_source.startswith("def run(x):") and "add_constant(x, buf0, 10)" in graph.plan_source
    assert "in0 + " in graph.sources["add_constant"] or "in0_at" in graph.sources["add_constant"]
    assert graph.kernel_stats["add_constant"]["bytes"] == 80 and graph.kernel_stats["add_constant"]["flops"] == 10


def test_equal_kernels_are_compiled_once():
    graph = compiled(chain_schedule(10, 1.0, 1.0, 1.0))
    assert len(graph.kernels) == 1
    x = torch.randn(10)
    assert graph(x)[0].equal(x + 1 + 1 + 1)


def test_inputs_ints_and_constants_as_outputs():
    x, b = flat("x", s0), flat("buf0", s0)
    s = Schedule(
        [Alloc(b), Launch(add_constant(s0, 1.0), [x], [b], [s0])],
        [x],
        [
            OutputSpec("buffer", b),
            OutputSpec("input", 0),
            OutputSpec("int", s0 * 2),
            OutputSpec("const", "text"),
            OutputSpec("buffer", b),
        ],
        symbols={"s0": (0, "size", 0)},
        hints={"s0": 4},
    )
    graph = compiled(s)
    t = torch.randn(6)
    out = graph(t)
    assert out[0].equal(t + 1) and out[1] is t and out[2] == 12 and out[3] == "text" and out[4] is out[0]


def test_constants_views_and_memory_in_place():
    x, c, a, b, v = flat("x", 8), flat("c", 8, kind="constant"), flat("a", 8), flat("b", 4), flat("v", 4)
    value = torch.arange(8.0)
    steps = [
        Alloc(a),
        Launch(add_constant(8, 1.0), [c], [a]),
        View(v, a, 4),
        Alloc(b),
        Launch(add_constant(4, 10.0), [v], [b]),
        Free(a),
    ]
    graph = compiled(Schedule(steps, [x], [OutputSpec("buffer", b)], constants={"c": value}))
    assert graph(torch.zeros(8))[0].equal(value[4:] + 11)
    assert python_plan(graph.generated, graph.kernels)(torch.zeros(8))[0].equal(value[4:] + 11)
    out, again = flat("out", 8), flat("again", 8)
    steps = [
        Alloc(a),
        Launch(add_constant(8, 1.0), [x], [a]),
        Alloc(out, a),
        Launch(add_constant(8, 2.0), [a], [out]),
        Alloc(again),
        Launch(add_constant(8, 3.0), [out], [again]),
        Free(out),
    ]
    graph = compiled(Schedule(steps, [x], [OutputSpec("buffer", again)]))
    t = torch.randn(8)
    assert graph(t)[0].equal(t + 1 + 2 + 3) and python_plan(graph.generated, graph.kernels)(t)[0].equal(t + 1 + 2 + 3)


def test_torch_s_own_kernels_in_the_plan():
    x, w, m, o = (flat("x", 4) for _ in range(4))
    for b, name, shape, stride in (
        (x, "x", (3, 4), (4, 1)),
        (w, "w", (4, 5), (5, 1)),
        (m, "m", (3, 5), (5, 1)),
        (o, "o", (3, 5), (5, 1)),
    ):
        b.name, b.shape, b.stride = name, shape, stride
    flat_m, flat_o = flat("fm", 15), flat("fo", 15)
    mm = torch.ops.aten.mm
    steps = [
        Alloc(m),
        Extern(mm.default, (x, w), {}, [m], mm.out, ("out",), "matrix product"),
        View(flat_m, m),
        Alloc(o),
        View(flat_o, o),
        Launch(add_constant(15, 1.0), [flat_m], [flat_o]),
    ]
    graph = compiled(Schedule(steps, [x, w], [OutputSpec("buffer", o)]))
    a, b = torch.randn(3, 4, requires_grad=True), torch.randn(4, 5)
    assert graph.extern_count == 1 and "matrix product" in graph.plan_source
    assert graph.how == "program" or native is None
    for run in (graph, python_plan(graph.generated, graph.kernels)):
        (got,) = run(a, b)
        torch.testing.assert_close(got, a.detach() @ b + 1)
        assert not got.requires_grad and torch.is_grad_enabled()
    precision = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("medium")  # torch multiplies, and no BLAS of ours
    try:
        with pytest.raises(RuntimeError, match="mat1 and mat2 shapes"):
            graph(a, torch.randn(7, 5))  # (guards let no such call through: the error is torch's own)
    finally:
        torch.set_float32_matmul_precision(precision)
    assert torch.is_grad_enabled()


def test_what_torch_is_handed_has_the_planned_dtype_whatever_its_memory_was_before():
    """Temporaries of other dtypes lie in one another's memory; a tensor that a call of torch's is given has memory of
    its own dtype.
    """
    x, a, b, c, seen, o = (flat(n, 8) for n in ("x", "a", "b", "c", "seen", "o"))
    for t in (a, b, c):
        t.name = f"buf_{t.name}"
    a.dtype, seen.name, o.name = torch.int32, "seen", "o"
    neg = torch.ops.aten.neg
    kernel = add_constant(8, 1.0)
    steps = [
        Alloc(a),
        Alloc(b, a),
        Launch(kernel, [x], [b]),
        Alloc(c, b),
        Launch(kernel, [b], [c]),
        View(seen, c),
        Extern(neg.default, (seen,), {}, [o], reason="no lowering rule"),
    ]
    graph = compiled(Schedule(steps, [x], [OutputSpec("buffer", o)]))
    t = torch.randn(8)
    assert graph(t)[0].equal(-(t + 1 + 1))
    assert graph.how == "program" or native is None


def test_memory_that_was_made_anew_is_not_taken_for_the_larger_block_that_was_planned():
    """A small buffer in a large block of another dtype, given to torch and so made on its own; then a large one in what
    was the block.
    """
    x, y = flat("x", 4096), flat("y", 8)
    large, small, neg, later, o = (
        flat("large", 4096, torch.int32),
        flat("small", 8),
        flat("neg", 8),
        flat("later", 4096),
        flat("o", 4096),
    )
    one = [Extern(torch.ops.aten.neg.default, (small,), {}, [neg], reason="no lowering rule")]
    steps = [
        Alloc(large),
        Alloc(small, large),
        Launch(add_constant(8, 1.0), [y], [small]),
        *one,
        Alloc(later, small),
        Launch(add_constant(4096, 1.0), [x], [later]),
        Alloc(o),
        Launch(add_constant(4096, 1.0), [later], [o]),
    ]
    generated = generate(Schedule(steps, [x, y], [OutputSpec("buffer", o), OutputSpec("buffer", neg)]), Options())
    builder = ProgramBuilder(generated, {}, Options())
    assert builder.fresh == {id(small), id(later)} and builder._root(later) is later


def _matrix(name, rows, columns, by_columns=False, dtype=torch.float16):
    return Buffer(name, dtype, (rows, columns), (1, rows) if by_columns else (columns, 1))


def test_what_the_library_of_a_gpu_is_asked_for():
    """By rows or by columns, with a bias or none, the result's dtype last; factors, other sums, vectors and
    deterministic algorithms are torch's.
    """
    aten = torch.ops.aten
    out, a, at, b, bt = (
        _matrix("out", 6, 8),
        _matrix("a", 6, 4),
        _matrix("at", 6, 4, True),
        _matrix("b", 4, 8),
        _matrix("bt", 4, 8, True),
    )
    bias, full = Buffer("bias", torch.float16, (8,), (1,)), _matrix("full", 6, 8)

    def asked(*args, cuda=0, out=out, **factors):
        mm = aten.mm if len(args) == 2 else aten.addmm
        s = Schedule(
            [Alloc(out), Extern(mm.default, args, factors, [out], mm.out, ("out",))],
            list(args),
            [OutputSpec("buffer", out)],
        )
        builder = ProgramBuilder(Generated(s, [], {}, None, None, cuda=cuda), {}, Options())
        builder.input_at = {id(x): i for i, x in enumerate(args)}
        builder.slot_of[id(out)] = 0
        return builder._extern(s.steps[1], {})[-2]

    half = 2
    assert asked(a, b) == (half, 0, 0, 0, 6, 8, 4, 4, 8, 8, half)
    assert asked(at, bt) == (half, 0, 1, 1, 6, 8, 4, 6, 4, 8, half)
    assert asked(bias, a, bt, beta=1, alpha=1) == (half, 1, 0, 1, 6, 8, 4, 4, 4, 8, half)
    assert (
        asked(bias, a, b, beta=0.5, alpha=2.0) == ()
        and asked(full, a, b, beta=1, alpha=1) == ()
        and asked(a, b, cuda=None) == ()
    )
    assert asked(_matrix("row", 1, 4), b, out=_matrix("out1", 1, 8)) == ()
    torch.use_deterministic_algorithms(True)
    try:
        assert asked(a, b) == ()
    finally:
        torch.use_deterministic_algorithms(False)


def test_mutated_inputs():
    x, b = flat("x", 10), flat("buf0", 10)
    s = Schedule([Alloc(b), Launch(add_constant(10, 1.0), [x], [b])], [x], [OutputSpec("input", 0)], mutations=[(0, b)])
    t = torch.randn(10)
    want, version = t + 1, t._version
    (out,) = compiled(s)(t)
    assert out is t and t.equal(want) and t._version > version
    v = flat("v", 10)
    s = Schedule(
        [View(v, x), Launch(add_constant(10, 1.0), [x], [v])], [x], [OutputSpec("input", 0)], written=[0], counted=[0]
    )
    version = t._version
    compiled(s)(t)
    assert t.equal(want + 1) and t._version > version


def test_outputs_that_are_views():
    x = flat("x", 10)
    s = Schedule([], [x], [OutputSpec("view", (0, (5,), (2,), as_expr(1)))])
    t = torch.arange(20.0)[10:]
    (out,) = compiled(s)(t)
    assert out.equal(t[1::2]) and out._base is not None and out.data_ptr() == t.data_ptr() + 4


@needs_native
def test_wrong_arguments_are_errors():
    graph = compiled(chain_schedule(10, 1.0))
    with pytest.raises(TypeError, match="takes 1 inputs"):
        graph()
    with pytest.raises(TypeError, match="expected a tensor, got list"):
        graph([1.0])
    kernel = graph.kernels["add_constant"]
    with pytest.raises(TypeError, match="2 tensors"):
        kernel(torch.zeros(10))
    assert "add_constant" in repr(kernel)


@needs_native
def test_nothing_is_leaked():
    graph = compiled(chain_schedule(1000, 1.0, 2.0))
    x = torch.randn(1000)
    before = sys.getrefcount(x)
    for _ in range(100):
        (out,) = graph(x)
    assert sys.getrefcount(x) == before and sys.getrefcount(out) == 2
    alive = weakref.ref(graph)
    del graph
    gc.collect()
    assert alive() is None


@needs_native
def test_threads_of_torch_are_honoured(monkeypatch):
    graph = compiled(chain_schedule(1 << 20, 1.0))
    x = torch.randn(1 << 20)
    before = torch.get_num_threads()
    try:
        for n in (1, 2, 3):
            torch.set_num_threads(n)
            assert native.launcher_threads() == n
            assert graph(x)[0].equal(x + 1)
    finally:
        torch.set_num_threads(before)


@needs_native
def test_calls_from_several_threads():
    graph = compiled(chain_schedule(200_000, 1.0, 2.0))
    bad = []

    def run(seed):
        x = torch.full((200_000,), float(seed))
        for _ in range(20):
            if not graph(x)[0].equal(x + 1 + 2):
                bad.append(seed)

    threads = [threading.Thread(target=run, args=(k,)) for k in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not bad


def _child(graph, x, queue):
    (out,) = graph(x)  # torch's own parallel kernels would hang here: they are not called
    queue.put([out[k].item() for k in (0, 1000, 500_000, (1 << 20) - 1)])


@needs_native
def test_after_a_fork_the_child_runs():
    graph = compiled(chain_schedule(1 << 20, 1.0))
    x = torch.ones(1 << 20)
    graph(x)  # starts the threads, which a fork does not copy
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    child = context.Process(target=_child, args=(graph, x, queue))
    child.start()
    try:
        child.join(60)
        assert child.exitcode == 0 and queue.get(timeout=10) == [2.0] * 4
    finally:
        if child.is_alive():
            child.kill()


def test_no_foreign_compiler_is_imported():
    import os
    import subprocess

    text = (
        "import sys, torch\nfrom tests.runtime.helper import *\n"
        "compiled(chain_schedule(10, 1.0))(torch.randn(10))\nassert 'torch._dynamo' not in sys.modules and 'sympy' not in sys.modules\n"
    )
    root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    subprocess.run([sys.executable, "-c", text], cwd=root, check=True)

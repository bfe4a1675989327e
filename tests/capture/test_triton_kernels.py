"""The program's Triton kernels in captured code. They run through Triton's interpreter here, as a GPU is not needed to
see what capture makes of a launch; tests/gpu has them on a device.
"""

import os
import subprocess
import sys
import textwrap

import pytest
import torch

import tcompile
from tcompile.compiler import events

triton = pytest.importorskip("triton")
import triton.language as tl  # noqa: E402
from triton.runtime.interpreter import InterpretedFunction  # noqa: E402
from triton.runtime.jit import JITFunction  # noqa: E402

from tcompile.compiler.ops.triton_kernels import KernelCall, operator_for  # noqa: E402


def add_kernel(x_ptr, y_ptr, out_ptr, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = at < n
    tl.store(out_ptr + at, tl.load(x_ptr + at, mask=mask) + tl.load(y_ptr + at, mask=mask), mask=mask)


def scale_kernel(x_ptr, by, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = at < n
    tl.store(x_ptr + at, tl.load(x_ptr + at, mask=mask) * by, mask=mask)


def row_sum_kernel(x_ptr, out_ptr, stride, columns, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    total = tl.load(x_ptr + row * stride)
    for i in range(1, columns):
        total += tl.load(x_ptr + row * stride + i)
    tl.store(out_ptr + row, total)


def count_kernel(x_ptr, total_ptr, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + at, mask=at < n, other=0.0)
    tl.atomic_add(total_ptr + at * 0, (x > 0).to(tl.int32))


def copy_while_kernel(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    p, q = x_ptr, out_ptr
    for _ in range(0, n):
        tl.store(q, tl.load(p))
        p += 1
        q += 1


def ends_early_kernel(x_ptr, index_ptr, out_ptr, n, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    at = tl.arange(0, BLOCK)
    if tl.load(index_ptr + row) == n:
        tl.store(out_ptr + row, 0.0)
        return
    place = out_ptr
    if row % 2 == 0:
        place = out_ptr + n
    tl.store(place + row, tl.sum(tl.load(x_ptr + row * BLOCK + at, mask=at < n, other=0.0)))


def gather_kernel(x_ptr, index_ptr, out_ptr, n, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    index = tl.load(index_ptr + at, mask=at < n, other=0)
    tl.store(out_ptr + at, tl.load(x_ptr + index, mask=at < n), mask=at < n)


def nothing_kernel(x_ptr, n, BLOCK: tl.constexpr):
    tl.load(x_ptr)


add, scale, row_sum, count = map(InterpretedFunction, (add_kernel, scale_kernel, row_sum_kernel, count_kernel))


def added(x, y):
    out = torch.empty_like(x)
    grid = lambda meta: (triton.cdiv(x.numel(), meta["BLOCK"]),)  # noqa: E731
    add[grid](x, y, out, x.numel(), BLOCK=64)
    return out


def scaled_in_place(x, y):
    z = x * y
    scale[(triton.cdiv(z.numel(), 32),)](z, 3.0, n=z.numel(), BLOCK=32)
    return z.relu()


def rows(x, y):
    out = torch.empty(x.shape[0])
    row_sum[(x.shape[0],)](x, out, x.stride(0), x.shape[1], BLOCK=triton.next_power_of_2(x.shape[1]))
    return out + y.sum()


def counted(x, y):
    total = torch.zeros((), dtype=torch.int32)
    for t in (x, y, x - y):
        count[(triton.cdiv(t.numel(), 16),)](t, total, t.numel(), BLOCK=16)
    return total * 2


def over_an_operand(x, y):
    z = x * 2
    add[(triton.cdiv(z.numel(), 64),)](z, y, z, z.numel(), BLOCK=64)
    return z + y


def several(x, y):
    return added(added(x, y).tanh(), scaled_in_place(x, y)) + rows(x, y)[:, None]


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize(
    "fn", [added, scaled_in_place, over_an_operand, rows, counted, several], ids=lambda f: f.__name__
)
def test_a_launch_is_a_node_of_the_graph(fn, dynamic):
    compiled = tcompile.compile(fn, fullgraph=True, dynamic=dynamic)
    for shape in ((5, 7), (9, 33), (2, 64), (1, 5))[: 4 if dynamic else 2]:
        x, y = torch.randn(shape), torch.randn(shape)
        torch.testing.assert_close(compiled(x, y), fn(x, y))


def test_sizes_that_vary_make_no_more_entries():
    compiled, made = tcompile.compile(added, fullgraph=True, dynamic=True), []
    with events.listen(lambda e: made.append(e) if e.kind == "entry" else None):
        for n in (10, 33, 64, 129):
            x, y = torch.randn(n), torch.randn(n)
            torch.testing.assert_close(compiled(x, y), x + y)
    assert len(made) == 1


def test_an_input_is_written():
    def fn(x):
        scale[(1,)](x, 2.0, x.numel(), BLOCK=64)
        return x + 1

    x = torch.randn(20)
    want = x * 2
    torch.testing.assert_close(tcompile.compile(fn, fullgraph=True)(x), want + 1)
    torch.testing.assert_close(x, want)


def test_gradients_pass_a_launch_by():
    def fn(x):
        h = x.sin()
        return (h * added(h.detach(), h)).sum()

    x = torch.randn(6, 4, requires_grad=True)
    z = x.detach().clone().requires_grad_()
    fn(x).backward()
    tcompile.compile(fn, fullgraph=True)(z).backward()
    torch.testing.assert_close(x.grad, z.grad)


class Tripled(torch.autograd.Function):
    """As libraries of kernels are written: launches in both passes, of kernels of the module."""

    @staticmethod
    def forward(ctx, x):
        flat = x.reshape(-1, x.shape[-1]).clone()
        for row in flat, flat[:0]:
            scale[(row.shape[0] * triton.cdiv(row.shape[1], 64),)](row, 3.0, row.numel(), BLOCK=64)
        ctx.save_for_backward(flat)
        return flat.view(x.shape)

    @staticmethod
    def backward(ctx, g):
        (flat,) = ctx.saved_tensors
        out = torch.empty_like(g)
        add[(triton.cdiv(g.numel(), 64),)](g, flat.view(g.shape), out, g.numel(), BLOCK=64)
        return out


def test_launches_in_forward_and_backward():
    def fn(x):
        return Tripled.apply(x.sin()) * 2

    compiled = tcompile.compile(fn, fullgraph=True)
    for shape in ((2, 3, 8), (4, 3, 8), (4, 5, 8)):  # (grids of sizes that vary, inside of a body)
        x = torch.randn(shape, requires_grad=True)
        y = x.detach().clone().requires_grad_()
        for f, t in ((fn, x), (compiled, y)):
            f(t).square().sum().backward()
        torch.testing.assert_close(y.grad, x.grad)


class WritesWhatIsGiven(torch.autograd.Function):
    """Its backward writes gradients where forward's argument lies, to save memory."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.sin()

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        add[(triton.cdiv(g.numel(), 64),)](g, x.cos(), x, g.numel(), BLOCK=64)
        return x


def test_a_backward_that_writes_to_an_argument():
    made = lambda x: WritesWhatIsGiven.apply(x * 2)  # noqa: E731
    for f, fallbacks in ((made, 0), (WritesWhatIsGiven.apply, 1)):
        # (the argument is a value of the graph, or an input)
        x = torch.randn(20, requires_grad=True)
        y = x.detach().clone().requires_grad_()
        with tcompile.record() as r:
            tcompile.compile(lambda t: f(t) * 3)(y).sum().backward()
        (f(x) * 3).sum().backward()
        torch.testing.assert_close(y.grad, x.grad)
        torch.testing.assert_close(y.detach(), x.detach())
        assert len(r.report().fallbacks) == fallbacks, r.report().fallbacks


def test_another_kernel_of_that_name_is_another_program():
    kernel = scale

    def fn(x):
        y = x.clone()
        kernel[(1,)](y, 2.0, y.numel(), BLOCK=64)
        return y

    def negate_kernel(x_ptr, by, n, BLOCK: tl.constexpr):
        at = tl.arange(0, BLOCK)
        tl.store(x_ptr + at, -tl.load(x_ptr + at, mask=at < n), mask=at < n)

    compiled, x = tcompile.compile(fn), torch.randn(20)
    torch.testing.assert_close(compiled(x), x * 2)
    kernel = InterpretedFunction(negate_kernel)
    torch.testing.assert_close(compiled(x), -x)


def test_heuristics_are_the_programs():
    heuristic = triton.heuristics({"BLOCK": lambda args: triton.next_power_of_2(args["n"])})(
        InterpretedFunction(scale_kernel)
    )

    def fn(x):
        y = x * 1
        heuristic[(1,)](y, 0.5, y.numel())
        return y

    compiled = tcompile.compile(fn, fullgraph=True)
    for n in (3, 100):
        x = torch.randn(n)
        torch.testing.assert_close(compiled(x), x * 0.5)


def test_a_grid_without_programs():
    compiled = tcompile.compile(added, dynamic=True)
    for n in (7, 0, 3):
        x = torch.randn(n)
        torch.testing.assert_close(compiled(x, x), x + x)


WRITES = {
    add_kernel: (["x_ptr", "y_ptr", "out_ptr"], {"out_ptr"}),
    scale_kernel: (["x_ptr"], {"x_ptr"}),
    row_sum_kernel: (["x_ptr", "out_ptr"], {"out_ptr"}),
    count_kernel: (["x_ptr", "total_ptr"], {"total_ptr"}),
    copy_while_kernel: (["x_ptr", "out_ptr"], {"out_ptr"}),
    gather_kernel: (["x_ptr", "index_ptr", "out_ptr"], {"out_ptr", "index_ptr"} - {"index_ptr"}),
    ends_early_kernel: (["x_ptr", "index_ptr", "out_ptr"], {"out_ptr"}),
    nothing_kernel: (["x_ptr"], set()),
}


@pytest.mark.parametrize("fn", WRITES, ids=lambda f: f.__name__)
def test_what_a_kernel_writes_is_read_from_its_ir(fn):
    tensors, written = WRITES[fn]
    kernel = JITFunction(fn)
    others = [n for n in kernel.arg_names if n not in tensors and n != "BLOCK"]
    kinds = {"total_ptr": torch.int32, "index_ptr": torch.int64}
    call = KernelCall(
        (
            *((n, "tensor", None) for n in tensors),
            *((n, "float" if n == "by" else "int", None) for n in others),
            ("BLOCK", "fixed", 64),
        ),
        tuple(kinds.get(n, torch.float32) for n in tensors),
        0,
        (),
        (),
        1,
    )
    schema = operator_for(kernel, call)._schema
    found = {a.name.removeprefix("p_") for a in schema.arguments if a.alias_info is not None}
    assert found == written, schema


def pointer_of_number_kernel(x_ptr, n, BLOCK: tl.constexpr):
    place = tl.load(x_ptr).to(tl.int64).to(tl.pointer_type(tl.float32))
    tl.store(place, 1.0)


def broken_kernel(x_ptr, n, BLOCK: tl.constexpr):
    tl.store(x_ptr + tl.arange(0, BLOCK), no_such_name)  # noqa: F821


@pytest.mark.parametrize("fn", [pointer_of_number_kernel, broken_kernel], ids=lambda f: f.__name__)
def test_a_kernel_that_is_not_understood_writes_all_and_says_so(fn):
    said = []
    call = KernelCall(
        (("x_ptr", "tensor", None), ("n", "int", None), ("BLOCK", "fixed", 64)), (torch.float32,), 0, (), (), 1
    )
    with events.listen(said.append):
        schema = operator_for(JITFunction(fn), call)._schema
    assert schema.arguments[0].alias_info is not None
    assert [e.what for e in said if e.kind == "fallback"] == [f"{fn.__name__} (Triton kernel)"]


PROGRAM = textwrap.dedent("""
    import torch, tcompile, triton, triton.language as tl

    @triton.jit
    def add(x, y, out, n, BLOCK: tl.constexpr):
        i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        tl.store(out + i, tl.load(x + i, i < n) + tl.load(y + i, i < n), i < n)

    tuned = triton.autotune([triton.Config({"BLOCK": 32})], key=["n"])(add)

    def launch(x, y):
        out = torch.empty_like(x)
        add[(triton.cdiv(x.numel(), 64),)](x, y, out, x.numel(), BLOCK=64)
        return out

    def launch_tuned(x, y):
        out = torch.empty_like(x)
        tuned[lambda meta: (triton.cdiv(x.numel(), meta["BLOCK"]),)](x, y, out, x.numel())
        return out

    @torch.library.custom_op("triton_kernels::add", mutates_args=())
    def operator(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return launch(x, y)

    @operator.register_fake
    def _(x, y):
        return torch.empty_like(x)

    def launch_wrapped(x, y):
        out = torch.empty_like(x)
        torch.library.wrap_triton(add)[(triton.cdiv(x.numel(), 64),)](x, y, out, x.numel(), BLOCK=64)
        return out

    @torch.library.triton_op("triton_kernels::add_of_triton", mutates_args={})
    def triton_operator(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return launch_wrapped(x, y)

    @torch.library.triton_op("triton_kernels::scaled_sum", mutates_args={})
    def scaled_sum(x: torch.Tensor, y: torch.Tensor, a: float) -> torch.Tensor:
        return launch_wrapped(x * a, y)

    def keep(ctx, inputs, output):
        ctx.a = inputs[2]

    scaled_sum.register_autograd(lambda ctx, g: (launch(g * ctx.a, g), g * 2, None), setup_context=keep)

    for n in (100, 70):
        x, y = torch.randn(n, requires_grad=True), torch.randn(n, requires_grad=True)
        fn = lambda x, y: scaled_sum(x.sin(), y, 3.0).square()
        with tcompile.record() as r:
            found = torch.autograd.grad(tcompile.compile(fn)(x, y).sum(), (x, y))
        for a, b in zip(found, torch.autograd.grad(fn(x, y).sum(), (x, y))):
            torch.testing.assert_close(a, b)
        assert not r.report().graph_breaks and not r.report().fallbacks, r.report()

    x, y = torch.randn(100), torch.randn(100)
    for f in (launch, launch_tuned, operator, triton_operator):
        report = tcompile.explain(lambda x, y: f(x.sin(), y) * 2)(x, y)
        torch.testing.assert_close(report.result, (x.sin() + y) * 2)
        assert not report.graph_breaks and len(report.graphs) == 1, (f, report.graph_breaks)
        assert not any("internal" in x.reason for x in report.fallbacks)
""")


@pytest.mark.slow
def test_kernels_of_a_program_as_it_is_written(tmp_path):
    file = tmp_path / "program.py"
    file.write_text(PROGRAM + "print('done')")
    env = {**os.environ, "TRITON_INTERPRET": "1"}
    done = subprocess.run([sys.executable, str(file)], text=True, capture_output=True, timeout=300, env=env)
    assert done.stdout == "done\n", done.stderr[-3000:]

"""Products of groups as tiles of ours: beside float64 and eager, whatever the groups are."""

import pytest
import torch
import torch.nn.functional as F

import tcompile

pytest.importorskip("triton")

from tcompile.compiler.codegen.kernel_cost import kernel_cost  # noqa: E402
from tcompile.compiler.codegen.triton.layout import Choices, GpuTarget  # noqa: E402
from tcompile.compiler.codegen.triton.product import product_choices  # noqa: E402
from tcompile.compiler.config import Options  # noqa: E402
from ...oracles.loop_interpreter import run_schedule  # noqa: E402
from tcompile.compiler.fusion.schedule import Launch  # noqa: E402
from tcompile.compiler.runtime.gpu.compile import Job, compile_all  # noqa: E402

from .as_gpu import as_gpu, kinds, train_as_gpu  # noqa: E402
from .interpreter import Interpreted, print_kernel, run  # noqa: E402
from .test_compiled import usage  # noqa: E402

pytestmark = pytest.mark.slow

bf16, f16 = torch.bfloat16, torch.float16
OURS = {"gpu_products": "generated"}
PARTS = {
    "some empty, rows left over": (3, 3, 29, 35),
    "one has all": (0, 0, 40, 40),
    "one has a row": (1, 17, 40, 40),
    "none has any": (0, 0, 0, 0),
    "alike": (10, 20, 30, 40),
}


def ends(*n):
    return torch.tensor(n, dtype=torch.int32)


def random(*shape, dtype=bf16):
    return (torch.randn(shape) / shape[-2] ** 0.5).to(dtype)


def one_by_one(a, b, offs):
    """torch._grouped_mm of any numbers; 0 where nothing belongs to a group."""
    e = offs.tolist()
    parts = list(zip([0, *e], e, strict=False))
    if a.ndim == b.ndim:
        return torch.stack([a[:, i:j] @ b[i:j] for i, j in parts])
    left = (e[-1], a.shape[0]) if a.ndim == 2 else (e[-1], b.shape[-1])
    if a.ndim == 2:
        return torch.cat(
            [*(a[i:j] @ b[g] for g, (i, j) in enumerate(parts)), a.new_zeros(left[1] - left[0], b.shape[-1])]
        )
    return torch.cat(
        [*(a[g] @ b[:, i:j] for g, (i, j) in enumerate(parts)), a.new_zeros(a.shape[1], left[1] - left[0])], -1
    )


def by_groups(a, b, offs):
    return torch._grouped_mm(a, b, offs=offs)


def near(make, *inputs, options=OURS, whole=slice(None), interpreted=False):
    """make(product): a function of the inputs. As far from float64 as the same in 16 bits is, up to twice."""
    fn = make(by_groups)
    g = as_gpu(fn, *inputs, options=options)
    named = dict(zip(fn.__code__.co_varnames, inputs, strict=False))
    given = [named[b.name] for b in g.schedule.inputs]
    exact, eager = (
        make(one_by_one)(*(t.double() if t.is_floating_point() else t for t in inputs)),
        make(one_by_one)(*inputs),
    )
    likewise = fn(*inputs)
    for got in [run(g, given)[0], *([run_schedule(g.schedule, given)[0]] if interpreted else ())]:
        assert got.shape == eager.shape and got.dtype == likewise.dtype and got.stride() == likewise.stride()
        assert (got.double() - exact).abs().max() <= 2 * (eager.double() - exact).abs().max() + 1e-3
    return g


@pytest.mark.parametrize("parts", PARTS)
@pytest.mark.parametrize("dtype", [bf16, f16])
def test_rows_in_groups(parts, dtype):
    """What lies behind the last group is 0 and not, as eager's, what was in memory."""
    x, w, offs = random(40, 32, dtype=dtype), random(4, 32, 24, dtype=dtype), ends(*PARTS[parts])
    assert kinds(near(lambda mm: lambda x, w, offs: mm(x, w, offs), x, w, offs, interpreted=True)) == ["product"]
    v = w.mT.contiguous()
    assert kinds(near(lambda mm: lambda x, v, offs: F.silu(mm(x, v.mT, offs)), x, v, offs)) == ["product"]


def test_what_follows_joins():
    x, w, offs = random(45, 48), random(3, 48, 40), ends(7, 8, 45)
    v, u, bias, score, residual = (
        random(3, 48, 40),
        random(3, 40, 48),
        random(40, 1)[:, 0].contiguous(),
        torch.rand(45, 1).to(bf16),
        random(45, 40),
    )
    assert kinds(near(lambda mm: lambda x, w, offs, bias: F.gelu(mm(x, w, offs) + bias), x, w, offs, bias)) == [
        "product"
    ]
    assert kinds(
        near(
            lambda mm: lambda x, w, offs, score, residual: mm(x, w, offs) * score + residual,
            x,
            w,
            offs,
            score,
            residual,
        )
    ) == ["product"]
    assert kinds(near(lambda mm: lambda x, w, offs: mm(x, w, offs).float().sigmoid(), x, w, offs)) == ["product"]
    assert (
        kinds(
            near(
                lambda mm: lambda x, w, v, u, offs: mm(F.silu(mm(x, w, offs)) * mm(x, v, offs), u, offs),
                x,
                w,
                v,
                u,
                offs,
            )
        )
        == ["product"] * 3
    )


def test_what_is_read_by_index_behind_a_product():
    """Weights of rows in the order of the experts: their indices are checked in the product's kernel, in all rows."""
    x, w, offs = random(45, 48), random(3, 48, 40), ends(7, 8, 44)
    score, order = torch.rand(45).to(bf16), torch.randperm(45)
    g = near(
        lambda mm: lambda x, w, offs, score, order: mm(x, w, offs) * score[order][:, None], x, w, offs, score, order
    )
    assert kinds(g) == ["product"] and g.kernels[0].kernel.checks and g.kernels[0].source.asserts
    order[-1] = 45
    with pytest.raises(AssertionError, match="out of bounds"):
        run(g, [{"x": x, "w": w, "offs": offs, "score": score, "order": order}[b.name] for b in g.schedule.inputs])
    score = torch.rand(3, 40).to(bf16)  # the bias of the row's expert
    expert = torch.searchsorted(offs.long(), torch.arange(45), right=True).clamp(max=2)
    assert kinds(
        near(lambda mm: lambda x, w, offs, score, expert: mm(x, w, offs) + score[expert], x, w, offs, score, expert)
    ) == ["product"]


@pytest.mark.parametrize("rows", [8, 45])
def test_whatever_shape_follows_it_stays_a_product_of_tiles(rows):
    x, w, offs = random(rows, 48), random(3, 48, 40), ends(2, 2, rows - 1)
    near_ = [
        near(lambda mm: lambda x, w, offs: mm(x, w, offs).t().contiguous() * 2, x, w, offs),
        near(lambda mm: lambda x, w, offs: mm(x, w, offs).view(-1, 1, 8, 5).transpose(1, 2) + 1, x, w, offs),
        near(lambda mm: lambda x, w, offs: mm(x, w, offs).view(rows // (rows % 8 or 4), -1, 40).sin(), x, w, offs),
        near(lambda mm: lambda x, w, offs: mm(x, w, offs).view(-1).sigmoid(), x, w, offs),
        near(lambda mm: lambda x, w, offs: torch.cat([mm(x, w, offs), x], 1).relu(), x, w, offs),
        near(lambda mm: lambda x, w, offs: mm(x, w, offs)[1:, ::2].neg(), x, w, offs),
        near(lambda mm: lambda x, w, offs: mm(x, w, offs).float().softmax(-1), x, w, offs),
        near(lambda mm: lambda x, w, offs: torch.chunk(mm(x, w, offs), 2, -1)[0].exp(), x, w, offs),
        near(lambda mm: lambda x, w, offs: mm(x, w, offs).sum(0) * 2, x, w, offs),
    ]
    assert all("product" in kinds(g) for g in near_)


def test_what_is_made_beside_a_product_is_made_in_all_rows():
    """Rows behind the last group are rows of what has no groups."""
    x, w, offs, y = random(40, 32), random(4, 32, 24), ends(3, 3, 29, 31), random(40, 24)

    def f(x, w, offs, y):
        z = torch.tanh(y)
        return torch._grouped_mm(x, w, offs=offs) * z, z

    g = as_gpu(f, x, w, offs, y, options=OURS)
    assert kinds(g) == ["product"] and len(g.kernels[0].kernel.outputs) == 2
    torch.testing.assert_close(run(g, [y, x, w, offs])[1], torch.tanh(y))


@pytest.mark.parametrize("rows", [2, 16, 130])
@pytest.mark.parametrize("groups", [1, 7, 64])
def test_sizes_that_fill_no_tile(rows, groups):
    torch.manual_seed(rows + groups)
    offs = torch.sort(torch.randint(0, rows + 1, (groups,))).values.to(torch.int32)
    x, w = random(rows, 72), random(groups, 72, 56)
    assert kinds(
        near(lambda mm: lambda x, w, offs: torch.relu(mm(x, w, offs)), x, w, offs, interpreted=groups == 7)
    ) == ["product"]


@pytest.mark.parametrize("parts", PARTS)
def test_columns_in_groups(parts):
    a, x, offs = random(4, 24, 32), random(32, 40), ends(*PARTS[parts])
    assert kinds(near(lambda mm: lambda a, x, offs: mm(a, x, offs) * 2, a, x, offs, interpreted=True)) == ["product"]


@pytest.mark.parametrize("parts", PARTS)
def test_sums_in_groups(parts):
    """Gradients of the weights."""
    a, x, offs = random(40, 24).t(), random(40, 56), ends(*PARTS[parts])
    a[3, :2], x[-5:] = float("inf") if parts == "one has all" else 1.0, float("nan") if offs[-1] <= 35 else 1.0
    g = near(lambda mm: lambda a, x, offs: mm(a, x, offs), a.nan_to_num(posinf=3.0), x, offs, interpreted=True)
    assert kinds(g) == ["product"]
    assert kernel_cost(g.kernels[0].kernel)[1] == 2 * 24 * 56 * 40, "each row is in one of the sums"


def test_a_batch_is_a_product_like_any_other():
    a, b = random(3, 40, 32), random(3, 32, 24)
    g = as_gpu(lambda a, b: torch._grouped_mm(a, b) + 1, a, b, options=OURS)
    assert kinds(g) == ["product"]
    torch.testing.assert_close(run(g, [a, b])[0], torch.bmm(a, b) + 1, rtol=2e-2, atol=2e-2)


def test_weights_of_few_bits_are_unpacked_inside():
    x, q, s, offs = (
        random(20, 64),
        torch.randint(-127, 128, (4, 64, 32), dtype=torch.int8),
        torch.rand(4, 1, 32).to(bf16) / 50,
        ends(3, 3, 11, 20),
    )
    assert kinds(
        near(lambda mm: lambda x, q, s, offs: mm(x, q.to(x.dtype) * s, offs), x, q, s, offs, options=None)
    ) == ["product"]


def test_ends_that_are_part_of_a_tensor():
    x, w, table = random(40, 32), random(3, 32, 24), torch.tensor([[9, 5], [9, 20], [9, 31]], dtype=torch.int32)
    try:
        torch._grouped_mm(x, w, offs=table[:, 1])
    except RuntimeError as refused:  # from torch 2.14 on
        assert "stride" in str(refused)
    else:
        assert kinds(near(lambda mm: lambda x, w, table: mm(x, w, table[:, 1]), x, w, table)) == ["product"]
    assert "product" in kinds(
        near(
            lambda mm: lambda x, w, table: mm(x, w, (table[:, 1] + 1).cumsum(0, dtype=torch.int32)[:3] // 2),
            x,
            w,
            table,
        )
    )


def test_rows_of_which_there_are_none():
    x, w, offs = random(16, 32)[:0], random(4, 32, 24), ends(0, 0, 0, 0)
    g = as_gpu(lambda x, w, offs: torch._grouped_mm(x, w, offs=offs) * 2, x, w, offs, options=OURS)
    assert run(g, [x, w, offs])[0].shape == (0, 24)


def test_rows_that_vary_in_number():
    w, offs = random(4, 32, 24), ends(5, 5, 20, 33)
    fn = lambda x, w, offs: torch.relu(torch._grouped_mm(x, w, offs=offs))  # noqa: E731
    x = random(40, 32)
    tcompile.mark_dynamic(x, 0)
    g = as_gpu(fn, x, w, offs, options=OURS, dynamic=None)
    assert kinds(g) == ["product"] and g.kernels[0].kernel.sizes
    for n in (33, 40, 77):
        x = random(n, 32)
        given = [{"x": x, "w": w, "offs": offs}.get(getattr(b, "name", None), n) for b in g.schedule.inputs]
        torch.testing.assert_close(run(g, given)[0][:33], fn(x, w, offs)[:33], rtol=2e-2, atol=2e-2)


def test_other_tiles_give_the_same():
    x, w, offs = random(150, 64), random(2, 64, 40), ends(70, 149)
    g = near(lambda mm: lambda x, w, offs: torch.tanh(mm(x, w, offs)), x, w, offs)
    k, want = g.kernels[0], run(g, [x, w, offs])[0]
    assert k.source.choices["groups"] == 2
    for c in (Choices(xblock=16, yblock=16, rblock=16), *product_choices(k.source.choices)[:3]):
        out = torch.empty_like(want)
        Interpreted(k, print_kernel(k.kernel, g.target, c))(x, offs, w, out)
        torch.testing.assert_close(out, want, rtol=1e-2, atol=1e-2)


def test_the_library_multiplies_where_nothing_says_otherwise():
    x, w, offs = random(40, 64), random(4, 64, 32), ends(3, 3, 29, 40)

    def f(x, w, offs):
        return torch._grouped_mm(x, w, offs=offs) + 1

    for options in (None, {"gpu_products": "library"}, {"emulate_precision": True, **OURS}):
        assert "aten._grouped_mm.default" in kinds(as_gpu(f, x, w, offs, options=options))
    assert "aten._grouped_mm.default" in kinds(as_gpu(f, x.float(), w.float(), offs, options=OURS))


def test_the_library_is_left_where_it_is_slower_for_certain():
    def f(x, w, offs):
        return torch._grouped_mm(x, w, offs=offs) + 1

    w, offs = random(4, 64, 32), ends(3, 3, 29, 32)
    assert kinds(near(lambda mm: lambda x, w, offs: mm(x, w, offs) + 1, random(32, 64), w, offs, options=None)) == [
        "product"
    ], "few rows of each group"
    assert kinds(as_gpu(f, random(40, 64).half(), w.half(), offs)) == ["product"], "float16"
    for x, options, dynamic in (
        (random(33, 64), None, False),
        (random(32, 64), {"gpu_products": "library"}, False),
        (random(32, 64), None, True),
    ):
        if dynamic:
            tcompile.mark_dynamic(x, 0)
        assert "aten._grouped_mm.default" in kinds(
            as_gpu(f, x, w, offs, options=options, dynamic=None if dynamic else False)
        )


def test_training():
    """The gated layer of an expert: its gradients are products of groups, too."""
    x, w, v, u, offs = (
        *(random(*s).requires_grad_() for s in ((40, 32), (4, 32, 24), (4, 32, 24), (4, 24, 32))),
        ends(3, 3, 29, 40),
    )

    def f(x, w, v, u, offs):
        return torch._grouped_mm(
            F.silu(torch._grouped_mm(x, w, offs=offs)) * torch._grouped_mm(x, v, offs=offs), u, offs=offs
        )

    p, forward, backward = train_as_gpu(f, x, w, v, u, offs, options=OURS)
    assert kinds(forward) == ["product"] * 3
    assert [backward.of(s).source.choices["shape"] for s in backward.schedule.steps if isinstance(s, Launch)].count(
        "product"
    ) == 6
    named = {"x": x, "w": w, "v": v, "u": u, "offs": offs}
    with torch.no_grad():
        out, *kept = run(forward, [named[b.name] for b in forward.schedule.inputs])
        grad = random(40, 32)
        got = run(backward, [*(named[forward.schedule.inputs[i].name] for i in p.saved_inputs), *kept, grad])
    want = f(x, w, v, u, offs)
    want.backward(grad)
    torch.testing.assert_close(out, want, rtol=3e-2, atol=3e-2)
    for a, b in zip(got, (x, w, v, u), strict=True):
        torch.testing.assert_close(a, b.grad, rtol=3e-2, atol=3e-2)


def test_kernels_of_earlier_graphs_are_printed_as_they_were():
    """(With indices of 64 bits, where a call needs them.)"""
    x, w, offs = random(40, 32), random(4, 32, 24), ends(3, 3, 29, 40)
    kept = [
        as_gpu(lambda x, w, offs: torch._grouped_mm(x, w[:n], offs=offs[:n]), x, w, offs, options=OURS)
        for n in (1, 2, 3, 4)
    ]
    as_gpu(torch.sin, x)
    for n, g in enumerate(kept, 1):
        k, out = g.kernels[0], torch.empty(40, 24, dtype=bf16)
        again = print_kernel(k.kernel, g.target, wide=True)
        assert again.choices["groups"] == n and "tl.int64" in again.text
        Interpreted(k, again)(x, offs, w[:n], out)
        torch.testing.assert_close(
            out, one_by_one(x, w, torch.where(torch.arange(4) < n, offs, offs[n - 1])), rtol=2e-2, atol=2e-2
        )


def test_nothing_wide_goes_from_kernel_to_kernel():
    """Behind a product, or before the next, what is computed element by element is computed where it is read, of what
    is narrow in memory.
    """
    x, w, v, u, offs = (
        *(random(*s).requires_grad_() for s in ((40, 32), (4, 32, 24), (4, 32, 24), (4, 24, 32))),
        ends(3, 3, 29, 40),
    )

    def f(x, w, v, u, offs):
        return torch._grouped_mm(
            F.silu(torch._grouped_mm(x, w, offs=offs)) * torch._grouped_mm(x, v, offs=offs), u, offs=offs
        )

    _, forward, backward = train_as_gpu(f, x, w, v, u, offs, options=OURS)
    kernels = [s.kernel for g in (forward, backward) for s in g.schedule.steps if isinstance(s, Launch)]
    assert not [b for k in kernels for b in k.outputs if b.dtype == torch.float32]


@pytest.mark.parametrize("groups, rows, inner, columns", [(8, 4096, 2048, 1408), (8, 16, 4096, 14336)])
def test_tiles_fit_into_registers(groups, rows, inner, columns, tmp_path):
    target = GpuTarget("cuda", 90, 32, 132)
    given = (
        *(
            torch.empty(s, dtype=bf16)
            for s in ((rows, inner), (groups, inner, columns), (groups, inner, columns), (groups, columns, inner))
        ),
        ends(*range(groups)),
    )

    def f(x, w, v, u, offs):
        return torch._grouped_mm(
            F.silu(torch._grouped_mm(x, w, offs=offs)) * torch._grouped_mm(x, v, offs=offs), u, offs=offs
        )

    g = as_gpu(f, *given, target=target, options=OURS)
    assert kinds(g) == ["product"] * len(g.kernels)
    for binary in compile_all([Job(k.source, target) for k in g.kernels], Options()):
        (part,) = binary.parts
        used = usage(part.code, tmp_path)
        assert (
            used["stack"] == 0
            and used["registers"] <= (255 if rows > 64 else 64)
            and part.shared <= 227 * 1024 // (1 if rows > 64 else 3)
        ), (part.name, used, part.shared)
        assert ("wgmma" in part.assembly()) == (rows > 64)

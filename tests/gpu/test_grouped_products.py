"""Products of groups (torch._grouped_mm) as kernels of ours, on the device: as near to float64 as 16 bits are."""

import pytest
import torch
import torch.nn.functional as F

import tcompile

pytestmark = pytest.mark.skipif(
    not torch.cuda.is_available() or torch.cuda.get_device_capability() < (8, 0),
    reason="no GPU with tensor cores for bfloat16",
)
bf16, f16 = torch.bfloat16, torch.float16


def ends(groups, rows, whole=True):
    cuts = torch.sort(torch.randint(0, rows + 1, (groups,))).values
    if whole:
        cuts[-1] = rows
    return cuts.to("cuda", torch.int32)


def random(*shape, dtype=bf16):
    return (torch.randn(shape, device="cuda") / shape[-2] ** 0.5).to(dtype)


def one_by_one(x, w, offs):
    parts = [x[i:j] @ w[g] for g, (i, j) in enumerate(zip([0, *offs.tolist()], offs.tolist(), strict=False))]
    return torch.cat([*parts, x.new_zeros(x.shape[0] - int(offs[-1]), w.shape[-1])])


def by_groups(x, w, offs):
    return torch._grouped_mm(x, w, offs=offs)


def gated(mm):
    return lambda x, w, v, u, offs: mm(F.silu(mm(x, w, offs)) * mm(x, v, offs), u, offs)


def run(fn, args, grad):
    args = [a.detach().requires_grad_(grad) if a.is_floating_point() else a for a in args]
    out = fn(*args)
    if not grad:
        return [out]
    out.backward(torch.ones_like(out))
    return [out, *(a.grad for a in args if a.is_floating_point())]


@pytest.mark.parametrize("mode", ["generated", "max-autotune", "default", "reduce-overhead"])
@pytest.mark.parametrize(
    "groups, rows, inner, columns, dtype, whole",
    [
        (5, 300, 136, 200, bf16, False),
        (8, 1000, 256, 384, f16, True),
        (33, 64, 128, 64, bf16, False),
        (3, 4000, 64, 512, bf16, True),
        (128, 16, 512, 256, bf16, True),
    ],
)
def test_experts_with_a_gate(groups, rows, inner, columns, dtype, whole, mode):
    torch.manual_seed(groups)
    sizes = (rows, inner), (groups, inner, columns), (groups, inner, columns), (groups, columns, inner)
    args = [*(random(*s, dtype=dtype) for s in sizes), ends(groups, rows, whole)]
    c = (
        tcompile.compile(gated(by_groups), options={"gpu_products": "generated"})
        if mode == "generated"
        else tcompile.compile(gated(by_groups), mode=mode)
    )
    last = int(args[-1][-1])
    for grad in (False, True) if whole else (False,):
        exact, like = (
            run(gated(one_by_one), a, grad) for a in ([t.double() if t.is_floating_point() else t for t in args], args)
        )
        for _ in range(4):
            for got, x, e in zip(run(c, args, grad), exact, like, strict=True):
                rows_of = slice(last) if got.shape[0] == rows and got.ndim == 2 else slice(None)
                assert (
                    got.dtype == e.dtype
                    and (got[rows_of].double() - x[rows_of]).norm()
                    <= 1.5 * (e[rows_of].double() - x[rows_of]).norm() + 1e-6
                )


def test_groups_that_vary_from_call_to_call_and_in_replays():
    x, w = random(200, 64), random(6, 64, 96)
    for mode in ("reduce-overhead", "max-autotune"):
        c = tcompile.compile(lambda x, w, offs: torch.relu(by_groups(x, w, offs)), mode=mode, options=None)
        d = tcompile.compile(
            lambda x, w, offs: torch.relu(by_groups(x, w, offs)),
            options={"gpu_products": "generated", "cudagraphs": True},
        )
        with torch.no_grad():
            for _ in range(8):
                offs = ends(6, 200)
                want = torch.relu(one_by_one(x, w, offs))
                for f in (c, d):
                    torch.testing.assert_close(f(x, w, offs), want, rtol=3e-2, atol=3e-2)

"""Floats of eight bits in Triton kernels, interpreted: every byte, and every kind of rounding, as torch has them."""

import pytest
import torch

pytest.importorskip("triton")

from tcompile.compiler.codegen.triton.layout import GpuTarget  # noqa: E402

from .as_gpu import as_gpu, check_as_gpu  # noqa: E402
from .interpreter import run  # noqa: E402

TYPES = [torch.float8_e4m3fn, torch.float8_e5m2]


def bits(t: torch.Tensor) -> torch.Tensor:
    return t.view(torch.uint8)


@pytest.mark.parametrize("arch", [80, 90])
@pytest.mark.parametrize("dtype", TYPES)
def test_every_byte_is_read(dtype, arch):
    x = torch.arange(256, dtype=torch.uint8).view(dtype)

    def f(x):
        return x.float() * 2

    g = as_gpu(f, x, target=GpuTarget("cuda", arch, 32, 8))
    got, want = run(g, [x])[0], f(x)
    known = torch.isfinite(want)  # (the interpreter has no NaN in e4m3, which machines from 89 on convert themselves)
    assert torch.equal(got[known], want[known]) and (arch == 90 or torch.equal(got.isnan(), want.isnan()))
    assert not [s for s in g.schedule.steps if hasattr(s, "op")]


@pytest.mark.parametrize("dtype", TYPES)
def test_rounding(dtype):
    near = torch.arange(256, dtype=torch.uint8).view(dtype).float()
    x = torch.cat(
        [
            near,
            near * 1.0625,
            near * 0.9375,
            near * 1.03125,
            torch.randn(500) * 100,
            torch.randn(200) * 1e5,
            torch.tensor(
                [
                    0.0,
                    -0.0,
                    1e-9,
                    1e30,
                    -1e30,
                    464.0,
                    464.1,
                    479.9,
                    61439.0,
                    61440.0,
                    65536.0,
                    torch.inf,
                    -torch.inf,
                    torch.nan,
                    2.0**-10,
                    3 * 2.0**-11,
                    2.0**-17,
                    1e-40,
                ]
            ),
        ]
    )

    def f(x):
        return (x * 1).to(dtype)

    g = as_gpu(f, x)
    assert not [s for s in g.schedule.steps if hasattr(s, "op")]
    got, want = run(g, [x])[0], f(x)
    both = torch.isnan(got.float()) & torch.isnan(want.float())
    assert torch.equal(bits(got)[~both], bits(want)[~both])


def test_a_tensor_is_quantised_in_one_kernel():
    def f(x):
        s = x.abs().amax(-1, keepdim=True).float() / 448
        return (x.float() / s).to(torch.float8_e4m3fn).float(), s

    assert len(check_as_gpu(f, torch.randn(6, 300).bfloat16()).kernels) == 1
    assert check_as_gpu(
        lambda x: torch.cat([x, x], 1).t().contiguous().float(), torch.randn(6, 30).to(torch.float8_e5m2)
    ).kernels

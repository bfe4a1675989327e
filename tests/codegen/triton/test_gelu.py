"""GELU and its derivative by one exponential each, where results are rounded to 16 bits: which kernels have them, and
how near all values of 16 bits come out; rounding to bfloat16 two values at a time."""

import math
import re

import pytest
import torch
import torch.nn.functional as F

pytest.importorskip("triton")

from tcompile.compiler.codegen.triton.layout import GpuTarget  # noqa: E402
from tcompile.compiler.codegen.triton.print_kernel import print_kernel  # noqa: E402
from tcompile.compiler.config import Options  # noqa: E402
from tcompile.compiler.runtime.gpu.compile import Job, compile_all  # noqa: E402

from .as_gpu import as_gpu  # noqa: E402
from .interpreter import run  # noqa: E402

bf16, f16 = torch.bfloat16, torch.float16
backward = torch.ops.aten.gelu_backward


def all_values(dtype):
    return torch.arange(-(2**15), 2**15).to(torch.int16).view(dtype).clone()


def exact_derivative(x):
    return torch.special.ndtr(x) + x * torch.exp(-x * x / 2) / math.sqrt(2 * math.pi)


def forms(fn, *inputs, **more):
    """The short forms that the kernels of a function take."""
    text = "".join(k.source.text for k in as_gpu(fn, *inputs, **more).kernels)
    return set(re.findall(r"= (_gelu_\w+|_short_erf_plus_1|libdevice\.erf)\(", text))


@pytest.mark.parametrize("dtype, ulp", [(bf16, 2.0**-7), (f16, 2.0**-10)])
@pytest.mark.parametrize("what", ["gelu", "derivative"])
def test_all_values_of_16_bits(dtype, ulp, what):
    x = all_values(dtype)
    f, exact = {
        "gelu": (lambda x: F.gelu(x), F.gelu),
        "derivative": (lambda x: backward(torch.ones_like(x), x), exact_derivative),
    }[what]
    g = as_gpu(f, x)
    (got,), eager, want = run(g, [x]), f(x), exact(x.double())
    assert f"_gelu_{'derivative_' if what == 'derivative' else ''}{str(dtype)[6:]}(" in g.kernels[0].source.text
    finite = x.isfinite()
    assert got[x.isnan()].isnan().all() and not got[finite].isnan().any()
    if what == "derivative":  # (where eager has NaN, the limits)
        assert got[x == math.inf] == 1 and got[x == -math.inf] == 0
    else:  # as eager's kernels for a GPU
        assert got[x == math.inf] == math.inf and got[x == -math.inf].isnan()
    got, eager, want = (t[finite].double() for t in (got, eager, want))
    assert (got - want).abs().max() <= (1.1 if dtype is bf16 else 1.5) * (eager - want).abs().max()
    seen = want.abs() > (torch.finfo(f16).tiny * 16 if dtype is f16 else 1e-6)
    if what == "derivative":  # its zero apart: there the error is one of the terms
        seen &= want.abs() > 1e-2 * torch.exp(-(x[finite].double() ** 2) / 2)
    assert ((got - want) / want)[seen].abs().max() < 0.6 * ulp


def test_where_the_forms_stand():
    x, y, w = torch.randn(64, 256), torch.randn(64, 256), torch.randn(256)
    b, h = x.bfloat16(), x.half()
    assert forms(lambda x: F.gelu(x), b) == {"_gelu_bfloat16"}
    assert forms(lambda x: F.gelu(x), h) == {"_gelu_float16"}
    assert forms(lambda x: F.gelu(x).bfloat16(), x) == {"_gelu_bfloat16"}
    assert forms(lambda x: F.gelu(x), x) == {"libdevice.erf"}, "a float32 result keeps its digits"
    assert forms(lambda x, y: (F.gelu(x).half(), (F.gelu(x) * y).bfloat16()), x, y) == {"_gelu_float16"}, (
        "the finest of what it is rounded to"
    )
    assert forms(lambda x, y: (F.gelu(x) * y * 0.5).bfloat16(), x, y) == {"_gelu_bfloat16"}, (
        "factors pass the error on as it is"
    )
    assert forms(lambda x, y: (F.gelu(x) - y).bfloat16(), x, y) == {"_short_erf_plus_1"}, (
        "a difference may leave little but the error"
    )
    assert forms(lambda x: F.gelu(x).sum(-1).bfloat16(), x) == {"_short_erf_plus_1"}, (
        "terms of float32 may cancel in their sum"
    )
    assert forms(lambda x, y: (F.gelu(x) * y).sum(-1).bfloat16(), x, y) == {"_short_erf_plus_1"}
    assert forms(lambda x: F.gelu(x).amax(-1).bfloat16(), x) == {"_short_erf_plus_1"}
    assert forms(lambda x: F.softmax(F.gelu(x), -1).bfloat16(), x) & {"_gelu_bfloat16"} == set()
    assert forms(lambda x: (F.gelu(x).bfloat16(), F.gelu(x) > 0), x) == {"libdevice.erf"}, "a comparison decides"
    assert forms(lambda x: F.gelu(x), b, options={"emulate_precision": True}) == {"libdevice.erf"}
    assert forms(lambda x, y: backward(y, x), b, b * 2) == {"_gelu_derivative_bfloat16"}
    assert forms(lambda x, y: backward(y, x), x, y) == {"libdevice.erf"}
    assert forms(lambda x, y: (lambda d: (d, d.sum(0).float()))(backward(y, x)), b, b * 2) == {
        "_gelu_derivative_bfloat16"
    }, "beside its sum over columns"
    assert forms(lambda x, y: (lambda d: (d, d.float().sum(0)))(backward(y, x)), b, b * 2) == {"libdevice.erf"}, (
        "the sum in float32 sees it unrounded"
    )


def test_tanh_keeps_its_form():
    x = torch.randn(64, 256).bfloat16()
    text = as_gpu(lambda x: F.gelu(x, approximate="tanh"), x).kernels[0].source.text
    assert "_gelu_" not in text and "_reciprocal(1.0 + _exp2(" in text


ROUNDED = {"many": (1024, 16), "a column": (64, 1), "one": (1,), "none": ()}


@pytest.mark.parametrize("name", ROUNDED)
@pytest.mark.parametrize(
    "target",
    [GpuTarget("cuda", 90, 32, 132), GpuTarget("cuda", 75, 32, 40), GpuTarget("hip", "gfx942", 64, 304)],
    ids=str,
)
def test_rounding_in_pairs_compiles(name, target):
    """The conversion of a single value is an instruction of the slow unit; older machines and others have none for
    two.
    """
    x, y = torch.randn(ROUNDED[name]), torch.randn(())
    g = as_gpu(lambda x, y: x.bfloat16().float() * (y + 1).bfloat16().float(), x, y)
    for k in g.kernels:
        source = print_kernel(k.kernel, target, name=k.name)
        part = compile_all([Job(source, target)], Options())[0].parts[0]
        assert ("cvt.rn.bf16x2.f32" in source.text) == (target.arch == 90)
        if target.arch == 90 and name == "many":
            assert "cvt.rn.bf16x2.f32" in part.assembly() and not re.search(
                r"cvt\.rn\.bf16\.f32\s.*\n.*\n?.*ld\.global", part.assembly()
            )
    (got,) = run(g, [x, y])
    assert torch.equal(got, x.bfloat16().float() * (y + 1).bfloat16().float())

"""Depthwise convolutions as for a GPU, sums over sliding windows, and their gradients: interpreted, against eager."""

import pytest
import torch
import torch.nn as nn
import torch.nn.functional as F

pytest.importorskip("triton")

from tcompile.compiler.codegen.triton.layout import GpuTarget  # noqa: E402
from tcompile.compiler.lowering.rules.products import depthwise  # noqa: E402

from .as_gpu import as_gpu, check_as_gpu, train_as_gpu  # noqa: E402
from .interpreter import SMALL, run  # noqa: E402

aten = torch.ops.aten
CHANNELS = 20
CASES = {
    "3x3": dict(kernel=(3, 3), padding=(1, 1)),
    "7x7": dict(kernel=(7, 7), padding=(3, 3)),
    "a row, dilated": dict(kernel=(1, 5), padding=(0, 1), dilation=(1, 2)),
    "no padding": dict(kernel=(2, 3)),
    "stride": dict(kernel=(3, 3), padding=(1, 1), stride=(2, 2)),
    "5x5, stride": dict(kernel=(5, 5), padding=(2, 2), stride=(2, 2)),
    "odd strides": dict(kernel=(2, 3), padding=(0, 1), stride=(3, 2)),
    "a stride beyond the kernel": dict(kernel=(1, 2), padding=(0, 0), stride=(2, 3)),
    "a stride in one direction": dict(kernel=(3, 3), padding=(1, 0), stride=(1, 2)),
    "padding beyond the kernel": dict(kernel=(3, 3), padding=(3, 3)),
    "dilated with a stride": dict(kernel=(3, 3), padding=(1, 2), dilation=(2, 2), stride=(2, 3)),
}


def image(*shape):
    return torch.randn(shape).to(memory_format=torch.channels_last)


def calls(g):
    """The library's convolutions: the operator, and what is asked of a backward."""
    found = [(s.op._schema.name, s.args[-1]) for s in g.schedule.steps if "convolution" in str(getattr(s, "op", ""))]
    return [(name, list(mask)) if "backward" in name else (name, None) for name, mask in found]


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("mask", [[True, True, True], [True, False, False], [True, True, False]], ids=str)
def test_gradients(case, mask):
    how = {"stride": (1, 1), "padding": (0, 0), "dilation": (1, 1), **CASES[case]}
    kernel = how.pop("kernel")
    args = [list(how[k]) for k in ("stride", "padding", "dilation")]
    x, w = image(2, CHANNELS, 9, 11), torch.randn(CHANNELS, 1, *kernel)
    y = F.conv2d(x, w, None, *args, groups=CHANNELS)

    def gradients(g, x, w):
        sizes = [CHANNELS] if mask[2] else None
        out = aten.convolution_backward(g, x, w, sizes, *args, False, [0, 0], CHANNELS, mask)
        return tuple(t for t, wanted in zip(out, mask) if wanted)

    g = check_as_gpu(gradients, torch.randn_like(y), x, w, rtol=1e-3, atol=1e-3)
    ours = not case.startswith(("padding beyond", "dilated with"))
    assert ours == (not any(asked and asked[0] for _, asked in calls(g)))
    if ours and how["stride"] != (1, 1):
        assert ("aten::convolution", None) not in calls(g)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_low_precision_adds_up_in_float32(dtype):
    x, w = image(2, 16, 6, 7).to(dtype), torch.randn(16, 1, 5, 5).to(dtype)
    y = torch.randn_like(F.conv2d(x, w, padding=2, stride=2, groups=16))
    rest = [2, 2], [2, 2], [1, 1], False, [0, 0], 16, [True, False, False]
    g = as_gpu(lambda g, x, w: aten.convolution_backward(g, x, w, None, *rest)[0], y, x, w)
    (got,) = run(g, (y, w) if len(g.schedule.inputs) == 2 else (y, x, w))
    exact = aten.convolution_backward(y.double(), x.double(), w.double(), None, *rest)[0]
    torch.testing.assert_close(got, exact.to(dtype))


def test_others_are_left_to_the_library():
    """Two channels a group, and two results a channel."""
    for c, w in ((20, torch.randn(20, 2, 3, 3)), (20, torch.randn(40, 1, 3, 3))):
        groups = c // w.shape[1]
        x = image(2, c, 6, 5)
        g = check_as_gpu(
            lambda g, x, w: aten.convolution_backward(
                g, x, w, None, [1, 1], [1, 1], [1, 1], False, [0, 0], groups, [True, True, False]
            )[:2],
            torch.randn_like(F.conv2d(x, w, padding=1, groups=groups)),
            x,
            w,
            rtol=1e-3,
            atol=1e-3,
        )
        assert calls(g) == [("aten::convolution_backward", [True, True, False])]


def test_a_gradient_that_nothing_reads_is_not_made_beside():
    def weights_alone(g, x, w):
        rest = [1, 1], [1, 1], [1, 1], False, [0, 0], CHANNELS, [True, True, False]
        return aten.convolution_backward(g, x, w, None, *rest)[1]

    x, w = image(2, CHANNELS, 6, 5), torch.randn(CHANNELS, 1, 3, 3)
    g = check_as_gpu(weights_alone, image(2, CHANNELS, 6, 5), x, w, rtol=1e-3, atol=1e-3)
    assert calls(g) == [("aten::convolution_backward", [True, True, False])]


def test_a_large_image_is_not_collected_again_for_the_second_pass():
    """The sums of the batch norm before may be made beside the gradient; what follows them reads it from memory."""
    m = nn.Sequential(
        nn.Conv2d(16, 32, 1, bias=False),
        nn.BatchNorm2d(32),
        nn.Hardswish(),
        nn.Conv2d(32, 32, 3, stride=2, padding=1, groups=32, bias=False),
        nn.BatchNorm2d(32),
        nn.Conv2d(32, 16, 1, bias=False),
    ).to(memory_format=torch.channels_last)
    _, _, backward = train_as_gpu(m, image(8, 16, 96, 96).requires_grad_())
    assert ("aten::convolution_backward", [False, True, False]) in calls(backward)
    collects = [k for k in backward.kernels if " // 2) *" in k.source.text or "// (2)" in k.source.text]
    texts = [f for k in collects for f in k.source.text.split("@triton.jit")[1:]]
    assert sum("masked_" in f for f in texts) == 1


WINDOWS = {
    "3x3": dict(image=(2, 20, 6, 11), kernel=(3, 3), padding=(1, 1)),
    "5x5, stride": dict(image=(1, 72, 8, 7), kernel=(5, 5), padding=(2, 2), stride=(2, 2)),
    "7x7": dict(image=(1, 33, 8, 5), kernel=(7, 7), padding=(3, 3)),
    "no padding": dict(image=(2, 40, 5, 9), kernel=(2, 3)),
    "a stride in one direction": dict(image=(2, 16, 7, 7), kernel=(3, 3), padding=(0, 1), stride=(2, 1)),
    "a column": dict(image=(1, 24, 6, 1), kernel=(3, 1), padding=(1, 0)),
    "windows side by side": dict(image=(2, 16, 8, 8), kernel=(2, 2), stride=(2, 2)),
    "padding beyond the kernel": dict(image=(2, 16, 3, 4), kernel=(3, 3), padding=(3, 3)),
    "two pixels": dict(image=(1, 32, 2, 1), kernel=(3, 3), padding=(1, 1)),
}
ONE = GpuTarget("cuda", 90, 32, 1)  # so small that a program makes all the rows that it may


def windows(case, dtype=torch.bfloat16):
    how = {"stride": (1, 1), "padding": (0, 0), **WINDOWS[case]}
    x = image(*how["image"]).to(dtype)
    w = torch.randn(x.shape[1], 1, *how["kernel"]).to(dtype)
    return x, w, how["stride"], how["padding"]


@pytest.mark.parametrize("case", WINDOWS)
@pytest.mark.parametrize("target", [ONE, SMALL], ids=["many rows", "few rows"])
def test_windows(case, target):
    """The convolution, its bias and what follows are one kernel."""
    x, w, stride, padding = windows(case)
    b = torch.randn(x.shape[1]).to(x.dtype)

    def fn(x, w, b):
        return F.hardswish(F.conv2d(x, w, b, stride, padding, groups=x.shape[1]))

    g = as_gpu(fn, x, w, b, target=target)
    assert [k.source.choices["shape"] for k in g.kernels].count("windows") == 1 and not calls(g)
    (got,) = run(g, (x, w, b))
    torch.testing.assert_close(got, fn(x.double(), w.double(), b.double()).to(x.dtype), rtol=1e-2, atol=1e-2)
    assert got.stride() == fn(x, w, b).stride()


@pytest.mark.parametrize(
    "case, dtype", [*((case, torch.bfloat16) for case in WINDOWS), ("3x3", torch.float16)], ids=str
)
def test_gradients_of_windows(case, dtype):
    x, w, stride, padding = windows(case, dtype)
    y = torch.randn_like(F.conv2d(x, w, None, stride, padding, groups=x.shape[1]))
    rest = list(stride), list(padding), [1, 1], False, [0, 0], x.shape[1], [False, True, False]
    g = as_gpu(lambda g, x, w: aten.convolution_backward(g, x, w, None, *rest)[1], y, x, w)
    small = max(w.shape[2:]) <= 5
    assert ("window gradients" in [k.source.choices["shape"] for k in g.kernels]) == small == (not calls(g))
    if small:
        (got,) = run(g, (y, x, w))
        exact = aten.convolution_backward(y.double(), x.double(), w.double(), None, *rest)[1]
        torch.testing.assert_close(got, exact.to(dtype), rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize("programs, parts", [(1, (1, 2)), (4, (2, 2)), (99, (6, 2))])
def test_many_images_are_summed_in_parts(monkeypatch, programs, parts):
    monkeypatch.setattr(depthwise, "PROGRAMS", programs)
    x, w = image(6, 16, 8, 5).to(torch.bfloat16), torch.randn(16, 1, 3, 3).to(torch.bfloat16)
    y = torch.randn_like(F.conv2d(x, w, padding=1, groups=16))
    rest = [1, 1], [1, 1], [1, 1], False, [0, 0], 16, [False, True, False]
    g = as_gpu(lambda g, x, w: aten.convolution_backward(g, x, w, None, *rest)[1], y, x, w)
    (made,) = (k for k in g.kernels if k.source.choices["shape"] == "window gradients")
    assert made.kernel.outer[0].size == parts[0] or parts[0] == 1
    (got,) = run(g, (y, x, w))
    exact = aten.convolution_backward(y.double(), x.double(), w.double(), None, *rest)[1]
    torch.testing.assert_close(got, exact.to(torch.bfloat16), rtol=1e-2, atol=1e-2)


def test_windows_are_not_cut_by_what_follows():
    """Parts of an image as a batch (a window partition) are made of the result, in a kernel of their own."""

    def fn(x, w):
        y = F.conv2d(x, w, None, 1, 1, groups=16)
        return y.view(2, 16, 2, 4, 2, 4).permute(0, 2, 4, 1, 3, 5).contiguous() * 2

    x, w = image(2, 16, 8, 8).to(torch.bfloat16), torch.randn(16, 1, 3, 3).to(torch.bfloat16)
    g = as_gpu(fn, x, w)
    assert [k.source.choices["shape"] for k in g.kernels].count("windows") == 1
    (got,) = run(g, (x, w))
    torch.testing.assert_close(got, fn(x.double(), w.double()).to(x.dtype), rtol=1e-2, atol=1e-2)


def test_other_numbers_and_layouts_are_left_to_the_library():
    few = torch.randn(16, 1, 3, 3)
    for x, w, dilation in (
        (image(2, 16, 8, 8), few, 1),
        (torch.randn(2, 16, 8, 8).half(), few.half(), 2),
        (image(2, 16, 8, 8).half(), torch.randn(32, 1, 3, 3).half(), 1),
        (image(2, 16, 1, 8).half(), few.half(), 1),
    ):
        g = as_gpu(lambda x, w: F.conv2d(x, w, None, 1, 1, dilation, groups=16), x, w)
        assert calls(g) == [("aten::convolution", None)]

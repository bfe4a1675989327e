"""What a GPU computes again, or in one kernel, rather than take it through memory; interpreted, against eager."""

import math

import pytest
import torch
import torch.nn as nn
import torch.nn.functional as F

pytest.importorskip("triton")

from tcompile.compiler.codegen.triton import layout  # noqa: E402

from ...fusion.test_kernels import norm_gradients  # noqa: E402
from .as_gpu import as_gpu, check_as_gpu, train_as_gpu  # noqa: E402
from .interpreter import run  # noqa: E402


@pytest.mark.parametrize("mode", ["reflect", "replicate"])
def test_pads_look_each_element_up_once(mode):
    g = check_as_gpu(lambda x: F.pad(F.relu(x), (3, 2, 1, 3), mode=mode) * 2, torch.randn(2, 3, 20, 30))
    assert len(g.kernels) == 1 and g.kernels[0].source.text.count("tl.load") == 1


@pytest.mark.parametrize("mode", ["bilinear", "bicubic"])
def test_resampling_is_one_kernel(mode):
    g = check_as_gpu(
        lambda x: F.relu(F.interpolate(x, scale_factor=2, mode=mode, align_corners=False)),
        torch.randn(2, 3, 9, 14),
        rtol=1e-4,
        atol=1e-5,
    )
    assert len(g.kernels) == 1


def test_slopes_of_distances_are_no_tensor():
    def f(s):
        i = torch.arange(64)
        d = i[:, None] - i[None]
        slope = torch.exp2(-torch.arange(1, 5, dtype=torch.float32))[:, None, None]
        return torch.softmax((s / 8 - slope * d.abs()).masked_fill((d < 0) | (d > 20), float("-inf")), -1)

    g = check_as_gpu(f, torch.randn(2, 4, 64, 64), rtol=1e-5, atol=1e-6)
    assert sorted(k.source.choices["shape"] for k in g.kernels) == ["persistent", "pointwise"]


def test_few_long_rows_are_one_kernel():
    g = check_as_gpu(lambda x: torch.softmax(x, -1), torch.randn(2, 40000), rtol=1e-4, atol=1e-9)
    assert [k.source.choices["shape"] for k in g.kernels] == ["split"]


def test_positions_are_compared_in_32_bits():
    g = check_as_gpu(lambda x: torch.where(torch.arange(50) < 20, x, -x) + torch.arange(50).float(), torch.randn(4, 50))
    assert "tl.int64" not in g.kernels[0].source.text


@pytest.mark.parametrize(
    "shape, rows", [((6, 264), (6, 1)), ((3, 5, 264), (3, 5, 1)), ((3, 4, 264), (3, 1, 1)), ((7, 1056), (7, 1))]
)
def test_what_is_known_for_a_row_is_read_once_for_it(shape, rows, monkeypatch):
    monkeypatch.setattr(layout, "LEAST_ROWS", 1)
    f = lambda x, top, total, w: F.pad(torch.exp(x[..., :-3] - top - torch.log(total)) * w[:-3], (0, 3))
    g = check_as_gpu(
        f, torch.randn(shape), torch.randn(rows), torch.rand(rows) + 1, torch.randn(shape[-1]), rtol=1e-5, atol=1e-6
    )
    assert [k.source.choices["shape"] for k in g.kernels] == ["tiled"]
    odd = check_as_gpu(lambda x, top: x - top, torch.randn(*shape[:-1], 265), torch.randn(rows))
    assert [k.source.choices["shape"] for k in odd.kernels] == ["pointwise"], (
        "rows that do not begin where 16 bytes do are read element by element"
    )
    assert (
        check_as_gpu(lambda x, w: x * w, torch.randn(shape), torch.randn(shape[-1])).kernels[0].source.choices["shape"]
        == "pointwise"
    )


def test_sums_over_images_and_pixels_store_sums_of_rows():
    g = check_as_gpu(norm_gradients, torch.randn(3, 4, 50), torch.randn(3, 4, 50), torch.randn(4), rtol=1e-4, atol=1e-4)
    assert [[tuple(b.shape) for b in k.kernel.outputs] for k in g.kernels] == [
        [(3, 4, 50), (3, 4), (3, 4)],
        [(4,), (4,)],
    ]


@pytest.mark.parametrize("width, kept", [(24, False), (31, True)])
def test_images_with_much_padding_are_padded_again_in_backward(width, kept):
    """The library takes groups of 32 channels; eager keeps the image as it is."""
    before, grouped = nn.Conv2d(16, 2 * width, 1), nn.Conv2d(2 * width, 2 * width, 3, groups=2, bias=False)

    def f(x):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return grouped(F.relu(before(x))).float().sum()

    p, _, _ = train_as_gpu(f, torch.randn(2, 16, 6, 6))
    padded = ("aten.constant_pad_nd.default", (2, 2, 32, 6, 6))
    assert (padded in [(v.op, v.shape) for v in p.saved]) is kept
    assert (padded in [(v.op, v.shape) for v in p.recomputed]) is not kept


def test_what_is_read_in_16_bits_is_stored_in_16_bits():
    """An activation that a mean and a product read (squeeze and excite): its float32 form is nobody's."""
    x = torch.randn(2, 32, 12, 10).half().to(memory_format=torch.channels_last)
    w = torch.randn(32, 1, 3, 3).half()

    def fn(x, w):
        y = F.silu(F.conv2d(x, w, None, 1, 1, groups=32))
        return y * torch.sigmoid(y.mean((2, 3), keepdim=True))

    g = as_gpu(fn, x, w)
    stored = [b for k in g.kernels for b in k.kernel.outputs]
    assert {b.dtype for b in stored if math.prod(b.shape) == x.numel()} == {torch.float16}
    (got,) = run(g, (x, w))
    torch.testing.assert_close(got, fn(x.double(), w.double()).half(), rtol=1e-2, atol=1e-2)

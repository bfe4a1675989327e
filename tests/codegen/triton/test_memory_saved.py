"""What a GPU computes again, or in one kernel, rather than take it through memory; interpreted, against eager."""

import pytest
import torch
import torch.nn.functional as F

pytest.importorskip("triton")

from tcompile.compiler.codegen.triton import layout  # noqa: E402

from .as_gpu import check_as_gpu  # noqa: E402


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

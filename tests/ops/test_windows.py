"""Pools, pads, columns and resampling as loops of our own, against eager."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import tcompile

from .test_ordered import same

LAYOUTS = {
    "float32": lambda x: x,
    "float64": lambda x: x.double(),
    "bfloat16": lambda x: x.bfloat16(),
    "channels_last": lambda x: x.to(memory_format=torch.channels_last),
}


@pytest.fixture(params=list(LAYOUTS))
def image(request):
    torch.manual_seed(0)
    return LAYOUTS[request.param](torch.randn(2, 3, 12, 15))


def test_average_pools(image):
    same(
        lambda x: (
            F.avg_pool2d(x, 3),
            F.avg_pool2d(x, (3, 2), 2, 1, True),
            F.avg_pool2d(x, 3, 2, 1, True, False) * 2,
            F.avg_pool2d(x, 7, 3, 2),
            F.avg_pool2d(x, 3, divisor_override=2),
        ),
        image,
    )
    same(
        lambda x: (F.adaptive_avg_pool2d(x, (4, 5)), F.adaptive_avg_pool2d(x, (5, 7)), F.adaptive_avg_pool2d(x, 1)),
        image,
    )


def test_maximum_pools(image):
    same(lambda x: (*F.adaptive_max_pool2d(x, (5, 7), return_indices=True), F.adaptive_max_pool2d(x, (4, 5))), image)
    same(lambda x: F.max_unpool2d(*F.max_pool2d(x, 2, return_indices=True), 2, output_size=x.shape[2:]), image)


@pytest.mark.parametrize(
    ("shape", "size"),
    [((2, 1, 16, 1), (2, 3)), ((2, 2, 5, 3), (2, 3)), ((1, 2, 4, 4, 5), (2, 4, 5)), ((1, 2, 4, 3, 1), (3, 2, 2))],
    ids=str,
)
def test_positions_of_windows_that_are_one_wide(shape, size):
    """The last axes take no part of the position in the window: it was counted once for each."""
    pool = F.adaptive_max_pool2d if len(size) == 2 else F.adaptive_max_pool3d
    same(lambda x: pool(x, size, return_indices=True), torch.randn(shape))


@pytest.mark.parametrize("mode", ["reflect", "replicate", "circular"])
def test_pads(image, mode):
    same(lambda x: F.pad(x, (2, 3, 1, 0), mode=mode), image)
    if mode == "replicate":
        same(lambda x: F.pad(x, (2, -3, -1, 4), mode=mode), image)


def test_columns(image):
    same(lambda x: (F.unfold(x, (3, 2), dilation=2, padding=1, stride=2), F.unfold(x, 3)), image)
    columns = F.unfold(torch.randn(2, 3, 8, 9), (3, 2), padding=1, stride=2)
    same(lambda x: F.fold(x, (8, 9), (3, 2), padding=1, stride=2), columns)
    same(lambda x: F.fold(x, (8, 9), (3, 2)), F.unfold(torch.randn(2, 3, 8, 9), (3, 2)))


def test_one_and_three_dimensions():
    line, volume = torch.randn(3, 4, 9), torch.randn(1, 3, 4, 9, 9)
    same(
        lambda x: (
            F.avg_pool1d(x, 3, 2),
            F.adaptive_avg_pool1d(x, 4),
            F.pad(x, (2, 1), mode="reflect"),
            F.interpolate(x, scale_factor=2, mode="linear"),
        ),
        line,
    )
    same(
        lambda x: (
            F.avg_pool3d(x, 3, 2, 1),
            F.pad(x, (1, 1, 2, 1, 1, 1), mode="reflect"),
            F.interpolate(x, scale_factor=2, mode="trilinear"),
            *F.adaptive_max_pool3d(x, (2, 3, 5), return_indices=True),
        ),
        volume,
    )


SIZES = [(24, 30), (7, 9), (13, 40), (12, 15), (1, 1)]


@pytest.mark.parametrize("size", SIZES, ids=str)
def test_resampling(size):
    x = torch.randn(2, 3, 12, 15)
    same(
        lambda x: (
            F.interpolate(x, size=size),
            F.interpolate(x, size=size, mode="nearest-exact"),
            *(
                F.interpolate(x, size=size, mode=m, align_corners=a)
                for m in ("bilinear", "bicubic")
                for a in (False, True)
            ),
        ),
        x,
    )


def test_resampling_by_factors():
    x = torch.randn(2, 3, 12, 15)
    for s in (2.0, 1.5, 0.7, (2.3, 3.0)):
        same(
            lambda x: tuple(
                F.interpolate(x, scale_factor=s, mode=m) for m in ("nearest", "nearest-exact", "bilinear", "bicubic")
            ),
            x,
        )
    same(lambda x: F.interpolate(x, scale_factor=2), (x * 50).to(torch.uint8))


def test_sizes_that_change():
    import tcompile

    def f(x):
        return (
            F.avg_pool2d(x, 3, 2, 1),
            F.adaptive_avg_pool2d(x, 1),
            F.pad(x, (2, 3, 1, 0), mode="reflect"),
            F.unfold(x, 3, padding=1),
            F.interpolate(x, scale_factor=2),
            F.interpolate(x, scale_factor=1.7, mode="bilinear"),
        )

    g = tcompile.compile(f, fullgraph=True, dynamic=True)
    for h, w in ((12, 15), (9, 20), (31, 8)):
        x = torch.randn(2, 3, h, w)
        torch.testing.assert_close(g(x), f(x))


@pytest.mark.parametrize("mode", ["nearest", "bilinear"])
@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
def test_volumes_at_given_positions(mode, padding):
    x, grid = torch.randn(2, 3, 4, 5, 6), torch.rand(2, 3, 4, 7, 3) * 3 - 1.5
    grid[0, 0, 0, 0], grid[0, 0, 0, 1], grid[1, 2, 3, 6] = (
        float("nan"),
        float("inf"),
        -77.3 if padding == "reflection" else -1e30,
    )
    x[0, 0, 0, 0, 0], x[1, 2, 3, 4, 5] = float("inf"), float("nan")
    same(lambda x, g: tuple(F.grid_sample(x, g, mode, padding, align) for align in (False, True)), x, grid)
    same(lambda x, g: F.grid_sample(x, g, mode, padding, True), x[:, :, :1, :, :1], grid)


def test_pixel_shuffles_keep_channels_last():
    for x in (torch.randn(2, 8, 4, 6), torch.randn(2, 8, 4, 6).mT, torch.randn(8, 4, 6), torch.randn(0, 8, 4, 6)):
        for y in (x, x.contiguous(memory_format=torch.channels_last)) if x.ndim == 4 else (x,):
            for f in (
                lambda x: F.pixel_shuffle(x, 2),
                lambda x: F.pixel_unshuffle(x, 2),
                lambda x: F.pixel_unshuffle(x, 2) + 1,
            ):
                same(f, y)


def test_pixel_shuffles_refuse_sizes_that_do_not_divide():
    """What was left over was dropped, and a result of no channels given."""
    shuffle, unshuffle = (
        tcompile.compile(lambda x: F.pixel_shuffle(x, 2) * 2, dynamic=True),
        tcompile.compile(lambda x: F.pixel_unshuffle(x, 2) * 2, dynamic=True),
    )
    for n in (4, 8):
        x = torch.randn(2, n, n, n)
        torch.testing.assert_close((shuffle(x), unshuffle(x)), (F.pixel_shuffle(x, 2) * 2, F.pixel_unshuffle(x, 2) * 2))
    for f, shape, words in (
        (shuffle, (2, 6, 4, 4), "divisible by the square of upscale_factor"),
        (unshuffle, (2, 4, 5, 4), "height to be divisible"),
        (unshuffle, (2, 4, 4, 7), "width to be divisible"),
    ):
        with pytest.raises(RuntimeError, match=words):
            f(torch.randn(shape))

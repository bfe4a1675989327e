"""Gradients of resampling, folding and counting: what is known of their results, and that torch's kernels are meant."""

import pytest
import torch
import torch.nn.functional as F

import tcompile

aten = torch.ops.aten
SEED = torch.Generator().manual_seed(0)
IMAGE, VOLUME = (torch.randn(*size, generator=SEED) for size in ((2, 3, 8, 6), (2, 3, 4, 4, 4)))
PLACES = torch.rand(2, 5, 7, 2, generator=SEED) * 2 - 1


def _checked(x: torch.Tensor) -> torch.Tensor:
    torch._assert_async((x < 100).all(), "too large")
    return x.exp()


PROGRAMS = {
    **{
        f"{mode} {contiguous}": (
            lambda x, mode=mode, c=contiguous: F.interpolate((x * 2).contiguous() if c else x * 2, (9, 13), mode=mode),
            IMAGE,
        )
        for mode in ("nearest", "nearest-exact", "bilinear", "bicubic")
        for contiguous in (False, True)
    },
    "antialias": (lambda x: F.interpolate(x * 2, (5, 4), mode="bilinear", antialias=True), IMAGE),
    "linear": (lambda x: F.interpolate(x * 2, 11, mode="linear"), IMAGE[0]),
    "trilinear": (lambda x: F.interpolate(x * 2, scale_factor=2, mode="trilinear"), VOLUME),
    "nearest of volumes": (lambda x: F.interpolate(x * 2, scale_factor=2), VOLUME),
    "grid": (lambda x: F.grid_sample(x * 2, PLACES * x.mean(), align_corners=False), IMAGE),
    "grid alone": (lambda x: F.grid_sample(IMAGE, PLACES * x.mean(), align_corners=True), IMAGE),
    "fold": (lambda x: F.fold(F.unfold(x * 2, 3, padding=1), (8, 6), 3, padding=1), IMAGE),
    "fold of one": (lambda x: F.fold(F.unfold(x * 2, 2, stride=2)[1], (8, 6), 2, stride=2), IMAGE),
    "averages": (lambda x: F.avg_pool2d(x * 2, 3, 2, 1, count_include_pad=False), IMAGE),
    "adaptive averages": (lambda x: F.adaptive_avg_pool2d(x * 2, (3, 4)), IMAGE),
    "reflected edges": (lambda x: F.pad(x * 2, (1, 2, 3, 0), mode="reflect"), IMAGE),
    "repeated edges": (lambda x: F.pad(x * 2, (1, 2, 3, 4), mode="replicate"), IMAGE),
    "reflected ends": (lambda x: F.pad(x * 2, (1, 2), mode="reflect"), IMAGE[0]),
    "repeated ends": (lambda x: F.pad(x * 2, (4, 2), mode="replicate"), IMAGE[0]),
    "reflected faces": (lambda x: F.pad(x * 2, (1, 2, 3, 0, 1, 1), mode="reflect"), VOLUME),
    "repeated faces": (lambda x: F.pad(x * 2, (1, 2, 3, 0, 5, 1), mode="replicate"), VOLUME),
    "maxima of volumes": (lambda x: F.max_pool3d(x * 2, 3, 2, 1), VOLUME),
    "averages of volumes": (lambda x: F.avg_pool3d(x * 2, 3, 2, 1), VOLUME),
    "adaptive maxima": (lambda x: F.adaptive_max_pool2d(x * 2, (3, 4)), IMAGE),
    "adaptive maxima of volumes": (lambda x: F.adaptive_max_pool3d(x * 2, (3, 2, 3)), VOLUME),
    "a check": (lambda x: _checked(x * 2), IMAGE),
    "counts": (lambda x: torch.histc(x * 2, bins=7, min=-1, max=1) + x.mean(), IMAGE),
}


@pytest.mark.parametrize("last", [False, True], ids=["contiguous", "channels last"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_as_in_eager(name: str, last: bool) -> None:
    program, x = PROGRAMS[name]
    if last and x.ndim > 3:
        x = x.to(memory_format=torch.channels_last if x.ndim == 4 else torch.channels_last_3d)
    ours, theirs = (x.detach().clone().requires_grad_() for _ in range(2))
    with tcompile.record() as record:
        got = tcompile.compile(program, fullgraph=True)(ours)
        got.sin().sum().backward()
    want = program(theirs)
    want.sin().sum().backward()
    torch.testing.assert_close(got, want)
    torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-4, atol=1e-4)
    assert got.stride() == want.stride() and ours.grad.stride() == theirs.grad.stride()
    assert not record.report().fallbacks


def test_operators_of_other_packages_are_no_fallbacks() -> None:
    """They are called as they are, also one that has the name of an operator of torch's."""
    with torch.library._scoped_library("tcompile_test_names", "DEF") as library:
        library.define("sort(Tensor x) -> Tensor")
        library.impl("sort", lambda x: x.contiguous() * 2 + x.stride(0), "CPU")
        library.impl("sort", torch.empty_like, "Meta")

        def program(x: torch.Tensor) -> torch.Tensor:
            return torch.ops.tcompile_test_names.sort((x + 1).t().contiguous()) * 3

        with tcompile.record() as record:
            got = tcompile.compile(program, fullgraph=True)(IMAGE[0, 0])
        torch.testing.assert_close(got, program(IMAGE[0, 0]))
        assert not record.report().fallbacks

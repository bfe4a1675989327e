"""What is compiled does not depend on names, on where a kernel stands, or on the extent of its outermost loop."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import tcompile
from tcompile.compiler import events

FUNCTIONS = {
    "pointwise": lambda x: torch.tanh(x) * 2 + x,
    "softmax": lambda x: torch.softmax(x, -1),
    "layer norm": lambda x: F.layer_norm(x, (96,)),
    "product": lambda x: F.gelu(x @ torch.full((96, 80), 0.1)),
    "transposed": lambda x: x.t() + 1,
    "flipped": lambda x: x.flip(0) - x,
    "batched": lambda x: torch.bmm(x.view(-1, 8, 12), x.view(-1, 12, 8)),
    "whole sum": lambda x: x.sum() + 1,
    "columns": lambda x: x.sum(0),
}


def compilers(action) -> list[tuple[str, ...]]:
    heard: list[tuple[str, ...]] = []
    with events.listen(lambda e: heard.append(e.units) if e.kind == "compile_c" else None):
        action()
    return heard


@pytest.fixture(autouse=True)
def cold(monkeypatch, tmp_path):
    monkeypatch.setitem(tcompile.config._values, "cache_dir", str(tmp_path))
    monkeypatch.setattr("tcompile.compiler.runtime.cpu_kernels._libraries", {})


@pytest.mark.parametrize("name", FUNCTIONS)
def test_results_at_every_extent(name: str) -> None:
    f = FUNCTIONS[name]
    g = tcompile.compile(f, fullgraph=True)
    for rows in (5, 6, 64, 1, 17, 300):
        x = torch.randn(rows, 96)
        torch.testing.assert_close(g(x), f(x), rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("name", ["pointwise", "softmax", "layer norm", "product"])
def test_promotion_to_a_dynamic_size_starts_no_compiler(name: str) -> None:
    f = FUNCTIONS[name]
    g = tcompile.compile(f, fullgraph=True)
    assert compilers(lambda: g(torch.randn(5, 96)))
    assert not compilers(lambda: g(torch.randn(6, 96)))
    assert not compilers(lambda: g(torch.randn(200, 96)))


def test_another_batch_and_another_place_start_no_compiler() -> None:
    first = compilers(lambda: tcompile.compile(lambda x: torch.softmax(x * 2, -1), dynamic=False)(torch.randn(5, 96)))
    assert len(first) == 1

    def elsewhere(y: torch.Tensor) -> torch.Tensor:
        """The same loop at another line, beside another kernel."""
        z = torch.softmax(y * 2, -1)
        return z

    assert not compilers(lambda: tcompile.compile(elsewhere, dynamic=False)(torch.randn(9, 96)))


def test_other_inner_sizes_are_other_kernels() -> None:
    f = FUNCTIONS["softmax"]
    assert compilers(lambda: tcompile.compile(f, dynamic=False)(torch.randn(5, 96)))
    assert compilers(lambda: tcompile.compile(f, dynamic=False)(torch.randn(5, 100)))
    x = torch.randn(5, 100)
    torch.testing.assert_close(tcompile.compile(f, dynamic=False)(x), f(x))


def test_products_of_other_sizes_start_no_compiler() -> None:
    def layer(n: int, m: int) -> torch.nn.Module:
        return torch.nn.Sequential(torch.nn.Linear(n, m), torch.nn.ReLU()).eval().requires_grad_(False)

    assert compilers(lambda: tcompile.compile(layer(96, 160), dynamic=False)(torch.randn(64, 96)))
    for n, m, rows in ((224, 352, 64), (100, 450, 130)):
        net, x = layer(n, m), torch.randn(rows, n)
        f = tcompile.compile(net, dynamic=False)
        assert not compilers(lambda: f(x))
        torch.testing.assert_close(f(x), net(x), rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("steps", [8, 16])
def test_unrolled_steps_share_their_kernels(steps: int) -> None:
    """A loop over steps whose results are stacked: the number of kernels does not grow with the steps."""
    torch.manual_seed(0)
    cell = torch.nn.LSTMCell(24, 24)

    def f(x: torch.Tensor) -> torch.Tensor:
        h, c, out = torch.zeros(4, 24), torch.zeros(4, 24), []
        for t in range(len(x)):
            h, c = cell(x[t], (h, c))
            out.append(h)
        return torch.stack(out)

    names: list[str] = []
    x = torch.randn(steps, 4, 24)
    with torch.no_grad(), events.listen(lambda e: names.append(e.name) if e.kind == "kernel" else None):
        got = tcompile.compile(f)(x)
        torch.testing.assert_close(got, f(x), rtol=1e-5, atol=1e-5)
    assert len(names) <= 10, names


def test_parts_of_one_buffer_are_written_at_their_places() -> None:
    def f(a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (
            torch.cat([a * 2, b + 1, a - 3], 0),
            torch.cat([a, b], 1),
            torch.nn.functional.pad(a, (1, 2, 3, 1)),
            a.flip(0),
        )

    a, b = torch.randn(5, 7), torch.randn(5, 7)
    for got, want in zip(tcompile.compile(f)(a, b), f(a, b), strict=True):
        assert torch.equal(got, want)

"""Option `freezing`: batch norms in convolutions, and what depends on parameters alone kept from call to call, never
longer than it holds.
"""

from __future__ import annotations

import pytest
import torch
from torch import nn

import tcompile


def network() -> nn.Module:
    torch.manual_seed(0)
    m = nn.Sequential(
        nn.Conv2d(3, 8, 3, bias=False),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.ConvTranspose2d(8, 4, 2),
        nn.BatchNorm2d(4, affine=False),
        nn.Conv2d(4, 4, 1, groups=2),
        nn.BatchNorm2d(4),
    ).eval()
    for b in m:
        if isinstance(b, nn.BatchNorm2d):
            b.running_mean.normal_()
            b.running_var.uniform_(0.5, 2)
    return m


def frozen(m):
    return tcompile.compile(m, fullgraph=True, options={"freezing": True})


def operators(report):
    return {
        line.split(" = ")[1].split("(")[0]
        for g in report.graphs
        for line in str(g.aten).split("\n")
        if " = aten" in line
    }


def test_batch_norms_become_weights():
    m, x = network(), torch.randn(2, 3, 8, 8)
    with torch.no_grad():
        with tcompile.record() as r:
            torch.testing.assert_close(frozen(m)(x), m(x))
        # (copies: channels last)
        assert operators(r.report()) <= {"aten.clone.default", "aten.convolution.default", "aten.relu.default"}
        tcompile.reset()
        with tcompile.record() as r:
            torch.testing.assert_close(tcompile.compile(m, fullgraph=True)(x), m(x))
        assert "aten.mul.Tensor" in operators(r.report())


CHANGES = {
    "in place": lambda m: m[0].weight.mul_(2),
    "data": lambda m: setattr(m[0].weight, "data", torch.randn_like(m[0].weight)),
    "buffer": lambda m: m[1].running_mean.add_(1),
    "new parameter": lambda m: setattr(m[6], "weight", nn.Parameter(torch.randn(4))),
    "load_state_dict": lambda m: m.load_state_dict(
        {k: v * 1.5 if v.is_floating_point() else v for k, v in m.state_dict().items()}
    ),
    "optimizer": lambda m: (
        [setattr(p, "grad", torch.ones_like(p)) for p in m.parameters()] and torch.optim.SGD(m.parameters(), 0.1).step()
    ),
    "double": lambda m: m.double(),
}


@pytest.mark.parametrize("change", list(CHANGES))
def test_changed_parameters_are_seen(change):
    m, x = network(), torch.randn(2, 3, 8, 8)
    f = frozen(m)
    with torch.no_grad():
        f(x)
        CHANGES[change](m)
        x = x.to(m[0].weight.dtype)
        for _ in range(2):
            torch.testing.assert_close(f(x), m(x))


def test_running_statistics_that_compiled_code_has_written_are_seen():
    """They move no version."""
    m = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4))
    x = torch.randn(2, 3, 8, 8)
    frozen, train = tcompile.compile(m, options={"freezing": True}), tcompile.compile(m)
    with torch.no_grad():
        for _ in range(3):
            m.eval()
            torch.testing.assert_close(frozen(x), m(x))
            m.train()
            train(x)


def test_training_is_left_alone():
    m, x = network().train(), torch.randn(2, 3, 8, 8)
    f = frozen(m)
    f(x).sum().backward()
    assert all(p.grad is not None for p in m.parameters())
    m.eval()
    with torch.no_grad():
        torch.testing.assert_close(f(x), m(x))


def test_a_convolution_that_is_read_twice_keeps_its_weights():
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv, self.norm = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)

        def forward(self, x):
            y = self.conv(x)
            return self.norm(y) + y

    m, x = Twice().eval(), torch.randn(2, 3, 8, 8)
    m.norm.running_mean.normal_()
    with torch.no_grad():
        torch.testing.assert_close(frozen(m)(x), m(x))


def test_results_are_not_what_is_kept():
    class Scaled(nn.Module):
        def __init__(self):
            super().__init__()
            self.w = nn.Parameter(torch.randn(4))

        def forward(self, x):
            return x * self.w.exp(), self.w * 2

    m, x = Scaled(), torch.randn(3, 4)
    f = frozen(m)
    with torch.no_grad():
        f(x)[1].zero_()
        torch.testing.assert_close(f(x), m(x))
        with torch.inference_mode():
            torch.testing.assert_close(f(x), m(x))


def test_casts_of_weights_are_kept():
    m, x = nn.Linear(64, 32), torch.randn(5, 64)

    def f(x):
        with torch.autocast("cpu", torch.bfloat16):
            return m(x)

    with torch.no_grad(), tcompile.record() as r:
        got = tcompile.compile(f, fullgraph=True, options={"freezing": True})(x)
        torch.testing.assert_close(got, f(x), atol=2e-2, rtol=2e-2)
    assert "kept_" in str(r.report().graphs[0].aten)


class Products(nn.Module):
    """Linear layers in all the forms that reach a product: with and without bias, tied, over a weight of inputs by
    outputs.
    """

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.a, self.b, self.c = nn.Linear(24, 40), nn.Linear(40, 24, bias=False), nn.Linear(24, 40)
        self.c.weight = self.a.weight
        self.turned = nn.Parameter(torch.randn(40, 8))

    def forward(self, x):
        h = self.b(torch.relu(self.a(x)))
        return torch.addmm(torch.ones(8, dtype=x.dtype), torch.relu(self.c(h.tanh())) + 1, self.turned), h, self.a(x)


def packed_calls(report):
    return sum("_linear_pointwise" in line for g in report.graphs for line in str(g.lowered).split("\n"))


@pytest.mark.parametrize("rows", [1, 12, 300])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_weights_of_linear_layers_are_packed(dtype, rows):
    m = Products().eval().to(dtype)
    expected = (
        dtype is torch.bfloat16
        and torch.ops.mkldnn._is_mkldnn_bf16_supported()
        or dtype is torch.float32
        and rows == 12
    )
    f, x = frozen(m), torch.randn(rows, 24).to(dtype)
    with torch.no_grad():
        for change in (
            lambda: None,
            lambda: m.a.weight.mul_(2),
            lambda: setattr(m.b.weight, "data", torch.randn_like(m.b.weight)),
            lambda: setattr(m, "turned", nn.Parameter(torch.randn(40, 8).to(dtype))),
            lambda: m.c.bias.zero_(),
        ):
            change()
            for got, want in zip(f(x), m(x)):
                assert got.stride() == want.stride()
                torch.testing.assert_close(got, want)
        tcompile.reset()
        with tcompile.record() as r:
            frozen(m)(x)
        assert bool(packed_calls(r.report())) == expected
        tcompile.reset()
        g = tcompile.compile(m, dynamic=True, options={"freezing": True})
        for n in (rows + 3, rows + 9):
            for got, want in zip(g(x.repeat(40, 1)[:n]), m(x.repeat(40, 1)[:n])):
                torch.testing.assert_close(got, want)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_weights_of_convolutions_are_packed(dtype):
    m = (
        nn.Sequential(
            nn.Conv2d(3, 16, 3, padding=1),
            nn.BatchNorm2d(16),
            nn.ReLU(),
            nn.Conv2d(16, 16, 3, groups=16, bias=False),
            nn.Conv2d(16, 32, 1),
            nn.ReLU(),
            nn.Conv2d(32, 32, 3, stride=2, dilation=2, padding=1),
            nn.Sigmoid(),
        )
        .eval()
        .to(dtype)
    )
    close = {"rtol": 2e-2, "atol": 2e-2} if dtype is torch.bfloat16 else {}
    f, x = frozen(m), torch.randn(2, 3, 12, 14).to(dtype)
    with torch.no_grad():
        for change in (
            lambda: None,
            lambda: m[0].weight.mul_(2),
            lambda: setattr(m[3].weight, "data", torch.randn_like(m[3].weight)),
            lambda: m[6].bias.zero_(),
        ):
            change()
            got, want = f(x), m(x)
            assert got.stride() == want.stride()
            torch.testing.assert_close(got, want, **close)
        with tcompile.record() as r:
            frozen(m)(x)
        text = "".join(str(g.aten.graph) for g in r.report().graphs)
        packs = dtype is torch.float32 or torch.ops.mkldnn._is_mkldnn_bf16_supported()
        assert (
            text.count("_convolution_pointwise.default]") == (0 if not packs else 3 if dtype is torch.float32 else 4)
            and ("relu, [], None)" in text) == packs
        )
        g = tcompile.compile(m, dynamic=True, options={"freezing": True})
        for size in (9, 13):
            y = torch.randn(2, 3, size, size).to(dtype)
            torch.testing.assert_close(g(y), m(y), **close)


def test_a_frozen_graph_can_be_checked():
    m, x = nn.Sequential(network(), nn.Flatten(), nn.Linear(196, 10)).eval(), torch.randn(8, 3, 8, 8)
    with torch.no_grad():
        r = tcompile.explain(m, check=True, options={"freezing": True})(x)
    assert r.numerics and all(n.verdict in ("same", "close") for n in r.numerics)

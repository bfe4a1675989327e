"""Products whose sizes are padded for the library: views of them that are handed out."""

import importlib

import pytest
import torch

pytest.importorskip("triton")

pad_products = importlib.import_module(
    "tcompile.compiler.rewrite.products.pad_products"
)  # (the package names its function so)

from .as_gpu import check_as_gpu  # noqa: E402


def product(h, w):
    return torch.mm(h.bfloat16(), w.bfloat16())


@pytest.mark.parametrize(
    "views",
    [
        lambda y: y.view(2, 12, 257),
        lambda y: (y.view(2, 12, 257), y[:, :5], y + 1),
        lambda y: y.t(),
        lambda y: (y, (y + 1).mean()),
    ],
)
def test_views_of_an_odd_product_lie_as_eager_s_do(views, monkeypatch):
    monkeypatch.setattr(pad_products, "LEAST", 16)
    monkeypatch.setattr(pad_products, "WORK", 1)
    g = check_as_gpu(lambda h, w: views(product(h, w)), torch.randn(24, 16), torch.randn(16, 257), rtol=2e-2, atol=5e-1)
    assert any("constant_pad" in k.name for k in g.kernels)

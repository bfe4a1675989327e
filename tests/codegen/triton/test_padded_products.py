"""Products whose sizes are padded for the library: views of them that are handed out."""

import importlib

import pytest
import torch
import torch.nn.functional as F

pytest.importorskip("triton")

# (the package names its function so)
pad_products = importlib.import_module("tcompile.compiler.rewrite.products.pad_products")

from tcompile.compiler.lowering.lowered import Extern  # noqa: E402

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


@pytest.mark.parametrize("bias", [False, True])
def test_odd_columns_of_a_weight_in_memory_are_multiplied_by_a_kernel_of_ours(bias):
    """The library is several times slower for them, and a padded copy of the weight and the result takes memory."""
    x, w, b = torch.randn(96, 64).half(), torch.randn(1030, 64).half(), torch.randn(1030).half()
    fn = (lambda x, w, b: F.linear(x, w, b)) if bias else (lambda x, w, b: F.linear(x, w) + 0 * b)
    g = check_as_gpu(fn, x, w, b, rtol=1e-2, atol=1e-2)
    assert [k.source.choices["shape"] for k in g.kernels] == ["product"]
    assert not any(isinstance(s, Extern) for s in g.schedule.steps)


@pytest.mark.parametrize("columns, inner", [(1032, 64), (1030, 60), (998, 64)])
def test_other_products_stay_the_library_s(columns, inner):
    x, w = torch.randn(96, inner).half(), torch.randn(columns, inner).half()
    g = check_as_gpu(lambda x, w: F.linear(x, w) + 1, x, w, rtol=1e-2, atol=1e-2)
    assert any(isinstance(s, Extern) for s in g.schedule.steps)

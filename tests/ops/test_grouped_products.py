"""torch._grouped_mm: products of groups of rows, as mixtures of experts have them."""

from types import SimpleNamespace

import pytest
import torch

import tcompile
from tcompile.compiler.runtime.gpu import cuda_graphs

OFFS = torch.tensor([8, 8, 24, 31], dtype=torch.int32)  # one group is empty, and rows may be left over


def there() -> bool:
    try:
        torch._grouped_mm(torch.ones(8, 8), torch.ones(1, 8, 8), offs=torch.tensor([8], dtype=torch.int32))
    except (AttributeError, NotImplementedError, RuntimeError):
        return False
    return True


pytestmark = pytest.mark.skipif(not there(), reason="this torch multiplies no groups on a CPU")
FORMS = {
    "rows": lambda d: (torch.randn(32, 64, dtype=d), torch.randn(4, 64, 48, dtype=d), OFFS),
    "rows, odd columns": lambda d: (torch.randn(32, 64, dtype=d), torch.randn(4, 50, 64, dtype=d).mT, OFFS),
    "batches": lambda d: (torch.randn(4, 7, 64, dtype=d), torch.randn(4, 50, 64, dtype=d).mT, None),
    "columns": lambda d: (torch.randn(4, 8, 64, dtype=d), torch.randn(64, 32, dtype=d), OFFS),
    "sums": lambda d: (torch.randn(16, 32, dtype=d), torch.randn(32, 24, dtype=d), OFFS),
}


def f(a, b, offs):
    y = torch._grouped_mm(a * 2, b, offs=offs)
    return torch.nn.functional.silu(y)[..., :24] + 1, y.shape


def taken(y, offs, name):
    """What is there: rows, or columns, behind the last group hold anything."""
    n = int(offs[-1]) if offs is not None else 0
    return y[:n] if name.startswith("rows") else y[:, :n] if name == "columns" else y


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", FORMS)
def test_as_eager(name, dtype):
    torch.manual_seed(0)
    a, b, offs = FORMS[name](dtype)
    report = tcompile.explain(f, fullgraph=True)(a, b, offs)
    assert len(report.graphs) == 1 and not report.fallbacks, report.fallbacks
    (got, shape), (want, expected) = report.result, f(a, b, offs)
    assert shape == expected and got.stride() == want.stride()
    torch.testing.assert_close(
        taken(got, offs, name), taken(want, offs, name), rtol=2e-2, atol=2e-2 if dtype == torch.bfloat16 else 1e-5
    )


@pytest.mark.parametrize("name", FORMS)
def test_strides_of_the_product(name):
    a, b, offs = FORMS[name](torch.float32)
    got, want = (
        tcompile.compile(lambda a, b, offs: torch._grouped_mm(a, b, offs=offs), fullgraph=True)(a, b, offs),
        torch._grouped_mm(a, b, offs=offs),
    )
    assert got.shape == want.shape and got.stride() == want.stride()


def test_training_a_mixture_of_experts():
    torch.manual_seed(1)
    experts, tokens, width, hidden = 4, 40, 32, 64
    gate, up, down = (
        torch.randn(s, dtype=torch.bfloat16).mul(0.2).requires_grad_()
        for s in ((experts, width), (experts, width, hidden), (experts, hidden, width))
    )

    def step(x, up, down, gate):
        score, chosen = torch.topk(torch.softmax((x @ gate.mT).float(), -1), 2)
        order = chosen.view(-1).argsort(stable=True)
        counts = torch.histc(chosen.view(-1).float(), bins=experts, min=0, max=experts - 1)
        offs = counts.cumsum(0).int()
        y = torch._grouped_mm(x[order // 2], up, offs=offs)
        y = torch._grouped_mm(torch.nn.functional.silu(y), down, offs=offs)
        return torch.zeros_like(x).index_add(0, order // 2, y * score.view(-1)[order, None].to(y.dtype))

    x = torch.randn(tokens, width, dtype=torch.bfloat16)
    c, results = tcompile.compile(step, fullgraph=True), []
    for call in (step, c, c):
        for p in (gate, up, down):
            p.grad = None
        out = call(x, up, down, gate)
        out.float().square().sum().backward()
        results.append((out, *(p.grad for p in (gate, up, down))))
    for again in results[1:]:
        for got, want in zip(again, results[0]):
            assert got.stride() == want.stride() and (got.float() - want.float()).norm() <= 3e-2 * want.float().norm()


def test_numbers_of_tokens_that_vary():
    b = torch.randn(2, 16, 24)
    c = tcompile.compile(lambda a, b, offs: torch._grouped_mm(a, b, offs=offs) * 2, fullgraph=True)
    for n in (8, 13, 40, 7):
        a, offs = torch.randn(n, 16), torch.tensor([n // 2, n], dtype=torch.int32)
        torch.testing.assert_close(c(a, b, offs), torch._grouped_mm(a, b, offs=offs) * 2)


@pytest.mark.parametrize(
    "bad",
    [
        lambda a, b, offs: torch._grouped_mm(a, b),
        lambda a, b, offs: torch._grouped_mm(a, b, offs=offs.long()),
        lambda a, b, offs: torch._grouped_mm(a, b, offs=offs[:2]),
        lambda a, b, offs: torch._grouped_mm(a.double(), b.double(), offs=offs),
        lambda a, b, offs: torch._grouped_mm(a, b.mT, offs=offs),
        lambda a, b, offs: torch._grouped_mm(a[:, 1:], b[:, 1:], offs=offs),
        lambda a, b, offs: torch._grouped_mm(a, b, offs=offs, out_dtype=torch.float64),
        lambda a, b, offs: torch._grouped_mm(a, b, offs=offs, bias=b[0, 0]),
    ],
)
def test_what_eager_refuses(bad):
    args = FORMS["rows"](torch.float32)
    try:
        want = bad(*args)
    except Exception as e:
        with pytest.raises(type(e)):
            tcompile.compile(bad)(*args)
    else:
        torch.testing.assert_close(tcompile.compile(bad)(*args)[:31], want[:31])


@pytest.mark.parametrize(
    "dtype,capability,stays",
    [(torch.bfloat16, (9, 0), True), (torch.bfloat16, (8, 0), False), (torch.float32, (9, 0), False)],
)
def test_graphs_hold_what_asks_nothing_of_the_host(dtype, capability, stays, monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda index: capability)
    assert cuda_graphs._groups_stay(SimpleNamespace(args=(SimpleNamespace(dtype=dtype),)), 0) is stays

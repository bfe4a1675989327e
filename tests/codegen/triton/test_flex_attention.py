"""torch.nn.attention.flex_attention on a GPU: one kernel, with what the program does to its scores inside."""

import pytest
import torch

import tcompile
from tcompile.compiler.codegen.triton.layout import GpuTarget
from tcompile.compiler.config import Options
from tcompile.compiler.fusion.schedule import Extern, Launch
from tcompile.compiler.runtime.gpu.compile import Job, compile_all

from . import as_gpu as gpu
from .as_gpu import as_gpu
from .interpreter import run

pytestmark = pytest.mark.slow

flex = pytest.importorskip("torch.nn.attention.flex_attention")
torch.manual_seed(0)
BIAS, TABLE, DOCUMENT = torch.randn(4), torch.randn(4, 200), torch.randint(0, 3, (1, 80))


@pytest.mark.parametrize(
    "score,mask,kernels",
    [
        (None, None, 1),
        (lambda s, b, h, i, j: 3 * torch.tanh(s / 3), None, 1),
        (lambda s, b, h, i, j: s + 0.1 * (i - j), lambda b, h, i, j: i >= j, 1),
        (lambda s, b, h, i, j: s + BIAS[h], lambda b, h, i, j: (i >= j) & (i - j < 30), 1),
        (lambda s, b, h, i, j: s + TABLE[h, i - j + 90], None, 2),
        (None, lambda b, h, i, j: DOCUMENT[b, i] == DOCUMENT[b, j], 1),
    ],
)
@pytest.mark.parametrize("laid,heads", [("bhsd", 4), ("bshd", 2)])
def test_one_kernel(score, mask, kernels, laid, heads):
    def made(h):
        x = torch.randn(1, h, 80, 32).half()
        return x if laid == "bhsd" else x.transpose(1, 2).contiguous().transpose(1, 2)

    q, k, v = made(4), made(heads), made(heads)
    block_mask = flex.create_block_mask(mask, None, None, 80, 80, device="cpu") if mask is not None else None

    def f(q, k, v):
        return flex.flex_attention(q, k, v, score_mod=score, block_mask=block_mask, enable_gqa=True)

    tcompile.reset()
    g = as_gpu(f, q, k, v)
    steps = [s for s in g.schedule.steps if isinstance(s, (Launch, Extern))]
    assert len(steps) == kernels and isinstance(steps[-1], Launch) and steps[-1].kernel.template is not None, [
        getattr(s, "op", s) for s in steps
    ]
    known = {"q": q, "k": k, "v": v, "bias": BIAS, "table": TABLE, "document": DOCUMENT}
    given = [known[b.name] for b in g.schedule.inputs]
    (got,), want = run(g, given), f(q, k, v)
    assert got.stride() == want.stride()
    torch.testing.assert_close(got, want, rtol=1e-2, atol=1e-2)


def formula(q, k, v, score, mask):
    """(result, logarithms of sums) in float64; rows that see nothing are 0 and -inf."""
    n = q.shape[1] // k.shape[1]
    q, k, v = q.double(), k.double().repeat_interleave(n, 1), v.double().repeat_interleave(n, 1)
    places = torch.meshgrid(*[torch.arange(x) for x in (*q.shape[:3], k.shape[2])], indexing="ij")
    s = q @ k.mT / q.shape[-1] ** 0.5
    s = s if score is None else score(s, *places)
    s = s if mask is None else s.masked_fill(~mask(*places), -torch.inf)
    return torch._safe_softmax(s, -1) @ v, torch.logsumexp(s, -1)


SOFTCAP, CAUSAL = lambda s, b, h, i, j: 3 * torch.tanh(s / 3), lambda b, h, i, j: i >= j
BLIND = lambda b, h, i, j: (i >= j) & (i % 7 != 3)  # noqa: E731


@pytest.mark.parametrize("laid", ["bhsd", "bshd"])
@pytest.mark.parametrize(
    "score,mask,heads",
    [(None, None, 4), (SOFTCAP, CAUSAL, 4), (None, BLIND, 2), (lambda s, b, h, i, j: s * 9 + BIAS[h], None, 4)],
)
def test_forward_of_training_is_one_kernel_and_keeps_no_scores(score, mask, heads, laid, monkeypatch):
    # (eager has no gradients on a CPU)
    monkeypatch.setattr(gpu, "InternalError", (gpu.InternalError, NotImplementedError))

    def made(h):
        return (
            torch.randn(1, h, 70, 32).half() if laid == "bhsd" else torch.randn(1, 70, h, 32).half().transpose(1, 2)
        ).requires_grad_()

    q, k, v = made(4), made(heads), made(heads)
    block_mask = flex.create_block_mask(mask, None, None, 70, 70, device="cpu") if mask is not None else None
    tcompile.reset()
    part, forward, _ = gpu.train_as_gpu(
        lambda q, k, v: flex.flex_attention(q, k, v, score_mod=score, block_mask=block_mask, enable_gqa=True), q, k, v
    )
    steps = [s for s in forward.schedule.steps if isinstance(s, (Launch, Extern))]
    assert len(steps) == 1 and steps[0].kernel.template is not None
    assert {s.kind for s in part.saved} == {"result", "activation"} and part.saved_bytes == 4 * 70 * (2 * 32 + 4), (
        part.saved
    )
    known = {"q": q, "k": k, "v": v, "bias": BIAS}
    got = run(forward, [known[b.name].detach() for b in forward.schedule.inputs])
    assert got[0].stride() == q.stride()
    out, lse = formula(q, k, v, score, mask)
    torch.testing.assert_close(got[0].double(), out.detach(), rtol=4e-3, atol=4e-3)
    kept = next(x for x in got if x.dtype == torch.float32)
    torch.testing.assert_close(kept.double().view(lse.shape), lse.detach(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("rows,keys", [(70, 70), (1, 1500), (3, 1300)])
@pytest.mark.parametrize("score", [None, SOFTCAP])
@pytest.mark.parametrize("mask", [None, lambda b, h, i, j: (j < 1200) & (i != 1)])
def test_sums_of_rows(rows, keys, score, mask):
    """The kernel stores them, also where programs share the keys."""
    q, k, v = torch.randn(1, 2, rows, 32).half(), torch.randn(1, 2, keys, 32).half(), torch.randn(1, 2, keys, 32).half()
    block_mask = flex.create_block_mask(mask, None, None, rows, keys, device="cpu") if mask is not None else None
    tcompile.reset()
    g = as_gpu(
        lambda q, k, v: flex.flex_attention(q, k, v, score_mod=score, block_mask=block_mask, return_lse=True), q, k, v
    )
    steps = [s for s in g.schedule.steps if isinstance(s, (Launch, Extern))]
    assert len(steps) == 1 and len(g.kernels[0].source.phases) == 1 + (keys > 1000)
    out, lse = run(g, [{"q": q, "k": k, "v": v}[b.name] for b in g.schedule.inputs])
    want, sums = formula(q, k, v, score, mask)
    torch.testing.assert_close(out.double(), want, rtol=4e-3, atol=4e-3)
    torch.testing.assert_close(lse.double(), sums, rtol=1e-5, atol=1e-5)
    assert lse.shape == sums.shape and lse.stride() == sums.stride()


@pytest.mark.skipif(not hasattr(flex, "AuxRequest"), reason="this torch returns nothing else")
def test_largest_scores():
    q, k, v = (torch.randn(1, 2, 70, 32).half() for _ in range(3))
    tcompile.reset()
    g = as_gpu(
        lambda q, k, v: flex.flex_attention(q, k, v, return_aux=flex.AuxRequest(lse=True, max_scores=True)), q, k, v
    )
    assert len([s for s in g.schedule.steps if isinstance(s, (Launch, Extern))]) == 1
    out, *more = run(g, [{"q": q, "k": k, "v": v}[b.name] for b in g.schedule.inputs])
    score = q.double() @ k.double().mT / 32**0.5
    torch.testing.assert_close(out.double(), score.softmax(-1) @ v.double(), rtol=4e-3, atol=4e-3)
    for got, want in zip(more, (score.logsumexp(-1), score.amax(-1))):
        torch.testing.assert_close(got.double(), want, rtol=1e-5, atol=1e-5)


def test_sums_of_rows_of_lengths_that_vary():
    def f(q, k, v):
        return flex.flex_attention(q, k, v, score_mod=SOFTCAP, return_lse=True)

    def made(n, m):
        return torch.randn(2, 3, n, 32).half(), torch.randn(2, 3, m, 32).half(), torch.randn(2, 3, m, 24).half()

    tcompile.reset()
    g = as_gpu(f, *made(70, 60), dynamic=True)
    assert len([s for s in g.schedule.steps if isinstance(s, (Launch, Extern))]) == 1
    for n, m in ((70, 60), (33, 100)):
        q, k, v = made(n, m)
        given = {
            "q": q,
            "k": k,
            "v": v,
            **{name: (q, k, v)[i].shape[d] for name, (i, _, d) in g.schedule.symbols.items()},
        }
        out, lse = run(g, [given[b.name] for b in g.schedule.inputs])
        want, sums = formula(q, k, v, SOFTCAP, None)
        torch.testing.assert_close(out.double(), want, rtol=4e-3, atol=4e-3)
        torch.testing.assert_close(lse.double(), sums, rtol=1e-5, atol=1e-5)


DOCUMENTS = lambda b, h, i, j: (DOCUMENT[b, i] == DOCUMENT[b, j]) & (i >= j)  # noqa: E731
PACKED, LENGTH, PREFIX, PADDED = (
    torch.arange(300)[None] // 70,
    torch.tensor([137]),
    torch.tensor([90]),
    torch.arange(300)[None] % 5 > 0,
)
SPARSE = {
    "packed and padded": lambda b, h, i, j: (
        (i + PREFIX[0] * 0 >= j) & (PACKED[b, i] == PACKED[b, j]) & (PADDED[b, j] > 0)
    ),
    "packed": lambda b, h, i, j: (PACKED[b, i] == PACKED[b, j]) & (i >= j),
    "length": lambda b, h, i, j: j < LENGTH[b],
    "prefix": lambda b, h, i, j: (i >= j) | (j < PREFIX[b]),
    "chunks": lambda b, h, i, j: i // 64 == j // 64,
    "other documents": lambda b, h, i, j: (PACKED[b, i] != PACKED[b, j]) & (i < 250),
    "nothing": lambda b, h, i, j: PACKED[b, i] > PACKED[b, j] + 9,
}


def generated(laid, score, mask, heads, sums, n, target=gpu.SMALL):
    """Operands, and what training with them makes."""

    def made(h):
        return (
            torch.randn(1, h, n, 32).half() if laid == "bhsd" else torch.randn(1, n, h, 32).half().transpose(1, 2)
        ).requires_grad_()

    operands = made(4), made(heads), made(heads)
    block_mask = flex.create_block_mask(mask, None, None, n, n, device="cpu") if mask is not None else None
    tcompile.reset()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            gpu, "InternalError", (gpu.InternalError, NotImplementedError)
        )  # (eager has no gradients on a CPU)
        return operands, *gpu.train_as_gpu(
            lambda q, k, v: flex.flex_attention(
                q, k, v, score_mod=score, block_mask=block_mask, enable_gqa=True, return_lse=sums
            ),
            *operands,
            target=target,
        )


@pytest.mark.parametrize(
    "laid,score,mask,heads,sums",
    [
        ("bhsd", None, None, 4, False),
        ("bhsd", SOFTCAP, CAUSAL, 4, True),
        ("bshd", None, BLIND, 2, True),
        ("bshd", lambda s, b, h, i, j: s * 3 + BIAS[h] * (i - j), DOCUMENTS, 4, False),
        (
            "bhsd",
            lambda s, b, h, i, j: torch.where((i - j) % 3 == 0, s, s * 0.5),
            lambda b, h, i, j: (i >= j) & (i - j < 20),
            1,
            True,
        ),
    ],
)
def test_gradients(laid, score, mask, heads, sums):
    check_gradients(laid, score, mask, heads, sums, 80)


@pytest.mark.parametrize("mask", SPARSE)
def test_gradients_where_tiles_of_keys_see_nothing(mask):
    """Kernels look first between which keys a tile of rows sees any."""
    for g in check_gradients("bhsd", None, SPARSE[mask], 4, False, 300):
        assert all(
            "least" in k.source.text or "tl.max((" in k.source.text
            for k in g.kernels
            if k.source.choices["shape"] in ("attention", "chain")
        )


@pytest.mark.parametrize(
    "mask",
    [lambda b, h, i, j: j < LENGTH[b], lambda b, h, i, j: i + LENGTH[b] >= j, lambda b, h, i, j: j >= LENGTH[b] * 20],
)
def test_pieces_of_keys_of_which_few_are_seen(mask):
    """As one token after the other meets a cache of keys: programs share those, and most pieces hold none that is
    seen.
    """
    q, k, v = torch.randn(1, 2, 1, 32).half(), torch.randn(1, 2, 1500, 32).half(), torch.randn(1, 2, 1500, 32).half()
    block_mask = flex.create_block_mask(mask, None, None, 1, 1500, device="cpu")
    tcompile.reset()
    g = as_gpu(lambda q, k, v: flex.flex_attention(q, k, v, block_mask=block_mask, return_lse=True), q, k, v)
    assert len(g.kernels) == 1 and len(g.kernels[0].source.phases) == 2 and "least" in g.kernels[0].source.text
    out, lse = run(g, [{"q": q, "k": k, "v": v, "length": LENGTH}[b.name] for b in g.schedule.inputs])
    want, sums = formula(q, k, v, None, mask)
    torch.testing.assert_close(out.double(), want, rtol=4e-3, atol=4e-3)
    torch.testing.assert_close(lse.double(), sums, rtol=1e-5, atol=1e-5)


def test_keys_that_no_row_of_a_tile_sees_are_left_out():
    q, k, v = (torch.randn(1, 2, 300, 32).half() for _ in range(3))
    block_mask = flex.create_block_mask(SPARSE["packed"], None, None, 300, 300, device="cpu")
    tcompile.reset()
    g = as_gpu(lambda q, k, v: flex.flex_attention(q, k, v, block_mask=block_mask), q, k, v)
    v[:, :, :64] = torch.nan  # (of the first document: 0 * NaN would be NaN)
    (got,) = run(g, [{"q": q, "k": k, "v": v, "packed": PACKED}[b.name] for b in g.schedule.inputs])
    assert got[:, :, 210:].isfinite().all() and got[:, :, :64].isnan().all()


@pytest.mark.parametrize(
    "mask, target",
    [
        ("packed", GpuTarget("cuda", 80, 32, 108)),
        ("packed", GpuTarget("cuda", 90, 32, 132)),
        ("packed", GpuTarget("hip", "gfx942", 64, 304)),
        ("length", GpuTarget("cuda", 90, 32, 132)),
    ],
    ids=str,
)
def test_kernels_compile(mask, target):
    for g in generated("bhsd", None, SPARSE[mask], 4, False, 300, target)[2:]:
        compile_all([Job(k.source, target) for k in g.kernels], Options())


def check_gradients(laid, score, mask, heads, sums, n):
    """Forward and backward as they are on a GPU: no scores in memory, and gradients as in float64."""
    operands, part, forward, backward = generated(laid, score, mask, heads, sums, n)
    steps = [s for s in backward.schedule.steps if isinstance(s, (Launch, Extern))]
    assert all(isinstance(s, Launch) for s in steps), steps
    assert not any(len(b.shape) > 2 and tuple(b.shape[-2:]) == (n, n) for s in steps for b in s.outputs)
    known = {
        **dict(zip("qkv", (x.detach() for x in operands))),
        "bias": BIAS,
        "document": DOCUMENT,
        "packed": PACKED,
        "length": LENGTH,
        "prefix": PREFIX,
        "padded": PADDED,
    }
    got = run(forward, [known[b.name] for b in forward.schedule.inputs])
    known = {
        f"saved_{n}": x for n, x in [*known.items(), *zip([s.name for s in part.saved], got[1 + sums :], strict=True)]
    }
    ends = formula(*operands, score, mask)[: 1 + sums]
    blind = ~ends[-1].isfinite()
    tangents = [torch.randn_like(x).view(x.shape) for x in got[: 1 + sums]]
    known |= {f"tangent_{k}": x.masked_fill(blind, 0.0) if k else x for k, x in enumerate(tangents)}
    grads = run(backward, [known[b.name] for b in backward.schedule.inputs])
    ends = [x.masked_fill(blind, 0.0) if k else x for k, x in enumerate(ends)]
    want = torch.autograd.grad(ends, operands, [t.to(x.dtype) for t, x in zip(tangents, ends)])
    for a, b, x in zip(grads, want, operands, strict=True):
        torch.testing.assert_close(a.double(), b.double(), rtol=1e-2, atol=1e-2 * max(b.abs().max().item(), 1e-2))
        assert a.stride() == x.stride()
    return forward, backward

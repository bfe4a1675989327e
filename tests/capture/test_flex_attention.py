"""torch.nn.attention.flex_attention: captured whole, with what the program does to scores and masks."""

import math

import pytest
import torch

import tcompile

pytestmark = pytest.mark.slow

flex = pytest.importorskip("torch.nn.attention.flex_attention")
create_block_mask, flex_attention = flex.create_block_mask, flex.flex_attention
torch.manual_seed(0)
BIAS, TABLE, DOCUMENT = torch.randn(4), torch.randn(4, 200), torch.randint(0, 3, (2, 96))
SCORES = {
    "none": None,
    "distance": lambda s, b, h, i, j: s + 0.1 * (i - j),
    "softcap": lambda s, b, h, i, j: 5 * torch.tanh(s / 5),
    "alibi": lambda s, b, h, i, j: s - torch.exp2(-(h + 1.0)) * (i - j).abs(),
    "bias of a head": lambda s, b, h, i, j: s + BIAS[h],
    "table": lambda s, b, h, i, j: s + TABLE[h, i - j + 100],
    "rows of a table": lambda s, b, h, i, j: s * TABLE[h][i],
    "where": lambda s, b, h, i, j: torch.where((i - j) % 3 == 0, s, s * 0.5 - b),
}
MASKS = {
    "causal": (lambda b, h, i, j: i >= j, False),
    "window": (lambda b, h, i, j: (i >= j) & (i - j < 17), False),
    "documents": (lambda b, h, i, j: (DOCUMENT[b, i] == DOCUMENT[b, j]) & (i >= j), True),
    "rows that see nothing": (lambda b, h, i, j: (i > 10) & (j < 50), False),
}


def operands(dtype=torch.float32, heads=(4, 4), rows=96, keys=96, laid="bhsd"):
    def made(n, h):
        x = (
            torch.randn(2, h, n, 32, dtype=dtype)
            if laid == "bhsd"
            else torch.randn(2, n, h, 32, dtype=dtype).transpose(1, 2)
        )
        return x.requires_grad_()

    return made(rows, heads[0]), made(keys, heads[1]), made(keys, heads[1])


def check(f, *tensors, dtype=torch.float32):
    tensors = [t.detach() for t in tensors]  # (eager has no gradients on a CPU)
    want = f(*tensors)
    report = tcompile.explain(f, fullgraph=True)(*tensors)
    got = report.result
    assert len(report.graphs) == 1
    one, other = (x if isinstance(x, tuple) else (x,) for x in (got, want))
    tolerance = dict(rtol=2e-2, atol=2e-2) if dtype != torch.float32 else dict(rtol=1e-5, atol=1e-5)
    for a, b in zip(one, other, strict=True):
        if isinstance(b, torch.Tensor):
            assert a.stride() == b.stride()
            torch.testing.assert_close(a, b, **tolerance)
        else:
            assert type(a) is type(b)
            for x, y in zip(a, b, strict=True):
                assert x is y is None or torch.allclose(x, y, **tolerance)
    return got, want


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("score", SCORES)
def test_scores(score, dtype):
    check(lambda q, k, v: flex_attention(q, k, v, score_mod=SCORES[score]), *operands(dtype), dtype=dtype)


@pytest.mark.parametrize("score", ["none", "distance"])
@pytest.mark.parametrize("mask", MASKS)
def test_masks(mask, score):
    function, by_batch = MASKS[mask]
    block_mask = create_block_mask(function, 2 if by_batch else None, None, 96, 96, device="cpu")
    check(lambda q, k, v: flex_attention(q, k, v, score_mod=SCORES[score], block_mask=block_mask), *operands())


@pytest.mark.parametrize("laid", ["bhsd", "bshd"])
@pytest.mark.parametrize("heads,rows,keys", [((4, 2), 96, 96), ((4, 1), 40, 96), ((4, 4), 1, 33)])
def test_groups_of_heads_lengths_and_layouts(heads, rows, keys, laid):
    check(
        lambda q, k, v: flex_attention(q, k, v, enable_gqa=True, scale=0.3),
        *operands(heads=heads, rows=rows, keys=keys, laid=laid),
    )


def test_keys_of_one_batch_for_all():
    """Eager takes them where the mask has the queries' batch, and says so elsewhere."""
    q, k, v = (x.detach() for x in operands())
    for batch in (2, None):
        mask = create_block_mask(lambda b, h, i, j: i >= j - b, batch, None, 96, 96, device="cpu")

        def f(q, k, v, mask=mask):
            return flex_attention(q, k, v, block_mask=mask)

        if batch:
            check(f, q, k[:1], v[:1])
        else:
            with pytest.raises(ValueError, match="batch size"):
                f(q, k[:1], v[:1])
            with pytest.raises(ValueError, match="batch size"):
                tcompile.compile(f)(q, k[:1], v[:1])


def test_sums_of_scores():
    mask = create_block_mask(MASKS["rows that see nothing"][0], None, None, 96, 96, device="cpu")
    check(lambda q, k, v: flex_attention(q, k, v, block_mask=mask, return_lse=True), *operands())
    if hasattr(flex, "AuxRequest"):
        for request in (flex.AuxRequest(lse=True), flex.AuxRequest()):  # (eager has no largest scores on a CPU)
            check(
                lambda q, k, v, request=request: flex_attention(q, k, v, block_mask=mask, return_aux=request),
                *operands(),
            )


@pytest.mark.skipif(not hasattr(flex, "AuxRequest"), reason="this torch returns nothing else")
def test_largest_scores():
    q, k, v = (x.detach() for x in operands())
    _, more = tcompile.compile(
        lambda q, k, v: flex_attention(q, k, v, return_aux=flex.AuxRequest(lse=True, max_scores=True)), fullgraph=True
    )(q, k, v)
    torch.testing.assert_close(more.max_scores, (q @ k.mT / math.sqrt(32)).amax(-1))
    torch.testing.assert_close(more.lse, (q @ k.mT / math.sqrt(32)).logsumexp(-1))


def test_kernel_options_are_hints():
    check(lambda q, k, v: flex_attention(q, k, v, kernel_options={"BLOCK_M": 32}), *operands())


def formula(q, k, v, score=None, mask=None, scale=None):
    """(result, logarithms of sums) in the operands' dtype, with rows that see nothing 0 and -inf; autograd of torch
    gives its gradients.
    """
    n = q.shape[1] // k.shape[1]
    k, v = (x.repeat_interleave(n, 1).expand(q.shape[0], -1, -1, -1) for x in (k, v))
    places = torch.meshgrid(*[torch.arange(x) for x in (*q.shape[:3], k.shape[2])], indexing="ij")
    s = q @ k.mT * (1 / math.sqrt(q.shape[-1]) if scale is None else scale)
    if score is not None:
        s = score(s, *places)
    seen = torch.ones_like(s, dtype=torch.bool) if mask is None else mask(*places)
    blind = ~seen.any(-1)
    s = s.masked_fill(~seen, -math.inf).masked_fill(blind[..., None], 0.0)
    return (s.softmax(-1) * ~blind[..., None]) @ v, torch.logsumexp(s, -1).masked_fill(blind, -math.inf)


def trained(f, want, tensors, sums=False, dtype=torch.float32, compiled=None):
    """The compiled function's results and gradients beside those of a formula in float64."""

    def run(f, tensors):
        out, lse = f(*tensors)
        ends = (out,) if not sums else (out, torch.where(lse == -math.inf, 0.0, lse))
        torch.manual_seed(1)
        tangents = [torch.randn(x.shape, dtype=torch.float64).to(x.dtype) for x in ends]
        return out, lse, *torch.autograd.grad(ends, [t for t in tensors if t.requires_grad], tangents)

    compiled = compiled or tcompile.compile(f, fullgraph=True)
    got = run(compiled, tensors)
    exact = run(want, [t.detach().double().requires_grad_(t.requires_grad) for t in tensors])
    tolerance = {torch.float64: 1e-9, torch.float32: 1e-5}.get(dtype, 2e-2)
    for a, b in zip(got, exact, strict=True):
        torch.testing.assert_close(
            a.double(), b, rtol=tolerance, atol=tolerance * max(1.0, b[b.isfinite()].abs().max().item())
        )
    for t, g in zip([t for t in tensors if t.requires_grad], got[2:]):
        assert g.dtype == t.dtype and g.shape == t.shape
        assert [n for n, size in zip(g.stride(), g.shape) if size > 1] == [
            n for n, size in zip(t.stride(), t.shape) if size > 1
        ]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("score", SCORES)
def test_training_with_scores(score, dtype):
    if dtype == torch.float64 and score not in ("none", "softcap"):
        pytest.skip("one of each kind")
    mask = MASKS["causal"][0]
    block_mask = create_block_mask(mask, None, None, 96, 96, device="cpu")
    trained(
        lambda q, k, v: flex_attention(q, k, v, score_mod=SCORES[score], block_mask=block_mask, return_lse=True),
        lambda q, k, v: formula(
            q, k, v, SCORES[score] if score != "rows of a table" else lambda s, b, h, i, j: s * TABLE[h, i], mask
        ),
        operands(dtype),
        dtype=dtype,
    )


@pytest.mark.parametrize("sums", [False, True])
@pytest.mark.parametrize("mask", MASKS)
def test_training_with_masks(mask, sums):
    function, by_batch = MASKS[mask]
    block_mask = create_block_mask(function, 2 if by_batch else None, None, 96, 96, device="cpu")
    trained(
        lambda q, k, v: flex_attention(q, k, v, block_mask=block_mask, return_lse=True),
        lambda q, k, v: formula(q, k, v, None, function),
        operands(),
        sums,
    )


@pytest.mark.parametrize("laid", ["bhsd", "bshd"])
@pytest.mark.parametrize("heads,rows,keys", [((4, 2), 96, 96), ((4, 1), 40, 96), ((4, 4), 1, 33)])
def test_training_with_groups_of_heads_lengths_and_layouts(heads, rows, keys, laid):
    trained(
        lambda q, k, v: flex_attention(q, k, v, enable_gqa=True, scale=0.3, return_lse=True),
        lambda q, k, v: formula(q, k, v, scale=0.3),
        operands(heads=heads, rows=rows, keys=keys, laid=laid),
    )


def test_training_with_keys_of_one_batch_for_all():
    q, k, v = operands()
    block_mask = create_block_mask(MASKS["causal"][0], 2, None, 96, 96, device="cpu")
    trained(
        lambda q, k, v: flex_attention(q, k, v, block_mask=block_mask, return_lse=True),
        lambda q, k, v: formula(q, k, v, None, MASKS["causal"][0]),
        (q, k.detach()[:1].requires_grad_(), v.detach()[:1].requires_grad_()),
    )


@pytest.mark.parametrize("frozen", [False, True])
def test_gradients_of_what_functions_read(frozen):
    """Learned biases, read directly, through other functions, and computed by the program; also where nothing else is
    trained.
    """
    bias, table, slope = (
        torch.randn(4, requires_grad=True),
        torch.randn(4, 200, requires_grad=True),
        torch.randn(4, requires_grad=True),
    )
    mask = MASKS["causal"][0]
    block_mask = create_block_mask(mask, None, None, 96, 96, device="cpu")

    def scores(bias, table, slope):
        steep = slope.exp()

        def looked_up(h, i, j):
            return table[h, i - j + 100]

        return lambda s, b, h, i, j: torch.tanh(s * steep[h] + looked_up(h, i, j)) * bias[h]

    def f(q, k, v, *learned):
        return flex_attention(q, k, v, score_mod=scores(*learned), block_mask=block_mask, return_lse=True)

    q, k, v = operands()
    trained(
        f,
        lambda q, k, v, *learned: formula(q, k, v, scores(*learned), mask),
        [*(x.requires_grad_(not frozen) for x in (q, k, v)), bias, table, slope],
        True,
    )


def test_gradients_of_a_module_s_bias():
    class Attention(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.bias = torch.nn.Parameter(torch.randn(4))

        def forward(self, q, k, v):
            return flex_attention(q, k, v, score_mod=self.score)

        def score(self, s, b, h, i, j):
            return s * self.bias[h]

    module = Attention()
    q, k, v = operands()
    out = tcompile.compile(module, fullgraph=True)(q, k, v)
    tangent = torch.randn_like(out)
    want = formula(q, k, v, lambda s, b, h, i, j: s * module.bias[h])[0]
    for a, b in zip(
        torch.autograd.grad(out, (q, k, v, module.bias), tangent),
        torch.autograd.grad(want, (q, k, v, module.bias), tangent),
    ):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)


@pytest.mark.skipif(not hasattr(flex, "AuxRequest"), reason="this torch returns nothing else")
def test_training_with_other_results():
    """Largest scores have no gradient, as in eager; logarithms of sums have."""

    def f(q, k, v):
        out, more = flex_attention(q, k, v, return_aux=flex.AuxRequest(lse=True, max_scores=True))
        assert not more.max_scores.requires_grad
        return out + more.max_scores[..., None].detach(), more.lse

    def want(q, k, v):
        out, lse = formula(q, k, v)
        return out + (q @ k.mT / math.sqrt(q.shape[-1])).amax(-1, keepdim=True).detach(), lse

    trained(f, want, operands(), True)


def test_a_function_of_scores_that_reads_an_operand():
    def score(q):
        return lambda s, b, h, i, j: s * q[b, h, i, 3]

    trained(
        lambda q, k, v: flex_attention(q, k, v, score_mod=score(q), return_lse=True),
        lambda q, k, v: formula(q, k, v, score(q)),
        operands(),
        True,
    )


def test_a_bias_that_changes_between_forward_and_backward_is_seen():
    bias = torch.randn(4)
    q, k, v = operands()
    out = tcompile.compile(lambda q, k, v, bias: flex_attention(q, k, v, score_mod=lambda s, b, h, i, j: s * bias[h]))(
        q, k, v, bias
    )
    bias.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.sum().backward()


def test_without_gradients():
    """Under no_grad nothing is kept, though operands and biases could be trained."""
    bias = torch.randn(4, requires_grad=True)
    compiled = tcompile.compile(
        lambda q, k, v: flex_attention(q, k, v, score_mod=lambda s, b, h, i, j: s * bias[h], return_lse=True),
        fullgraph=True,
    )
    q, k, v = operands()
    with torch.no_grad(), tcompile.record() as builder:
        got = compiled(q, k, v)
    assert not builder.report().partitions and not any(x.requires_grad for x in got)
    for a, b in zip(got, formula(q, k, v, lambda s, b, h, i, j: s * bias[h])):
        torch.testing.assert_close(a, b.detach(), rtol=1e-5, atol=1e-5)


def test_training_of_a_part():
    """Only what asks for gradients gets them."""
    for wanted in ((True, False, False), (False, True, False), (False, False, True)):
        trained(
            lambda q, k, v: flex_attention(q, k, v, return_lse=True),
            formula,
            [x.detach().requires_grad_(w) for x, w in zip(operands(), wanted)],
        )


@pytest.mark.parametrize("laid", ["bhsd", "bshd"])
def test_training_with_lengths_that_vary(laid):
    mask, masks = MASKS["causal"][0], {}
    compiled = tcompile.compile(
        lambda q, k, v: flex_attention(
            q, k, v, score_mod=SCORES["distance"], block_mask=masks[q.shape[2]], return_lse=True
        )
    )
    by_argument = tcompile.compile(
        lambda q, k, v, mask: flex_attention(q, k, v, score_mod=SCORES["softcap"], block_mask=mask, return_lse=True),
        fullgraph=True,
    )
    with tcompile.record() as builder:
        for n in (96, 50, 33, 96, 70, 128):
            masks[n] = create_block_mask(mask, None, None, n, n, device="cpu")
            for sums in (False, True):
                trained(
                    None,
                    lambda q, k, v: formula(q, k, v, SCORES["softcap"], mask),
                    operands(rows=n, keys=n, laid=laid),
                    sums,
                    compiled=lambda q, k, v: by_argument(q, k, v, masks[n]),
                )
    assert sum(not g.name.endswith("backward") for g in builder.report().graphs) <= 2
    trained(
        None,
        lambda q, k, v: formula(q, k, v, SCORES["distance"], mask),
        operands(rows=50, keys=50, laid=laid),
        compiled=compiled,
    )


@pytest.mark.parametrize("inside", [False, True])
def test_autocast(inside):
    """Operands are converted, and scores are computed in full, as in eager."""
    mask = create_block_mask(MASKS["causal"][0], None, None, 96, 96, device="cpu")

    def plain(q, k, v):
        return flex_attention(q, k, v, score_mod=SCORES["softcap"], block_mask=mask, return_lse=True)

    def f(q, k, v):
        with torch.autocast("cpu", torch.bfloat16):
            return plain(q, k, v)

    compiled = tcompile.compile(f if inside else plain, fullgraph=True)

    def run(q, k, v):
        with torch.autocast("cpu", torch.bfloat16, enabled=not inside):
            return compiled(q, k, v)

    q, k, v = operands()
    want = f(*(x.detach() for x in (q, k, v)))
    for a, b in zip(run(*(x.detach() for x in (q, k, v))), want):
        assert a.dtype == b.dtype
        torch.testing.assert_close(a, b)
    trained(
        None,
        lambda q, k, v: formula(q, k, v, SCORES["softcap"], MASKS["causal"][0]),
        (q, k, v),
        True,
        dtype=torch.bfloat16,
        compiled=run,
    )


def test_gradients_of_gradients():
    q, k, v = operands(torch.float64, rows=20, keys=24)
    mask = create_block_mask(MASKS["rows that see nothing"][0], None, None, 20, 24, device="cpu")

    def of(f):
        out = f(q, k, v)
        first = torch.autograd.grad(out.sin().sum(), (q, k, v), create_graph=True)
        return torch.autograd.grad(sum(g.cos().sum() for g in first), (q, k, v))

    got = of(tcompile.compile(lambda q, k, v: flex_attention(q, k, v, score_mod=SCORES["softcap"], block_mask=mask)))
    want = of(lambda q, k, v: formula(q, k, v, SCORES["softcap"], MASKS["rows that see nothing"][0])[0])
    for a, b in zip(got, want):
        torch.testing.assert_close(a, b)


def test_a_mask_that_changes_between_calls():
    """Functions that are exchanged, and what they read, are looked at."""
    limit = 10
    q, k, v = (x.detach() for x in operands())
    c = tcompile.compile(lambda q, k, v, mask: flex_attention(q, k, v, block_mask=mask))
    for limit in (10, 30, 10):
        mask = create_block_mask(lambda b, h, i, j: (i >= j) & (i - j < limit), None, None, 96, 96, device="cpu")
        torch.testing.assert_close(c(q, k, v, mask), flex_attention(q, k, v, block_mask=mask))


@pytest.mark.parametrize("laid", ["bhsd", "bshd"])
def test_lengths_that_vary(laid):
    c, masks = (
        tcompile.compile(
            lambda q, k, v, mask: flex_attention(q, k, v, score_mod=SCORES["distance"], block_mask=mask), fullgraph=True
        ),
        {},
    )
    with tcompile.record() as builder:
        for n in (96, 50, 33, 96, 70, 128):
            masks[n] = create_block_mask(MASKS["causal"][0], None, None, n, n, device="cpu")
            q, k, v = (x.detach() for x in operands(rows=n, keys=n, laid=laid))
            got, want = c(q, k, v, masks[n]), flex_attention(q, k, v, score_mod=SCORES["distance"], block_mask=masks[n])
            assert got.stride() == want.stride()
            torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5)
    assert len(builder.report().graphs) <= 3


def test_a_mask_made_inside():
    q, k, v = (x.detach() for x in operands())

    def f(q, k, v):
        mask = create_block_mask(MASKS["window"][0], None, None, 96, 96, device="cpu")
        return flex_attention(q, k, v, block_mask=mask) * 2

    torch.testing.assert_close(tcompile.compile(f, fullgraph=True)(q, k, v), f(q, k, v))


@pytest.mark.parametrize(
    "call",
    [
        lambda q, k, v: flex_attention(q, k[:, :2], v[:, :2]),
        lambda q, k, v: flex_attention(q[0], k[0], v[0]),
        lambda q, k, v: flex_attention(q, k[..., :16], v),
        lambda q, k, v: flex_attention(q[:, :3], k[:, :2], v[:, :2], enable_gqa=True),
    ],
)
def test_what_eager_refuses(call):
    args = [x.detach() for x in operands()]
    with pytest.raises(Exception) as want:
        call(*args)
    with pytest.raises(type(want.value)):
        tcompile.compile(call)(*args)


def test_compiled_by_torch_inside():
    """As HuggingFace makes its masks: torch.compile inside of what is captured is what it compiles."""
    q, k, v = (x.detach() for x in operands())

    def f(q, k, v):
        mask = torch.compile(create_block_mask)(MASKS["window"][0], None, None, 96, 96, device="cpu")
        return torch.compile(flex_attention, dynamic=False)(q, k, v, block_mask=mask) * 2

    want = (
        flex_attention(q, k, v, block_mask=create_block_mask(MASKS["window"][0], None, None, 96, 96, device="cpu")) * 2
    )
    torch.testing.assert_close(tcompile.compile(f, fullgraph=True)(q, k, v), want)

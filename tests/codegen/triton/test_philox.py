"""Random numbers inside of kernels as torch's kernels draw them on a GPU: kernels run through Triton's interpreter,
against an emulation of torch's kernels thread by thread."""

from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F

pytest.importorskip("triton")

from tcompile.compiler.ops import philox
from tcompile.compiler.codegen.triton.layout import Choices
from tcompile.compiler.codegen.triton.print_kernel import print_kernel
from tcompile.compiler.fusion import column_sums
from tcompile.compiler.lowering.lowered import Extern
from tcompile.compiler.runtime.compiled_graph import python_plan
from tcompile.compiler.runtime.gpu.cuda_graphs import why_not_captured

from .as_gpu import as_gpu
from .interpreter import Interpreted

SEED, OFFSET = 0x9876543212345678, (1 << 34) - 8  # the counter's upper half counts, too
MOST = 512  # threads: few, so that small tensors take several turns


@pytest.fixture(autouse=True)
def small_device(monkeypatch):
    monkeypatch.setattr(philox, "most_threads", lambda index: MOST)


class Thread:
    """curand's generator of one thread: Philox 4x32-10 as Random123 states it."""

    def __init__(self, subsequence, offset):
        self.counter = offset // 4 | subsequence << 64

    def uniform4(self):
        c = [self.counter >> 32 * k & 0xFFFFFFFF for k in range(4)]
        k0, k1 = SEED & 0xFFFFFFFF, SEED >> 32
        for _ in range(10):
            a, b = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
            c = [b >> 32 ^ c[1] ^ k0, b & 0xFFFFFFFF, a >> 32 ^ c[3] ^ k1, a & 0xFFFFFFFF]
            k0, k1 = k0 + 0x9E3779B9 & 0xFFFFFFFF, k1 + 0xBB67AE85 & 0xFFFFFFFF
        self.counter += 1
        return [np.float32(x) * np.float32(2.0**-32) + np.float32(2.0**-33) for x in c]


def torch_draws(n, vector, offset):
    """What torch's kernel gives for n elements, and by how much it advances the generator."""
    threads = min(-(-n // 256) * 256, MOST)
    out = np.zeros(n, dtype=np.float32)
    for t in range(threads):
        state = Thread(t, offset)
        if vector == 1:
            for begin in range(t, n, threads * 4):
                for k, u in enumerate(state.uniform4()):
                    if begin + k * threads < n:
                        out[begin + k * threads] = u
        else:
            for begin in range(t * vector, n, threads * vector):
                for k in range(0, vector, 4):
                    u = state.uniform4()[: min(4, vector)]
                    out[begin + k : begin + k + len(u)] = u
    return torch.from_numpy(out), ((n - 1) // (threads * 4) + 1) * 4


class Generator:
    def __init__(self):
        self.offset = OFFSET

    def draw(self, laid, increments, device):
        out = []
        for n in increments:
            out += [SEED - (1 << 64), self.offset // 4]
            self.offset += n
        return torch.tensor(out)

    def torch(self, n, vector=1):
        out, increment = torch_draws(n, vector, self.offset)
        self.offset += increment
        return out


def run(g, *inputs):
    """The plan's results, and where the generator is afterwards."""
    state = Generator()
    kernels = {k.name: Interpreted(k) for k in g.kernels}
    drawing = {name: state.draw for name, f in g.host.names.items() if f is philox.draw}
    return python_plan(g, kernels, drawing)(*inputs), state.offset


def together(g):
    """How many neighbours have their words computed together."""
    text = "".join(k.source.text for k in g.kernels)
    return {
        n for n, name in ((1, "one"), (4, "4"), (8, "8")) if f"= _philox_{name}(" in text or f"(_philox_{name}(" in text
    }


@pytest.mark.parametrize(
    "shape, dtype, vector",
    [
        ((16, 1024), torch.bfloat16, 8),
        ((16, 1024), torch.float32, 4),
        ((9, 1028), torch.bfloat16, 4),
        ((3, 8), torch.float16, 8),
        ((9, 514), torch.bfloat16, 2),
        ((9, 515), torch.float32, 1),
        ((1,), torch.float32, 1),
        ((2,), torch.float32, 2),
    ],
)
def test_dropout(shape, dtype, vector):
    torch.manual_seed(0)
    x = torch.randn(shape).to(dtype)
    g = as_gpu(lambda x: torch.native_dropout(x + 1, 0.3, True), x)
    (y, mask), offset = run(g, x)
    state = Generator()
    keep = (state.torch(x.numel(), vector) < np.float32(0.7)).view(shape)
    assert torch.equal(mask, keep) and offset == state.offset
    scale = torch.tensor(1 / torch.tensor(0.7).item())
    torch.testing.assert_close(y, ((x + 1).float() * keep * scale).to(dtype))
    if vector >= 4 and x.numel() > 1024:
        assert together(g) <= {4, 8} and together(g)


def test_several_in_a_graph_draw_in_order():
    """One step takes the state of all from the generator; the kernels of equal layers are one."""
    x = torch.randn(8, 512).bfloat16()

    def f(x):
        for _ in range(3):
            x = torch.native_dropout(F.gelu(x), 0.1, True)[0] + x
        return x

    g = as_gpu(f, x)
    assert g.host.source.count("philox_state_default(") == 1 and len(g.kernels) < 4
    got, offset = run(g, x)
    state = Generator()
    scale = torch.tensor(1 / torch.tensor(0.9).item())
    want = x.float()
    for _ in range(3):
        keep = (state.torch(x.numel(), 8) < np.float32(0.9)).view_as(x)
        want = (F.gelu(want).bfloat16().float() * keep * scale).bfloat16().float() + want.bfloat16().float()
    torch.testing.assert_close(got[0].float(), want, rtol=2e-2, atol=2e-2)
    assert offset == state.offset


def test_in_rows_with_a_normalisation():
    x, res = torch.randn(24, 1024).bfloat16(), torch.randn(24, 1024)

    def f(x, res):
        h, mask = torch.native_dropout(x * 1.5, 0.1, True)
        h = h + res
        return F.layer_norm(h, (1024,)), h, mask

    g = as_gpu(f, x, res)
    assert together(g) == {8} and len(g.kernels) == 1
    (y, h, mask), _ = run(g, x, res)
    keep = (Generator().torch(x.numel(), 8) < np.float32(0.9)).view_as(x)
    assert torch.equal(mask, keep)
    want = ((x * 1.5).float() * keep / 0.9).bfloat16() + res
    torch.testing.assert_close(h, want, atol=2e-2, rtol=2e-2)
    torch.testing.assert_close(y, F.layer_norm(h, (1024,)), atol=1e-4, rtol=1e-4)


def test_in_rows_whose_columns_are_summed(monkeypatch):
    for name, n in (("LEAST", 1), ("RUNS", 8), ("FEWEST_RUNS", 4), ("MOST_RUNS", 16)):
        monkeypatch.setattr(column_sums, name, n)
    x, res = torch.randn(64, 512).bfloat16(), torch.randn(64, 512)

    def f(x, res):
        h, mask = torch.native_dropout(x * 1.5, 0.1, True)
        y = torch.softmax(h + res, -1)
        return y, mask, y.sum(0)

    g = as_gpu(f, x, res)
    assert [k.source.choices["shape"] == "rows" for k in g.kernels] == [True, False] and together(g) == {4}
    (y, mask, sums), _ = run(g, x, res)
    assert torch.equal(mask, (Generator().torch(x.numel(), 8) < np.float32(0.9)).view_as(x))
    kept = ((x * 1.5).float() * mask / 0.9).bfloat16().float()
    torch.testing.assert_close(y, torch.softmax(kept + res, -1), atol=2e-2, rtol=2e-2)
    torch.testing.assert_close(sums, y.sum(0), atol=1e-4, rtol=1e-4)


def test_rows_that_lie_in_another_order():
    """Attention's projection lies (length, batch, width), numbers are drawn in that order; the residual and its
    normalisation go (batch, length, width).
    """
    h, x = torch.randn(12, 8, 256).bfloat16(), torch.randn(8, 12, 256)

    def f(h, x):
        d, mask = torch.native_dropout((h * 2).transpose(0, 1), 0.1, True)
        y = x + d
        return F.layer_norm(y, (256,)).bfloat16(), y, mask, d

    large = as_gpu(f, torch.empty(512, 16, 256).bfloat16(), torch.empty(16, 512, 256))
    assert len(large.kernels) == 1 and together(large) == {8}, large.host.source
    g = as_gpu(f, h, x)
    (n, y, mask, _), _ = run(g, h, x)
    assert torch.equal(mask, (Generator().torch(x.numel(), 8) < np.float32(0.9)).view_as(h).transpose(0, 1))
    torch.testing.assert_close(n, F.layer_norm(y, (256,)).bfloat16(), atol=2e-2, rtol=2e-2)


@pytest.mark.parametrize("lie", ["transposed", "channels_last", "apart", "part", "odd part"])
def test_where_elements_lie_decides(lie):
    """Vectors count elements as they lie in memory, single elements by their index; what is no multiple from aligned
    memory has smaller vectors.
    """
    base = torch.randn(4, 16, 8, 32).bfloat16()
    views = {
        "transposed": lambda t: t.transpose(1, 3),
        "channels_last": lambda t: t.permute(0, 3, 1, 2),
        "apart": lambda t: t[:, :, ::2],
        "part": lambda t: t[1:3],
        "odd part": lambda t: t.flatten()[4:-4],
    }
    g = as_gpu(lambda x: torch.native_dropout(views[lie](x + 1), 0.5, True)[1], base)
    (mask,), _ = run(g, base)
    v = views[lie](base)
    words = Generator().torch(v.numel(), {"apart": 1, "odd part": 4}.get(lie, 8)) < 0.5
    if lie in ("transposed", "channels_last"):
        words = torch.empty_like(v, dtype=torch.bool).set_(words.untyped_storage(), 0, v.shape, v.stride())
    assert mask.stride() == torch.empty_like(v).stride() and torch.equal(
        mask, words.view(v.shape) if lie not in ("transposed", "channels_last") else words
    )


@pytest.mark.parametrize("shape", [(7,), (3, 700), (5, 6, 1, 1)])
def test_bernoulli_and_uniform_numbers(shape):
    x = torch.rand(shape)

    def f(x):
        return (
            torch.bernoulli(x, 0.25),
            torch.rand_like(x),
            torch.rand(shape, dtype=torch.bfloat16, device=x.device),
            torch.empty_like(x, dtype=torch.bfloat16).uniform_(-0.7, 1.3),
            F.dropout2d(x, 0.5) if x.ndim == 4 else x,
        )

    g = as_gpu(f, x)
    got, offset = run(g, x)
    state, n = Generator(), x.numel()
    assert torch.equal(got[0], (state.torch(n) < 0.25).float().view(shape))
    assert torch.equal(got[1], state.torch(n).view(shape))
    low = state.torch(n).bfloat16().view(shape)
    assert torch.equal(got[2], low.where(low != 1, torch.tensor(0, dtype=low.dtype)))
    low, high = torch.tensor([-0.7, 1.3]).bfloat16()
    # (exact in float64, rounded once)
    between = (state.torch(n).double() * (high - low).double() + low.double()).bfloat16().view(shape)
    assert torch.equal(got[3], between.where(between != high, low))
    if x.ndim == 4:
        torch.testing.assert_close(got[4], x * (state.torch(30) < 0.5).view(5, 6, 1, 1) * 2)
    assert offset == state.offset


def test_the_emulation_on_tensors():
    """What each device is tried with is what torch's kernels do thread by thread."""
    for n, vector in ((4096 + 520, 8), (5000, 4), (1030, 2), (2051, 1)):
        at, most = torch.arange(n), torch.tensor(philox.threads(n, 0))
        words = philox.drawn(torch.tensor(SEED - (1 << 64)), torch.tensor(OFFSET // 4), at, most, torch.tensor(vector))
        assert torch.equal(philox.uniform(words), torch_draws(n, vector, OFFSET)[0])


def test_thresholds():
    """Comparing a word with a threshold is comparing the uniform number with p."""
    for p in (0.0, 0.1, 0.5, torch.tensor(0.9).item(), 0.9, 1.0, 2.0**-33, 2.0**-32):
        at = philox.threshold(p)
        around = torch.arange(max(0, at - 300), min(1 << 32, at + 300))
        assert torch.equal(philox.uniform(around).double() < p, around < at)


def test_sizes_that_vary():
    x = torch.randn(64, 70)
    g = as_gpu(lambda x: torch.native_dropout((x * 2).unsqueeze(-1) + torch.ones(8), 0.5, True), x, dynamic=True)
    assert g.schedule.symbols and together(g) <= {4, 8} and together(g)
    for rows in (64, 3, 40):
        x = torch.randn(rows, 70)
        (y, mask), offset = run(g, x)
        state = Generator()
        assert torch.equal(mask.flatten(), state.torch(rows * 560, 4) < 0.5) and offset == state.offset
        assert torch.equal(y, (x.unsqueeze(-1) * 2 + 1) * mask * 2)
    x = torch.randn(6, 70)
    g = as_gpu(lambda x: torch.native_dropout(x * 2, 0.5, True), x, dynamic=True)
    assert "philox_state" not in g.host.source  # (a number of elements that may be odd or even)


def test_what_torch_draws_between_keeps_its_place():
    """Draws before and after a call of torch's that draws are two steps."""
    x = torch.randn(8, 64)

    def f(x):
        a = F.dropout(x, 0.5, True)
        b = torch.randn_like(x)
        return F.dropout(a + b, 0.5, True)

    g = as_gpu(f, x)
    lines = [line for line in g.host.source.splitlines() if "torch's kernel" in line]
    assert ["randn" in line for line in lines] == [False, True, False]
    captured = as_gpu(f, x, options={"cudagraphs": True})
    assert captured.host.source == g.host.source and why_not_captured(captured.schedule, 0) is None


def test_neighbours_along_the_first_dimension_of_tiles():
    x = torch.randn(16, 24, 32)

    def f(x):
        return torch.native_dropout(x * 2, 0.5, True)[0].permute(2, 0, 1).contiguous().softmax(-1)

    g = as_gpu(f, x)
    assert together(g) <= {4, 8} and together(g), [k.source.choices for k in g.kernels]
    (y,), _ = run(g, x)
    keep = (
        philox.drawn(
            torch.tensor(SEED - (1 << 64)),
            torch.tensor(OFFSET // 4),
            torch.arange(x.numel()),
            torch.tensor(MOST),
            torch.tensor(4),
        )
        < 1 << 31
    ).view_as(x)
    torch.testing.assert_close(y, (x * 2 * keep * 2).permute(2, 0, 1).softmax(-1))


def test_what_a_captured_graph_draws():
    """Our draws and torch's in one graph; but not attention's that keeps its seed on the host. Attention without
    dropout draws nothing.
    """
    x = torch.randn(2, 4, 16, 8)
    alone = as_gpu(lambda x: torch.native_dropout(x * 2, 0.5, True)[0], x, options={"cudagraphs": True})
    assert "philox_state" in alone.host.source and why_not_captured(alone.schedule, 0) is None
    attention = torch.ops.aten._scaled_dot_product_efficient_attention.default
    assert philox.draws(attention, (x, x, x, None, True, 0.1), {}) and not philox.draws(
        attention, (x, x, x, None, True), {"is_causal": True}
    )
    step = Extern(attention, (x, x, x, None, True, 0.1), {}, [])
    assert "seed of its dropout" in why_not_captured(replace(alone.schedule, steps=[step]), 0)


def test_graphs_of_a_torch_that_draws_otherwise(monkeypatch):
    """There torch's kernels draw."""
    monkeypatch.setattr(philox, "draws_in_graphs", lambda index: False)
    x = torch.randn(8, 64)
    assert "philox_state" not in as_gpu(lambda x: F.dropout(x, 0.5, True), x, options={"cudagraphs": True}).host.source
    assert "philox_state" in as_gpu(lambda x: F.dropout(x, 0.5, True), x).host.source


@pytest.mark.parametrize(
    "choices",
    [
        Choices(kind="looped", rblock=512, warps=2),
        Choices(kind="split", rblock=256, warps=1, split=2),
        Choices(kind="persistent"),
    ],
)
@pytest.mark.parametrize("dtype, vector", [(torch.float32, 4), (torch.bfloat16, 8)])
def test_other_kernels_and_wide_indices(choices, dtype, vector):
    """A thread has as many neighbours as it holds side by side: no words go from thread to thread."""
    x = torch.randn(5, 1024).to(dtype)
    g = as_gpu(lambda x: torch.native_dropout(x * 2, 0.5, True)[0].sum(-1), x)
    keep = (Generator().torch(x.numel(), vector) < 0.5).view_as(x)
    for wide in (None, True):
        for k in g.kernels:
            k.source = print_kernel(k.kernel, g.target, choices, name=k.name, wide=wide)
        assert together(g) == {vector} and {k.source.choices["shape"] for k in g.kernels} == {choices.kind}
        (y,), _ = run(g, x)
        torch.testing.assert_close(
            y, (x.float() * 4 * keep).sum(-1).to(dtype), **({} if vector == 8 else {"atol": 1e-4, "rtol": 1e-4})
        )

"""Operators that plans call by torch's C functions. A CPU's functions have the same form as a GPU's."""

import gc
import resource

import pytest
import torch
import torch.nn as nn
import torch.nn.functional as F

import tcompile
from tcompile.compiler.fusion.schedule import Alloc, Extern, Launch, OutputSpec, Schedule, View
from tcompile.compiler.lowering.ir import Buffer
from tcompile.compiler.lowering.lowered import Param
from tcompile.compiler.native import native
from tcompile.compiler.runtime import native_program, torch_calls
from tcompile.compiler.runtime.cpu_kernels import native_ready
from tcompile.compiler.symbolic.expr import as_expr

from .helper import add_constant, compiled, s0

pytestmark = pytest.mark.skipif(native is None, reason="the C extension is not built")
aten = torch.ops.aten


@pytest.fixture
def on_cpu(monkeypatch):
    """The operators that plans called by C."""
    taken = []

    def noted(step, device):
        c = given(step, device)
        if c is not None:
            taken.append(str(step.op))
        return c

    given = torch_calls.torch_call
    monkeypatch.setattr(native_program, "torch_call", noted)
    return taken


def buffer(name, shape, dtype=torch.float32, stride=None, kind="input"):
    if stride is None:
        stride = torch.empty(shape, device="meta").stride()
    return Buffer(name, dtype, tuple(shape), tuple(stride), device="cpu", kind=kind)


def test_forms_are_those_of_the_installed_torch():
    assert native_ready()
    for name, form in torch_calls.FORMS.items():
        assert torch_calls.form_of(getattr(aten, name).default._schema) == form, name
        assert (
            native.torch_function(f"aoti_torch_cpu_{name}")
            or native.torch_function(f"aoti_torch_cuda_{name}")
            or "attention" in name
        )
        words = sum(2 if k[0] in "IB" else 0 if k == "f" else 1 for k in form.split() if k != ">")
        assert words <= 32 and form.split().count("f") <= 2 and len(form.partition(">")[2].split()) <= 10


CONVOLUTIONS = [
    dict(),
    dict(stride=2, padding=1),
    dict(dilation=2, padding=2, bias=False),
    dict(groups=4),
    dict(transposed=True, stride=2, padding=1, output_padding=1),
    dict(transposed=True, groups=2, bias=False),
    dict(groups=8, padding=1),
    dict(image=(9,)),
    dict(image=(5, 6, 7), padding=1),
]


@pytest.mark.parametrize("how", CONVOLUTIONS, ids=str)
def test_convolutions_forward_and_backward(how, on_cpu):
    torch.manual_seed(0)
    how = {"image": (9, 10), "transposed": False, **how}
    image, transposed = how.pop("image"), how.pop("transposed")
    cls = getattr(nn, f"Conv{'Transpose' if transposed else ''}{len(image)}d")
    m, same = (cls(8, 8, 3, **how) for _ in range(2))
    same.load_state_dict(m.state_dict())
    c = tcompile.compile(lambda x: torch.relu(m(x.sin()) * 2))
    for seed in range(3):
        x = torch.randn(2, 8, *image, generator=torch.Generator().manual_seed(seed))
        x, y = x.clone().requires_grad_(), x.clone().requires_grad_()
        got, want = c(x), torch.relu(same(y.sin()) * 2)
        torch.testing.assert_close(got, want)
        assert got.stride() == want.stride()
        got.sum().backward()
        want.sum().backward()
        torch.testing.assert_close(x.grad, y.grad)
        for p, q in zip(m.parameters(), same.parameters(), strict=True):
            torch.testing.assert_close(p.grad, q.grad)
    assert set(on_cpu) == {"aten.convolution.default", "aten.convolution_backward.default"}


def test_results_that_lie_otherwise_than_planned_are_copied(on_cpu):
    """A result's strides are compared with those that kernels were made for."""
    x, w = buffer("x", (2, 4, 6, 6)), buffer("w", (4, 4, 3, 3))
    y, out = (
        buffer("y", (2, 4, 4, 4), stride=(64, 1, 16, 4), kind="temp"),
        buffer("out", (2, 4, 4, 4), stride=(64, 1, 16, 4), kind="temp"),
    )
    flat_y, flat_out = (buffer(n, (128,), kind="temp") for n in ("fy", "fo"))
    steps = [
        Extern(
            aten.convolution.default,
            (x, w, None, (1, 1), (0, 0), (1, 1), False, (0, 0), 1),
            {},
            [y],
            reason="convolution",
        ),
        View(flat_y, y),
        Alloc(out),
        View(flat_out, out),
        Launch(add_constant(128, 1.0), [flat_y], [flat_out]),
    ]
    graph = compiled(Schedule(steps, [x, w], [OutputSpec("buffer", out)]))
    a, b = torch.randn(2, 4, 6, 6), torch.randn(4, 4, 3, 3)
    (got,) = graph(a, b)
    assert graph.how == "program" and got.stride() == (64, 1, 16, 4)
    torch.testing.assert_close(got, F.conv2d(a, b) + 1)


def test_sizes_that_vary_and_results_that_nothing_computes_with(on_cpu):
    """The result goes to Python as it is; a padding may be a size of the graph's."""
    shape = (s0, 4, 6, 6)
    x, w = buffer("x", shape, stride=(144, 36, 6, 1)), buffer("w", (4, 4, 3, 3))
    y = buffer("y", (s0, 4, s0 * 2 + 4, 4), stride=(s0 * 32 + 64, s0 * 8 + 16, 4, 1), kind="temp")
    step = Extern(
        aten.convolution.default,
        (x, w, None, (1, 1), (as_expr(s0), 0), (1, 1), False, (0, 0), 1),
        {},
        [y],
        reason="convolution",
    )
    graph = compiled(
        Schedule(
            [step],
            [x, w],
            [OutputSpec("buffer", y), OutputSpec("buffer", y)],
            symbols={"s0": (0, "size", 0)},
            hints={"s0": 4},
        )
    )
    w_ = torch.randn(4, 4, 3, 3)
    for n in (2, 3, 5):
        a = torch.randn(n, 4, 6, 6)
        got, again = graph(a, w_)
        torch.testing.assert_close(got, F.conv2d(a, w_, padding=(n, 0)))
        assert got is again


def test_the_error_is_torch_s(on_cpu, capfd):
    x, w = buffer("x", (2, 4, 6, 6)), buffer("w", (4, 4, 3, 3))
    y = buffer("y", (2, 4, 4, 4), kind="temp")
    step = Extern(
        aten.convolution.default, (x, w, None, (1, 1), (0, 0), (1, 1), False, (0, 0), 1), {}, [y], reason="convolution"
    )
    graph = compiled(Schedule([step], [x, w], [OutputSpec("buffer", y)]))
    with pytest.raises(RuntimeError, match="expected input"):
        graph(torch.randn(2, 4, 6, 6), torch.randn(4, 7, 3, 3))  # (guards let no such call through)
    assert torch.is_grad_enabled()
    a, b = torch.randn(2, 4, 6, 6), torch.randn(4, 4, 3, 3)
    torch.testing.assert_close(graph(a, b)[0], F.conv2d(a, b))


def test_gradients_that_nobody_asks_for_are_left_out(on_cpu):
    """The frozen layer's weight has no gradient; the first layer's input has none."""
    first, second = nn.Conv2d(3, 4, 3), nn.Conv2d(4, 4, 3)
    second.weight.requires_grad_(False)
    c = tcompile.compile(lambda x: second(torch.tanh(first(x))).sum())
    x = torch.randn(2, 3, 9, 9)
    c(x).backward()
    got = [p.grad.clone() for p in (*first.parameters(), second.bias)]
    first.zero_grad(), second.zero_grad()
    second(torch.tanh(first(x))).sum().backward()
    for g, p in zip(got, (*first.parameters(), second.bias), strict=True):
        torch.testing.assert_close(g, p.grad)
    assert second.weight.grad is None and "aten.convolution_backward.default" in on_cpu


def test_pools_and_dropout(on_cpu):
    for op, args in (
        (aten.native_dropout.default, (0.5, True)),
        (aten.native_dropout.default, (0.5, None)),
        (aten.max_pool2d_with_indices.default, ([2, 2], [], [0, 0], [1, 1], False)),
    ):
        x = torch.randn(2, 4, 6, 6)
        torch.manual_seed(3)
        want = op(x, *args)
        outs = [buffer(f"o{i}", t.shape, t.dtype, kind="temp") for i, t in enumerate(want)]
        given = buffer("x", x.shape)
        step = Extern(op, (given, *args), {}, outs, reason="library")
        graph = compiled(Schedule([step], [given], [OutputSpec("buffer", b) for b in outs]))
        torch.manual_seed(3)
        for a, b in zip(graph(x), want, strict=True):
            assert a.equal(b)
        backward = Extern(op, (given, *args), {}, [outs[0], None], reason="library")
        assert compiled(Schedule([backward], [given], [OutputSpec("buffer", outs[0])])).how == "program"
    assert len(on_cpu) == 6


def test_what_c_cannot_hand_over_is_python_s(on_cpu):
    assert native_ready()
    x = buffer("x", (4, 4))
    outs = [buffer("o", (4, 4), kind="temp"), None]
    assert torch_calls.torch_call(Extern(aten.native_dropout.default, (x, 0.5, True), {}, outs), "cpu") is not None
    assert torch_calls.torch_call(Extern(aten.native_dropout.default, (x, Param("p"), True), {}, outs), "cpu") is None
    assert torch_calls.torch_call(Extern(aten.neg.default, (x,), {}, outs[:1]), "cpu") is None
    assert torch_calls.torch_call(Extern(aten.native_dropout.default, (x, 0.5, True), {}, outs), "mps") is None


def test_memory_of_results_and_temporaries_is_given_back(on_cpu):
    conv = nn.Conv2d(4, 4, 3, padding=1)
    c = tcompile.compile(lambda x: conv(conv(conv(x).sin()).cos()) + 1)

    def alive():
        gc.collect()
        return sum(1 for o in gc.get_objects() if issubclass(type(o), torch.Tensor))

    with torch.no_grad():
        x = torch.randn(1, 4, 64, 64)
        c(x)
        before = alive()
        for _ in range(200):
            c(x)
        first = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        for _ in range(2000):
            c(x)
        # KB; each call makes 200 of them
        assert alive() == before and resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - first < 20_000
        torch.testing.assert_close(c(x), conv(conv(conv(x).sin()).cos()) + 1)

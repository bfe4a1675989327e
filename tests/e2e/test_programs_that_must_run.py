"""The programs that the first issue names, each through the whole compiler and equal to eager."""

from __future__ import annotations

import pytest
import torch
import torch.nn as nn
import torch.nn.functional as F

import tcompile

from .cell_library import train

MODES = ("default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs")


def close(got, want, rtol=1e-4, atol=1e-5):
    assert type(got) is type(want)
    assert got.dtype == want.dtype and got.shape == want.shape and got.stride() == want.stride()
    torch.testing.assert_close(got, want, rtol=rtol, atol=atol, equal_nan=True)


def softmax_by_hand(x):
    e = torch.exp(x - x.amax(-1, keepdim=True))
    return e / e.sum(-1, keepdim=True)


def layer_norm_by_hand(x):
    mean = x.mean(-1, keepdim=True)
    var = (x - mean).pow(2).mean(-1, keepdim=True)
    return (x - mean) / torch.sqrt(var + 1e-5)


def gelu_by_hand(x):
    return 0.5 * x * (1 + torch.erf(x / 2**0.5))


def thousand(x):
    for _ in range(1000):
        x = x + 1
    return x


SMALL = {
    "x*y+2": (lambda x, y: x * y + 2, 2),
    "sin+cos": (lambda x, y: torch.sin(x) + torch.cos(y), 2),
    "(a+b)*c-d": (lambda a, b, c, d: (a + b) * c - d, 4),
    "relu": (lambda x: torch.relu(x * 2 + 1), 1),
    "softmax by hand": (softmax_by_hand, 1),
    "layer norm by hand": (layer_norm_by_hand, 1),
    "gelu by hand": (gelu_by_hand, 1),
    "softmax": (lambda x: F.softmax(x, -1), 1),
    "layer norm": (lambda x: F.layer_norm(x, (x.shape[-1],)), 1),
    "gelu": (F.gelu, 1),
    "gelu tanh": (lambda x: F.gelu(x, approximate="tanh"), 1),
    "nn.Softmax": (nn.Softmax(-1), 1),
    "nn.GELU": (nn.GELU(), 1),
}


@pytest.mark.parametrize("name", SMALL)
@pytest.mark.parametrize("shape", [(64, 33), (1000,), (2, 3, 5), (1, 1), (0, 4)], ids=str)
def test_small(name, shape):
    f, n = SMALL[name]
    c = tcompile.compile(f, fullgraph=True)
    for _ in range(2):
        args = [torch.randn(shape) for _ in range(n)]
        close(c(*args), f(*args))


def test_a_thousand_additions_are_one_kernel():
    x = torch.randn(1000)
    r = tcompile.explain(thousand)(x)
    assert len(r.graphs) == 1 and len(r.kernels) == 1 and not r.graph_breaks
    close(tcompile.compile(thousand)(x), thousand(x))
    big = torch.full((10,), 2.0**24)  # 1000 x (+1) is not +1000 in floats
    assert torch.equal(tcompile.compile(thousand)(big), thousand(big))


def mlp():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 10)).eval()


@pytest.mark.parametrize("mode", MODES)
def test_mlp_in_every_mode(mode):
    m, x = mlp(), torch.randn(128, 1024)
    c = tcompile.compile(m, mode=mode, fullgraph=True)
    with torch.no_grad():
        for _ in range(3):
            close(c(x), m(x))
    assert list(c.state_dict()) == list(m.state_dict()) and isinstance(c, nn.Module)


# --- breaks -------------------------------------------------------------------------------------------------------
def branch(x, threshold=0.0):
    y = torch.sin(x)
    if x.sum() > threshold:  # line of the break
        return y * 2
    return torch.cos(y) - 1


def printing(x):
    y = x * 2
    print(y)
    return y + 1


def item(x):
    s = int(x.sum())
    return x * s


def appending(x):
    lst = []
    lst.append(x * 2)
    lst.append(torch.sin(x))
    return lst[0] + lst[1]


def data_loop(x):
    n = 0
    while x.norm() > 1:
        x = x * 0.5
        n += 1
    return x, n


def line_of(f, text):
    import inspect

    lines, start = inspect.getsourcelines(f)
    return start + next(i for i, s in enumerate(lines) if text in s)


def test_branch_on_a_tensor_switches_between_both_sides():
    c = tcompile.compile(branch)
    for x in (torch.ones(5), -torch.ones(5), torch.ones(5), -torch.ones(5)):
        close(c(x), branch(x))
    r = tcompile.explain(branch)(torch.ones(5))
    assert len(r.graph_breaks) == 1
    b = r.graph_breaks[0]
    assert b.line == line_of(branch, "if x.sum()") and "torch.where" in b.remedy and len(r.graphs) == 2


@pytest.mark.parametrize("f,text", [(printing, "print(y)"), (item, "int(x.sum())")])
def test_breaks_are_named_at_their_line(f, text, capsys):
    c = tcompile.compile(f)
    for _ in range(2):
        x = torch.randn(7)
        close(c(x), f(x))
    out = capsys.readouterr().out
    assert len(out) % 2 == 0 and out[: len(out) // 2] == out[len(out) // 2 :] or f is item or out
    r = tcompile.explain(f)(torch.randn(7))
    assert [b.line for b in r.graph_breaks] == [line_of(f, text)] and all(b.remedy for b in r.graph_breaks)


def test_appending_to_a_list_is_no_break():
    x = torch.randn(7)
    close(tcompile.compile(appending, fullgraph=True)(x), appending(x))


def test_outer_list_is_appended_to():
    log = []

    def f(x):
        log.append(x * 2)
        return x + 1

    c = tcompile.compile(f, fullgraph=True)
    for i in range(3):
        c(torch.ones(3))
        assert len(log) == i + 1 and torch.equal(log[-1], torch.full((3,), 2.0))


def test_call_into_a_c_library():
    import ctypes
    import math

    libm = ctypes.CDLL(None)
    libm.cbrt.restype, libm.cbrt.argtypes = ctypes.c_double, [ctypes.c_double]

    def f(x, k):
        y = torch.sin(x)
        z = libm.cbrt(k)
        return y * z + math.sqrt(k)

    c = tcompile.compile(f)
    x = torch.randn(5)
    close(c(x, 27.0), f(x, 27.0))
    r = tcompile.explain(f)(x, 27.0)
    assert len(r.graph_breaks) == 1 and "cbrt" in r.graph_breaks[0].code


def test_data_dependent_loop():
    c = tcompile.compile(data_loop)
    for scale in (1.0, 100.0, 0.01, 1000.0):
        x = torch.full((4,), scale)
        (a, n), (b, m) = c(x), data_loop(x)
        close(a, b)
        assert n == m


def test_fullgraph_names_line_reason_and_remedy():
    with pytest.raises(tcompile.FullGraphError) as e:
        tcompile.compile(branch, fullgraph=True)(torch.ones(3))
    text = str(e.value)
    assert str(line_of(branch, "if x.sum()")) in text and "torch.where" in text


# --- guards -------------------------------------------------------------------------------------------------------
GLOBAL = 2.0


def uses_global(x):
    return x * GLOBAL


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.lin, self.k = nn.Linear(4, 4), 1.0

    def forward(self, x):
        y = self.lin(x) * self.k
        return y + 1 if self.training else y


def count_entries(c, *calls):
    """How many recompiles a row of calls causes."""
    n = []
    with tcompile.record() as r:
        for call in calls:
            call(c)
            n.append(len(r.report().recompiles))
    return n


def test_what_changes_recompiles_and_what_does_not_does_not():
    f = lambda x, n=2: torch.sin(x) * n  # noqa: E731
    c = tcompile.compile(f)
    x = torch.randn(3, 4)
    n = count_entries(
        c,
        lambda c: c(x),
        lambda c: c(torch.randn(3, 4)),
        lambda c: c(x.double()),
        lambda c: c(x, 3),
        lambda c: c(x),
        lambda c: c(x.requires_grad_()),
        lambda c: c(x.detach()),
    )
    assert n == [0, 0, 1, 2, 2, 3, 3]


def test_grad_mode():
    x = torch.randn(3, requires_grad=True)
    c = tcompile.compile(lambda x: torch.sin(x) * 2)
    assert c(x).requires_grad
    with torch.no_grad():
        assert not c(x).requires_grad
    assert c(x).requires_grad


def test_global(monkeypatch):
    c = tcompile.compile(uses_global)
    x = torch.ones(3)
    for v in (2.0, 3.0, 2.0):
        monkeypatch.setitem(globals(), "GLOBAL", v)
        close(c(x), x * v)


def test_module_attribute_and_train_eval():
    m = Model()
    c = tcompile.compile(m)
    x = torch.randn(2, 4)
    with torch.no_grad():
        for change in (
            lambda: None,
            m.eval,
            m.train,
            lambda: setattr(m, "k", 3.0),
            c.eval,
            lambda: setattr(m, "lin", nn.Linear(4, 4)),
            m.double,
        ):
            change()
            x = x.to(m.lin.weight.dtype)
            close(c(x), m(x))
    assert c.training == m.training


def test_dynamic_batch_size_compiles_once():
    m = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.LayerNorm(16)).eval()
    c = tcompile.compile(m, dynamic=True, fullgraph=True)
    with torch.no_grad(), tcompile.record() as r:
        for n in (3, 4, 7, 16, 33, 128, 2):
            x = torch.randn(n, 8)
            close(c(x), m(x))
    report = r.report()
    assert len(report.graphs) == 1 and not report.recompiles


def test_a_changed_size_becomes_a_symbol():
    c = tcompile.compile(lambda x: F.softmax(x, -1) * 2)
    with tcompile.record() as r:
        for n in (3, 4, 5, 6, 9):
            x = torch.randn(n, 8)
            close(c(x), F.softmax(x, -1) * 2)
    assert len(r.report().recompiles) == 1


def test_mark_dynamic():
    c = tcompile.compile(lambda x: torch.sin(x) * 2)
    with tcompile.record() as r:
        for n in (3, 4, 9):
            x = torch.randn(n, 8)
            tcompile.mark_dynamic(x, 0)
            close(c(x), torch.sin(x) * 2)
    assert not r.report().recompiles and len(r.report().graphs) == 1
    with pytest.raises(IndexError, match="from -2 to 1"):
        tcompile.mark_dynamic(torch.ones(2, 2), 2)
    with pytest.raises(TypeError, match="takes a tensor"):
        tcompile.mark_dynamic([1], 0)


# --- training -----------------------------------------------------------------------------------------------------
def test_gradients_are_eagers():
    import copy

    torch.manual_seed(0)
    a = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.LayerNorm(16), nn.Linear(16, 4))
    b = copy.deepcopy(a)
    data = [(torch.randn(5, 8), torch.randn(5, 4)) for _ in range(6)]
    want = train(a, torch.optim.SGD(a.parameters(), 0.1), data)
    got = train(tcompile.compile(b), torch.optim.SGD(b.parameters(), 0.1), data)
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)
    for p, q in zip(a.parameters(), b.parameters()):
        torch.testing.assert_close(p, q, rtol=1e-4, atol=1e-5)


def test_training_loop_in_a_library_function_is_seen_by_the_hook():
    torch.manual_seed(0)
    m = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 4))
    data = [(torch.randn(5, 8), torch.randn(5, 4)) for _ in range(4)]
    with tcompile.record() as r, tcompile.enable():
        train(m, torch.optim.SGD(m.parameters(), 0.1), data)
    report = r.report()
    assert any("linear" in g.graph_module.code for g in report.graphs)  # the model's forward, inside the loop's body


# --- bad input ----------------------------------------------------------------------------------------------------
def test_bad_options():
    f = lambda x: x + 1  # noqa: E731
    for kw, text in (
        (dict(mode="max-autotun"), "max-autotune"),
        (dict(backend="induct"), "backend"),
        (dict(options={"max_autotun": 1}), "max_autotune"),
        (dict(mode="default", options={}), "mode= and options="),
        (dict(dynamic="yes"), "dynamic"),
        (dict(fullgraph=1), "fullgraph"),
    ):
        with pytest.raises(tcompile.OptionError, match=text):
            tcompile.compile(f, **kw)
    with pytest.raises(TypeError, match="function or nn.Module"):
        tcompile.compile(3)


def test_a_model_that_raises():
    def f(x):
        y = x * 2
        if x.shape[0] == 3:
            raise ValueError("three is too many")
        return y

    c = tcompile.compile(f)
    for n in (2, 3, 4, 3):
        x = torch.ones(n)
        if n == 3:
            with pytest.raises(ValueError, match="three is too many"):
                c(x)
        else:
            close(c(x), f(x))


def test_missing_compiler_falls_back_visibly(tmp_path):
    with tcompile.config.patch(cxx="/nonexistent/g++", cache_dir=str(tmp_path)), tcompile.record() as r:
        f = lambda x: torch.sin(x) * 41.5  # noqa: E731
        x = torch.randn(9)
        close(tcompile.compile(f)(x), f(x))
    assert any("g++" in str(fb.reason) for fb in r.report().fallbacks)


def test_backends():
    seen = []

    def mine(gm, example_inputs):
        seen.append((gm, example_inputs))
        return gm.forward

    x = torch.randn(3)
    for backend in ("eager", "tcompile", mine):
        close(tcompile.compile(lambda x: torch.sin(x) + 1, backend=backend)(x), torch.sin(x) + 1)
    assert isinstance(seen[0][0], torch.fx.GraphModule) and torch.equal(seen[0][1][0], x)
    with pytest.raises(tcompile.BackendError, match="returned int"):
        tcompile.compile(lambda x: x + 1, backend=lambda gm, ex: 3)(x)


def test_is_compiling_during_capture():
    def f(x):
        return x + 1 if torch.compiler.is_compiling() else x - 1

    x = torch.ones(3)
    assert f(x)[0] == 0 and tcompile.compile(f)(x)[0] == 2

"""Numbers read from tensors stay in one graph until Python itself needs them."""

from __future__ import annotations

import pytest
import torch

import tcompile
from tcompile.compiler.errors import FullGraphError

X = torch.tensor([1.5, -0.25, 2.0, 3.0])
N = torch.tensor([3, 1, 4])


def arithmetic(x, n):
    s = x.sum().item()
    return x * s, s * 2 + 1 - x.mean().item(), -s, abs(s) / 4, s // 2, s % 3, x / s, s - x, 2.0**3 * s


def integers(x, n):
    k, j = n.sum().item(), n[1].item()
    return (
        n * k,
        x + k,
        k * j + 2,
        x * (k * j - 7),
        n + abs(k - j * 3),
        k // 3,
        k % 5,
        k / 4,
        k + s_of(x),
        float(k),
        int(n[0]),
        -k,
        n + j,
        torch.tensor([k, j]),
        max(k, 2),
        min(k, j),
    )


def s_of(x):
    return x.max().item()


def lists(x, n):
    a, b, c = n.tolist()
    return a, [b, c], x.reshape(2, 2).tolist(), x * a + b, {"c": c}, x.tolist()[1] * 2


def written_later(x, n):
    x = x.clone()
    before, part = x.sum().item(), x[0].item()
    x.add_(1)
    x[0] = part
    return x * before, before, x.sum().item()


def input_read(x, n):
    v = x[0].item()
    x.mul_(2)
    return v, x * v


def operators(x, n):
    m = x.mean().item()
    return (
        torch.where(x > m, x, m),
        x.clamp(max=m),
        torch.full((2,), m),
        torch.tensor(m),
        x.masked_fill(x < m, m),
        x > m,
        m <= x,
        x.abs() ** m,
        x // m,
        x.lerp(x + 1, m),
    )


def halves(x, n):
    h = x.bfloat16()
    v = h.sum().item()
    return v, h * v, h > v, x * v, x.double() * v


def text(x, n):
    return f"{x.sum().item():.3f} {n[0].item()} {n.tolist()}", str(x.mean().item()), x + 1


def total(x, n):
    t = 0.0
    t += x.sum().item()
    t += (x * 2).sum().item()
    return t, round(t, 2), x + t


PROGRAMS = [arithmetic, integers, lists, written_later, input_read, operators, halves, text, total]


def same(a, b):
    if isinstance(a, (list, tuple)):
        assert type(a) is type(b) and len(a) == len(b)
        for p, q in zip(a, b):
            same(p, q)
    elif isinstance(a, torch.Tensor):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)
    elif isinstance(a, float):
        assert type(b) is float and (a == pytest.approx(b, rel=1e-5, abs=1e-6) or str(a) == str(b))
    elif isinstance(a, str):
        assert type(b) is str
    else:
        assert type(a) is type(b) and a == b


@pytest.mark.parametrize("fn", PROGRAMS)
@pytest.mark.parametrize("backend", ["eager", "tcompile"])
def test_one_graph(fn, backend):
    graphs = []
    with tcompile.record() as recorded:
        compiled = tcompile.compile(fn, backend=backend, fullgraph=True)
        for i in (0, 1, 5):
            wanted, got = fn((X + i).clone(), N + i), compiled((X + i).clone(), N + i)
            same(wanted, got)
            if backend == "eager":
                assert str([v for v in wanted if not isinstance(v, torch.Tensor)]) == str(
                    [v for v in got if not isinstance(v, torch.Tensor)]
                )
    report = recorded.report()
    assert len(report.entries) == 1 and not report.graph_breaks and not graphs


def test_gradients_stop_at_numbers():
    def fn(x):
        s = (x * 3).sum().item()
        return (x * s).sum()

    grads = []
    for f in (fn, tcompile.compile(fn, fullgraph=True)):
        x = X.clone().requires_grad_()
        f(x).backward()
        grads.append(x.grad)
    torch.testing.assert_close(*grads)


def test_a_training_step_returns_its_loss_as_a_number():
    def step(model, optimizer, x, history):
        loss = model(x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        history.append(loss.item())
        return loss.item()

    results = []
    for compiled in (False, True):
        torch.manual_seed(0)
        model = torch.nn.Linear(4, 2)
        optimizer, history = torch.optim.SGD(model.parameters(), 0.1), []
        with tcompile.record() as recorded:
            f = tcompile.compile(step) if compiled else step
            for i in range(4):
                last = f(model, optimizer, X + i, history)
        results.append(history)
        assert last == history[-1] and len(history) == 4
    assert results[0] == pytest.approx(results[1], rel=1e-4)
    report = recorded.report()
    assert not report.graph_breaks and len(report.entries) == 1


@pytest.mark.parametrize(
    "use", ["x + 1 if v > 0 else x - 1", "x + 1 if v else x", "x + (v and 1)", "[x for _ in range(9) if v < 0] or x"]
)
def test_a_branch_is_refused_with_its_line(use):
    scope: dict = {}
    exec(f"def fn(x):\n    v = x.sum().item()\n    return {use}", scope)
    fn = scope["fn"]
    with pytest.raises(FullGraphError) as refused:
        tcompile.compile(fn, fullgraph=True)(X)
    assert refused.value.breaks[0].kind == "data_dependent_branch" and refused.value.breaks[0].line == 3
    compiled = tcompile.compile(fn)
    for i in (0, -9, 2):
        torch.testing.assert_close(compiled(X + i), fn(X + i))


@pytest.mark.parametrize(
    "use",
    [
        "torch.zeros(k)",
        "x[:k]",
        "x[k]",
        "x.expand(k, 4)",
        "[x] * k",
        "list(range(k))",
        "x.sum() + {k: 1}[k]",
        "torch.arange(k)",
        "x * (1 / k)",
        "x * 2 ** k",
        "(x, k & 3, k << 1, bin(k), hash(k), k.bit_length(), divmod(k, 2))",
        "torch.split(x, [k, 4 - k])",
        "x.roll(k)",
        "(x, [1, 2, 3, 4][k], 'ab' * k)",
    ],
)
def test_sizes_and_native_code_part_the_graph(use):
    scope: dict = {"torch": torch}
    exec(f"def fn(x, n):\n    k = n.sum().item()\n    y = x * 2\n    x = y + k\n    return {use}", scope)
    fn = scope["fn"]
    for fullgraph in (False, True):
        compiled = tcompile.compile(fn, fullgraph=fullgraph)
        for n in (2, 3, 1):
            same(fn(X, torch.tensor(n)), compiled(X, torch.tensor(n)))


def checked(x, n):
    k = n.sum().item()
    torch._check(k > 0)
    torch._check_is_size(k)
    torch._check(k * 2 < 100, lambda: f"too large: {k}")
    if x.sum().item() > 1e6:
        raise ValueError("too much")
    assert k - 1 < n.shape[0] * 20, "no"
    return x * (k * 2 + 1), k > 5, n * (k - 1), (k == 3, k != x.mean().item())


def test_checks_are_part_of_the_graph():
    with tcompile.record() as recorded:
        compiled = tcompile.compile(checked, fullgraph=True)
        for n in (N, N + 1, N - 4, N * 20, N * 7, N, torch.tensor([1 << 40, 0, 0])):
            for x in (X, X * 1e9):
                try:
                    wanted = checked(x, n)
                except (RuntimeError, AssertionError, ValueError) as error:
                    with pytest.raises(type(error)) as raised:
                        compiled(x, n)
                    assert str(raised.value) == str(error)
                else:
                    same(wanted, compiled(x, n))
    assert len(recorded.report().entries) == 1 and not recorded.report().graph_breaks


def test_division_by_a_number_that_may_be_zero():
    def fn(x):
        return x + 1, 1 / x.sum().item()

    compiled = tcompile.compile(fn)
    same(fn(X), compiled(X))
    with pytest.raises(ZeroDivisionError):
        compiled(X * 0)


def test_large_integers_are_pythons():
    def fn(x, n):
        k = n.item()
        return k * k * k, k + 1, x + 1, (k * k) % 1000

    compiled = tcompile.compile(fn, fullgraph=True)
    for n in (3, 2**40, -(2**62), 2**63 - 1):
        same(fn(X, torch.tensor(n)), compiled(X, torch.tensor(n)))


def test_loops_that_read_are_not_unrolled():
    def fn(x, n):
        out = 0.0
        for i in range(n):
            x = torch.sin(x) + i
            out += x.sum().item()
        return x, out

    with tcompile.record() as recorded:
        compiled = tcompile.compile(fn)
        for n in (3, 5, 40):
            same(fn(X, n), compiled(X, n))
    assert len(recorded.report().entries) <= 9


def test_shapes_that_read_at_once():
    for t in (
        torch.zeros(0),
        torch.tensor([[1.5]]),
        torch.tensor(True),
        torch.tensor(1j),
        torch.zeros(2),
        torch.tensor(float("nan")),
        torch.tensor(7, dtype=torch.uint8),
    ):

        def fn(x, t):
            return x + 1, t.item()

        compiled = tcompile.compile(fn)
        try:
            wanted = fn(X, t)
        except RuntimeError as error:
            with pytest.raises(RuntimeError, match=str(error)):
                compiled(X, t)
        else:
            assert str(compiled(X, t)[1]) == str(wanted[1])


def follows(x, n, low):
    k = n.sum().item()
    torch._check(k >= 2)
    torch._check(20 > k)
    if low.item() > 5:
        raise ValueError("low")
    y = x * 2 if k >= 0 and k != 1 and 1 - k < 0 else x * 3
    y = y + 1 if abs(k) + 1 < 3 and k > 30 or k == 20 else y
    if low.item() <= 0:
        return y
    return y - 1


def test_branches_that_follow_from_checks_are_no_question():
    def fn(x, n):
        k = n.item()
        torch._check(k != 7)
        assert k > 3
        y = x + 1 if 4 <= k else x - 1
        return y * 2 if -k <= -4 and min(k, 9) > 3 else y * 3

    compiled = tcompile.compile(fn, fullgraph=True)
    for n in (4, 100, 3, 7, -(2**50), 2**50, 5):
        n = torch.tensor(n)
        try:
            wanted = fn(X, n)
        except (RuntimeError, AssertionError) as error:
            with pytest.raises(type(error)):
                compiled(X, n)
        else:
            same(wanted, compiled(X, n))


def test_branches_that_do_not_follow_are_taken_by_data():
    compiled = tcompile.compile(follows)
    for n in (N, N - 4, N * 20, N + 1, N - 2):
        for low in (0, 3, 9, -4):
            low = torch.tensor(low)
            try:
                wanted = follows(X, n, low)
            except (RuntimeError, ValueError) as error:
                with pytest.raises(type(error)):
                    compiled(X, n, low)
            else:
                same(wanted, compiled(X, n, low))


def test_small_dtypes_bound_what_is_read():
    compiled = tcompile.compile(lambda x, n: x * 2 if n.item() < 256 else x, fullgraph=True)
    for n in (0, 255):
        same(X * 2, compiled(X, torch.tensor(n, dtype=torch.uint8)))
    with pytest.raises(FullGraphError):
        tcompile.compile(lambda x, n: x * 2 if n.item() < 255 else x, fullgraph=True)(X, torch.tensor(4).byte())

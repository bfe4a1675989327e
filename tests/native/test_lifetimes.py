"""What the C code holds stays alive for as long as it is used. A crash of any of these is the failure; `make sanitize`
sees more of them.
"""

import threading

import pytest
import torch

import tcompile
from tcompile.compiler.native import native

pytestmark = pytest.mark.skipif(native is None, reason="the C extension is not built")

# each makes something of its own that a product or a call of torch's names more than once
TWICE = {
    "mm": lambda h: h @ h,
    "mm transposed": lambda h: h @ h.T,
    "addmm": lambda h: torch.addmm(h, h, h, beta=0.5),
    "power": lambda h: torch.matrix_power(h, 5),
    "bmm": lambda h: torch.bmm(h[None].expand(2, -1, -1).contiguous(), h[None].expand(2, -1, -1).contiguous()),
    "baddbmm": lambda h: torch.baddbmm(h[None] + 1, (h[None] * 2).relu(), (h[None] * 2).relu()),
    "einsum": lambda h: torch.einsum("ij,kj->ik", h, h),
    "chain": lambda h: (h @ h) @ (h @ h) + h @ h,
    "cdist": lambda h: torch.cdist(h, h),
    "convolution": lambda h: torch.conv1d(h[:, None, :3], h[:, None, :3]),
    "attention": lambda h: torch.nn.functional.scaled_dot_product_attention(
        h[None, None], h[None, None], h[None, None]
    ),
}


@pytest.mark.parametrize("dynamic", [None, True], ids=["default", "dynamic"])
@pytest.mark.parametrize("name", TWICE)
def test_an_intermediate_is_both_operands(name, dynamic):
    def f(x):
        return TWICE[name](torch.softmax(x, -1))

    c = tcompile.compile(f, dynamic=dynamic)
    for n in (4, 6, 9, 6, 6, 4):
        x = torch.randn(n, n)
        torch.testing.assert_close(c(x), f(x))
    x, y = (torch.arange(49.0).view(7, 7).div(49).requires_grad_() for _ in range(2))
    c(x).square().sum().backward()
    f(y).square().sum().backward()
    torch.testing.assert_close(x.grad, y.grad)


def test_a_program_that_runs_inside_of_itself():
    """An operator that Python implements calls the compiled function again, with other sizes, between two products of
    the outer call.
    """
    inner = []

    @torch.library.custom_op("tcompile_lifetimes::again", mutates_args=())
    def again(h: torch.Tensor) -> torch.Tensor:
        if h.shape[0] > 3:
            x = h[:-1, :-1].contiguous()
            inner.append((c(x), f(x)))
        return h * 2

    again.register_fake(lambda h: torch.empty_like(h))

    def f(x):
        h = torch.softmax(x, -1)
        return (h @ h) @ again(h @ h) @ (h @ h)

    c = tcompile.compile(f, dynamic=True)
    for n in (4, 7, 5, 7):
        x = torch.randn(n, n)
        torch.testing.assert_close(c(x), f(x))
    assert len(inner) >= 8
    for got, want in inner:
        torch.testing.assert_close(got, want)


def test_a_program_on_several_threads_with_sizes_of_their_own():
    def f(x):
        h = torch.softmax(x, -1)
        return torch.sin((h @ h).exp() @ h)

    c = tcompile.compile(f, dynamic=True)
    c(torch.randn(5, 5)), c(torch.randn(6, 6))
    wrong = []

    def work(n):
        x = torch.randn(n, n)
        want = f(x)
        for _ in range(30):
            got = c(x)
            if not torch.allclose(got, want, atol=1e-5):
                wrong.append((n, (got - want).abs().max().item()))

    threads = [threading.Thread(target=work, args=(n,)) for n in (7, 180, 33, 200)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong


def test_hooks_that_run_backward_again_while_they_unpack():
    """What is saved is let go after the hooks that read it, though a backward within them frees it."""
    again = []

    def unpack(t):
        if again:
            again.pop().backward(torch.ones(50))
        return t * 1

    def f(x):
        return torch.sin(x) * torch.exp(x) * x

    c = tcompile.compile(f)
    x, y = (torch.linspace(0, 1, 50).requires_grad_() for _ in range(2))
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t * 1, unpack):
        got = c(x)
        again.append(got)
        got.backward(torch.ones(50))
    f(y).sum().backward()
    torch.testing.assert_close(x.grad, 2 * y.grad)
    with pytest.raises(RuntimeError, match="second time"):
        got.backward(torch.ones(50))


def test_defaults_that_change_while_guards_are_asked(monkeypatch):
    """A guard that asks Python lets in what exchanges the function's defaults, which are this call's parameters."""
    from tcompile.compiler.guards import guard_code

    def f(x, *, a=None, b=None):
        return x * b[0] + len(a)

    asked = []

    def ask(value, spec, bindings):
        asked.append(value)
        f.__kwdefaults__ = {"a": [1, 2], "b": [torch.ones(3)]}
        return mismatch(value, spec, bindings)

    mismatch = guard_code.tensor_mismatch
    monkeypatch.setattr(guard_code, "tensor_mismatch", ask)
    monkeypatch.setattr(guard_code.probe, "tensor_layout_known", lambda: False)  # every tensor is asked about
    f.__kwdefaults__ = {"a": [1, 2], "b": [torch.ones(3)]}
    c = tcompile.compile(f)
    x = torch.randn(3)
    for _ in range(5):
        torch.testing.assert_close(c(x), x + 2)
    assert asked


def test_objects_that_go_while_guards_are_asked(monkeypatch):
    """What guards have loaded stays until they are through, though Python exchanges it in between."""
    from tcompile.compiler.guards import guard_code

    class Part:
        def __init__(self):
            self.inner = {"scale": 2.5, "shift": [torch.ones(3)]}

    class Whole:
        parts = [Part(), Part()]

    def f(x):
        return sum(x * p.inner["scale"] + p.inner["shift"][0] for p in Whole.parts)

    asked = []

    def ask(value, spec, bindings):
        asked.append(value)
        Whole.parts = [Part(), Part()]
        return mismatch(value, spec, bindings)

    mismatch = guard_code.tensor_mismatch
    monkeypatch.setattr(guard_code, "tensor_mismatch", ask)
    monkeypatch.setattr(guard_code.probe, "tensor_layout_known", lambda: False)
    c = tcompile.compile(f)
    x = torch.randn(3)
    for _ in range(5):
        torch.testing.assert_close(c(x), x * 5 + 2)
    assert asked


def test_caches_that_go_while_others_are_forgotten():
    """Dropping an entry runs a finalizer, which forgets the code in its turn."""
    from tcompile.compiler.native import native as n

    def f():
        return 1

    class Last:
        def __del__(self):
            for owner in range(4):
                n.forget_code(f.__code__, owner)

    for owner in range(4):
        program = type("Always", (), {"check": lambda self, func, args: -1})()
        n.code_cache(f.__code__, True, owner).add(n.Entry(program, print, Last()))
    n.forget_code(f.__code__)
    assert n.code_cache(f.__code__, False, 1) is None

"""What eager keeps for backward, and the program then changes in place: backward raises, whatever the compiled graphs
keep.
"""

import pytest
import torch
import tcompile

FUNCTIONS = {
    **{
        name: getattr(torch, name)
        for name in (
            "exp",
            "tanh",
            "sigmoid",
            "relu",
            "rsqrt",
            "reciprocal",
            "expm1",
            "exp2",
            "tan",
            "sin",
            "neg",
            "atan",
        )
    },
    "sqrt": lambda x: x.abs().sqrt(),
    "softmax": lambda x: torch.softmax(x, -1),
    "prod": lambda x: x.prod(0),
    "prod of all": lambda x: (x + 3).prod(),
    "prod of a vector": lambda x: (x.flatten() + 3).prod(0),
    "square": lambda x: x * x,
    "logsumexp": lambda x: x.logsumexp(0),
    "norm": lambda x: x.norm(dim=0),
    "of a product": lambda x: torch.exp(x @ x),
    "plus": lambda x: x + 1,
    "view": lambda x: torch.tanh(x).view(-1),
    "dropped": lambda x: torch.exp(x).sum(0),
    "max": lambda x: x.max(0).values,
    "clamp": lambda x: x.clamp(min=0),
    "std": lambda x: x.std(0),
    "gather": lambda x: x.gather(0, torch.zeros(1, 4, dtype=torch.int64)),
    "gather of a view": lambda x: x.t()[1:].gather(0, torch.zeros(1, 4, dtype=torch.int64)),
    "singular values": lambda x: torch.linalg.svd(x)[1],
    "layer norm": lambda x: torch.layer_norm(x, (4,)),
}


def outcome(f, what):
    """Gradients, or that backward raised, after `what` was changed in place."""
    x = torch.linspace(-1, 2, 16).reshape(4, 4).requires_grad_()
    given = x * 1
    results = f(given)
    results = results if isinstance(results, tuple) else (results,)
    loss = sum(r.sum() for r in results)
    with torch.no_grad():
        if what == "argument":
            given.mul_(3)
        elif what == "result":
            results[0].mul_(3)
    try:
        loss.backward()
    except RuntimeError as e:
        assert "modified by an inplace operation" in str(e)
        return "raised"
    return x.grad


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions(name):
    compiled = tcompile.compile(FUNCTIONS[name])
    for what in ("nothing", "argument", "result"):
        want, got = outcome(FUNCTIONS[name], what), outcome(compiled, what)
        assert isinstance(got, str) == isinstance(want, str), what
        if not isinstance(want, str):
            torch.testing.assert_close(got, want, equal_nan=True)


@pytest.mark.parametrize("op", [torch.prod, torch.cumprod, torch.sin, torch.sigmoid, torch.abs, "max_pool1d"])
def test_arguments_of_independent_parts(op):
    """Only the part that eager keeps the argument for refuses to go on, whether or not the compiler keeps it."""
    one = {"max_pool1d": lambda x: torch.max_pool1d(x, 2), torch.prod: lambda x: x.prod(-1)}.get(op)
    one = one or ((lambda x: x.cumprod(-1)) if op is torch.cumprod else op)

    def f(a, b):
        return one(a), one(b)

    outcomes = []
    for g in (f, tcompile.compile(f)):
        said = []
        for changed in (0, 1, None):
            a = torch.linspace(-1, 2, 16).reshape(4, 4).requires_grad_() * 1
            b = torch.linspace(-2, 1, 16).reshape(4, 4).requires_grad_() * 1
            results = g(a, b)
            if changed is not None:
                with torch.no_grad():
                    (a, b)[changed].add_(1)
            for r in results:
                try:
                    r.sum().backward()
                    said.append("ran")
                except RuntimeError as e:
                    assert "modified by an inplace operation" in str(e)
                    said.append("raised")
        outcomes.append(said)
    assert outcomes[0] == outcomes[1]


def test_a_change_of_results_by_the_program_itself():
    compiled = tcompile.compile(torch.tanh)
    x = torch.randn(3, requires_grad=True)
    y = compiled(x)
    y.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


def test_results_of_independent_parts():
    def f(a, b):
        return torch.exp(a), torch.sigmoid(b)

    for changed in (0, 1, None):
        outcomes = []
        for g in (f, tcompile.compile(f)):
            a, b = torch.ones(3, requires_grad=True), torch.ones(3, requires_grad=True)
            results = g(a, b)
            if changed is not None:
                with torch.no_grad():
                    results[changed].add_(1)
            said = []
            for r in results:
                try:
                    r.sum().backward()
                    said.append("ran")
                except RuntimeError:
                    said.append("raised")
            outcomes.append((said, a.grad, b.grad))
        assert str(outcomes[0]) == str(outcomes[1])

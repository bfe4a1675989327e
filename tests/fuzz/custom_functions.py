"""A writer of programs of custom autograd functions that give their inputs, views of them, several results, or results
without gradient, among views, writes in place and `no_grad`. What a program gives is compared with eager: values, which
results share memory, and the gradient of each result alone and of all.

`program(seed)` is the text of a function of `compiled`.

    python -m tests.fuzz.custom_functions 0 300     # these seeds; what differs from eager is printed
"""

from __future__ import annotations

import random
import sys
from typing import Any

PRELUDE = """
import torch
from torch.autograd import Function

def function(forward, backward):
    return type("F", (Function,), {"forward": staticmethod(forward), "backward": staticmethod(backward)})

def shifted(ctx, x):
    ctx.shape = x.shape
    return x[1:]

def shifted_back(ctx, g):
    out = g.new_zeros(ctx.shape)
    out[1:] = g * 5
    return out

def kept(ctx, x):
    ctx.save_for_backward(x)
    return x.sin(), x * 2

def with_view(ctx, x):
    twice = x * 2
    return twice, twice.view_as(twice)

def with_sign(ctx, x):
    sign = x.sign()
    ctx.mark_non_differentiable(sign)
    return x * 2, sign

def written(ctx, x):
    ctx.mark_dirty(x.mul_(2))
    return x

same = function(lambda ctx, x: x, lambda ctx, g: g * 3).apply
view = function(lambda ctx, x: x.view_as(x), lambda ctx, g: -g).apply
part = function(shifted, shifted_back).apply
first = function(lambda ctx, x, y: x, lambda ctx, g: (g, g * 7)).apply
write = function(written, lambda ctx, g: g * 11).apply
two = function(kept, lambda ctx, a, b: a * ctx.saved_tensors[0].cos() * 2 + b).apply
both = function(with_view, lambda ctx, a, b: a + b * 9).apply
signed = function(with_sign, lambda ctx, a, b: a * 4).apply

def gradients(results, leaves):
    total = sum((r.square().sum() for r in results if r.requires_grad), torch.zeros(()))
    if not total.requires_grad:
        return None
    found = torch.autograd.grad(total, leaves, allow_unused=True, retain_graph=True)
    return [None if g is None else g.contiguous() for g in found]
"""

# `{a}` and `{b}` are tensors of the program. A statement makes as many new ones as it has names on the left.
STATEMENTS = (
    *(("{new} = %s({a})" % name, 1) for name in ("same", "view", "part", "write")),
    ("{new} = first({a}, {a} * 2)", 1),
    *(("{new}, {other} = %s({a})" % name, 2) for name in ("two", "both", "signed")),
    *(
        ("{new} = {a}%s" % view, 1)
        for view in ("[:1]", "[1:]", "[...]", ".t().t()", ".detach()", ".unbind()[-1][None]")
    ),
    *(("{new} = %s" % value, 1) for value in ("{a}.sin()", "{a} * 2", "{a} + {b}.sum()", "{a}.cumsum(0) + {b}[:1]")),
    *(("{a}%s" % write, 0) for write in (".mul_(2)", ".add_(1)", ".sin_()", "[:1].mul_(3)")),
    *(("with torch.no_grad(): {new} = %s" % value, 1) for value in ("{a}[:1]", "{a} * 2", "same({a})")),
)


def program(seed: int) -> str:
    r = random.Random(seed)
    names, body = ["x", "w", "z"], []
    for _ in range(r.randint(2, 6)):
        statement, made = r.choice(STATEMENTS)
        new = [f"v{len(names) + i}" for i in range(made)]
        fill = dict(zip(("new", "other"), new), a=r.choice(names[-4:]), b=r.choice(names))
        body.append(statement.format(**fill))
        names += new
    results = r.sample(names, r.randint(1, 3))
    given = r.choice(["leaf", "leaf * 1.5", "leaf * 1.5"])  # (a leaf may not be written)
    return "\n".join(
        [
            "def program(compiled):",
            "    def f(x, w, z):",
            *("        " + line for line in body),
            f"        return [{', '.join(results)}]",
            "    f = compiled(f)",
            "    log = []",
            "    for _ in range(2):",
            "        leaf, w = (torch.randn(3, 4).requires_grad_() for _ in range(2))",
            f"        x, z = {given}, torch.randn(3, 4)",
            "        results = f(x, w, z)",
            "        tensors = [x, w, z, *results]",
            "        log += [t.clone() for t in tensors]",
            "        log += [[t is u for u in tensors] for t in results]",
            "        log += [[t.data_ptr() == u.data_ptr() for u in tensors] for t in results]",
            "        log += [gradients([t], (leaf, w)) for t in results] + [gradients(results, (leaf, w))]",
            "    return log",
        ]
    )


def function(seed: int) -> Any:
    space: dict[str, Any] = {}
    exec(PRELUDE, space)
    exec(compile(program(seed), f"<custom functions {seed}>", "exec"), space)
    return space["program"]


def main(first: int, count: int) -> None:
    from tests.autograd.harness import check

    different = []
    for seed in range(first, first + count):
        try:
            check(function(seed), False, backend="aot_eager")
        except AssertionError as e:
            different.append(seed)
            print(f"--- {seed}: {str(e)[:600]}\n{program(seed)}", flush=True)
    print(f"{count} programs, different: {different}")


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))

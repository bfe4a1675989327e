"""A writer of programs with hooks: on tensors, nodes, leaves, modules and saved tensors, put anywhere in a random small
network, with backward passes inside of the compiled function and outside, once more, and with gradients of gradients.

`program(seed)` is the text of a function of `compiled` that returns what the hooks heard, in order, and all gradients.

    python -m tests.fuzz.hooks 0 300     # these seeds; what differs from eager is printed
"""

from __future__ import annotations

import random
import sys
import warnings
from typing import Any

REFUSED = "tcompile: double backward"  # (a hook would be told two parts of a gradient one by one: an error says so)
PRELUDE = """
import torch
from torch import nn
from torch.autograd.graph import saved_tensors_hooks

def accumulator(t):
    return t.view_as(t).grad_fn.next_functions[0][0]

def sums(values):
    return [None if v is None else v.sum() for v in values]

def kept_by(tensors):
    return [None if t.grad is None else t.grad.clone() for t in tensors]

def twice(values):
    return tuple(None if v is None else v * 2 for v in values)
"""


class _Writer:
    def __init__(self, seed: int):
        self.r = random.Random(seed)
        self.lines: list[str] = []
        self.names = 0
        self.inside = self.r.random() < 0.45  # the pass is in the compiled function
        self.logging = self.r.random() < 0.75
        self.saving = ""

    def name(self, prefix: str = "h") -> str:
        self.names += 1
        return f"{prefix}{self.names}"

    def hook(self, what: str, log: str = "log") -> str:
        """The text of a hook on a gradient."""
        forms = ["lambda g: g * 2", "lambda g: g.clamp(-0.5, 0.5)", "lambda g: None", "lambda g: g + limit[0]"]
        if self.logging:
            forms += [
                f"lambda g: {log}.append(({what!r}, g.clone()))",
                f"lambda g: {log}.append(({what!r}, g.sum()))",
                f"lambda g: ({log}.append({what!r}), g * 0.5)[1]",
                f"lambda g: {log}.append(({what!r}, kept_by(leaves)))",
            ]
        return self.r.choice(forms)

    def on_tensor(self, t: str, where: str) -> str:
        k = self.name("k")
        if self.r.random() < 0.2:
            return f"{t}.retain_grad(); kept.append({t})" if self.r.random() < 0.5 else f"{t}.retain_grad()"
        if self.logging and self.r.random() < 0.25:
            return self.r.choice(
                [
                    f"{t}.grad_fn.register_hook(lambda i, o: log.append(({k!r}, sums(o))))",
                    f"{t}.grad_fn.register_prehook(lambda o: log.append(({k!r}, sums(o))))",
                    f"{t}.grad_fn.register_prehook(twice)",
                ]
            )
        return f"{t}.register_hook({self.hook(k)})"

    def network(self) -> list[str]:
        r, out, tensors = self.r, [], ["x @ w"]
        h = self.name()
        out.append(f"{h} = x @ w")
        tensors = [h]
        for _ in range(r.randrange(2, 6)):
            a, b, new = r.choice(tensors), r.choice(tensors), self.name()
            forms = [
                f"{new} = {a}.sin()",
                f"{new} = {a}.tanh() * {b}",
                f"{new} = {a} @ v",
                f"{new} = {a} + u",
                f"{new} = layer({a})",
                f"{new} = block({a})",
                f"{new} = {a}.exp().sum(0, keepdim=True) * {b}",
                f"{new} = {a}.chunk(2, 1)[0].repeat(1, 2)",
                f"{new} = {a} * 1\n{new}.mul_({b})",
                f"{new} = torch.where({a} > 0, {b}, u)",
            ]
            out += r.choice(forms).split("\n")
            tensors.append(new)
            if r.random() < 0.5:
                out.append(self.on_tensor(new if r.random() < 0.7 else r.choice(tensors), "inside"))
        if self.saving == "inside":
            at = r.randrange(1, len(out))
            out = out[:at] + [f"with saved_tensors_hooks({self.pack()}):"] + ["    " + s for s in out[at:]]
        out.append(f"y = {tensors[-1]}.square().mean() + {r.choice(tensors)}.sum()")
        if r.random() < 0.3:
            out.append(self.on_tensor("y", "inside"))
        return out

    def pack(self) -> str:
        return self.r.choice(["lambda t: t.clone(), lambda t: t", "lambda t: (t,), lambda t: t[0]"])

    def leaf_hooks(self) -> list[str]:
        out, r = [], self.r
        for t in ("w", "v", "u", "layer.weight", "block[0].bias"):
            if r.random() < 0.35:
                out.append(f"{t}.register_hook({self.hook(t)})")
            if r.random() < 0.3:
                out.append(
                    f"{t}.register_post_accumulate_grad_hook("
                    + r.choice(
                        [
                            f"lambda p: log.append(({t!r}, p.grad.clone()))",
                            "halve",
                            "lambda p: None",
                        ]
                    )
                    + ")"
                )
            if r.random() < 0.1:
                out.append(
                    f"nodes.append(accumulator({t})); nodes[-1].register_hook(lambda i, o: log.append({t + ' node'!r}))"
                )
        return out

    def module_hooks(self) -> list[str]:
        out, r = [], self.r
        log = "log.append(({0!r}, sums({1})))"
        for m in ("layer", "block", "block[0]", "block[1]"):
            if r.random() < 0.25:
                k = m + " full"
                out.append(f"{m}.register_full_backward_hook(lambda m, gi, go: {log.format(k, 'gi')})")
            if r.random() < 0.15:
                k = m + " pre"
                out.append(f"{m}.register_full_backward_pre_hook(lambda m, go: {log.format(k, 'go')})")
            if r.random() < 0.1:
                out.append(f"{m}.register_full_backward_hook(lambda m, gi, go: twice(gi))")
            if r.random() < 0.1:
                k = m + " output"
                out.append(f"{m}.register_forward_hook(lambda m, i, o: o.register_hook({self.hook(k)}) and None)")
        return out

    def write(self) -> str:
        r = self.r
        self.saving = r.choice(["", "", "", "", "inside", "outside"])
        body = self.network()
        passes = r.choice(["one", "one", "twice", "create", "grad", "inputs"])
        back = {
            "one": ["y.backward()"],
            "twice": ["y.backward(retain_graph=True)", "log.append('again')", "y.backward()"],
            "create": [
                "(g,) = torch.autograd.grad(y, w, create_graph=True)",
                "log.append('again')",
                "(g.square().sum() + y).backward()",
            ],
            "grad": ["log.append(torch.autograd.grad(y, (w, v, u), allow_unused=True))"],
            "inputs": ["y.backward(inputs=[w, u])"],
        }[passes]
        out = ["def program(compiled):"]
        pre = [
            "torch.manual_seed(0)",
            "w, v, u = (torch.randn(*s).requires_grad_() for s in ((4, 4), (4, 4), (4,)))",
            "layer, block = nn.Linear(4, 4), nn.Sequential(nn.Linear(4, 4), nn.Tanh())",
            "leaves = [w, v, u, *layer.parameters(), *block.parameters()]",
            "log, kept, nodes, limit = [], [], [], [0.1]",
            "def halve(p):",
            "    p.grad.mul_(0.5)",
            *self.module_hooks(),
            *self.leaf_hooks(),
        ]
        pre.append("def f(x):")
        pre += ["    " + s for s in body]
        if self.inside:
            pre += ["    " + s for s in back] + ["    return y.detach()"]
        else:
            pre += ["    return y"]
        pre += ["f = compiled(f)", "for n in (3, 3, 5):", "    x = torch.randn(n, 4)"]
        if r.random() < 0.2:
            pre[-1] += ".requires_grad_()"
        call = ["y = f(x)"]
        if self.saving == "outside":
            call = [f"with saved_tensors_hooks({self.pack()}):", "    y = f(x)"]
        if not self.inside and r.random() < 0.3:
            call.append(self.on_tensor("y", "outside"))
        if not self.inside:
            call += back
        call += ["limit[0] += 0.1", "log.append(y.detach())"]
        if r.random() < 0.3:
            call.append("for p in leaves: p.grad = None")
        pre += ["    " + s for s in call]
        pre.append("return log, [t.grad for t in kept], [p.grad for p in leaves]")
        return "\n".join([*out, *("    " + s for s in pre)])


def program(seed: int) -> str:
    return _Writer(seed).write()


def function(seed: int) -> Any:
    space: dict[str, Any] = {}
    exec(PRELUDE, space)
    exec(compile(program(seed), f"<hooks {seed}>", "exec"), space)
    return space["program"]


def main(first: int, count: int) -> None:
    from tests.autograd.harness import check, outcome

    different, raised, refused = [], 0, 0
    warnings.simplefilter("ignore")
    for seed in range(first, first + count):
        raised += isinstance(outcome(function(seed), lambda fn: fn), Exception)
        try:
            check(function(seed), False)
        except BaseException as e:
            if isinstance(e, KeyboardInterrupt):
                raise
            if REFUSED in str(e):
                refused += 1
                continue
            different.append(seed)
            print(f"--- {seed}: {type(e).__name__}: {str(e)[:600]}", flush=True)
    print(f"{count} scenarios ({raised} raise in eager, {refused} refused), different: {different}")


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))

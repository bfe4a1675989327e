"""Random programs with gradients: aliasing, in-place writes, several results, backward passes inside and outside,
against eager.

`python -m tests.fuzz.training SEED COUNT` runs COUNT programs and prints those that differ. A program is Python text;
both worlds run the same text on equal inputs, and everything that autograd shows is compared: results, gradients, what
was written, versions of what requires grad, errors.
"""

from __future__ import annotations

import random
import sys
import warnings
from typing import Any

import torch

import tcompile
from tcompile.compiler.errors import TCompileError

_UNARY = (
    "{0}.sin()",
    "{0} * 2",
    "{0}.exp()",
    "{0}.tanh()",
    "{0} + 1",
    "{0}.relu()",
    "{0}.sigmoid()",
    "-{0}",
    "{0}.square()",
    "{0}.clone()",
)
_VIEWS = (
    "{0}.t()",
    "{0}[1:]",
    "{0}[:, :2]",
    "{0}.view(-1)",
    "{0}.reshape(2, -1)",
    "{0}.transpose(0, 1)",
    "{0}[0]",
    "{0}.unsqueeze(0)",
    "{0}.expand_as({0})",
    "{0}.detach()",
    "{0}.unbind(0)[0]",
    "{0}.chunk(2, 0)[1]",
    "{0}.diagonal()",
    "{0}.contiguous()",
)
_BINARY = ("{0} * {1}", "{0} + {1}", "{0} - {1}", "torch.where({0} > 0, {0}, {1})", "torch.maximum({0}, {1})")
_IN_PLACE = (
    "{0}.mul_(2)",
    "{0}.add_(1)",
    "{0}.sin_()",
    "{0}.copy_({0}.exp())",
    "{0}[0] = 0.5",
    "{0}.zero_()",
    "{0}.add_({1}.sum())",
    "{0}[1:] *= 3",
    "{0}.mul_({1}.mean())",
)


class Writer:
    """One program: `f(x, w, v)` over tensors of 4 x 4, where w and v require grad, and what the caller does with what
    it gives.
    """

    def __init__(self, seed: int):
        self.r = random.Random(seed)
        self.lines: list[str] = []
        self.names = ["x", "w", "v"]
        self.square = ["x", "w", "v"]  # known to be 4 x 4

    def pick(self) -> str:
        return self.r.choice(self.names)

    def fresh(self, text: str, square: bool = False) -> str:
        name = f"t{len(self.names)}"
        self.lines.append(f"{name} = {text}")
        self.names.append(name)
        if square:
            self.square.append(name)
        return name

    def statement(self) -> None:
        k = self.r.random()
        if k < 0.3:
            a = self.pick()
            self.fresh(self.r.choice(_UNARY).format(a), a in self.square)
        elif k < 0.5:
            self.fresh(self.r.choice(_VIEWS).format(self.pick()))
        elif k < 0.65:
            self.fresh(self.r.choice(_BINARY).format(self.r.choice(self.square), self.r.choice(self.square)), True)
        elif k < 0.7:
            self.fresh(f"{self.r.choice(self.square)} @ {self.r.choice(self.square)}", True)
        elif k < 0.88:
            line = self.r.choice(_IN_PLACE).format(self.pick(), self.pick())
            self.lines += ["with torch.no_grad():", "    " + line] if self.r.random() < 0.25 else [line]
        elif k < 0.92:
            self.fresh(
                f"torch.autograd.grad({self.pick()}.sum(), {self.r.choice('wv')}, allow_unused=True, retain_graph={self.r.random() < 0.7})[0]"
            )
            self.lines.append(f"if {self.names[-1]} is None: {self.names[-1]} = torch.ones(2, 2)")
        elif k < 0.97:
            self.lines.append(f"{self.pick()}.sum().backward({'retain_graph=True' if self.r.random() < 0.6 else ''})")
        else:
            self.lines.append(f"{self.r.choice('wv')}.grad = None")

    def text(self) -> str:
        for _ in range(self.r.randint(2, 9)):
            self.statement()
        results = self.r.sample(self.names, min(len(self.names), self.r.randint(1, 3)))
        body = "\n".join("    " + line for line in self.lines)
        return f"def f(x, w, v):\n{body}\n    return {', '.join(results)},\n"

    def caller(self) -> dict[str, Any]:
        """What is done outside: which inputs are leaves, how results are differentiated."""
        r = self.r
        return {
            "leaf_w": r.random() < 0.6,
            "leaf_v": r.random() < 0.6,
            "shared": r.random() < 0.15,
            "calls": r.randint(1, 3),
            "together": r.random() < 0.5,
            "retain": r.random() < 0.3,
            "order": r.random(),
            "grad_x": r.random() < 0.2,
            "write": r.random() < 0.2,
        }


def run(f: Any, how: dict[str, Any]) -> list:
    """Everything that can be seen of a program's run."""
    torch.manual_seed(1)
    seen: list[Any] = []
    x, w0, v0 = torch.randn(4, 4), torch.randn(4, 4).requires_grad_(), torch.randn(4, 4).requires_grad_()
    if how["grad_x"]:
        x.requires_grad_()

    def value(t: torch.Tensor, look: Any = lambda t: t.detach().clone()) -> Any:
        try:
            return look(t)
        except RuntimeError:
            return "error"  # a view whose base was written into

    for _ in range(how["calls"]):
        w = w0 if how["leaf_w"] else w0 * 1.5
        v = w.detach().requires_grad_() if how["shared"] and how["leaf_v"] else v0 if how["leaf_v"] else v0 + 0.5
        try:
            out = f(x, w, v)
        except TCompileError:
            raise
        except (RuntimeError, IndexError, TypeError, ValueError):
            seen.append("error")
            continue
        seen += [
            fact for t in out for fact in (value(t), t.requires_grad, value(t, lambda t: t.is_leaf), tuple(t.stride()))
        ]
        seen.append(
            [a.untyped_storage().data_ptr() == b.untyped_storage().data_ptr() for a in out for b in (*out, x, w, v)]
        )
        if how["write"] and not out[0].requires_grad and not out[0].is_inference():
            try:
                out[0].mul_(2)
            except RuntimeError:
                seen.append("error")
            seen += [value(t) for t in out]
        ends = [t for t in out if t.requires_grad]
        if how["order"] < 0.5:
            ends = ends[::-1]
        try:
            if how["together"] and ends:
                sum(t.sin().sum() for t in ends).backward(retain_graph=how["retain"])
            else:
                for t in ends:
                    t.sin().sum().backward(retain_graph=how["retain"])
        except RuntimeError:
            seen.append("refused")
            break  # how far a pass that fails has come is not compared
        seen += [value(t) for t in (x, w, v)] + [None if t.grad is None else t.grad.clone() for t in (x, w0, v0)]
    return seen


def differ(a: Any, b: Any) -> str | None:
    if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor):
        if a.shape != b.shape or a.dtype != b.dtype:
            return f"{a.shape} {a.dtype}, here {b.shape} {b.dtype}"
        if not torch.allclose(a, b, rtol=1e-3, atol=1e-3, equal_nan=True) and not _huge(a, b):
            return f"values: {a.flatten()[:6].tolist()}, here {b.flatten()[:6].tolist()}"
        return None
    if isinstance(a, list) and isinstance(b, list):
        if "refused" in a:  # eager misses what it saved; a compiled graph may have saved something else
            a, b = a[: a.index("refused")], b[: a.index("refused")]
        if len(a) != len(b):
            return f"{len(a)} facts, here {len(b)}: {[x for x in a if isinstance(x, tuple)]} / {[x for x in b if isinstance(x, tuple)]}"
        for i, (p, q) in enumerate(zip(a, b)):
            why = differ(p, q)
            if why:
                return f"[{i}] {why}"
        return None
    return None if a == b else f"{a!r}, here {b!r}"


def _huge(a: torch.Tensor, b: torch.Tensor) -> bool:
    """exp of exp: what is beyond any precision, or infinite, on both sides."""
    big = torch.maximum(a.abs(), b.abs()).nan_to_num(float("inf")) > 1e4
    return bool(torch.allclose(a[~big], b[~big], rtol=1e-3, atol=1e-3)) and bool(big.any())


def check(seed: int, backend: str = "tcompile") -> str | None:
    """None where both worlds agree, else the program and the difference."""
    w = Writer(seed)
    text, how = w.text(), w.caller()

    def make() -> Any:
        space: dict[str, Any] = {"torch": torch}
        exec(compile(text, f"<training {seed}>", "exec"), space)
        return space["f"]

    want = run(make(), how)
    tcompile.reset()
    try:
        got = run(tcompile.compile(make(), backend=backend), how)
    except Exception as e:
        return f"seed {seed}: {type(e).__name__}: {str(e)[:300]}\n{text}{how}"
    why = differ(want, got)
    return None if why is None else f"seed {seed}: {why}\n{text}{how}"


def main() -> None:
    start, count = int(sys.argv[1]), int(sys.argv[2])
    backend = sys.argv[3] if len(sys.argv) > 3 else "tcompile"
    warnings.simplefilter("ignore")
    bad = 0
    for seed in range(start, start + count):
        why = check(seed, backend)
        if why is not None:
            bad += 1
            print(why, flush=True)
    print(f"{count} programs, {bad} differ")


if __name__ == "__main__":
    main()

"""Fuzzer 4: programs of integers, floats and sizes that differ from call to call: arithmetic, indices, keys, branches,
loops, beside tensors of sizes that change. One compiled function is called with a row of numbers and sizes; every call
is compared with eager."""

from __future__ import annotations

import collections
import linecache
import math
import random
from typing import Any

import torch
import torch.nn.functional as F

import tcompile

__all__ = ["write", "check_numbers"]

_NUMBERS = (0, 1, 2, 3, 4, 5, 7, 8, -1, -2, -3, -5, 12, 100, 2**31, 2**53 + 1, -(2**40), True, False)
_FLOATS = (0.5, 1.0, -1.0, 2.5, 0.0, -0.0, 1e-3, 3.0, float("inf"), float("nan"), 1e12)


class Writer:
    """Statements over ints (m0, m1, ...), floats (s0, ...) and tensors (t0, ...)."""

    def __init__(self, r: random.Random):
        self.r = r
        self.ints, self.floats, self.tensors = ["n", "k"], ["s"], ["x"]
        self.lines: list[str] = []

    def pick(self, *of: Any) -> Any:
        return self.r.choice(of)

    def int_(self) -> str:
        a, b, t = self.r.choice(self.ints), self.r.choice(self.ints), self.r.choice(self.tensors)
        return self.pick(
            a,
            a,
            f"{a} + {b}",
            f"{a} - {b}",
            f"{a} * 2 - 1",
            f"{a} // 2",
            f"{a} // -3",
            f"{a} % 5",
            f"-{a}",
            f"abs({a})",
            f"max({a}, {b})",
            f"min({a}, 3)",
            f"{t}.shape[0]",
            f"{t}.shape[-1]",
            f"{t}.numel()",
            f"len({t})",
            f"int({a} / 2)",
            f"math.ceil({a} / 4)",
            f"math.floor({a} * 0.5)",
            f"round({a} / 2)",
            f"{a} ** 2",
            f"{a} << 1",
            f"{a} & 3",
            f"divmod({a}, 3)[1]",
            f"int({a} > {b})",
            f"{a} if {a} > 2 else {b}",
            f"sum([{a}, {b}, 1])",
            f"({a} or 7)",
            f"TABLE.get({a}, {b})",
            f"[5, 6, 7][{a} % 3]",
            f"len(range({a} % 6))",
            f"int(str({a})[-1])",
            f"math.gcd({a}, 12)",
            f"hash({a}) % 5",
            f"~{a}",
            f"bool({a}) + {b}",
            f"len({{{a}, {b}, 2}})",
            f"collections.Counter([{a}, {b}, 2])[2]",
            f"({a}, {b}).index({b})",
            f"sorted([{a}, {b}, 2])[1]",
            f"{a}.bit_length()",
            f"operator_index({a})",
        )

    def float_(self) -> str:
        a, s, t = self.r.choice(self.ints), self.r.choice(self.floats), self.r.choice(self.tensors)
        return self.pick(
            s,
            f"{s} * 2",
            f"1 - {s}",
            f"{a} / 2",
            f"{a} * 0.3",
            f"float({a})",
            f"{s} + {a}",
            f"{a} / 7",
            f"(abs({a}) + 1) ** -0.5",
            f"math.sqrt(abs({a}))",
            f"math.log({t}.shape[0] + 1)",
            f"1.0 / ({t}.shape[-1] + 1)",
            f"abs({s})",
            f"-{s}",
            f"{s} if {s} > 0.7 else 2.0",
            f"max({s}, 0.1)",
            f"math.tanh({s})",
            f"({a} + 0.5) * 2",
            f"{t}.shape[0] ** 0.5",
            f"float({s} > 1) + {a}",
            f"min({s}, {a})",
            f"{s} / ({a} * {a} + 1)",
        )

    def tensor(self) -> str:
        a, b, s, t, u = (
            self.r.choice(self.ints),
            self.r.choice(self.ints),
            self.r.choice(self.floats),
            self.r.choice(self.tensors),
            self.r.choice(self.tensors),
        )
        return self.pick(
            f"{t} * {a}",
            f"{t} + {s}",
            f"{s} * {t}",
            f"{t} / (1 + abs({s}))",
            f"{a} - {t}",
            f"{t}[{a} % {t}.shape[0]]",
            f"{t}[:{a}]",
            f"{t}[{a}:]",
            f"{t}[..., {a} % 2]",
            f"{t}[:, {a} % {t}.shape[-1]]",
            f"{t}[-1 - {a} % 2]",
            f"{t}[::1 + {a} % 3]",
            f"torch.arange({a} % 9) + {b}",
            f"torch.full((2, 1 + {a} % 4), {s})",
            f"torch.zeros({a} % 5, 2) + {t}.mean()",
            f"{t}.sum() * {a}",
            f"{t}.reshape(-1)[:{a} % 4]",
            f"{t}.roll({a}, 0)",
            f"{t}.clamp(max={a})",
            f"{t}.clamp(min={s})",
            f"torch.where({t} > {s}, {t}, {t} * {a})",
            f"F.pad({t}, (0, {a} % 3))",
            f"torch.cat([{t}, {t}[:{a} % 3]])",
            f"{t}.repeat(1 + {a} % 2, 1)",
            f"{t} > {a}",
            f"torch.tensor({a}) + {t}",
            f"torch.tensor([{a}, {b}])",
            f"torch.stack([{t}[0] * i for i in range(1 + {a} % 3)])",
            f"{t}.expand(1 + {a} % 3, *{t}.shape)",
            f"{t}.sum({a} % {t}.dim())",
            f"{t} ** ({a} % 3)",
            f"torch.linspace(0, 1, 2 + {a} % 4) * {s}",
            f"{t}.unsqueeze({a} % 2)",
            f"{t}.narrow(0, 0, {t}.shape[0] - {t}.shape[0] // 2)",
            f"{t}.view({t}.shape[0], -1)",
            f"{t}.softmax(-1) * {s}",
            f"{t} + ({a} if {a} % 2 else {b})",
            f"{t}.flatten() @ {t}.flatten()",
            f"F.layer_norm({t}, {t}.shape[-1:]) * {s}",
            f"{t} + {u}[..., :1]",
            f"{t}.masked_fill({t} > {a}, {s})",
            f"{t} // (1 + abs({a} % 7))",
            f"torch.ones_like({t}).cumsum(0) * {s}",
            f"{t}.split(1 + {a} % 3)[0]",
            f"{t}.chunk(1 + {a} % 3)[-1]",
        )

    def statement(self, indent: str, depth: int) -> None:
        kind = self.r.choice(
            ("int", "int", "float", "tensor", "tensor", "tensor", "write", "note", "note", "if", "loop", "state")
        )
        name = f"v{len(self.lines)}"
        if kind in ("int", "float", "tensor"):
            e = {"int": self.int_, "float": self.float_, "tensor": self.tensor}[kind]()
            self.lines.append(f"{indent}{name} = {e}")
            {"int": self.ints, "float": self.floats, "tensor": self.tensors}[kind].append(name)
        elif kind == "write":
            a, s, t = self.r.choice(self.ints), self.r.choice(self.floats), self.r.choice(self.tensors)
            self.lines += [
                f"{indent}{name} = {t} * 1.0",
                f"{indent}{name}"
                + self.pick(
                    f"[{a} % {name}.shape[0]] = {s}",
                    f"[{a} % {name}.shape[0]] += {a}",
                    f"[:{a}] = {a}",
                    f".mul_({a})",
                    f".add_({s})",
                ),
            ]
            self.tensors.append(name)
        elif kind == "note":
            a, s = self.r.choice(self.ints), self.r.choice(self.floats)
            self.lines.append(
                f"{indent}notes.append("
                + self.pick(
                    a,
                    s,
                    f"{a} > {s}",
                    f"({a}, {s})",
                    f"f'{{{a}}} {{{s}:.4g}}'",
                    f"type({a}).__name__",
                    f"{{{a}: {s}}}",
                    f"{a} == {a} // 2 * 2",
                )
                + ")"
            )
        elif kind == "state":
            self.lines.append(f"{indent}STATE['calls'] = STATE['calls'] + {self.r.choice(self.ints)}")
        elif depth < 2:
            a, b, s = self.r.choice(self.ints), self.r.choice(self.ints), self.r.choice(self.floats)
            kept = list(self.ints), list(self.floats), list(self.tensors)
            if kind == "if":
                self.lines.append(
                    f"{indent}if "
                    + self.pick(
                        f"{a} > 2",
                        f"{a} == {b}",
                        f"{a}",
                        f"not {a} % 2",
                        f"{s} > 0.5",
                        f"{a} in (2, 3, 5)",
                        f"{a} in {{1, 4}}",
                        f"{a} < {s}",
                        f"{a} * 2 >= {b}",
                        f"{s}",
                    )
                    + ":"
                )
            else:
                self.lines.append(f"{indent}for i in range({a} % 4):")
                self.ints.append("i")
            for _ in range(self.r.randint(1, 3)):
                self.statement(indent + "    ", depth + 1)
            self.lines.append(f"{indent}    notes.append({self.r.choice(self.ints)})")
            self.ints, self.floats, self.tensors = kept


def write(r: random.Random) -> str:
    """A program: f(x, n, k, s), and `calls`: the sizes and numbers that it is called with."""
    w = Writer(r)
    for _ in range(r.randint(3, 9)):
        w.statement("    ", 0)
    calls = []
    n, k, s, shape = r.choice(_NUMBERS), r.choice(_NUMBERS), r.choice(_FLOATS), (r.randint(1, 6), r.randint(1, 6))
    for _ in range(r.randint(3, 6)):
        calls.append((shape, n, k, s))
        n = r.choice((n, n + 1, r.choice(_NUMBERS)))
        k = r.choice((k, k, k - 1, r.choice(_NUMBERS)))
        s = r.choice((s, s, r.choice(_FLOATS)))
        shape = r.choice((shape, (r.randint(1, 6), shape[1]), (r.randint(1, 6), r.randint(1, 6))))
    text = repr(calls).replace("inf", "float('inf')").replace("nan", "float('nan')")
    results = ", ".join(w.tensors[-4:] + w.ints[-2:] + w.floats[-2:])
    return "\n".join(
        [
            f"calls = {text}",
            "",
            "",
            "def f(x, n, k, s):",
            "    notes = []",
            *w.lines,
            f"    return {results}, notes",
            "",
        ]
    )


def _namespace() -> dict[str, Any]:
    import operator

    return {
        "torch": torch,
        "F": F,
        "math": math,
        "collections": collections,
        "operator_index": operator.index,
        "TABLE": {2: 9, 5: 1, -1: 3},
        "STATE": {"calls": 0},
    }


def _run(f: Any, space: dict[str, Any], call: tuple) -> Any:
    shape, n, k, s = call
    x = torch.linspace(-1, 2, shape[0] * shape[1]).reshape(shape)
    try:
        result = f(x, n, k, s)
    except Exception as e:  # noqa: BLE001 -- what it is, is compared
        result = f"{type(e).__name__}: {e}"
    return result, x, space["STATE"]["calls"]


def _same(a: Any, b: Any) -> bool:
    if isinstance(a, torch.Tensor):
        if not isinstance(b, torch.Tensor) or a.dtype != b.dtype or a.shape != b.shape:
            return False
        finite = a[a.isfinite()].double().abs()
        return torch.allclose(
            a.double(),
            b.double(),
            rtol=2e-4,
            atol=1e-5 * max(1.0, float(finite.max()) if finite.numel() else 1.0),
            equal_nan=True,
        )
    if type(a) is not type(b):
        return False
    if isinstance(a, (tuple, list)):
        return len(a) == len(b) and all(map(_same, a, b))
    if isinstance(a, dict):
        return list(map(repr, a)) == list(map(repr, b)) and all(map(_same, a.values(), b.values()))
    return repr(a) == repr(b)


def check_numbers(source: str, backend: str = "eager") -> None:
    """Each call eager and compiled. Raises AssertionError with the program, the call and what differs."""
    spaces = [_namespace(), _namespace()]
    name = f"<numbers {abs(hash(source))}>"
    linecache.cache[name] = (len(source), None, source.splitlines(True), name)
    for space in spaces:
        exec(compile(source, name, "exec"), space)
    compiled = tcompile.compile(spaces[1]["f"], backend=backend)
    for call in spaces[0]["calls"]:
        want, got = _run(spaces[0]["f"], spaces[0], call), _run(compiled, spaces[1], call)
        assert _same(want, got), f"call {call}: eager gives {want!r:.600}, compiled {got!r:.600}\n{source}"

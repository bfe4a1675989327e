"""Kernels of few rows: each stage is a launch, whose programs take SPLIT pieces of a row and leave partial results.

Memory may run along the kept axes (sums over leading dimensions: bias gradients, batch norms). Then partial results lie
piece by piece, so that neighbours are written and read together. One small launch folds them before another pass over
the rows, all of whose programs would have to fold otherwise. It computes what follows from the results alone as well.
"""

from __future__ import annotations

from typing import Any, Iterable

import torch

from ...lowering.ir import Acc, Stage, loads, numel, walk
from ...lowering.patterns import Leaf, Same, match, op
from ...symbolic.expr import ceildiv, integer
from ..kernel_sources import Scratch
from .dtypes import ttype
from .prims import Operand
from .values import Names

__all__ = ["is_variance", "print_split"]

FOLDED = 4096  # partial results that one program folds


def is_variance(first: Stage, second: Stage) -> bool:
    """Whether two passes are sum(v) and sum((v - sum / n) ** 2) in float32."""
    if (
        first.stores
        or second.stores
        or len(first.accs) != 1
        or len(second.accs) != 1
        or first.axes != second.axes
        or not first.axes
    ):
        return False
    total, squares = first.accs[0], second.accs[0]
    n = numel(first.axes)
    if (
        total.op != "sum"
        or squares.op != "sum"
        or not total.dtype == squares.dtype == total.value.dtype == torch.float32
        or not n.is_const
    ):
        return False
    distance = Same("distance", op("sub", Same("x"), op("div", Leaf("acc", total.name), n.value)))
    return match(op("mul", distance, distance), squares.value, {"x": total.value}) is not None


def print_split(printer: Any) -> list[tuple[Any, str]]:
    """The launches of a split kernel, in order."""
    return _Split(printer).run()


class _Split:
    def __init__(self, printer: Any):
        self.p, self.lay, self.stages = printer, printer.lay, printer.k.stages
        self.rows = numel(self.lay.x)
        self.pairs = {
            k + 1: k
            for k in range(len(self.stages) - 1)
            if is_variance(self.stages[k], self.stages[k + 1]) and numel(self.stages[k].axes).is_const
        }
        self.parts: dict[str, tuple[Acc, list[Any]]] = {}  # accumulator -> its partial results
        self.around: dict[str, str] = {}  # sums of squares -> the sum whose mean they are taken around
        self.folded: dict[str, Any] = {}  # accumulator -> its result in memory
        self.out: list[tuple[Any, str]] = []

    def run(self) -> list[tuple[Any, str]]:
        done: set[int] = set()
        for number, stage in enumerate(self.stages):
            if number in self.pairs or number in done:
                continue
            if not stage.axes:
                self.small([stage], ())
                continue
            self.over_rows(number, stage)
            later = {
                name
                for st in self.stages[number + 1 :]
                if st.axes
                for name in self.reads(st)
                if name in self.parts and name not in self.folded
            }
            if self.lay.columns and later and not any(self.parts[name][0].is_position for name in later):
                ready = [n for n in range(number + 1, len(self.stages)) if n not in done and self.is_ready(number, n)]
                self.small([self.stages[n] for n in ready], sorted(later))
                done.update(ready)
        return self.with_all_scratch()

    def reads(self, stage: Stage) -> list[str]:
        """The accumulators that a stage reads."""
        return list(dict.fromkeys(value.attr for value in walk(self.p._roots(stage)) if value.is_accumulator))

    def is_ready(self, number: int, n: int) -> bool:
        """Whether stage n, of results alone, may come right behind stage `number`."""
        stage = self.stages[n]
        between = {id(store.buffer) for st in self.stages[number + 1 : n] for store in st.stores}
        return (
            not stage.axes
            and not stage.accs
            and set(self.reads(stage)) <= self.parts.keys()
            and not any(id(value.attr[0]) in between for value in loads(self.p._roots(stage)))
        )

    # ---- launches
    def begin(self, over_rows: bool, xblock: int) -> tuple[list[str], Names, dict[str, str]]:
        masks: dict[str, str] = {}
        self.p.accs = {}
        body = [f"pid = {self.p._pid('tl.program_id(0)')}"]
        if over_rows:
            body.append("piece = pid % SPLIT")
        body += self.p._dim(
            "x", self.lay.x, xblock, "(pid // SPLIT) * XBLOCK" if over_rows else "pid * XBLOCK", "[:, None]", masks
        )
        return body, Names(origins=self.p.origins), masks

    def add(self, body: list[str], xblock: int, over_rows: bool, warps: int | None = None) -> None:
        constants = {"XBLOCK": xblock} | ({"RBLOCK": self.lay.rblock} if over_rows else {}) | {"SPLIT": self.lay.split}
        grid = ceildiv(self.rows, integer(xblock)) * (self.lay.split if over_rows else 1)
        function, text = self.p._function(f"{self.p.name}_{len(self.out)}", body, grid, constants, list(self.p.scratch))
        function.warps = warps or function.warps
        self.out.append((function, text))

    def small(self, stages: list[Stage], keep: Iterable[str]) -> None:
        """A launch that computes `stages` from accumulators, and leaves the results of `keep` in memory."""
        xblock = min(self.lay.xblock, max(8, FOLDED // self.lay.split)) if self.lay.columns else self.lay.xblock
        body, names, masks = self.begin(False, xblock)
        body += self.known(dict.fromkeys([*keep, *(name for st in stages for name in self.reads(st))]), masks)
        for name in keep:
            a = self.parts[name][0]
            scratch = self.folded[name] = self.scratch("whole", a.dtype, self.rows)
            body.append(f"tl.store({scratch.name} + xindex, {self.p.accs[name].text}{self.mask(masks)})")
        for st in stages:
            body += self.p._straight(st, names, masks)
        self.add(body, xblock, False, 4 if self.lay.columns else None)

    def over_rows(self, number: int, stage: Stage) -> None:
        printer = self.p
        body, names, masks = self.begin(True, self.lay.xblock)
        body += self.known(self.reads(stage), masks)
        body += [
            f"rnumel = {printer._t(printer.open(numel(stage.axes)))}",
            "rbase = tl.arange(0, RBLOCK)[None, :]",
            "per = tl.cdiv(tl.cdiv(rnumel, RBLOCK), SPLIT) * RBLOCK",
            "rbegin = piece * per",
            "rend = tl.minimum(rbegin + per, rnumel)",
        ]
        accs = list(stage.accs)
        if number + 1 in self.pairs:
            second = self.stages[number + 1]
            body += printer._variance(number, stage, second, names, masks, "rbegin", "rend")
            accs += second.accs
            self.around[accs[1].name] = accs[0].name
        else:
            body += printer._loop(number, stage, names, masks, "rbegin", "rend")
        for acc in accs:
            x = printer.accs[acc.name]
            lines = [(self.scratch("part", acc.dtype, self.rows * self.lay.split), x.text)]
            if acc.is_position:
                lines.append(
                    (self.scratch("part", acc.value.dtype, self.rows * self.lay.split), f"{x.text}_value[:, None]")
                )
            at = "piece * xnumel + xindex" if self.lay.columns else "xindex * SPLIT + piece"
            body += [f"tl.store({s.name} + ({at}), {text}{self.mask(masks)})" for s, text in lines]
            self.parts[acc.name] = (acc, [s for s, _ in lines])
        self.add(body, self.lay.xblock, True)

    # ---- partial results
    def scratch(self, stem: str, dtype: Any, n: Any) -> Any:
        s = Scratch(f"{stem}{len(self.p.scratch)}", dtype, n)
        self.p.scratch.append(s)
        return s

    def mask(self, masks: dict[str, str], other: str = "") -> str:
        return f", {masks['x']}{other}" if "x" in masks else ""

    def known(self, accs: Iterable[str], masks: dict[str, str]) -> list[str]:
        """Accumulators that launches before this one have left."""
        out: list[str] = []
        for name in accs:
            if name in self.folded:
                a = self.parts[name][0]
                out.append(
                    f"{name} = tl.load({self.folded[name].name} + xindex{self.mask(masks)}){_widen(ttype(a.dtype))}"
                )
                self.p.accs[name] = Operand(name, ttype(a.dtype), frozenset("x"))
            elif name in self.around:
                out += self.squares(name, masks)
            elif name not in self.p.accs:
                out += self.fold(name, masks)
        return out

    def tile(self, s: Any, masks: dict[str, str]) -> str:
        """The partial results of a program's rows, [XBLOCK, SPLIT]."""
        at = (
            "xindex + tl.arange(0, SPLIT)[None, :] * xnumel"
            if self.lay.columns
            else "xindex * SPLIT + tl.arange(0, SPLIT)[None, :]"
        )
        return f"tl.load({s.name} + ({at}){self.mask(masks, ', other=0')})"

    def fold(self, name: str, masks: dict[str, str]) -> list[str]:
        acc, parts = self.parts[name]
        t = ttype(acc.dtype)
        if acc.is_position:
            value = ttype(parts[1].dtype)
            out = [
                f"{name}_parts = {self.tile(parts[1], masks)}{_widen(value)}",
                f"{name}_at = {self.tile(parts[0], masks)}",
            ]
            self.p._fold(acc, f"{name}_parts", f"{name}_at", Operand("", value), out)
            return out
        out = [f"{name}_parts = {self.tile(parts[0], masks)}{_widen(t)}"]
        self.p._fold(acc, f"{name}_parts", "", Operand("", t), out)
        return out

    def squares(self, name: str, masks: dict[str, str]) -> list[str]:
        """Squares around the means of pieces as squares around the mean of all.

        Means are taken from that of the first piece, which is near to all, so that nothing is lost where the two last
        terms cancel. It is read as a column: a sum over pieces that goes back among the pieces is what Triton 3.6
        rejects.
        """
        n = int(numel(self.p.reduced).value)
        pieces = -(-n // self.lay.rblock)
        per = -(-pieces // self.lay.split) * self.lay.rblock
        sums = self.parts[self.around[name]][1][0]
        self.p.accs[name] = Operand(name, ttype(self.parts[name][0].dtype), frozenset("x"))
        first = "xindex" if self.lay.columns else "xindex * SPLIT"
        return [
            f"{name}_sums = {self.tile(sums, masks)}",
            f"{name}_n = tl.minimum(tl.maximum({n} - tl.arange(0, SPLIT)[None, :] * {per}, 0), {per}).to(tl.float32)",
            f"{name}_first = tl.load({sums.name} + {first}{self.mask(masks, ', other=0')}) / {float(min(n, per))!r}",
            f"{name}_off = {name}_sums / tl.maximum({name}_n, 1.0) - {name}_first",
            f"{name}_parts = {self.tile(self.parts[name][1][0], masks)}",
            f"{name}_shift = (tl.sum({name}_n * {name}_off, 1))[:, None]",
            f"{name} = (tl.sum({name}_parts + {name}_n * {name}_off * {name}_off, 1))[:, None]"
            f" - {name}_shift * {name}_shift * {1.0 / n!r}",
            f"{name} = tl.where({name} < 0, 0.0, {name})",  # (equal values; what is no number stays)
        ]

    def with_all_scratch(self) -> list[tuple[Any, str]]:
        """Every function takes all of the scratch, so that one list of arguments serves."""
        names = [(s.name, "*" + ttype(s.dtype).pointer) for s in self.p.scratch]
        scratch, out = {name for name, _ in names}, []
        n = len(self.p.k.inputs) + len(self.p.k.outputs)
        for function, text in self.out:
            function.arguments = (
                function.arguments[:n] + names + [arg for arg in function.arguments[n:] if arg[0] not in scratch]
            )
            out.append((function, f"@triton.jit\n{function.head}\n{text.partition(chr(10))[2].partition(chr(10))[2]}"))
        return out


def _widen(t: Any) -> str:
    return ".to(tl.float32)" if t.low_precision else ".to(tl.int1)" if t.kind == "bool" else ""

"""Attention with dropout, forward (templates.DropoutAttention) and backward (templates.AttentionGradients), as kernels
for tensor cores.

Forward is softmax.py's loop over tiles of keys with a mask on what is mixed. Backward makes the scores again, twice:
programs with a tile of rows make the gradients of q (and each row's sum of result * gradient before), programs with a
tile of keys those of k and v. So nothing is added up in memory, and results do not depend on who comes first. (Sums of
the gradients' columns, for a bias, took these kernels as long as a kernel of their own takes.)

The mask of a number is the sign of a byte: see ops/dropout_attention.py for where a key's bit lies.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from ....lowering.ir import Kernel, Stage, Value, numel
from ....lowering.templates import WORD, AttentionGradients, DropoutAttention
from ....symbolic.expr import Expr, as_expr, ceildiv, integer, symbol
from .plans import held
from ..dtypes import ttype
from ..layout import GpuTarget, Layout
from ...kernel_sources import Function, Scratch
from ..printer import Printer
from .row_tiles import LOG2E

__all__ = ["DropoutAttentionPrinter"]

_HELPERS = {
    "_kept": (
        "@triton.jit\ndef _kept(x, word, byte):  # x where the byte's sign is set, else 0\n    return"
        ' tl.inline_asm_elementwise("{.reg .b32 m; prmt.b32 m, $2, $2, $3; and.b32 $0, $1, m;}", "=r,r,r,r", [x, word,'
        " 0x8888 | byte * 0x1111], dtype=tl.float32, is_pure=True, pack=1)\n"
    ),
    "_kept_16": (
        "@triton.jit\ndef _kept_16(x, word, byte):  # the same of two numbers of 16 bits\n    return"
        ' tl.inline_asm_elementwise("{.reg .b32 m, s; shl.b32 s, $5, 8; or.b32 s, s, $4; or.b32 s, s, 0x4400; prmt.b32'
        ' m, $2, $3, s; and.b32 $0, $1, m;}", "=r,r,r,r,r,r", [x, word, 0x88 | byte * 0x11], dtype=x.dtype,'
        " is_pure=True, pack=2)\n"
    ),
}
WORD_BITS = 32
ROWS_BACK = 64  # at a time, of a program that makes gradients of k and v


class DropoutAttentionPrinter(Printer):
    own_helpers = _HELPERS

    def __init__(self, kernel: Kernel, target: GpuTarget, layout: Layout, name: str):
        super().__init__(kernel, target, layout, name)
        assert isinstance(kernel.template, DropoutAttention)
        template = self.t = kernel.template
        (self.row,), self.key = template.rows, template.keys
        self.n_rows, self.n_keys, self.batch = (
            as_expr(self.row.size),
            as_expr(template.keys.size),
            numel(template.batch),
        )
        self.inner, self.columns = held(template.inner), held(template.columns)
        self.short = ttype(template.q.dtype).stored
        self.number = repr(template.scale * LOG2E)
        self.far = ".to(tl.int64)" if layout.wide else ""

    def _functions(self) -> list[tuple[Function, str]]:
        if not isinstance(self.t, AttentionGradients):
            return [self._forward()]
        self.scratch = [Scratch("part0", torch.float32, self.batch * self.n_rows)]
        return [self._of_rows(self.t), self._of_keys(self.t)]

    # ---- texts
    def _position(self, expr: Expr, names: dict[str, Expr], shape: str = "") -> str:
        """An index with variables for its symbols, as a tile of `shape` where it does not vary over all of it."""
        text = f"({self._t(expr.subs(names))})"
        return f"tl.broadcast_to({text}, {shape})" if shape and not names.keys() <= expr.symbol_names() else text

    def _load(self, value: Value, names: dict[str, str], masks: list[str], shape: str = "") -> str:
        b, e = value.attr
        mask = " & ".join(masks)
        return f"tl.load({b.name} + {self._position(e, {name: symbol(n) for name, n in names.items()}, shape)}" + (
            f", {mask}, other=0.0)" if mask else ")"
        )

    def _store(self, stage: Stage, what: str, names: dict[str, str], masks: list[str]) -> str:
        (store,) = stage.stores
        mask = f", {' & '.join(masks)}" if masks else ""
        place = self._position(store.index, {name: symbol(n) for name, n in names.items()})
        return f"tl.store({store.buffer.name} + {place}, {what}{mask})"

    def _names(self, **names: str) -> dict[str, str]:
        """Variables for axes by what they are: rows, keys, inner, columns."""
        axes = {"rows": self.row, "keys": self.key, "inner": self.t.inner, "columns": self.t.columns}
        return {axes[name].symbol.name: n for name, n in names.items()}

    def _uneven(self, expr: Expr, block: int) -> bool:
        return not (expr.is_const and expr.value % block == 0)

    def _wide_columns(self, inner: str, columns: str) -> tuple[list[str], list[str]]:
        """Masks of tiles that hold more columns than there are."""
        template = self.t
        return tuple(
            [f"({x} < {a.size})"] if n > int(a.size) else []
            for x, a, n in ((inner, template.inner, self.inner), (columns, template.columns, self.columns))
        )  # type: ignore[return-value]

    def _program(self, expr: Expr, block: int, variable: str, last_first: bool) -> tuple[list[str], Expr]:
        """Lines that say which batch and which tile of `expr` a program has, and the number of programs."""
        blocks = ceildiv(expr, integer(block))
        at = "(blocks - 1 - pid % blocks)" if last_first else "(pid % blocks)"
        name = {"x": "XBLOCK", "n": "RBLOCK"}[variable]
        return [
            f"pid = {self._pid('tl.program_id(0)')}",
            f"blocks = {self._t(blocks)}",
            "bindex = pid // blocks",
            *self._axes(self.t.batch, "b"),
            f"first = {at} * {name}",
            f"{variable} = first + tl.arange(0, {name})",
        ], self.batch * blocks

    def _bits(self, along: str) -> list[str]:
        """What tells a key's bit from its place in a tile. `along`: where keys lie in tiles of scores."""
        for helper in ("_exp2", "_kept", "_kept_16"):
            self.need(helper)
        return [f"place = tl.arange(0, RBLOCK){along}", "bit, byte = place & 7, (place >> 3) & 3"]

    def _words(self, begin: str, rows: str, across: str, masks: list[str], beyond: bool) -> list[str]:
        """The words of a tile's scores, shifted to each key's bit. `beyond`: whether the tile may end behind the last
        word.
        """
        n = -(-self._rblock // WORD_BITS)
        count = self._t(ceildiv(self.n_keys, integer(WORD_BITS)))
        out = [f"w0 = {begin} // {WORD_BITS}"]
        for k in range(n):
            b, e = self.t.words.attr
            at = self._position(e, {WORD.name: symbol("w0") + k, self.row.symbol.name: symbol(rows)})
            mask = " & ".join([*masks, *([f"({rows} * 0 + w0 + {k} < {count})"] if beyond and k else [])])
            out.append(f"word{k} = tl.load({b.name} + {at}" + (f", {mask}, other=0)" if mask else ")") + across)
        word = f"word{n - 1}"
        for k in reversed(range(n - 1)):
            word = f"tl.where(place < {WORD_BITS * (k + 1)}, word{k}, {word})"
        return [*out, f"word = ({word}) << bit"]

    @property
    def _rblock(self) -> int:
        return self.lay.rblock

    # ---- forward
    def _forward(self) -> tuple[Function, str]:
        template, lay = self.t, self.lay
        body, grid = self._program(self.n_rows, lay.xblock, "x", template.causal)
        xmask = [f"(x < {self._t(self.n_rows)})"] if self._uneven(self.n_rows, lay.xblock) else []
        rows = [f"(m0 < {self._t(self.n_rows)})"] if xmask else []
        by_inner, by_columns = self._wide_columns("d0", "c0")
        body += [
            "m0 = x[:, None]",
            f"d0 = tl.arange(0, {self.inner})[None, :]",
            f"e0 = tl.arange(0, {self.inner})[:, None]",
            f"c0 = tl.arange(0, {self.columns})[None, :]",
        ]
        body += self._bits("[None, :]")
        body.append(
            "q = "
            + self._load(template.q, self._names(rows="m0", inner="d0"), rows + by_inner, f"[XBLOCK, {self.inner}]")
        )
        body += [
            'top = tl.full([XBLOCK], -float("inf"), tl.float32)',
            "total = tl.zeros([XBLOCK], tl.float32)",
            f"mixed = tl.zeros([XBLOCK, {self.columns}], tl.float32)",
        ]
        for begin, end, edge in self._tiles_of_keys(body):
            keys, by_rows = self._key_masks(edge)
            lines = [
                f"n = roffset + tl.arange(0, RBLOCK){self.far}",
                "r0, s0 = n[None, :], n[:, None]",
                "k = "
                + self._load(
                    template.k,
                    self._names(keys="r0", inner="e0"),
                    keys + self._wide_columns("e0", "")[0],
                    f"[{self.inner}, RBLOCK]",
                ),
                *self._words("roffset", "x", "[:, None]", xmask, edge),
                "score = tl.dot(q, k)",
                *self._seen(edge, "score", '-float("inf")'),
                f"raised = tl.maximum(top, tl.max(score, 1) * {self.number})",
                "scale = _exp2(top - raised)",
                f"power = _exp2(score * {self.number} - raised[:, None])",
                "total = total * scale + tl.sum(power, 1)",
                "top = raised",
                f"power = _kept_16(power.to({self.short}), word, byte)",
                "v = "
                + self._load(
                    template.v, self._names(keys="s0", columns="c0"), by_rows + by_columns, f"[RBLOCK, {self.columns}]"
                ),
                "mixed = tl.dot(power, v, mixed * scale[:, None])",
            ]
            body += [f"for roffset in range({begin}, {end}, RBLOCK):", *(f"    {line}" for line in lines)]
        out, log = self.k.stages
        body += [
            f"mixed = mixed * ({1 / template.keep!r} / total)[:, None]",
            self._store(out, "mixed", self._names(rows="m0", columns="c0"), rows + by_columns),
            self._store(log, "top + tl.log2(total)", self._names(rows="x"), xmask),
        ]
        return self._function(self.name, body, grid, {"XBLOCK": lay.xblock, "RBLOCK": lay.rblock})

    def _tiles_of_keys(self, body: list[str]) -> list[tuple[str, str, bool]]:
        """(begin, end, whether positions are looked at) of the loops over keys that a tile of rows sees."""
        n = self._t(self.n_keys)
        if not self.t.causal:
            if not self._uneven(self.n_keys, self._rblock):
                return [("0", n, False)]
            whole = self._t(self.n_keys // self._rblock * self._rblock)
            return [("0", whole, False), (whole, n, True)]
        body += [f"end = tl.minimum({n}, first + XBLOCK)", f"whole = tl.minimum(first, {n}) // RBLOCK * RBLOCK"]
        return [("0", "whole", False), ("whole", "end", True)]

    def _key_masks(self, edge: bool) -> tuple[list[str], list[str]]:
        """Masks of keys that lie along columns, and along rows."""
        if not edge or not self._uneven(self.n_keys, self._rblock):
            return [], []
        n = self._t(self.n_keys)
        return [f"(r0 < {n})"], [f"(s0 < {n})"]

    def _seen(self, edge: bool, name: str, otherwise: str) -> list[str]:
        """`name` where a row sees a key."""
        conditions = [f"(r0 < {self._t(self.n_keys)})"] if self._uneven(self.n_keys, self._rblock) else []
        conditions += ["(r0 <= m0)"] if self.t.causal else []
        return [f"{name} = tl.where({' & '.join(conditions)}, {name}, {otherwise})"] if edge and conditions else []

    # ---- backward
    def _of_rows(self, t: AttentionGradients) -> tuple[Function, str]:
        """Gradients of q."""
        lay = self.lay
        body, grid = self._program(self.n_rows, lay.xblock, "x", t.causal)
        uneven = self._uneven(self.n_rows, lay.xblock)
        xmask, rows = ([f"({x} < {self._t(self.n_rows)})"] if uneven else [] for x in ("x", "m0"))
        by_inner, by_columns = self._wide_columns("d0", "c0")
        at_rows = self._names(rows="m0", columns="c0")
        body += [
            "m0 = x[:, None]",
            f"d0 = tl.arange(0, {self.inner})[None, :]",
            f"c0 = tl.arange(0, {self.columns})[None, :]",
            *self._bits("[None, :]"),
        ]
        body += [
            f"g = {self._load(t.grad, at_rows, rows + by_columns, f'[XBLOCK, {self.columns}]')}",
            f"out = {self._load(t.result, at_rows, rows + by_columns, f'[XBLOCK, {self.columns}]')}",
            f"along = tl.sum(g.to(tl.float32) * out.to(tl.float32), 1) * {t.keep!r}",
            f"tl.store(part0 + (bindex * {self._t(self.n_rows)} + x), along" + "".join(f", {m}" for m in xmask) + ")",
            f"q = {self._load(t.q, self._names(rows='m0', inner='d0'), rows + by_inner, f'[XBLOCK, {self.inner}]')}",
            f"logarithm = {self._load(t.logarithm, self._names(rows='x'), xmask)}",
            f"dq = tl.zeros([XBLOCK, {self.inner}], tl.float32)",
        ]
        for begin, end, edge in self._tiles_of_keys(body):
            _, keys = self._key_masks(edge)
            lines = [
                f"n = roffset + tl.arange(0, RBLOCK){self.far}",
                "r0, s0 = n[None, :], n[:, None]",
                "k = "
                + self._load(t.k, self._names(keys="s0", inner="d0"), keys + by_inner, f"[RBLOCK, {self.inner}]"),
                "score = tl.dot(q, tl.trans(k))",
                f"power = _exp2(score * {self.number} - logarithm[:, None])",
                *self._seen(edge, "power", "0.0"),
                "v = "
                + self._load(t.v, self._names(keys="s0", columns="c0"), keys + by_columns, f"[RBLOCK, {self.columns}]"),
                "dp = tl.dot(g, tl.trans(v))",
                *self._words("roffset", "x", "[:, None]", xmask, edge),
                "ds = power * (_kept(dp, word, byte) - along[:, None])",
                f"dq = tl.dot(ds.to({self.short}), k, dq)",
            ]
            body += [
                f"for roffset in tl.range({begin}, {end}, RBLOCK, num_stages={lay.stages}):",
                *(f"    {line}" for line in lines),
            ]
        body.append(
            self._store(
                self.k.stages[0], f"dq * {t.scale / t.keep!r}", self._names(rows="m0", inner="d0"), rows + by_inner
            )
        )
        return self._function(f"{self.name}_0", body, grid, {"XBLOCK": lay.xblock, "RBLOCK": lay.rblock}, self.scratch)

    def _of_keys(self, t: AttentionGradients) -> tuple[Function, str]:
        """Gradients of k and v: scores lie with keys along their rows."""
        body, grid = self._program(self.n_keys, self._rblock, "n", False)
        keys = [f"(s0 < {self._t(self.n_keys)})"] if self._uneven(self.n_keys, self._rblock) else []
        by_inner, by_columns = self._wide_columns("d0", "c0")
        body += [
            "s0 = n[:, None]",
            f"d0 = tl.arange(0, {self.inner})[None, :]",
            f"c0 = tl.arange(0, {self.columns})[None, :]",
            *self._bits("[:, None]"),
        ]
        body += [
            "k = " + self._load(t.k, self._names(keys="s0", inner="d0"), keys + by_inner, f"[RBLOCK, {self.inner}]"),
            "v = "
            + self._load(t.v, self._names(keys="s0", columns="c0"), keys + by_columns, f"[RBLOCK, {self.columns}]"),
            f"dk = tl.zeros([RBLOCK, {self.inner}], tl.float32)",
            f"dv = tl.zeros([RBLOCK, {self.columns}], tl.float32)",
        ]
        n = self._t(self.n_rows)
        for begin, end, edge in self._tiles_of_rows(body):
            tail = edge and self._uneven(self.n_rows, ROWS_BACK)
            xmask, rows = ([f"({x} < {n})"] if tail else [] for x in ("x", "m0"))
            lines = [
                f"x = xoffset + tl.arange(0, XBLOCK){self.far}",
                "m0, t0 = x[:, None], x[None, :]",
                "q = "
                + self._load(t.q, self._names(rows="m0", inner="d0"), rows + by_inner, f"[XBLOCK, {self.inner}]"),
                f"logarithm = {self._load(t.logarithm, self._names(rows='x'), xmask)}",
                "score = tl.dot(k, tl.trans(q))",
                f"power = _exp2(score * {self.number} - logarithm[None, :])",
                *self._seen_by_rows(edge, tail),
                "g = "
                + self._load(
                    t.grad, self._names(rows="m0", columns="c0"), rows + by_columns, f"[XBLOCK, {self.columns}]"
                ),
                *self._words("first", "x", "[None, :]", xmask, bool(keys)),
                "kept = _kept(power, word, byte)",
                f"dv = tl.dot(kept.to({self.short}), g, dv)",
                f"along = tl.load(part0 + (bindex * {n} + x)" + "".join(f", {m}, other=0.0" for m in xmask) + ")",
                "dp = tl.dot(v, tl.trans(g))",
                "ds = kept * dp - power * along[None, :]",
                f"dk = tl.dot(ds.to({self.short}), q, dk)",
            ]
            body += [
                f"for xoffset in tl.range({begin}, {end}, XBLOCK, num_stages={self.lay.stages}):",
                *(f"    {line}" for line in lines),
            ]
        _, dk, dv = self.k.stages
        body += [
            self._store(dk, f"dk * {t.scale / t.keep!r}", self._names(keys="s0", inner="d0"), keys + by_inner),
            self._store(dv, f"dv * {1 / t.keep!r}", self._names(keys="s0", columns="c0"), keys + by_columns),
        ]
        f, text = self._function(
            f"{self.name}_1", body, grid, {"XBLOCK": ROWS_BACK, "RBLOCK": self._rblock}, self.scratch
        )
        return replace(f, warps=4), text

    def _tiles_of_rows(self, body: list[str]) -> list[tuple[str, str, bool]]:
        """(begin, end, whether positions are looked at) of the loops over rows that see a tile of keys."""
        n, uneven = self._t(self.n_rows), self._uneven(self.n_rows, ROWS_BACK)
        whole = self._t(self.n_rows // ROWS_BACK * ROWS_BACK)
        last = [(whole, n, True)] if uneven else []
        if not self.t.causal:
            return [("0", whole, False), *last]
        body += [
            "begin = first // XBLOCK * XBLOCK",
            f"middle = tl.minimum((first + RBLOCK + XBLOCK - 1) // XBLOCK * XBLOCK, {whole})",
        ]
        return [
            ("begin", "middle", True),
            ("middle", whole, False),
            *((f"tl.maximum(begin, {whole})", n, True) for _ in last),
        ]

    def _seen_by_rows(self, edge: bool, tail: bool) -> list[str]:
        more = f"(t0 < {self._t(self.n_rows)})" if tail else ""
        conditions = [c for c in ("(s0 <= t0)" if self.t.causal else "", more) if c]
        return [f"power = tl.where({' & '.join(conditions)}, power, 0.0)"] if edge and conditions else []

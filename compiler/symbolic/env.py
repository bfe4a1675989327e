"""ShapeEnv: the size symbols of one capture, their hints and ranges, and every branch that was taken on a size."""

from __future__ import annotations

from contextlib import contextmanager
from typing import Any, Callable, Iterator

import torch

from . import expr as E
from .expr import Expr, IntLike
from .node import SymNode, wrap
from .simplify import bounds, known, simplify

__all__ = ["ShapeEnv", "INT_LIMIT", "NUMBER_USED"]

NUMBER_USED = "size used as a number"
INT_LIMIT = 1 << 62  # ints of the program that are symbols lie below it


class ShapeEnv:
    """Symbols stand for sizes of at least 2: 0 and 1 broadcast and vanish, so they are always plain ints. Ints of the
    program that are no sizes may be anything (`create_int`): where one of those is used as a size, the decisions about
    it are guards. So are they about sizes that mark_unbacked named (`create_unbacked`), which may be 0 or 1.

    hints      symbol name -> the value seen in this first call
    ranges     symbol name -> (lo, hi): lo <= size < hi, hi None where unbounded
    sources    symbol name -> Source (or whatever the creator passed) that the value is read from
    guards     [(Expr, file, line, why)]: predicates that hold for the hints and that the compiled code relies on
    replacements  symbol name -> Expr it was found equal to (by a guard)
    location   (file, line) of the user's code now being traced; kept up to date by who traces
    why        short phrase for guards recorded now, e.g. "branch on x.shape[0]"
    """

    def __init__(self, prefix: str = "s"):
        self.prefix = prefix
        self.hints: dict[str, int] = {}
        self.ranges: dict[str, tuple[int, int | None]] = {}
        self.sources: dict[str, Any] = {}
        self.guards: list[tuple[Expr, str | None, int | None, str]] = []
        self.replacements: dict[str, Expr] = {}
        self.location: tuple[str | None, int | None] = (None, None)
        self.why = ""
        self.fixes_texts = False  # whether text that is made of a symbol is that of the number, which fixes it
        self.float_facts: dict[Any, list[Any]] = {}  # Source of a float that may vary -> comparisons it was in
        self.pinned_floats: dict[Any, tuple[str | None, int | None]] = {}  # Source of one used as a number -> the line
        self.has_unbacked = False  # whether there are symbols that create_unbacked made
        self.locate: Callable[[], tuple[str | None, int | None]] = lambda: self.location
        self._by_source: dict[Any, str] = {}
        self._decided: dict[Expr, bool] = {}
        self._ints: frozenset[str] = frozenset()

    @contextmanager
    def fixing_texts(self) -> Iterator[None]:
        """Native code makes text of the program's values, however deep in them a symbol lies."""
        before, self.fixes_texts = self.fixes_texts, True
        try:
            yield
        finally:
            self.fixes_texts = before

    # ---- symbols
    def create_symbol(self, hint: int, source: Any = None, lo: int = 2, hi: int | None = None) -> "torch.SymInt | int":
        """A new symbol, `lo <= value < hi`. The same source gives the same symbol. A hint outside the range (0 and 1
        above all) gives the plain int: such a size is always fixed."""
        if source is not None and source in self._by_source:
            return self.wrap(self.replace(E.symbol(self._by_source[source])))
        if hint < lo or (hi is not None and hint >= hi):
            return hint
        name = f"{self.prefix if lo >= 0 else 'z'}{len(self.hints)}"
        self.hints[name] = int(hint)
        self.ranges[name] = (lo, hi)
        self.sources[name] = source
        if source is not None:
            self._by_source[source] = name
        return self.wrap(E.symbol(name))

    def create_int(self, value: int, source: Any, signed: bool = False) -> "torch.SymInt | int":
        """A symbol for an int of the program: of 2 or more if it is so now, else of any sign (`signed`: in any case).
        The plain int where it is a large one: kernels compute with 64 bits."""
        symint = self.create_symbol(value, source, 2 if value >= 2 and not signed else -INT_LIMIT, INT_LIMIT)
        self._ints |= E.as_expr(symint).symbol_names()
        return symint

    def create_unbacked(self, size: int, source: Any, lo: int = 0) -> "torch.SymInt | int":
        """A symbol for a size that may be anything from `lo` on, 0 and 1 among it. The program is not to branch on it.
        The plain int where it is less."""
        if source in self._by_source or size < lo:
            return self.create_symbol(size, source, lo)
        name = f"u{len(self.hints)}"
        symbol = E.symbol(name)
        self.hints[name], self.ranges[name], self.sources[name] = int(size), (lo, None), source
        self._by_source[source] = name
        self.has_unbacked = True
        if lo:
            self.guards.append((E.le(lo, symbol), *self.location, f"a size of {lo} or more"))
        return self.wrap(symbol)

    def is_open(self, value: Any) -> bool:
        """Whether the truth of a SymBool or SymInt hangs on such a size, and nothing that was decided says it."""
        if not self.has_unbacked or not isinstance(value, (torch.SymBool, torch.SymInt)):
            return False
        expr = value.node.expr
        return self.is_open_predicate(expr if value.node.pytype is bool else E.ne(self.to_expr(value), 0))

    def is_open_predicate(self, p: Expr) -> bool:
        """The same of a predicate."""
        if not self.has_unbacked or p.is_const or self.known(p) is not None:
            return False
        return any(map(E.is_unbacked, self.replace(p).symbol_names()))

    def surely_contiguous(self, shape: "tuple | list", stride: "tuple | list") -> bool:
        """Whether the strides say so whatever the sizes are: nothing is relied on. For sizes that may be 1 it comes
        before the question whether one is."""
        expected: Expr = E.ONE
        for size, t in zip(reversed(shape), reversed(stride)):
            if self.known(E.eq(size, 1)):
                continue
            if self.known(E.eq(t, expected)) is not True:
                return False
            expected = expected * size
        return True

    def fits(self, expr: Expr) -> bool:
        """Whether e, and what is computed on the way to it, has less than 64 bits. Recorded as a guard unless it is
        certain.
        """
        if not expr.symbol_names() & self._ints:
            return True  # what sizes make is one, or takes more memory than there is
        low, high = bounds(expr, self.ranges)
        certain = low is not None and high is not None and -INT_LIMIT <= low and high <= INT_LIMIT
        return (
            certain or self.decide(E.and_(E.le(-INT_LIMIT, expr), E.le(expr, INT_LIMIT)), "an integer of 64 bits")
        ) and all(
            self.fits(part)
            for _, atoms in expr.terms()
            for atom in atoms
            if not atom.is_symbol
            for part in atom.args[atom.op == "ite" :]
        )

    # ---- floats that may differ from call to call (capture/numbers/float_node.py)
    def pin_float(self, source: Any) -> None:
        """The value of this float is relied on."""
        self.pinned_floats.setdefault(source, self.locate())

    def float_fact(self, source: Any, fact: Any) -> None:
        """The outcome of a comparison of this float with a constant is relied on."""
        facts = self.float_facts.setdefault(source, [])
        if fact not in facts:
            facts.append(fact)

    def wrap(self, e: IntLike) -> "torch.SymInt | int":
        return wrap(e, self)

    def wrap_bool(self, expr: Expr) -> "torch.SymBool | bool":
        return expr.value if expr.is_const else torch.SymBool(SymNode(expr, self, bool))

    def to_expr(self, x: Any) -> Expr:
        """The Expr of an int or SymInt, with replacements applied."""
        return self.replace(E.as_expr(x))

    def replace(self, expr: Expr) -> Expr:
        """e without symbols that were found equal to something else."""
        return expr.subs(self.replacements) if self.replacements else expr

    def hint(self, e: IntLike) -> int | bool:
        """The value of e in this first call."""
        return e if isinstance(e, int) else e.eval(self.hints)

    # ---- decisions
    def known(self, p: Expr) -> bool | None:
        """What ranges and earlier guards say of a predicate; None where they leave it open. Records nothing."""
        if p.is_const:
            return p.value
        d = self._decided.get(p)
        return d if d is not None else known(simplify(self.replace(p), self.ranges), self.ranges)

    def decide(self, p: Expr, why: str = "") -> bool:
        """The truth of a predicate for the hints; recorded as a guard unless it is certain."""
        if p.is_const:
            return bool(p.value)
        d = self._decided.get(p)
        if d is None:
            q = simplify(self.replace(p), self.ranges)
            d = known(q, self.ranges)
            if d is None:
                d = bool(q.eval(self.hints))
                self._record(q if d else E.not_(q), why)
            self._decided[p] = d
        return d

    def branch(self, value: "torch.SymBool | torch.SymInt | torch.SymFloat") -> bool:
        """Its truth, where the program branches on it. That a remainder is 0 or 1 is guarded as such there. Where it is
        asked of a size of a tensor (`decide`), the size must be plain from then on, which fixes the symbols."""
        node = value.node
        if node.pytype is float or not isinstance(value, (torch.SymBool, torch.SymInt)):
            return bool(value)
        p = node.expr if node.pytype is bool else E.ne(node.expr, 0)
        q = simplify(self.replace(p), self.ranges)
        if (
            not any(side.op == "mod" for side in q.args if isinstance(side, Expr))
            or known(q, self.ranges) is not None
            or p in self._decided
        ):
            return self.decide(p)
        holds = bool(q.eval(self.hints))
        guard = (q if holds else E.not_(q), *self.location, self.why)
        if guard not in self.guards:
            self.guards.append(guard)
        return holds

    def evaluate_sym_node(self, node: SymNode, size_oblivious: bool = False, fallback_value: Any = None) -> Any:
        """What torch's own Python helpers (guard_or_false, ...) ask of a node's environment."""
        return node.evaluate()

    def specialize(self, expr: IntLike, why: str = "") -> int:
        """Fix an expression to its hint (a guard) and return it. A product of sizes fixes each of its symbols."""
        expr = self.replace(E.as_expr(expr))
        if expr.is_const:
            return expr.value
        value = int(self.hint(expr))
        for name in sorted(expr.symbol_names()):
            self.decide(E.eq(E.symbol(name), self.hints[name]), why or NUMBER_USED)
        return value

    def _record(self, p: Expr, why: str) -> None:
        for q in p.args if p.op == "and" else (p,):
            self.guards.append((q, *self.location, why or self.why))
            if q.op == "eq":
                self._learn(*q.args)
            elif q.op == "le":
                self._tighten(*q.args)

    def _learn(self, a: Expr, b: Expr) -> None:
        """a == b: solve for a symbol that stands alone, the newest first, and use the other side in its place."""
        d = a - b
        for name in sorted(d.symbol_names(), key=lambda n: (len(n), n), reverse=True):
            coeff = d.coeff(name)
            if coeff is not None and coeff.is_const and coeff.value in (1, -1):
                symbol = E.symbol(name)
                other = symbol - d * coeff.value
                self.replacements = {
                    key: replacement.subs({name: other}) for key, replacement in self.replacements.items()
                }
                self.replacements[name] = other
                return
        if any(expr.is_const and expr.value in (0, 1) for expr in (a, b)):
            # `s // 4 == 1`: what is broadcast or empty must be plain in the graph's sizes
            self.specialize(a if b.is_const else b)

    def _tighten(self, a: Expr, b: Expr) -> None:
        """n <= s or s <= n narrows a range."""
        if a.is_const and b.is_symbol:
            lo, hi = self.ranges[b.name]
            self.ranges[b.name] = (max(lo, a.value), hi)
        elif b.is_const and a.is_symbol:
            lo, hi = self.ranges[a.name]
            self.ranges[a.name] = (lo, b.value + 1 if hi is None else min(hi, b.value + 1))

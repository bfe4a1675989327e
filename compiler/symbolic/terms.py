"""The terms of integer expressions: nodes in canonical form, hash-consed, with sums and products.

`expr` has the whole algebra, and the meaning of each node.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Callable, Iterable, Mapping, Union
from weakref import ref


__all__ = [
    "Expr",
    "IntLike",
    "Mono",
    "Poly",
    "symbol",
    "integer",
    "boolean",
    "as_expr",
    "operand",
    "maybe_int",
    "add_all",
    "mul_all",
    "is_signed",
    "is_unbacked",
    "make",
    "from_poly",
    "poly_mul",
    "atom_key",
    "term_key",
    "ZERO",
    "ONE",
    "TRUE",
    "FALSE",
    "BOOL_OPS",
    "ATOM_OPS",
]

IntLike = Union[int, "Expr"]
Mono = tuple  # atoms in order of their text; () is the constant term
Poly = dict  # Mono -> int, without zeros


class _Entry(ref):
    """A node in the table, which leaves it when the node dies. (A WeakValueDictionary is Python code: each look at one
    costs several times what this does.)"""

    __slots__ = ("key",)
    key: tuple


_table: dict[tuple, _Entry] = {}

BOOL_OPS = frozenset(("bool", "eq", "ne", "le", "and", "or"))
ATOM_OPS = frozenset(("sym", "floordiv", "mod", "lshift", "bitand", "min", "max", "ite"))


class Expr:
    """One node; make it with the functions of this module and with operators, never directly."""

    __slots__ = ("op", "_args", "_poly", "_text", "_names", "_affine", "_coeffs", "__weakref__")

    # `//`, `%`, what follows and pickling are made of terms; expr.py puts them here.
    if TYPE_CHECKING:

        def __floordiv__(self, other: Any) -> "Expr": ...
        def __rfloordiv__(self, other: Any) -> "Expr": ...
        def __mod__(self, other: Any) -> "Expr": ...
        def __rmod__(self, other: Any) -> "Expr": ...
        def subs(self, mapping: Mapping[str, IntLike]) -> "Expr": ...
        def eval(self, values: Mapping[str, int]) -> int | bool: ...
        def py(self) -> str: ...
        def c(self, nonneg: Callable[["Expr"], bool] | None = None) -> str: ...

    # ---- structure
    @property
    def args(self) -> tuple:
        """Operands, in a deterministic order; see the module's table."""
        if self._args is None:
            items = self._sorted_terms()
            if self.op == "mul":
                ((mono, c),) = items
                self._args = mono if c == 1 else (integer(c), *mono)
            else:
                self._args = tuple(from_poly({m: c}) for m, c in items)
        return self._args

    @property
    def is_const(self) -> bool:
        return self.op == "int" or self.op == "bool"

    @property
    def is_symbol(self) -> bool:
        return self.op == "sym"

    @property
    def is_bool(self) -> bool:
        return self.op in BOOL_OPS

    @property
    def value(self) -> int | bool:
        """The Python int or bool of a constant."""
        if not self.is_const:
            raise ValueError(f"{self} is not a constant")
        return self._args[0]

    @property
    def name(self) -> str:
        """The name of a symbol."""
        if not self.is_symbol:
            raise ValueError(f"{self} is not a symbol")
        return self._args[0]

    def terms(self) -> list[tuple[int, tuple["Expr", ...]]]:
        """The polynomial as (coefficient, atoms) pairs; the constant term has no atoms and comes last."""
        return [(c, m) for m, c in self._sorted_terms()]

    @property
    def const_term(self) -> int:
        return self._p().get((), 0)

    def _p(self) -> Poly:
        poly = self._poly
        if poly is None:
            if self.op == "int":
                poly = {(): self._args[0]} if self._args[0] else {}
            elif self.op in ATOM_OPS:
                poly = {(self,): 1}
            else:
                raise TypeError(f"{self} is a truth value, an integer expression was expected")
            self._poly = poly
        return poly

    def _sorted_terms(self) -> list[tuple[Mono, int]]:
        return sorted(self._p().items(), key=term_key)

    def symbol_names(self) -> frozenset[str]:
        names = self._names
        if names is None:
            if self.op == "sym":
                names = frozenset(self._args)
            elif self.is_const:
                names = frozenset()
            elif self._poly is not None and self.op in ("add", "mul"):
                names = frozenset().union(*{a.symbol_names() for m in self._poly for a in m})
            else:
                names = frozenset().union(*(arg.symbol_names() for arg in self.args))
            self._names = names
        return names

    @property
    def is_affine(self) -> bool:
        """Whether it is a polynomial of symbols: no division, no minimum."""
        known = self._affine
        if known is None:
            of_symbols = self.op in ("add", "mul") and all(a.is_symbol for m in self._poly for a in m)
            known = self._affine = self.op in ("sym", "int") or of_symbols
        return known

    # ---- arithmetic
    def __add__(self, o: Any) -> "Expr":
        o = operand(o)
        if o is None:
            return NotImplemented
        a, b = self._p(), o._p()
        if not b:
            return self
        if not a:
            return o
        if len(a) < len(b):
            a, b = b, a
        out = dict(a)
        for key, c in b.items():
            s = out.get(key, 0) + c
            if s:
                out[key] = s
            else:
                del out[key]
        return from_poly(out)

    __radd__ = __add__

    def __sub__(self, o: Any) -> "Expr":
        o = operand(o)
        return NotImplemented if o is None else self + (-o)

    def __rsub__(self, o: Any) -> "Expr":
        o = operand(o)
        return NotImplemented if o is None else o + (-self)

    def __neg__(self) -> "Expr":
        return from_poly({key: -item for key, item in self._p().items()})

    def __pos__(self) -> "Expr":
        return self

    def __mul__(self, o: Any) -> "Expr":
        if type(o) is int:
            p = self._p()  # (a truth value raises)
            return self if o == 1 else from_poly({key: item * o for key, item in p.items()} if o else {})
        o = operand(o)
        if o is None:
            return NotImplemented
        a, b = self._p(), o._p()  # (a truth value raises)
        if o is ONE:
            return self
        if self is ONE:
            return o
        return from_poly(poly_mul(a, b))

    __rmul__ = __mul__

    def __bool__(self) -> bool:
        if self.is_const:
            return bool(self._args[0])
        raise TypeError(f"the truth of the size expression {self} is not known; use eq/le/... and a ShapeEnv")

    def __index__(self) -> int:
        if self.op == "int":
            return self._args[0]
        raise TypeError(f"the size expression {self} is not a constant")

    __int__ = __index__

    def __copy__(self) -> "Expr":
        return self

    def __deepcopy__(self, memo: dict) -> "Expr":
        return self

    def coeff(self, name: str) -> "Expr | None":
        """c of `c * name + rest`, where neither c nor rest mentions `name`; None if not affine in it."""
        if name not in self.symbol_names():
            return ZERO
        known = self._coeffs
        if known is None:
            known = self._coeffs = {}
        elif name in known:
            return known[name]
        known[name] = found = self._find_coeff(name)
        return found

    def _find_coeff(self, name: str) -> "Expr | None":
        s = symbol(name)
        out: Poly = {}
        for key, c in self._p().items():
            if len(key) == 1 and key[0] is s:
                out[()] = c
                continue
            n = 0
            for a in key:
                if a is s:
                    n += 1
                elif name in a.symbol_names():
                    return None
            if n > 1:
                return None
            if n:
                out[tuple(a for a in key if a is not s)] = c
        return from_poly(out)


def make(op: str, args: tuple, poly: Poly | None = None) -> Expr:
    k = (op, *args)
    entry = _table.get(k)
    e = None if entry is None else entry()
    return _new(k, op, args, poly) if e is None else e


def _new(key: tuple, op: str, args: tuple | None, poly: Poly | None) -> Expr:
    e = object.__new__(Expr)
    e.op, e._args, e._poly, e._text, e._names, e._affine, e._coeffs = op, args, poly, None, None, None, None
    mine = _Entry(e, _leave)
    mine.key = key
    while (entry := _table.setdefault(key, mine)) is not mine:
        found = entry()
        if found is not None:  # another thread's
            return found
        _leave(entry)
    return e


def _leave(entry: _Entry, table: dict[tuple, _Entry] = _table) -> None:  # (nodes die after the module, too)
    if table.get(entry.key) is entry:
        del table[entry.key]


def from_poly(p: Poly) -> Expr:
    n = len(p)
    if n == 0:
        return ZERO
    if n == 1:
        ((m, c),) = p.items()
        if not m:
            return integer(c)
        if c == 1 and len(m) == 1:
            return m[0]
    k = ("poly", frozenset(p.items()))
    entry = _table.get(k)
    e = None if entry is None else entry()
    return _new(k, "mul" if n == 1 else "add", None, p) if e is None else e


def atom_key(a: Expr) -> str:
    return a._text or a.py()


def term_key(item: tuple[Mono, int]) -> tuple:
    m = item[0]
    return (-len(m), [a._text or a.py() for a in m])


def poly_mul(a: Poly, b: Poly) -> Poly:
    if len(a) < len(b):
        a, b = b, a
    if not b:
        return {}
    if len(b) == 1:
        ((m2, c2),) = b.items()
        if not m2:
            return dict(a) if c2 == 1 else {name: item * c2 for name, item in a.items()}
    out: Poly = {}
    for m2, c2 in b.items():
        for key, value in a.items():
            k = key if not m2 else m2 if not key else tuple(sorted(key + m2, key=atom_key))
            s = out.get(k, 0) + value * c2
            if s:
                out[k] = s
            else:
                del out[k]
    return out


def operand(x: Any) -> Expr | None:
    if type(x) is Expr:
        return x
    if type(x) is int:
        return integer(x)
    if isinstance(x, int):
        return integer(int(x))
    return as_expr(x) if hasattr(x, "node") else None


# ---- constructors
_ints: dict[int, Expr] = {}


def integer(n: int) -> Expr:
    """The constant n."""
    e = _ints.get(n)
    if e is None:
        e = make("int", (int(n),))
        if -1024 <= n <= 65536:
            _ints[n] = e
    return e


def symbol(name: str) -> Expr:
    """The symbol of that name; its text is the name, which must be an identifier in Python and in C++."""
    entry = _table.get(("sym", name))
    e = None if entry is None else entry()
    if e is None:
        e = make("sym", (name,))
        e._text = name
    return e


def is_signed(name: str) -> bool:
    """Whether the symbol of that name may be negative, 0 or 1."""
    return name.startswith("z")


def is_unbacked(name: str) -> bool:
    """Whether the symbol of that name is a size that may be 0 or 1, as mark_unbacked asks for."""
    return name.startswith("u")


def boolean(b: bool) -> Expr:
    # bool and int are equal as dictionary keys; the op keeps them apart
    return make("bool", (bool(b),))


def as_expr(x: Any) -> Expr:
    """An Expr of an int, an Expr, or a torch.SymInt/SymBool whose node is ours or constant."""
    if type(x) is Expr:
        return x
    if type(x) is int:
        return integer(x)
    if isinstance(x, bool):
        return TRUE if x else FALSE
    if isinstance(x, int):
        return integer(x)
    node = getattr(x, "node", None)
    if node is not None:
        e = getattr(node, "expr", None)
        if type(e) is Expr:
            return e
        n = node.maybe_as_int()
        if n is not None:
            return integer(n)
    raise TypeError(f"not a size: {x!r} ({type(x).__name__}); expected int, Expr or SymInt")


def maybe_int(x: Any) -> IntLike:
    """An int where the value is constant, else the Expr."""
    e = as_expr(x)
    return e._args[0] if e.op == "int" else e


def add_all(xs: Iterable[IntLike]) -> Expr:
    """Sum of many; linear, unlike adding one by one."""
    out: Poly = {}
    for x in xs:
        for key, value in as_expr(x)._p().items():
            out[key] = out.get(key, 0) + value
    return from_poly({name: item for name, item in out.items() if item})


def mul_all(xs: Iterable[IntLike]) -> Expr:
    """Product of many (the number of elements of a shape)."""
    out = ONE
    for x in xs:
        out = out * x
    return out


ZERO, ONE = integer(0), integer(1)
TRUE, FALSE = boolean(True), boolean(False)

"""Integer expressions over size and index symbols, in a canonical form, hash-consed: equal expressions are one object.

An integer Expr is a polynomial with int coefficients over *atoms*. Atoms are symbols and what is not a polynomial:

    op         args                         meaning
    int        (n,)                         a Python int (`.value`)
    sym        (name,)                      a symbol: a size or a loop index
    add        (term, term, ...)            sum; terms are `mul`, atoms or one `int` (last)
    mul        ([int,] atom, atom, ...)     product; the int coefficient, where there is one, comes first
    floordiv   (a, b)                       Python's a // b
    mod        (a, b)                       Python's a % b
    min, max   (a, b, ...)                  two or more operands
    ite        (cond, a, b)                 a where the boolean cond holds, else b

and a boolean Expr is one of

    bool       (True | False,)              `.value`
    eq ne le   (a, b)                       lt, gt, ge are written with le; differences are reduced by their gcd
    and or     (p, q, ...)

Compare Exprs with `is`: Python's == is identity. Symbols stand for sizes and indices; where a rule needs a sign (the C
printer's choice of `/`, `simplify` without a range) they are taken to be non-negative.
"""
from __future__ import annotations

import math
from typing import Any, Callable, Iterable, Mapping, Sequence, Union
from weakref import WeakValueDictionary

from . import text
from .text import C_HELPERS

__all__ = ["Expr", "IntLike", "symbol", "integer", "as_expr", "maybe_int", "add_all", "mul_all", "floordiv", "mod",
           "minimum", "maximum", "ceildiv", "ite", "eq", "ne", "lt", "le", "gt", "ge", "and_", "or_", "not_", "TRUE",
           "FALSE", "simplify", "C_HELPERS"]

IntLike = Union[int, "Expr"]
Mono = tuple            # atoms in order of their text; () is the constant term
Poly = dict             # Mono -> int, without zeros

_table: WeakValueDictionary[tuple, "Expr"] = WeakValueDictionary()

BOOL_OPS = frozenset(("bool", "eq", "ne", "le", "and", "or"))
ATOM_OPS = frozenset(("sym", "floordiv", "mod", "min", "max", "ite"))


class Expr:
    """One node; make it with the functions of this module and with operators, never directly."""

    __slots__ = ("op", "_args", "_poly", "_text", "_names", "__weakref__")

    # ---- structure
    @property
    def args(self) -> tuple:
        """Operands, in a deterministic order; see the module's table."""
        if self._args is None:
            items = self._sorted_terms()
            if self.op == "mul":
                (mono, c), = items
                self._args = mono if c == 1 else (integer(c), *mono)
            else:
                self._args = tuple(_from_poly({m: c}) for m, c in items)
        return self._args

    @property
    def is_const(self) -> bool:
        return self.op == "int" or self.op == "bool"

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
        if self.op != "sym":
            raise ValueError(f"{self} is not a symbol")
        return self._args[0]

    def terms(self) -> list[tuple[int, tuple["Expr", ...]]]:
        """The polynomial as (coefficient, atoms) pairs; the constant term has no atoms and comes last."""
        return [(c, m) for m, c in self._sorted_terms()]

    @property
    def const_term(self) -> int:
        return self._p().get((), 0)

    def _p(self) -> Poly:
        p = self._poly
        if p is None:
            if self.op == "int":
                p = {(): self._args[0]} if self._args[0] else {}
            elif self.op in ATOM_OPS:
                p = {(self,): 1}
            else:
                raise TypeError(f"{self} is a truth value, an integer expression was expected")
            self._poly = p
        return p

    def _sorted_terms(self) -> list[tuple[Mono, int]]:
        return sorted(self._p().items(), key=_term_key)

    def symbol_names(self) -> frozenset[str]:
        n = self._names
        if n is None:
            if self.op == "sym":
                n = frozenset(self._args)
            elif self.is_const:
                n = frozenset()
            elif self._poly is not None and self.op in ("add", "mul"):
                n = frozenset().union(*{a.symbol_names() for m in self._poly for a in m})
            else:
                n = frozenset().union(*(a.symbol_names() for a in self.args))
            self._names = n
        return n

    # ---- arithmetic
    def __add__(self, o: Any) -> "Expr":
        o = _operand(o)
        if o is None:
            return NotImplemented
        a, b = self._p(), o._p()
        if len(a) < len(b):
            a, b = b, a
        if not b:
            return _from_poly(a)
        out = dict(a)
        for m, c in b.items():
            s = out.get(m, 0) + c
            if s:
                out[m] = s
            else:
                del out[m]
        return _from_poly(out)

    __radd__ = __add__

    def __sub__(self, o: Any) -> "Expr":
        o = _operand(o)
        return NotImplemented if o is None else self + (-o)

    def __rsub__(self, o: Any) -> "Expr":
        o = _operand(o)
        return NotImplemented if o is None else o + (-self)

    def __neg__(self) -> "Expr":
        return _from_poly({m: -c for m, c in self._p().items()})

    def __pos__(self) -> "Expr":
        return self

    def __mul__(self, o: Any) -> "Expr":
        o = _operand(o)
        if o is None:
            return NotImplemented
        return _from_poly(_poly_mul(self._p(), o._p()))

    __rmul__ = __mul__

    def __floordiv__(self, o: Any) -> "Expr":
        o = _operand(o)
        return NotImplemented if o is None else floordiv(self, o)

    def __rfloordiv__(self, o: Any) -> "Expr":
        o = _operand(o)
        return NotImplemented if o is None else floordiv(o, self)

    def __mod__(self, o: Any) -> "Expr":
        o = _operand(o)
        return NotImplemented if o is None else mod(self, o)

    def __rmod__(self, o: Any) -> "Expr":
        o = _operand(o)
        return NotImplemented if o is None else mod(o, self)

    def __bool__(self) -> bool:
        if self.is_const:
            return bool(self._args[0])
        raise TypeError(f"the truth of the size expression {self} is not known; use eq/le/... and a ShapeEnv")

    def __index__(self) -> int:
        if self.op == "int":
            return self._args[0]
        raise TypeError(f"the size expression {self} is not a constant")

    __int__ = __index__

    def __reduce__(self) -> tuple:
        return _rebuild, (self.op, self.args)

    def __copy__(self) -> "Expr":
        return self

    def __deepcopy__(self, memo: dict) -> "Expr":
        return self

    # ---- use
    def subs(self, mapping: Mapping[str, IntLike]) -> "Expr":
        """Replace symbols by name, all at once."""
        names = self.symbol_names()
        m = {k: as_expr(v) for k, v in mapping.items() if k in names}
        return _rewrite(self, m) if m else self

    def eval(self, values: Mapping[str, int]) -> int | bool:
        """The value where each symbol has the given one. Raises KeyError for a symbol without."""
        return _eval(self, values, {})

    def coeff(self, name: str) -> "Expr | None":
        """c of `c * name + rest`, where neither c nor rest mentions `name`; None if not affine in it."""
        if name not in self.symbol_names():
            return ZERO
        s = symbol(name)
        out: Poly = {}
        for m, c in self._p().items():
            n = 0
            for a in m:
                if a is s:
                    n += 1
                elif name in a.symbol_names():
                    return None
            if n > 1:
                return None
            if n:
                out[tuple(a for a in m if a is not s)] = c
        return _from_poly(out)

    # ---- text
    def py(self) -> str:
        """Python source text."""
        t = self._text
        if t is None:
            t = self._text = text.python(self)
        return t

    def c(self, nonneg: Callable[["Expr"], bool] | None = None) -> str:
        """C++ source text over 64-bit ints. Division of what may be negative calls a helper of C_HELPERS; `nonneg` may
        prove operands non-negative (by default: no negative coefficient in them)."""
        return text.cpp(self, nonneg)

    def __repr__(self) -> str:
        return self.py()

    __str__ = __repr__


def _rebuild(op: str, args: tuple) -> Expr:
    return _BUILDERS[op](*args)


def _make(op: str, args: tuple, poly: Poly | None = None) -> Expr:
    k = (op, *args)
    e = _table.get(k)
    if e is None:
        e = object.__new__(Expr)
        e.op, e._args, e._poly, e._text, e._names = op, args, poly, None, None
        e = _table.setdefault(k, e)
    return e


def _from_poly(p: Poly) -> Expr:
    n = len(p)
    if n == 0:
        return ZERO
    if n == 1:
        (m, c), = p.items()
        if not m:
            return integer(c)
        if c == 1 and len(m) == 1:
            return m[0]
    k = ("poly", frozenset(p.items()))
    e = _table.get(k)
    if e is None:
        e = object.__new__(Expr)
        e.op, e._args, e._poly, e._text, e._names = ("mul" if n == 1 else "add"), None, p, None, None
        e = _table.setdefault(k, e)
    return e


def _atom_key(a: Expr) -> str:
    return a._text or a.py()


def _term_key(item: tuple[Mono, int]) -> tuple:
    m = item[0]
    return (-len(m), [a._text or a.py() for a in m])


def _poly_mul(a: Poly, b: Poly) -> Poly:
    if len(a) < len(b):
        a, b = b, a
    if not b:
        return {}
    if len(b) == 1:
        (m2, c2), = b.items()
        if not m2:
            return dict(a) if c2 == 1 else {m: c * c2 for m, c in a.items()}
    out: Poly = {}
    for m2, c2 in b.items():
        for m, c in a.items():
            k = (m if not m2 else m2 if not m else tuple(sorted(m + m2, key=_atom_key)))
            s = out.get(k, 0) + c * c2
            if s:
                out[k] = s
            else:
                del out[k]
    return out


def _operand(x: Any) -> Expr | None:
    if type(x) is Expr:
        return x
    if isinstance(x, int):
        return integer(int(x))
    return as_expr(x) if hasattr(x, "node") else None


# ---- constructors
_ints: dict[int, Expr] = {}


def integer(n: int) -> Expr:
    """The constant n."""
    e = _ints.get(n)
    if e is None:
        e = _make("int", (int(n),))
        if -1024 <= n <= 65536:
            _ints[n] = e
    return e


def symbol(name: str) -> Expr:
    """The symbol of that name; its text is the name, which must be an identifier in Python and in C++."""
    e = _table.get(("sym", name))
    if e is None:
        e = _make("sym", (name,))
        e._text = name
    return e


def _boolean(b: bool) -> Expr:
    # bool and int are equal as dictionary keys; the op keeps them apart
    return _make("bool", (bool(b),))


def as_expr(x: Any) -> Expr:
    """An Expr of an int, an Expr, or a torch.SymInt/SymBool whose node is ours or constant."""
    if type(x) is Expr:
        return x
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
        for m, c in as_expr(x)._p().items():
            out[m] = out.get(m, 0) + c
    return _from_poly({m: c for m, c in out.items() if c})


def mul_all(xs: Iterable[IntLike]) -> Expr:
    """Product of many (the number of elements of a shape)."""
    out = ONE
    for x in xs:
        out = out * x
    return out


def _const_only(p: Poly) -> int | None:
    """The value of a constant polynomial, else None."""
    if not p:
        return 0
    if len(p) == 1 and () in p:
        return p[()]
    return None


def floordiv(a: IntLike, b: IntLike) -> Expr:
    """Floor division, as Python's `//`. Raises ZeroDivisionError for a constant 0 divisor."""
    a, b = as_expr(a), as_expr(b)
    pa, pb = a._p(), b._p()
    nb = _const_only(pb)
    if nb == 0:
        raise ZeroDivisionError(f"{a} // 0")
    if not pa or nb == 1:
        return a
    if a is b:
        return ONE
    if nb is None:
        return _floordiv_symbolic(a, b)
    if nb < 0:
        return floordiv(-a, integer(-nb))
    na = _const_only(pa)
    if na is not None:
        return integer(na // nb)
    quot: Poly = {}
    rem: Poly = {}
    for m, c in pa.items():
        if c % nb == 0:
            quot[m] = c // nb
        elif not m:
            if c // nb:
                quot[m] = c // nb
            rem[m] = c % nb
        else:
            rem[m] = c
    n_terms = [c for m, c in rem.items() if m]
    if not n_terms:                                   # only a constant in [0, nb) is left: its quotient is 0
        return _from_poly(quot)
    g = math.gcd(nb, *n_terms)
    if g > 1:                                         # floor((g*r + c) / (g*b)) = floor((r + floor(c/g)) / b)
        nb //= g
        rem = {m: c // g for m, c in rem.items() if c // g}
    if nb == 1:
        return _from_poly(quot) + _from_poly(rem)
    if len(n_terms) == 1:                             # (x//d + c) // b = (x + c*d) // (b*d)
        (m, c), = ((m, c) for m, c in rem.items() if m)
        if c == 1 and len(m) == 1 and m[0].op == "floordiv":
            x, d = m[0].args
            if d.op == "int" and d._args[0] > 0:
                dv = d._args[0]
                return _from_poly(quot) + floordiv(x + rem.get((), 0) * dv, integer(nb * dv))
    return _from_poly(quot) + _make("floordiv", (_from_poly(rem), integer(nb)))


def _mono_div(m: Mono, d: Mono) -> Mono | None:
    """m / d as multisets of atoms, None if not exact."""
    out = list(m)
    for a in d:
        if a not in out:
            return None
        out.remove(a)
    return tuple(out)


def _split_by(pa: Poly, pb: Poly) -> tuple[Poly, Poly]:
    """a = q * b + r with r keeping the terms that the leading term of b does not divide. Exact when b is one term."""
    (lead, lc) = min(pb.items(), key=_term_key)
    quot: Poly = {}
    rest: Poly = {}
    work = dict(pa)
    for _ in range(64 + 4 * len(pa)):
        if not work:
            break
        m = min(work.items(), key=_term_key)[0]
        c = work.pop(m)
        d = _mono_div(m, lead)
        if d is None or c % lc:
            rest[m] = c
            continue
        q = c // lc
        quot[d] = quot.get(d, 0) + q
        for m2, c2 in _poly_mul({d: q}, {k: v for k, v in pb.items() if k != lead}).items():
            s = work.get(m2, 0) - c2
            if s:
                work[m2] = s
            else:
                del work[m2]
    for m, c in work.items():
        rest[m] = rest.get(m, 0) + c
    return {m: c for m, c in quot.items() if c}, {m: c for m, c in rest.items() if c}


def _floordiv_symbolic(a: Expr, b: Expr) -> Expr:
    pa, pb = a._p(), b._p()
    if _const_only(pa) is None or len(pb) > 1:
        quot, rest = _split_by(pa, pb)
        if quot and (not rest or len(pb) == 1):
            return _from_poly(quot) + (floordiv(_from_poly(rest), b) if rest else ZERO)
    # common int factor and common atoms
    g = math.gcd(*pa.values(), *pb.values())
    common = _common_atoms(pa, pb)
    if g > 1 or common:
        pa = {_mono_div(m, common): c // g for m, c in pa.items()}
        pb = {_mono_div(m, common): c // g for m, c in pb.items()}
        return floordiv(_from_poly(pa), _from_poly(pb))
    return _make("floordiv", (a, b))


def _common_atoms(*ps: Poly) -> Mono:
    common: list | None = None
    for p in ps:
        for m in p:
            if common is None:
                common = list(m)
            else:
                left, kept = list(m), []
                for x in common:
                    if x in left:
                        left.remove(x)
                        kept.append(x)
                common = kept
            if not common:
                return ()
    return tuple(common or ())


def mod(a: IntLike, b: IntLike) -> Expr:
    """Python's `%` (the sign of the divisor). Raises ZeroDivisionError for a constant 0 divisor."""
    a, b = as_expr(a), as_expr(b)
    pa, pb = a._p(), b._p()
    nb = _const_only(pb)
    if nb == 0:
        raise ZeroDivisionError(f"{a} % 0")
    if not pa or a is b:
        return ZERO
    if nb is None:
        quot, rest = _split_by(pa, pb)
        if quot and (not rest or len(pb) == 1):
            return mod(_from_poly(rest), b) if rest else ZERO
        if len(pa) == 1 and () not in pa:
            (m, c), = pa.items()
            if c == 1 and len(m) == 1 and m[0].op == "mod" and m[0].args[1] is b:
                return a
        return _make("mod", (a, b))
    na = _const_only(pa)
    if na is not None:
        return integer(na % nb)
    if nb < 0:
        return -mod(-a, integer(-nb))
    if nb == 1:
        return ZERO
    rem: Poly = {}
    again = False
    for m, c in pa.items():
        c %= nb
        if not c:
            continue
        if len(m) == 1 and m[0].op == "mod" and m[0].args[1].op == "int" and (c * m[0].args[1]._args[0]) % nb == 0:
            again = True                              # c * (x % (k*b)) = c * x (mod b)
            for m2, c2 in _poly_mul({(): c}, m[0].args[0]._p()).items():
                rem[m2] = rem.get(m2, 0) + c2
        else:
            rem[m] = rem.get(m, 0) + c
    if again:
        return _mod_const({m: c % nb for m, c in rem.items() if c % nb}, nb)
    return _mod_const(rem, nb)


def _mod_const(rem: Poly, nb: int) -> Expr:
    n_terms = [c for m, c in rem.items() if m]
    if not n_terms:
        return integer(rem.get((), 0) % nb)
    g = math.gcd(nb, *n_terms)
    if g > 1:                                         # (g*r + c) % (g*b) = g * ((r + c//g) % b) + c % g
        c0 = rem.get((), 0)
        inner = {m: c // g for m, c in rem.items() if m}
        if c0 // g:
            inner[()] = c0 // g
        return mod(_from_poly(inner), integer(nb // g)) * g + c0 % g
    return _make("mod", (_from_poly(rem), integer(nb)))


def ceildiv(a: IntLike, b: IntLike) -> Expr:
    """Division rounded up, for positive b."""
    b = as_expr(b)
    return floordiv(as_expr(a) + b - 1, b)


def _minmax(op: str, xs: Sequence[IntLike]) -> Expr:
    pick = min if op == "min" else max
    const: int | None = None
    flat: list[Expr] = []
    for x in xs:
        e = as_expr(x)
        for y in (e.args if e.op == op else (e,)):
            if y.op == "int":
                v = y._args[0]
                const = v if const is None else pick(const, v)
            elif y not in flat:
                flat.append(y)
    if const is not None:
        flat.append(integer(const))
    out: list[Expr] = []
    for e in flat:                                    # drop what another operand beats by a constant
        keep = True
        for i, o in enumerate(out):
            d = _const_only((e - o)._p())
            if d is not None:
                keep = False
                if (d < 0) == (op == "min") and d != 0:
                    out[i] = e
                break
        if keep:
            out.append(e)
    if len(out) == 1:
        return out[0]
    return _make(op, tuple(sorted(out, key=_atom_key)))


def minimum(*xs: IntLike) -> Expr:
    return _minmax("min", xs)


def maximum(*xs: IntLike) -> Expr:
    return _minmax("max", xs)


def ite(cond: Expr | bool, a: IntLike, b: IntLike) -> Expr:
    """a where cond holds, else b."""
    cond, a, b = as_expr(cond), as_expr(a), as_expr(b)
    if cond.op == "bool":
        return a if cond._args[0] else b
    return a if a is b else _make("ite", (cond, a, b))


# ---- predicates
def _relation(op: str, a: IntLike, b: IntLike) -> Expr:
    """a <op> b reduced: constant to the right, negative terms to the other side, divided by the gcd."""
    a, b = as_expr(a), as_expr(b)
    if a.is_bool and b.is_bool and op in ("eq", "ne"):
        return _bool_eq(a, b) if op == "eq" else not_(_bool_eq(a, b))
    d = (a - b)._p()
    n = _const_only(d)
    if n is not None:
        return _boolean(n == 0 if op == "eq" else n != 0 if op == "ne" else n <= 0)
    c0 = d.get((), 0)
    g = math.gcd(*(c for m, c in d.items() if m))
    if op == "le":
        bound = (-c0) // g
    elif c0 % g:
        return _boolean(op == "ne")
    else:
        bound = -c0 // g
    pos = {m: c // g for m, c in d.items() if m and c > 0}
    neg = {m: -c // g for m, c in d.items() if m and c < 0}
    if op != "le" and (not pos or (neg and _first_text(neg) < _first_text(pos))):
        pos, neg, bound = neg, pos, -bound
    if not pos and neg and op == "le":                # 0 <= x + bound is written -bound <= x
        return _make("le", (integer(-bound), _from_poly(neg)))
    if not neg:
        return _make(op, (_from_poly(pos), integer(bound)))
    if bound >= 0:
        if bound:
            neg[()] = bound
    else:
        pos[()] = -bound
    return _make(op, (_from_poly(pos), _from_poly(neg)))


def _first_text(p: Poly) -> tuple:
    return _term_key(min(p.items(), key=_term_key))


def _bool_eq(a: Expr, b: Expr) -> Expr:
    return or_(and_(a, b), and_(not_(a), not_(b)))


def eq(a: IntLike, b: IntLike) -> Expr:
    return _relation("eq", a, b)


def ne(a: IntLike, b: IntLike) -> Expr:
    return _relation("ne", a, b)


def le(a: IntLike, b: IntLike) -> Expr:
    return _relation("le", a, b)


def lt(a: IntLike, b: IntLike) -> Expr:
    return _relation("le", as_expr(a) + 1, b)


def ge(a: IntLike, b: IntLike) -> Expr:
    return _relation("le", b, a)


def gt(a: IntLike, b: IntLike) -> Expr:
    return _relation("le", as_expr(b) + 1, a)


def _junction(op: str, ps: Sequence[Expr | bool]) -> Expr:
    stop = op == "or"                                 # the value that decides the whole
    out: list[Expr] = []
    for p in ps:
        e = as_expr(p)
        for q in (e.args if e.op == op else (e,)):
            if q.op == "bool":
                if q._args[0] == stop:
                    return q
            elif not q.is_bool:
                raise TypeError(f"{q} is not a truth value")
            elif not_(q) in out:
                return _boolean(stop)
            elif q not in out:
                out.append(q)
    if not out:
        return _boolean(not stop)
    return out[0] if len(out) == 1 else _make(op, tuple(sorted(out, key=_atom_key)))


def and_(*ps: Expr | bool) -> Expr:
    return _junction("and", ps)


def or_(*ps: Expr | bool) -> Expr:
    return _junction("or", ps)


def not_(p: Expr | bool) -> Expr:
    e = as_expr(p)
    if e.op == "bool":
        return _boolean(not e._args[0])
    if e.op in ("eq", "ne"):
        return _make("ne" if e.op == "eq" else "eq", e.args)
    if e.op == "le":
        return gt(*e.args)
    if e.op in ("and", "or"):
        return _junction("or" if e.op == "and" else "and", [not_(q) for q in e.args])
    raise TypeError(f"{e} is not a truth value")


# ---- walks
def _rewrite(e: Expr, m: Mapping[str, Expr]) -> Expr:
    cache: dict[Expr, Expr] = {}

    def go(x: Expr) -> Expr:
        r = cache.get(x)
        if r is not None:
            return r
        if x.op == "sym":
            r = m.get(x._args[0], x)
        elif x.op in ("int", "bool") or not (x.symbol_names() & m.keys()):
            r = x
        elif x.op in ("add", "mul"):
            out: Poly = {}
            for mono, c in x._poly.items():
                if any(a.symbol_names() & m.keys() for a in mono):
                    p = {(): c}
                    for a in mono:
                        p = _poly_mul(p, go(a)._p())
                else:
                    p = {mono: c}
                for k, v in p.items():
                    out[k] = out.get(k, 0) + v
            r = _from_poly({k: v for k, v in out.items() if v})
        else:
            r = _BUILDERS[x.op](*(go(a) for a in x.args))
        cache[x] = r
        return r

    return go(e)


def _eval(e: Expr, values: Mapping[str, int], cache: dict) -> Any:
    op = e.op
    if op == "sym":
        return values[e._args[0]]
    if op in ("int", "bool"):
        return e._args[0]
    r = cache.get(e)
    if r is not None:
        return r
    if op in ("add", "mul"):
        r = 0
        for m, c in e._poly.items():
            for a in m:
                c *= values[a._args[0]] if a.op == "sym" else _eval(a, values, cache)
            r += c
    elif op == "ite":
        r = _eval(e.args[1] if _eval(e.args[0], values, cache) else e.args[2], values, cache)
    elif op == "and":
        r = all(_eval(a, values, cache) for a in e.args)
    elif op == "or":
        r = any(_eval(a, values, cache) for a in e.args)
    else:
        xs = [_eval(a, values, cache) for a in e.args]
        if op == "floordiv":
            r = xs[0] // xs[1]
        elif op == "mod":
            r = xs[0] % xs[1]
        elif op == "min":
            r = min(xs)
        elif op == "max":
            r = max(xs)
        elif op == "eq":
            r = xs[0] == xs[1]
        elif op == "ne":
            r = xs[0] != xs[1]
        else:
            r = xs[0] <= xs[1]
    cache[e] = r
    return r


_BUILDERS: dict[str, Callable[..., Expr]] = {
    "int": integer, "sym": symbol, "bool": _boolean, "add": lambda *a: add_all(a), "mul": lambda *a: mul_all(a),
    "floordiv": floordiv, "mod": mod, "min": minimum, "max": maximum, "ite": ite, "eq": eq, "ne": ne, "le": le,
    "and": and_, "or": or_,
}


ZERO, ONE = integer(0), integer(1)
TRUE, FALSE = _boolean(True), _boolean(False)


def simplify(e: Expr, ranges: Mapping[str, tuple[IntLike, IntLike | None]]) -> Expr:
    """Use `{name: (lo, hi)}`, lo <= name < hi, hi an int, an Expr or None (unbounded), to remove `//`, `%`, min and max
    and to decide comparisons."""
    from .simplify import simplify as run
    return run(e, ranges)

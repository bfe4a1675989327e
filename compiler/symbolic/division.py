"""Floor division and remainder of polynomials: what divides is divided, what is left stays an atom.

Internal to `expr`, which gives out the names.
"""

from __future__ import annotations

import math

from .terms import ONE, ZERO, Expr, IntLike, Mono, Poly, from_poly, make, poly_mul, term_key, as_expr, integer

__all__ = ["floordiv", "mod", "ceildiv"]


def const_only(p: Poly) -> int | None:
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
    nb = const_only(pb)
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
    na = const_only(pa)
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
    n_terms = [value for key, value in rem.items() if key]
    if not n_terms:  # only a constant in [0, nb) is left: its quotient is 0
        return from_poly(quot)
    gcd = math.gcd(nb, *n_terms)
    if gcd > 1:  # floor((g*r + c) / (g*b)) = floor((r + floor(c/g)) / b)
        nb //= gcd
        rem = {key: value // gcd for key, value in rem.items() if value // gcd}
    if nb == 1:
        return from_poly(quot) + from_poly(rem)
    if len(n_terms) == 1:  # (x//d + c) // b = (x + c*d) // (b*d)
        ((m, c),) = ((key, value) for key, value in rem.items() if key)
        if c == 1 and len(m) == 1 and m[0].op == "floordiv":
            x, d = m[0].args
            if d.is_const and d.value > 0:
                dv = d.value
                return from_poly(quot) + floordiv(x + rem.get((), 0) * dv, integer(nb * dv))
    return from_poly(quot) + make("floordiv", (from_poly(rem), integer(nb)))


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
    lead, lc = min(pb.items(), key=term_key)
    quot: Poly = {}
    rest: Poly = {}
    work = dict(pa)
    for _ in range(64 + 4 * len(pa)):
        if not work:
            break
        m = min(work.items(), key=term_key)[0]
        c = work.pop(m)
        d = _mono_div(m, lead)
        if d is None or c % lc:
            rest[m] = c
            continue
        q = c // lc
        quot[d] = quot.get(d, 0) + q
        for m2, c2 in poly_mul({d: q}, {key: value for key, value in pb.items() if key != lead}).items():
            s = work.get(m2, 0) - c2
            if s:
                work[m2] = s
            else:
                del work[m2]
    for m, c in work.items():
        rest[m] = rest.get(m, 0) + c
    return {key: value for key, value in quot.items() if value}, {key: value for key, value in rest.items() if value}


def _floordiv_symbolic(a: Expr, b: Expr) -> Expr:
    pa, pb = a._p(), b._p()
    if const_only(pa) is None or len(pb) > 1:
        quot, rest = _split_by(pa, pb)
        if quot and (not rest or len(pb) == 1):
            return from_poly(quot) + (floordiv(from_poly(rest), b) if rest else ZERO)
    # common int factor and common atoms
    gcd = math.gcd(*pa.values(), *pb.values())
    common = _common_atoms(pa, pb)
    if gcd > 1 or common:
        pa = {_mono_div(key, common): value // gcd for key, value in pa.items()}
        pb = {_mono_div(key, common): value // gcd for key, value in pb.items()}
        return floordiv(from_poly(pa), from_poly(pb))
    return make("floordiv", (a, b))


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
    nb = const_only(pb)
    if nb == 0:
        raise ZeroDivisionError(f"{a} % 0")
    if not pa or a is b:
        return ZERO
    if nb is None:
        quot, rest = _split_by(pa, pb)
        if quot and (not rest or len(pb) == 1):
            return mod(from_poly(rest), b) if rest else ZERO
        if len(pa) == 1 and () not in pa:
            ((m, c),) = pa.items()
            if c == 1 and len(m) == 1 and m[0].op == "mod" and m[0].args[1] is b:
                return a
        return make("mod", (a, b))
    na = const_only(pa)
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
        if len(m) == 1 and m[0].op == "mod" and m[0].args[1].is_const and (c * m[0].args[1].value) % nb == 0:
            again = True  # c * (x % (k*b)) = c * x (mod b)
            for m2, c2 in poly_mul({(): c}, m[0].args[0]._p()).items():
                rem[m2] = rem.get(m2, 0) + c2
        else:
            rem[m] = rem.get(m, 0) + c
    if again:
        return _mod_const({key: value % nb for key, value in rem.items() if value % nb}, nb)
    return _mod_const(rem, nb)


def _mod_const(rem: Poly, nb: int) -> Expr:
    n_terms = [value for key, value in rem.items() if key]
    if not n_terms:
        return integer(rem.get((), 0) % nb)
    gcd = math.gcd(nb, *n_terms)
    if gcd > 1:  # (g*r + c) % (g*b) = g * ((r + c//g) % b) + c % g
        c0 = rem.get((), 0)
        inner = {key: value // gcd for key, value in rem.items() if key}
        if c0 // gcd:
            inner[()] = c0 // gcd
        return mod(from_poly(inner), integer(nb // gcd)) * gcd + c0 % gcd
    return make("mod", (from_poly(rem), integer(nb)))


def ceildiv(a: IntLike, b: IntLike) -> Expr:
    """Division rounded up, for positive b."""
    b = as_expr(b)
    return floordiv(as_expr(a) + b - 1, b)

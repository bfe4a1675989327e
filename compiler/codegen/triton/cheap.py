"""Short forms of exp, tanh, sigmoid, erf and division, for values that are rounded to 16 bits before anybody sees them.

A kernel over bfloat16 moves an element in the time of some 27 instructions on an H200; libdevice's erf or tanh alone take as many. Where
a value flows only into stores and conversions of bfloat16 or float16, its last bits are lost anyway: there the forms of this file
serve, whose relative error is below 1e-6. `needs_precision` says which values stay exact: those that reach a float32 store, an index,
or a comparison.
"""
from __future__ import annotations

from ...lowering.ir import Kernel, Value, indirect_values, walk
from .dtypes import TType, ttype
from .prims import Need, Operand, materialised

__all__ = ["needs_precision", "cheap_expression", "HELPERS"]

_DISCRETE = frozenset(("eq", "ne", "lt", "le", "gt", "ge", "floor", "ceil", "round", "trunc", "sign", "div_floor", "div_trunc", "fmod",
                       "remainder", "check_index", "isnan", "isinf", "signbit", "logical_not", "logical_and", "logical_or", "logical_xor"))
LOG2E = 1.4426950408889634


def _asm(name: str, instruction: str, why: str) -> str:
    return (f"@triton.jit\ndef {name}(x):  # {why}\n    return tl.inline_asm_elementwise(\"{instruction} $0, $1;\", \"=f,f\", [x], dtype=tl.float32, "
            "is_pure=True, pack=1)\n")


# Printed into the source where they are used. (The first two are one instruction of the GPU each.)
HELPERS = {
    "_exp2": _asm("_exp2", "ex2.approx.ftz.f32", "2 to the x, 2 units in the last place"),
    "_reciprocal": _asm("_reciprocal", "rcp.approx.ftz.f32", "1 / x, 1 unit in the last place"),
    "_short_tanh": "@triton.jit\ndef _short_tanh(x):\n"
                   f"    far = 1.0 - 2.0 * _reciprocal(1.0 + _exp2(x * {2 * LOG2E}))\n"
                   "    return tl.where(tl.abs(x) < 0.02, x - x * x * x * 0.3333333333333333, far)\n",
    "_short_erf_plus_1": "@triton.jit\ndef _short_erf_plus_1(x):  # Abramowitz and Stegun 7.1.26\n"
                         "    t = _reciprocal(1.0 + 0.3275911 * tl.abs(x))\n"
                         "    p = ((((1.061405429 * t - 1.453152027) * t + 1.421413741) * t - 0.284496736) * t + 0.254829592) * t\n"
                         f"    q = p * _exp2(x * x * {-LOG2E})\n"
                         "    return tl.where(x < 0, q, 2.0 - q)\n",
}
_CALLS = {"_short_tanh": ("_exp2", "_reciprocal"), "_short_erf_plus_1": ("_exp2", "_reciprocal")}


def _rounds(v: Value) -> bool:
    return v.op == "cast" and v.dtype.is_floating_point and ttype(v.dtype).low_precision


def needs_precision(kernel: Kernel) -> set[int]:
    """Ids of the values whose last bits may be seen."""
    known = indirect_values()
    sums = {a.name: a.value for st in kernel.stages for a in st.accs}
    todo: list[tuple[Value, bool]] = []                  # and whether what decides hangs on it: then a rounding hides nothing
    for st in kernel.stages:
        for s in st.stores:
            t = ttype(s.buffer.dtype)
            if not t.low_precision:
                todo.append((s.value, not t.is_float))
            todo += [(known[n], True) for n in s.index.symbol_names() if n in known]
        todo += [(a.value, True) for a in st.accs if a.op.startswith("arg")]
        for v in walk([a.value for a in st.accs] + [s.value for s in st.stores]):
            if v.op in _DISCRETE or v.op == "load" or (v.op == "cast" and not v.dtype.is_floating_point):
                todo += [(a, True) for a in v.args]
    seen: set[tuple[int, bool]] = set()
    while todo:
        v, strict = todo.pop()
        if (v.id, strict) in seen or (v.id, True) in seen or _rounds(v) and not strict:
            continue
        seen.add((v.id, strict))
        if v.op == "acc" and v.attr in sums:
            todo.append((sums[v.attr], strict))
        todo += [(a, strict) for a in v.args]
    return {i for i, _ in seen}


def cheap_expression(v: Value, t: TType, args: list[Operand], need: Need, backend: str) -> str | None:
    """The short form of `v`, computed in float32; None where it has none."""
    if t.held != "tl.float32" or backend != "cuda":
        return None

    def call(name: str, *texts: str) -> str:
        for n in (*_CALLS.get(name, ()), name):
            need(n)
        return f"{name}({', '.join(texts)})"
    m = [materialised(a) for a in args]
    if v.op == "exp":
        return call("_exp2", f"{m[0]} * {LOG2E}")
    if v.op == "tanh":
        return call("_short_tanh", m[0])
    if v.op == "sigmoid":
        need("_exp2")
        return call("_reciprocal", f"1.0 + _exp2({m[0]} * {-LOG2E})")
    if v.op == "div" and not args[0].is_literal:
        return f"{args[0].text} / {args[1].text}"
    return None


def plus_one(v: Value) -> tuple[str, Value] | None:
    """("erf" | "tanh", its operand) where `v` is one of them plus 1: the sum keeps its digits where the terms cancel."""
    if v.op != "add":
        return None
    for f, one in (v.args, v.args[::-1]):
        if f.op in ("erf", "tanh") and one.op == "const" and one.attr == 1:
            return f.op, f.args[0]
    return None


def plus_one_text(function: str, x: Operand, need: Need) -> str:
    for name in ("_exp2", "_reciprocal"):
        need(name)
    if function == "tanh":
        return f"2.0 * _reciprocal(1.0 + _exp2({materialised(x)} * {-2 * LOG2E}))"
    need("_short_erf_plus_1")
    return f"_short_erf_plus_1({materialised(x)})"

"""Short forms of exp, tanh, sigmoid, erf and division, for values that are rounded to 16 bits before anybody sees them.

A kernel over bfloat16 moves an element in the time of some 27 instructions on an H200; libdevice's erf or tanh alone
take as many. Where a value flows only into stores and conversions of bfloat16 or float16, its last bits are lost
anyway: there the forms of this file serve, whose relative error is below 1e-6. `needs_precision` says which values stay
exact: those that reach a float32 store, an index, or a comparison. Factors alone may stand between GELU or its
derivative and a rounding (`rounded_to`). Then the polynomials of ../gelu.py serve, whose error is a tenth of the
rounding's. They take one instruction of the slow unit, where the forms by erf take two and three."""

from __future__ import annotations

import torch

from ...lowering.ir import Kernel, Value, indirect_values, walk
from ..gelu import DERIVATIVE, SHARE_BELOW, derivative, gelu, plus_one
from .dtypes import TType, ttype
from .prims import Need, Operand, by_power_of_two, materialised

__all__ = ["needs_precision", "rounded_to", "cheap_expression", "short_form", "short_text", "HELPERS"]

_DISCRETE = frozenset(
    """eq ne lt le gt ge floor ceil round trunc sign div_floor div_trunc fmod remainder check_index isnan isinf signbit
    logical_not logical_and logical_or logical_xor""".split()
)
LOG2E = 1.4426950408889634


def _asm(name: str, instruction: str, why: str) -> str:
    return (
        f'@triton.jit\ndef {name}(x):  # {why}\n    return tl.inline_asm_elementwise("{instruction} $0, $1;", "=f,f",'
        " [x], dtype=tl.float32, is_pure=True, pack=1)\n"
    )


def _polynomial(coefficients: tuple[float, ...]) -> str:
    last, *rest = reversed(coefficients)
    return f"    p = {last!r} * a + {rest[0]!r}\n" + "".join(f"    p = p * a + {c!r}\n" for c in rest[1:])


def _gelu_forms() -> dict[str, str]:
    out = {}
    for dtype, coefficients in SHARE_BELOW.items():
        name = f"_gelu_{_short(dtype)}"
        out[name] = (
            f"@triton.jit\ndef {name}(x):\n    a = tl.abs(x)\n{_polynomial(coefficients)}"
            "    share = _exp2(p)\n    return x * tl.where(x < 0, share, 1.0 - share)\n"
        )
    for dtype, coefficients in DERIVATIVE.items():  # (at the infinities, where eager has NaN, its limits)
        name = f"_gelu_derivative_{_short(dtype)}"
        out[name] = (
            f"@triton.jit\ndef {name}(x):\n    a = tl.minimum(tl.abs(x), 32.0,"
            f" propagate_nan=tl.PropagateNan.ALL)\n{_polynomial(coefficients)}    below = p * _exp2(x * {-LOG2E / 2} *"
            " x)\n    return tl.where(x < 0, below, 1.0 - below)\n"
        )
    return out


def _short(dtype: torch.dtype) -> str:
    return ttype(dtype).stored.removeprefix("tl.")


# Printed into the source where they are used. (The first two are one instruction of the GPU each.)
HELPERS = {
    "_exp2": _asm("_exp2", "ex2.approx.ftz.f32", "2 to the x, 2 units in the last place"),
    "_reciprocal": _asm("_reciprocal", "rcp.approx.ftz.f32", "1 / x, 1 unit in the last place"),
    "_short_tanh": (
        "@triton.jit\ndef _short_tanh(x):\n"
        f"    far = 1.0 - 2.0 * _reciprocal(1.0 + _exp2(x * {2 * LOG2E}))\n"
        "    return tl.where(tl.abs(x) < 0.02, x - x * x * x * 0.3333333333333333, far)\n"
    ),
    "_short_erf_plus_1": (
        "@triton.jit\ndef _short_erf_plus_1(x):  # Abramowitz and Stegun 7.1.26\n"
        "    t = _reciprocal(1.0 + 0.3275911 * tl.abs(x))\n"
        "    p = ((((1.061405429 * t - 1.453152027) * t + 1.421413741) * t - 0.284496736) * t + 0.254829592) * t\n"
        f"    q = p * _exp2(x * x * {-LOG2E})\n"
        "    return tl.where(x < 0, q, 2.0 - q)\n"
    ),
    **_gelu_forms(),
}
_FACTORS = frozenset(("mul", "div", "neg", "where", "masked"))  # what passes a relative error on as it is


def _rounds(value: Value) -> bool:
    return value.is_float_cast and ttype(value.dtype).low_precision


def needs_precision(kernel: Kernel) -> set[int]:
    """Ids of the values whose last bits may be seen."""
    known = indirect_values()
    sums = {acc.name: acc.value for st in kernel.stages for acc in st.accs}
    todo: list[tuple[Value, bool]] = []  # and whether what decides hangs on it: then a rounding hides nothing
    for st in kernel.stages:
        for store in st.stores:
            t = ttype(store.buffer.dtype)
            if not t.low_precision:
                todo.append((store.value, not t.is_float))
            todo += [(known[name], True) for name in store.index.symbol_names() if name in known]
        todo += [(acc.value, True) for acc in st.accs if acc.is_position]
        for value in walk([acc.value for acc in st.accs] + [store.value for store in st.stores]):
            if value.op in _DISCRETE or value.is_load or (value.is_cast and not value.dtype.is_floating_point):
                todo += [(arg, True) for arg in value.args]
    seen: set[tuple[int, bool]] = set()
    while todo:
        value, strict = todo.pop()
        if (value.id, strict) in seen or (value.id, True) in seen or _rounds(value) and not strict:
            continue
        seen.add((value.id, strict))
        if value.is_accumulator and value.attr in sums:
            todo.append((sums[value.attr], strict))
        todo += [(arg, strict) for arg in value.args]
    return {i for i, _ in seen}


def rounded_to(kernel: Kernel) -> dict[int, torch.dtype]:
    """Ids of the values that only factors and choices stand between and their rounding to 16 bits: the finest type that
    they are rounded to. Sums may, too, of what is stored rounded beside: of other terms, which may cancel, the program
    asked for more digits than their sum is rounded to.
    """
    found: dict[int | str, torch.dtype | None] = {}  # by a value's id or an accumulator's name
    stored = {
        _uncast(store.value).id
        for st in kernel.stages
        for store in st.stores
        if _coarse(store.buffer.dtype) is not None
    }

    def use(what: int | str, dtype: torch.dtype | None) -> None:
        if found.setdefault(what, dtype) is not None and dtype is not torch.bfloat16:
            found[what] = dtype

    for st in reversed(kernel.stages):
        for store in st.stores:
            use(store.value.id, _coarse(store.buffer.dtype))
        for acc in st.accs:
            use(acc.value.id, found.get(acc.name) if acc.op == "sum" and _uncast(acc.value).id in stored else None)
        for v in reversed(walk([a.value for a in st.accs] + [store.value for store in st.stores])):  # users first
            t = found.get(v.id)
            if v.is_accumulator:
                use(v.attr, t)
            for k, arg in enumerate(v.args):
                if v.is_float_cast:
                    use(arg.id, _coarse(v.dtype) or t)
                else:
                    use(arg.id, t if v.op in _FACTORS and not (v.op in ("where", "masked") and k == 0) else None)
    return {key: value for key, value in found.items() if value is not None and isinstance(key, int)}


def _uncast(value: Value) -> Value:
    return _uncast(value.args[0]) if value.is_cast and value.args[0].dtype.is_floating_point else value


def _coarse(dtype: torch.dtype) -> torch.dtype | None:
    """Among those of the polynomials, the type that is as fine as `dtype`."""
    return (
        None
        if not dtype.is_floating_point or not ttype(dtype).low_precision
        else torch.float16
        if dtype is torch.float16
        else torch.bfloat16
    )


def cheap_expression(value: Value, t: TType, args: list[Operand], need: Need, backend: str) -> str | None:
    """The short form of `value`, computed in float32; None where it has none."""
    if t.held != "tl.float32" or backend != "cuda":
        return None

    if value.op == "div" and not args[0].is_literal:
        return by_power_of_two(*args) or f"{args[0].text} / {args[1].text}"
    if value.op not in _CHEAP:
        return None
    text, helpers = _CHEAP[value.op]
    for name in helpers:
        need(name)
    return text.format(materialised(args[0]))


_CHEAP = {  # operator -> its text, and what that calls
    "exp": (f"_exp2({{}} * {LOG2E})", ("_exp2",)),
    "exp2": ("_exp2({})", ("_exp2",)),
    "tanh": ("_short_tanh({})", ("_exp2", "_reciprocal", "_short_tanh")),
    "sigmoid": (f"_reciprocal(1.0 + _exp2({{}} * {-LOG2E}))", ("_exp2", "_reciprocal")),
}


def short_form(value: Value, rounded: torch.dtype | None) -> tuple[str, Value] | None:
    """(name, operand) where `value` has a short form as a whole; `rounded`: what it is rounded to next, where factors
    alone stand between.
    """
    if rounded is not None:
        for name, find in (("_gelu_", gelu), ("_gelu_derivative_", derivative)):
            x = find(value)
            if x is not None:
                return name + _short(rounded), x
    return plus_one(value)


def short_text(name: str, x: Operand, need: Need) -> str:
    need("_exp2")
    if name == "tanh":
        need("_reciprocal")
        return f"2.0 * _reciprocal(1.0 + _exp2({materialised(x)} * {-2 * LOG2E}))"
    if name == "erf":
        need("_reciprocal")
        name = "_short_erf_plus_1"
    need(name)
    return f"{name}({materialised(x)})"

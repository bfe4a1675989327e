"""The element-wise primitives and the reductions of the loop IR. A row says what several stages need to know of one; a
primitive's name is that of the operator that it computes, on operands already promoted and cast.

How a primitive is written in a language stands in `codegen/*/prims.py`, and how tests compute it in
`tests/oracles/loop_interpreter.py`.
"""

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import Any, Callable

__all__ = [
    "COMMUTES",
    "COMPARISONS",
    "EXACT",
    "INFIX",
    "PRIMS",
    "REDUCTIONS",
    "SPECIAL",
    "Comparison",
    "Prim",
    "Reduction",
    "form_on",
]


@dataclass(frozen=True)
class Prim:
    operands: int
    cost: int = 1  # in units of one simple vector instruction
    truth: bool = False  # it gives a bool, whatever its operands are
    libm: bool = False  # C's library of mathematics has it under this name, and so has CUDA's
    on_bool: str = ""  # the primitive that it is of truth values
    on_int: str = ""  # and of integers; "identity" stands for the operand
    infix: str = ""  # the sign that C and Python write between its operands
    commutes: bool = False  # whether its operands may change places in a pattern
    exact: bool = False  # its result has no more digits than its operands: nothing is rounded


def _rows(names: str, operands: int, cost: int = 1, **facts: object) -> dict[str, Prim]:
    return dict.fromkeys(names.split(), Prim(operands, cost, **facts))  # type: ignore[arg-type]


FUNCTION = 12  # a polynomial or so; more cost several

# Special functions, for floats (gcd: for integers); generated code for the CPU has them.
SPECIAL: dict[str, Prim] = {
    **_rows(
        """digamma trigamma erfinv erfcx ndtri log_ndtr i0 i0e i1 i1e airy_ai bessel_j0 bessel_j1 bessel_y0 bessel_y1
        modified_bessel_k0 modified_bessel_k1 scaled_modified_bessel_k0 scaled_modified_bessel_k1 spherical_bessel_j0
        frexp_mantissa frexp_exponent""",
        1,
        60,
    ),
    **_rows(
        """zeta chebyshev_polynomial_t chebyshev_polynomial_u chebyshev_polynomial_v chebyshev_polynomial_w
        hermite_polynomial_h hermite_polynomial_he laguerre_polynomial_l legendre_polynomial_p gcd""",
        2,
        60,
    ),
}

PRIMS: dict[str, Prim] = {
    **_rows("neg", 1, exact=True),
    **_rows("frac", 1),
    **_rows("abs sign relu", 1, on_bool="identity", exact=True),
    **_rows("floor ceil trunc", 1, libm=True, on_int="identity", exact=True),
    **_rows("round", 1, on_int="identity", exact=True),
    **_rows("reciprocal rsqrt", 1, 3),
    **_rows("sqrt", 1, 3, libm=True),
    **_rows("exp exp2 expm1 log log2 log10 log1p tanh erf", 1, FUNCTION, libm=True),
    **_rows("sigmoid", 1, FUNCTION),
    **_rows("sin cos tan asin acos atan sinh cosh asinh acosh atanh erfc lgamma", 1, 25, libm=True),
    "erf_rough": Prim(1, FUNCTION),  # erf within 3.4e-7, where eager's operator errs by as much (the CPU's alone)
    **_rows("isnan isinf signbit logical_not", 1, truth=True),
    **_rows("bitwise_not", 1, on_bool="logical_not"),
    **_rows("add", 2, on_bool="logical_or", infix="+", commutes=True),
    **_rows("sub", 2, on_bool="logical_xor", infix="-"),
    **_rows("mul", 2, on_bool="logical_and", infix="*", commutes=True),
    **_rows("maximum", 2, on_bool="logical_or", commutes=True, exact=True),
    **_rows("minimum", 2, on_bool="logical_and", commutes=True, exact=True),
    **_rows("fmax", 2, on_bool="logical_or", exact=True),
    **_rows("fmin", 2, on_bool="logical_and", exact=True),
    **_rows("div div_trunc div_floor remainder", 2, 3),  # div: of floats
    **_rows("fmod", 2, 3, libm=True),
    **_rows("pow", 2, 25),
    **_rows("atan2 hypot nextafter", 2, 25, libm=True),
    **_rows("copysign", 2, libm=True, exact=True),
    **_rows("logaddexp", 2),  # in running sums on the CPU alone
    **_rows("eq ne", 2, truth=True, commutes=True),
    **_rows("lt le gt ge", 2, truth=True),
    **_rows("logical_and logical_or", 2, truth=True, commutes=True),
    **_rows("logical_xor", 2, truth=True),
    **_rows("bitwise_and", 2, on_bool="logical_and", infix="&"),
    **_rows("bitwise_or", 2, on_bool="logical_or", infix="|"),
    **_rows("bitwise_xor", 2, on_bool="logical_xor", infix="^"),
    **_rows("bitwise_left_shift bitwise_right_shift", 2),
    **SPECIAL,
    "where": Prim(3, exact=True),  # where(cond, a, b)
    "masked": Prim(3, exact=True),  # like where, but `a` (its loads above all) is evaluated only where cond holds
    "fma": Prim(3),  # only from patterns that are exact
    "check_index": Prim(2),
    # philox(seed, counter, at, threads, vector): the 32 bits that torch's kernel of so many threads draws for element
    # `at` (ops/philox.py; GPUs alone)
    "philox": Prim(5, 40),
    # keep_word(seed, counter, at, ones): 32 bits that are each 1 with probability ones / 2^16, word `at` of a draw
    # (ops/keep_bits.py; GPUs alone)
    "keep_word": Prim(4, 200),
}
INFIX = {op: row.infix for op, row in PRIMS.items() if row.infix}
COMMUTES = frozenset(op for op, row in PRIMS.items() if row.commutes)
EXACT = frozenset(op for op, row in PRIMS.items() if row.exact)


@dataclass(frozen=True)
class Comparison:
    infix: str  # as C and Python write it
    holds: Callable[[Any, Any], bool]
    opposite: str  # of integers: what holds where this does not
    mirrored: str  # what it is with its operands the other way round


COMPARISONS: dict[str, Comparison] = {
    "eq": Comparison("==", operator.eq, "ne", "eq"),
    "ne": Comparison("!=", operator.ne, "eq", "ne"),
    "lt": Comparison("<", operator.lt, "ge", "gt"),
    "le": Comparison("<=", operator.le, "gt", "ge"),
    "gt": Comparison(">", operator.gt, "le", "lt"),
    "ge": Comparison(">=", operator.ge, "lt", "le"),
}


@dataclass(frozen=True)
class Reduction:
    start: str  # what the accumulator holds at first: "zero", "one", or the "lowest" or "highest" value of its dtype
    step: str = ""  # the primitive that takes in one more value; argmax and argmin compare
    folds: bool = True  # it gives one value for a row
    runs: bool = False  # it gives a row of running values
    better: str = ""  # it gives a position: how a value compares with the best so far whose place it takes


REDUCTIONS: dict[str, Reduction] = {
    "sum": Reduction("zero", "add", runs=True),
    "prod": Reduction("one", "mul", runs=True),
    "max": Reduction("lowest", "maximum", runs=True),
    "min": Reduction("highest", "minimum", runs=True),
    "any": Reduction("zero", "logical_or"),
    "all": Reduction("one", "logical_and"),
    "argmax": Reduction("lowest", runs=True, better=">"),
    "argmin": Reduction("highest", runs=True, better="<"),
    "xor_sum": Reduction("zero", "bitwise_xor"),
    "logaddexp": Reduction("lowest", "logaddexp", folds=False, runs=True),
}


def form_on(op: str, truth: bool, floating: bool) -> str:
    """The primitive that `op` is on truth values, integers or floats; "identity" where it changes nothing."""
    row = PRIMS[op]
    return (row.on_bool if truth else "" if floating else row.on_int) or op

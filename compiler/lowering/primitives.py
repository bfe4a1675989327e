"""The element-wise primitives of the loop IR: how many operands each takes, and which give a truth value."""

from __future__ import annotations

__all__ = ["PRIMS", "SPECIAL", "BOOL_RESULT"]

# Special functions, for floats (gcd: for integers), and their number of arguments; generated code for the CPU has them.
SPECIAL: dict[str, int] = {
    **dict.fromkeys(
        (
            "digamma",
            "trigamma",
            "erfinv",
            "erfcx",
            "ndtri",
            "log_ndtr",
            "i0",
            "i0e",
            "i1",
            "i1e",
            "airy_ai",
            "bessel_j0",
            "bessel_j1",
            "bessel_y0",
            "bessel_y1",
            "modified_bessel_k0",
            "modified_bessel_k1",
            "scaled_modified_bessel_k0",
            "scaled_modified_bessel_k1",
            "spherical_bessel_j0",
            "frexp_mantissa",
            "frexp_exponent",
        ),
        1,
    ),
    **dict.fromkeys(
        (
            "zeta",
            "chebyshev_polynomial_t",
            "chebyshev_polynomial_u",
            "chebyshev_polynomial_v",
            "chebyshev_polynomial_w",
            "hermite_polynomial_h",
            "hermite_polynomial_he",
            "laguerre_polynomial_l",
            "legendre_polynomial_p",
            "gcd",
        ),
        2,
    ),
}

# name -> number of arguments. Semantics are those of the aten operator of the same name, on operands already promoted
# and cast; comparisons and logical_* give bool; div is true division (floats), div_trunc and div_floor integer or
# float. erf_rough is erf within 3.4e-7, where that is no more than the error of eager's operator (generated code for
# the CPU alone has it).
PRIMS: dict[str, int] = {
    **dict.fromkeys(
        (
            "neg",
            "abs",
            "sign",
            "reciprocal",
            "sqrt",
            "rsqrt",
            "exp",
            "exp2",
            "expm1",
            "log",
            "log2",
            "log10",
            "log1p",
            "sin",
            "cos",
            "tan",
            "asin",
            "acos",
            "atan",
            "sinh",
            "cosh",
            "tanh",
            "asinh",
            "acosh",
            "atanh",
            "erf",
            "erf_rough",
            "erfc",
            "lgamma",
            "sigmoid",
            "floor",
            "ceil",
            "round",
            "trunc",
            "frac",
            "relu",
            "isnan",
            "isinf",
            "signbit",
            "logical_not",
            "bitwise_not",
            "square",
        ),
        1,
    ),
    **dict.fromkeys(
        (
            "add",
            "sub",
            "mul",
            "div",
            "div_trunc",
            "div_floor",
            "fmod",
            "remainder",
            "pow",
            "atan2",
            "hypot",
            "maximum",
            "minimum",
            "fmax",
            "fmin",
            "copysign",
            "nextafter",
            "eq",
            "ne",
            "lt",
            "le",
            "gt",
            "ge",
            "logical_and",
            "logical_or",
            "logical_xor",
            "bitwise_and",
            "bitwise_or",
            "bitwise_xor",
            "bitwise_left_shift",
            "bitwise_right_shift",
        ),
        2,
    ),
    **SPECIAL,
    "where": 3,  # where(cond, a, b)
    "fma": 3,  # only from patterns that are exact
    "check_index": 2,
    "philox": (
        5
        # philox(seed, counter, at, threads, vector): the 32 bits that torch's kernel of so many threads draws for
        # element `at` (ops/philox.py; GPUs alone)
    ),
    "keep_word": (
        4
        # keep_word(seed, counter, at, ones): 32 bits that are each 1 with probability ones / 2^16, word `at` of a draw
        # (ops/keep_bits.py; GPUs alone)
    ),
    "masked": 3,  # masked(cond, a, b): like where, but `a` (its loads above all) is evaluated only where cond holds
}

# Those that give bool, whatever their operands are.
BOOL_RESULT = {
    "isnan",
    "isinf",
    "signbit",
    "logical_not",
    "eq",
    "ne",
    "lt",
    "le",
    "gt",
    "ge",
    "logical_and",
    "logical_or",
    "logical_xor",
}

"""The loop IR: what lowering makes, fusion groups, and code generation prints. The whole of it on one screen:

    Buffer  = name, dtype, shape, stride                     memory; scope "global" (a tensor) or "local" (one thread's
                                                             scratch)
              bits                                           loads and stores see the bits of its memory: truth values,
                                                             eight to a byte (GPUs alone)
    Value   = hash-consed expression node: op, dtype, args, attr
              load    attr=(buffer, index)                   element at a flat index (Expr over axis and size symbols)
              const   attr=python number
              index   attr=Expr                              an index expression as an int64 value
              param   attr=name                              a scalar argument of the kernel (a float or int input)
              acc     attr=accumulator name                  the result of an earlier stage's reduction
              cast    args=(x,)                              conversion to dtype, as eager converts
              <prim>  args=...                               an element-wise primitive, see PRIMS
              check_index  args=(i, size), attr=message      i, int64, or an error: see below
              put     args=(x, p0, p1, ...)                  in a LoopNest's value alone: x, for an index where symbol
                                                             at0 is p0, ...
              indirect: a load whose index holds a symbol from `indirect_symbol(value)` reads where `value` says; that
                  value
              is in the load's args (so walking arguments is enough), `indirect_values()` finds it by the symbol's name
    Axis    = symbol, size                                   0 <= symbol < size
    Acc     = name, op, dtype, value                         op in REDUCE_OPS; argmax/argmin give int64 (first on ties;
                                                             NaN wins)
              running                                        op in SCAN_OPS: the stage's stores may use `acc`, which
                                                             then is the result so far,
                                                             this element included; the one axis runs in order;
                                                             argmax/argmin: last on ties
    Store   = buffer, index, value, mode                     mode in STORE_MODES; with another mode than "set", or at
                                                             computed positions,
                                                             several iterations may write one element: they do so in
                                                             order
    Stage   = axes, accs, stores                             one pass over `axes` (may be empty) inside the kernel's
                                                             outer axes
    Kernel  = name, outer axes, stages, ...                  for outer in parallel: for each stage in order: for axes:
                                                             ...

    Attention, ...                                           what a kernel computes as a whole, tile by tile, before its
                                                             stages (Kernel.template)
    LoopNest = axes, reduce_axes, value, buffer, index       what lowering makes of one operator, before fusion

check_index gives `i` where 0 <= i < size; else the kernel reports failure (it returns k + 1, where k is the position of
the message in Kernel.checks, and the host raises what `check_error(message)` makes) and the value is 0, so that no load
is out of bounds meanwhile. Negative indices were wrapped before by ordinary primitives where the operator wraps.

A cast with attr "round" is the rounding that eager does between two operators of a low precision type: fusion drops the
pair cast.float32(cast.bfloat16[round](x)) unless `emulate_precision` is on. Generated code treats it as any cast.

Reductions: sum, prod, max, min (NaN wins), any, all, xor_sum are in the accumulator's dtype. argmax/argmin give the
position in the stage's axes, row-major, as int64. An empty domain gives the identity (max/min: -inf/inf or the type's
limits).

Order of axes: as the group's data lies in memory, the fastest last, among the outer axes and among a stage's;
neighbours that every access steps over as over one are merged. A sum over leading dimensions has the fastest dimension
as its last outer axis. A kernel without outer axes is one whole reduction with what leads to it and follows from it.

A value of an inner stage may use the outer axes, its own stage's axes, `acc` values of earlier stages, and loads of
local buffers that earlier stages stored (local buffers are indexed by the stage's axes alone).
"""

from __future__ import annotations

import operator
import weakref
from dataclasses import dataclass, field
from typing import Any, Container, Iterable, Mapping

import torch

from ..symbolic.expr import Expr, add_all, as_expr, integer, mul_all, symbol

__all__ = [
    "Buffer",
    "Value",
    "Axis",
    "Acc",
    "Store",
    "Stage",
    "Kernel",
    "Attention",
    "AttentionGradients",
    "ChainedProducts",
    "DropoutAttention",
    "LoopNest",
    "WORD",
    "PRIMS",
    "REDUCE_OPS",
    "load",
    "const",
    "index",
    "param",
    "acc",
    "cast",
    "round_to",
    "check_index",
    "check_error",
    "prim",
    "indirect_symbol",
    "indirect_values",
    "put",
    "put_symbol",
    "walk",
    "clear",
]

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
REDUCE_OPS = ("sum", "prod", "max", "min", "any", "all", "argmax", "argmin", "xor_sum")
SCAN_OPS = ("sum", "prod", "max", "min", "argmax", "argmin", "logaddexp")
STORE_MODES = (
    "set",
    "add",
    "mul",
    "max",
    "min",
    "rows",
)  # what is stored is combined so with what is there; NaN wins in max and min;
# "rows": the sum over the outer axes that the index lacks (on a GPU: of the rows that a program goes through)


@dataclass(eq=False)
class Buffer:
    name: str
    dtype: torch.dtype
    shape: tuple  # ints or Exprs
    stride: tuple
    scope: str = "global"  # "global" | "local"
    device: Any = None
    kind: str = "temp"  # "input" | "output" | "temp" | "constant"
    origin: str = ""  # the aten node that made it
    storage_offset: Any = 0  # of a graph input, for as_strided; kernels get the address of element 0
    # dtype, shape and stride are those of bytes or words; indices count bits, the lowest of a byte first (bits.py)
    bits: bool = False

    @property
    def holds(self) -> torch.dtype:
        """The dtype of what is loaded and stored."""
        return torch.bool if self.bits else self.dtype

    @property
    def repeats(self) -> list[Expr]:
        """How often elements are repeated (axes of stride 0), where that is 0 or may be: there is no element to read
        then. (Other axes have an index, which comes from a loop that runs.)"""
        return [
            as_expr(n)
            for n, st in zip(self.shape, self.stride)
            if type(st) is int and st == 0 and (type(n) is not int or n == 0)
        ]

    def __repr__(self) -> str:
        dims = ", ".join(map(str, self.shape))
        return f"{self.name}: {str(self.dtype).removeprefix('torch.')}[{dims}]{' of bits' if self.bits else ''}"


_values: dict[tuple, "Value"] = {}


class Value:
    """A hash-consed node. Compare with `is`. Graphs can be thousands of nodes deep: traverse with `walk`, never by
    recursion. `origin` is the aten node that it was first made for ("": none), for readers alone."""

    __slots__ = ("op", "dtype", "args", "attr", "id", "origin", "__weakref__")
    _count = 0
    making_for = ""  # origin of the values that are made now

    def __repr__(self) -> str:
        a = ", ".join([repr(self.attr)] * (self.attr is not None) + [f"%{x.id}" for x in self.args])
        return f"%{self.id} = {self.op}.{str(self.dtype).removeprefix('torch.')}({a})"


def make(op: str, dtype: torch.dtype, args: tuple = (), attr: Any = None) -> Value:
    k = (op, dtype, tuple(a.id for a in args), _attr_key(attr))
    v = _values.get(k)
    if v is None:
        v = object.__new__(Value)
        v.op, v.dtype, v.args, v.attr = op, dtype, args, attr
        v.origin = Value.making_for
        Value._count += 1
        v.id = Value._count
        _values[k] = v
    return v


def _attr_key(attr: Any) -> Any:
    if isinstance(attr, float):
        return ("float", attr.hex() if attr == attr else "nan")
    if isinstance(attr, tuple):
        return tuple(id(a) if isinstance(a, Buffer) else _attr_key(a) for a in attr)
    return (type(attr), attr)


def clear() -> None:
    """Forget all nodes; called between graphs so that memory does not grow (live Values stay valid)."""
    _values.clear()


def load(buffer: Buffer, idx: Expr) -> Value:
    return make("load", buffer.holds, _indirect_in(idx), (buffer, idx))


def const(x: bool | int | float, dtype: torch.dtype) -> Value:
    """A number as `dtype` holds it: ints wrapped, low precision rounded; so 1 and 1.0 give one node."""
    if dtype.is_floating_point:
        x = float(x)
        if dtype.itemsize <= 2:
            x = float(torch.tensor(x, dtype=torch.float64).to(dtype))
    elif dtype == torch.bool:
        x = bool(x)
    elif not dtype.is_complex:
        info = torch.iinfo(dtype)
        x = (int(x) - info.min) % (1 << info.bits) + info.min
    return make("const", dtype, (), x)


def index(e: Expr, dtype: torch.dtype = torch.int64) -> Value:
    if e.is_const and dtype == torch.int64:
        return const(e.value, dtype)
    return make("index", dtype, _indirect_in(e), e)


def param(name: str, dtype: torch.dtype) -> Value:
    return make("param", dtype, (), name)


def acc(name: str, dtype: torch.dtype) -> Value:
    return make("acc", dtype, (), name)


def cast(x: Value, dtype: torch.dtype) -> Value:
    """Conversion as eager converts; nothing where the dtype is right already."""
    if x.dtype == dtype:
        return x
    if x.op == "const" and not (x.dtype.is_complex or dtype.is_complex) and _const_fits(x.attr, dtype):
        return const(x.attr, dtype)
    return make("cast", dtype, (x,))


def _const_fits(x: bool | int | float, dtype: torch.dtype) -> bool:
    """Whether a constant may be folded into another dtype without a rounding that eager would do at run time."""
    if dtype == torch.float64:
        return True
    if dtype == torch.bool:
        return x == x
    if dtype.is_floating_point:
        return x == int(x) and abs(x) <= 256 if x == x and abs(x) != float("inf") else True
    return x == x and abs(x) < 128 and x == int(x) and (x >= 0 or dtype.is_signed)


def round_to(x: Value, dtype: torch.dtype) -> Value:
    """The rounding between two operators of a low precision type."""
    return x if x.dtype == dtype else make("cast", dtype, (x,), "round")


def check_index(i: Value, size: Value, message: str) -> Value:
    """`i` if 0 <= i < size; else the kernel fails with `message` ("IndexError: index out of range in self")."""
    if i.op == "const" and size.op == "const" and 0 <= i.attr < size.attr:
        return i
    return make("check_index", torch.int64, (i, size), message)


def check_error(message: str) -> Exception:
    """The exception that a failed check of this message raises."""
    kind, _, text = message.partition(": ")
    return (IndexError if kind == "IndexError" else RuntimeError)(text)


_BOOL_RESULT = {
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


def prim(op: str, *args: Value) -> Value:
    """An element-wise primitive; operands must have one dtype already (where/masked: the last two)."""
    if PRIMS.get(op) != len(args):
        raise ValueError(f"loop IR: primitive {op!r} takes {PRIMS.get(op)} operands, got {len(args)}")
    if op in _OF_POSITIONS and args[0].dtype == torch.int64 and all(a.op in ("index", "const") for a in args):
        e = _position(op, *(integer(a.attr) if a.op == "const" else a.attr for a in args))
        if e is not None:
            return index(e)
    if args[0].op == "const" or (op in ("logical_and", "logical_or") and args[1].op == "const"):
        folded = _fold(op, args)
        if folded is not None:
            return folded
    return make(op, torch.bool if op in _BOOL_RESULT else args[-1].dtype, args)


_OF_POSITIONS = {
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
    "remainder": operator.mod,
    "div_floor": operator.floordiv,
}
_FAR = 1 << 31


def _position(op: str, a: Expr, b: Expr) -> Expr | None:
    """Arithmetic on positions and small numbers as a position (which never wraps); None for two numbers, and for
    products of positions.
    """
    numbers = [x.value for x in (a, b) if x.is_const]
    if len(numbers) == 2 or any(abs(n) >= _FAR for n in numbers) or (op == "mul" and not numbers):
        return None
    if op in ("remainder", "div_floor") and not (b.is_const and b.value > 0):
        return None
    return _OF_POSITIONS[op](a, b)


_FOLD = {
    "eq": operator.eq,
    "ne": operator.ne,
    "lt": operator.lt,
    "le": operator.le,
    "gt": operator.gt,
    "ge": operator.ge,
}


def _fold(op: str, args: tuple[Value, ...]) -> Value | None:
    """Choices and comparisons of constants: what is left of index arithmetic on constant tensors. Float arithmetic is
    left to the machine that eager runs on."""
    a = args[0]
    if op in ("where", "masked"):
        return args[1] if a.attr else args[2]
    if op in ("logical_and", "logical_or") and a.dtype == torch.bool:
        known, other = (a, args[1]) if a.op == "const" else (args[1], a)
        return other if known.attr == (op == "logical_and") else known
    if op == "logical_not" and a.dtype == torch.bool:
        return const(not a.attr, torch.bool)
    if op in _FOLD and args[1].op == "const":
        return const(_FOLD[op](a.attr, args[1].attr), torch.bool)
    if op in ("add", "mul", "sub") and a.dtype == torch.int64 and args[1].op == "const":
        r = {"add": operator.add, "mul": operator.mul, "sub": operator.sub}[op](a.attr, args[1].attr)
        return const(r, torch.int64) if -(2**63) <= r < 2**63 else None
    return None


_indirect: weakref.WeakValueDictionary[str, Value] = weakref.WeakValueDictionary()


def indirect_symbol(value: Value) -> Expr:
    """A symbol for use inside an index expression whose run-time value is `value` (int64, already wrapped and bounds
    checked). `indirect_values()[symbol.name]` gives the value back. A load depends on the values behind its index."""
    if value.op == "const":
        return integer(value.attr)
    name = f"ind{value.id}"
    _indirect[name] = value
    return symbol(name)


def indirect_values() -> Mapping[str, Value]:
    """Symbol name -> value. A value lives as long as a load that uses it."""
    return _indirect


def put(x: Value, positions: Iterable[Value]) -> Value:
    """What a nest stores at computed positions: its index holds `put_symbol(k)` where the k-th position (int64,
    checked) stands.
    """
    return make("put", x.dtype, (x, *positions))


def put_symbol(k: int) -> Expr:
    return symbol(f"at{k}")


def _indirect_in(e: Expr) -> tuple[Value, ...]:
    if not _indirect:
        return ()
    names = [n for n in e.symbol_names() if n in _indirect]
    return tuple(_indirect[n] for n in sorted(names)) if names else ()


@dataclass(frozen=True)
class Axis:
    symbol: Expr
    size: Any  # int or Expr over size symbols


@dataclass
class Acc:
    name: str
    op: str
    dtype: torch.dtype
    value: Value
    running: bool = False
    origin: str = ""  # the aten node that it is the result of


@dataclass
class Store:
    buffer: Buffer
    index: Expr
    value: Value
    mode: str = "set"

    def __post_init__(self) -> None:
        self.positions = _indirect_in(
            self.index
        )  # (held: what stands behind an index lives no longer than what refers to it)

    @property
    def shared(self) -> bool:
        """Whether several iterations may write one element."""
        return self.mode != "set" or bool(self.positions)


@dataclass
class Stage:
    axes: tuple[Axis, ...]
    accs: list[Acc] = field(default_factory=list)
    stores: list[Store] = field(default_factory=list)

    def roots(self) -> list[Value]:
        """All that the stage has to compute: operands of accumulators, positions and values of stores."""
        return [
            *(a.value for a in self.accs),
            *(p for s in self.stores for p in s.positions),
            *(s.value for s in self.stores),
        ]


@dataclass
class AttentionTemplate:
    """What forms of attention have in common: their axes, and queries, keys and values as loads over them."""

    batch: tuple[Axis, ...]
    rows: tuple[Axis, ...]
    keys: Axis
    inner: Axis
    columns: Axis
    q: Value
    k: Value
    v: Value

    @property
    def axes(self) -> tuple[Axis, ...]:
        return (*self.batch, *self.rows, self.keys, self.inner, self.columns)

    @property
    def flops(self) -> Expr:
        return mul_all(
            [2, *(a.size for a in (*self.batch, *self.rows, self.keys)), as_expr(self.inner.size) + self.columns.size]
        )


@dataclass
class Attention(AttentionTemplate):
    """softmax(score) @ v, where scores are never in memory. The kernel's outer axes are `batch`, `rows` and `columns`;
    its first stage finds the result as `acc` "mixed" (float32). There may be a second one, of rows alone, which finds
    their greatest score as "top" (-inf where there is none) and their sum of exp(score - top) as "total".

        for batch, rows in parallel:
            for keys:                  product = sum(q * k for inner)
            for columns:               mixed = sum(softmax(score) * weight * v for keys)

    q (over batch, rows, inner), k (batch, keys, inner) and v (batch, keys, columns) are of one dtype; `score` is
    float32, over batch, rows, keys and `acc` "product". `empty`: what a row gives whose scores are all -inf, nan or 0.
    `weight` (float32, over batch, rows and keys; None: 1): a dropout's mask.
    """

    score: Value
    empty: float
    weight: Value | None = None

    @property
    def outer(self) -> tuple[Axis, ...]:
        """The kernel's outer axes."""
        return (*self.batch, *self.rows, self.columns)

    @property
    def results(self) -> tuple[str, ...]:
        """What the kernel's stages find, float32."""
        return ("mixed", "top", "total")

    def roots(self) -> list[Value]:
        return [self.q, self.k, self.v, self.score, *([] if self.weight is None else [self.weight])]


WORD = symbol("w0")  # of a key: the bits of 32 keys are one word


@dataclass
class DropoutAttention(AttentionTemplate):
    """Attention of 16-bit numbers as training runs it (ops/dropout_attention.py). q, k and v are loads as in Attention,
    `words` is one over batch, rows and WORD; `keep`: the probability that a bit is 1.

        for batch, rows in parallel:
            p = softmax(q @ k * scale over keys that are not behind the row, where `causal`)
            for columns:               mixed = sum(p * bit / keep * v for keys)
            logarithm = log2(sum(exp(q @ k * scale) for keys))
    """

    words: Value
    keep: float
    causal: bool
    scale: float

    @property
    def outer(self) -> tuple[Axis, ...]:
        return (*self.batch, *self.rows)

    @property
    def results(self) -> tuple[str, ...]:
        return ("mixed", "logarithm")

    def roots(self) -> list[Value]:
        return [self.q, self.k, self.v, self.words]


@dataclass
class AttentionGradients(DropoutAttention):
    """Its backward pass: the gradients dq (over batch, rows, inner), dk (batch, keys, inner) and dv (batch, keys,
    columns) from those of the result, `grad` (batch, rows, columns), the result and its `logarithm` (batch, rows)."""

    grad: Value
    result: Value
    logarithm: Value

    @property
    def outer(self) -> tuple[Axis, ...]:
        return self.batch

    @property
    def results(self) -> tuple[str, ...]:
        return "dq", "dk", "dv"

    @property
    def flops(self) -> Expr:
        return super().flops * 5 // 2

    def roots(self) -> list[Value]:
        return [*super().roots(), self.grad, self.result, self.logarithm]


@dataclass
class ChainedProducts:
    """Sums over keys of columns times what is computed from products, which are never in memory. The kernel's outer
    axes are `batch` and `rows`; it has a stage for each result, over its columns, which finds the sum as `acc` "sum0",
    "sum1" ... (float32).

        for batch, rows in parallel:
            for keys:                    product<k> = sum(a * b for inner), for each of `products`
            for columns of each result:  sum<j> = sum(factor * c for keys)

    `products`: (inner axis, a over batch, rows and it, b over batch, keys and it), of 16 bits. `sums`: (columns,
    factor, c): float32, over batch, rows, keys and `acc` "product<k>", rounded to the 16 bits of c, which is over
    batch, keys and columns.
    """

    batch: tuple[Axis, ...]
    rows: tuple[Axis, ...]
    keys: Axis
    products: tuple[tuple[Axis, Value, Value], ...]
    sums: tuple[tuple[Axis, Value, Value], ...]

    @property
    def axes(self) -> tuple[Axis, ...]:
        return (*self.outer, self.keys, *(p[0] for p in self.products), *(s[0] for s in self.sums))

    @property
    def outer(self) -> tuple[Axis, ...]:
        """The kernel's outer axes."""
        return (*self.batch, *self.rows)

    @property
    def results(self) -> tuple[str, ...]:
        return tuple([f"sum{j}" for j in range(len(self.sums))])

    @property
    def flops(self) -> Expr:
        n = add_all([as_expr(x[0].size) for x in (*self.products, *self.sums)])
        return mul_all([2, *(a.size for a in (*self.outer, self.keys)), n])

    def roots(self) -> list[Value]:
        return [*(v for _, a, b in self.products for v in (a, b)), *(v for _, f, c in self.sums for v in (f, c))]


@dataclass
class Kernel:
    """One function of generated code. Parameters are `inputs`, then `outputs` (each a global Buffer), then `sizes`
    (size symbols), then `params` (scalars), always in this order."""

    name: str
    outer: tuple[Axis, ...]
    stages: list[Stage]
    inputs: list[Buffer] = field(default_factory=list)
    outputs: list[Buffer] = field(default_factory=list)
    locals: list[Buffer] = field(default_factory=list)
    sizes: list[Expr] = field(default_factory=list)
    params: list[tuple[str, torch.dtype]] = field(default_factory=list)
    origins: list[str] = field(default_factory=list)  # aten node names, for the report
    lines: list[tuple] = field(default_factory=list)  # (file, line) of the user's code
    fused_because: list[str] = field(default_factory=list)
    hints: dict = field(default_factory=dict)  # size symbol name -> hint, for scheduling decisions
    checks: list[str] = field(default_factory=list)  # messages of check_index, see above
    template: Attention | DropoutAttention | ChainedProducts | None = (
        None  # what is computed as a whole before the stages
    )

    # print_loops.py gives it its text, and `key()`: the content without name and origins. Equal keys mean equal code.


@dataclass
class LoopNest:
    """What lowering makes of one operator:

        for axes: buffer[index] = value                                              pointwise
        for axes: buffer[index] = post(reduce_op(value for reduce_axes))             reduction, in `value`'s dtype
        for axes: for reduce_axes, in order: buffer[index] = reduce_op(so far)       a scan
        for axes: for reduce_axes, in order: buffer[index] = value                   where several may write one element
                                                                                     (`onto`)

    `domain` holds all axes, kept and reduced, in the order in which the data lies in memory. Dimensions of size 1 have
    no axis.
    """

    buffer: Buffer
    axes: tuple[Axis, ...]
    index: Expr
    value: Value
    reduce_axes: tuple[Axis, ...] = ()
    reduce_op: str | None = None
    domain: tuple[Axis, ...] = ()
    mode: str = "set"
    origins: tuple[str, ...] = ()
    lines: tuple = ()
    product: bool = False  # a matrix product: nothing is computed inside it, later operators join as its epilogue
    # the result so far is stored for each element along the one reduced axis, converted to the buffer's dtype
    scan: bool = False

    @property
    def onto(self) -> bool:
        """Whether it writes over what earlier nests stored in its buffer: at computed positions, or combined with what
        is there.
        """
        return self.mode not in ("set", "rows") or self.value.op == "put"

    @property
    def alone(self) -> bool:
        """Whether it shares its kernel with nothing: its iterations have an order."""
        return self.onto or self.scan

    @property
    def on_gpu(self) -> bool:
        return torch.device(self.buffer.device or "cpu").type == "cuda"


def walk(roots: Iterable[Value], known: Container[int] = ()) -> list[Value]:
    """All values that `roots` reach (through arguments, indirect indices included), operands first, without recursion.
    Those whose ids are `known`, and what only they reach, are left out."""
    seen: set[int] = set()
    out: list[Value] = []
    stack = [(r, False) for r in reversed(list(roots))]
    while stack:
        v, done = stack.pop()
        if done:
            out.append(v)
            continue
        if v.id in seen or v.id in known:
            continue
        seen.add(v.id)
        stack.append((v, True))
        stack.extend((d, False) for d in reversed(v.args) if d.id not in seen)
    return out

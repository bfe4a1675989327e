"""The loop IR: what lowering makes, fusion groups, and code generation prints. The whole of it on one screen:

    Buffer   = name, dtype, shape, stride    memory; scope "global" (a tensor) or "local" (one thread's scratch)
               bits                          loads and stores see its bits: truth values, eight to a byte (GPUs alone)
    Value    = op, dtype, args, attr         a hash-consed node of an expression:
               load    attr=(buffer, index)  the element at a flat index (Expr over axis and size symbols)
               const   attr=number
               index   attr=Expr             an index expression as an int64 value
               param   attr=name             a scalar argument of the kernel (a float or int input)
               acc     attr=name             the result of an earlier stage's reduction
               cast    args=(x,)             conversion to dtype, as eager converts
               <prim>  args=...              an element-wise primitive, see primitives.py
               check_index  args=(i, size), attr=message    i, int64, or an error: see below
               put     args=(x, p0, p1, ...)    in a LoopNest's value alone: x, for an index where symbol at0 is p0, ...
    Axis     = symbol, size                  0 <= symbol < size
    Acc      = name, op, dtype, value        op in REDUCE_OPS; argmax/argmin give int64 (first on ties; NaN wins)
               running                       op in SCAN_OPS: see below
    Store    = buffer, index, value, mode    mode in STORE_MODES
    Stage    = axes, accs, stores            one pass over `axes` (may be empty) inside the kernel's outer axes
    Kernel   = name, outer axes, stages      for outer in parallel: for each stage in order: for axes: ...
    Template                                 what a kernel computes as a whole, tile by tile, before its stages:
                                             attention, chains of products (templates.py)
    LoopNest = axes, reduce_axes, value, buffer, index    what lowering makes of one operator, before fusion

A load is *indirect* where its index holds a symbol from `indirect_symbol(value)`: it reads where `value` says. That
value is in the load's args, so that walking arguments is enough; `indirect_values()` finds it by the symbol's name.

A *running* reduction has one axis, which runs in order. The stage's stores may use its `acc`: the result so far, this
element included. Its argmax and argmin give the last position on ties.

Several iterations may write one element: in another mode than "set", or at computed positions. They do so in order.

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
from typing import Any, Container, Iterable, Mapping, NamedTuple, Protocol

import torch

from ..symbolic.expr import ZERO, Expr, as_expr, integer, mul_all, symbol
from .primitives import COMPARISONS, PRIMS, REDUCTIONS, form_on

__all__ = [
    "Buffer",
    "Value",
    "Axis",
    "numel",
    "Acc",
    "Store",
    "Stage",
    "Template",
    "Kernel",
    "LoopNest",
    "REDUCE_OPS",
    "load",
    "const",
    "index",
    "param",
    "acc",
    "cast",
    "round_to",
    "check_index",
    "prim",
    "indirect_symbol",
    "indirect_values",
    "put",
    "put_symbol",
    "walk",
    "loads",
    "loaded",
    "symbols_of",
    "has_op",
    "is_const",
    "is_position",
    "reduced_dtype",
    "is_plain_load",
    "known_position",
    "clear",
]

REDUCE_OPS = tuple(op for op, reduction in REDUCTIONS.items() if reduction.folds)
SCAN_OPS = tuple(op for op, reduction in REDUCTIONS.items() if reduction.runs)
# How what is stored is combined with what is there; NaN wins in max and min. "rows": the sum over the outer axes that
# the index lacks (on a GPU: of the rows that a program goes through).
STORE_MODES = ("set", "add", "mul", "max", "min", "rows")


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
    # dtype, shape and stride are those of bytes or words; indices count bits, the lowest of a byte first (mask_bits.py)
    bits: bool = False

    @property
    def on_gpu(self) -> bool:
        device = self.device
        return (
            device is not None and (device if isinstance(device, torch.device) else torch.device(device)).type == "cuda"
        )

    @property
    def holds(self) -> torch.dtype:
        """The dtype of what is loaded and stored."""
        return torch.bool if self.bits else self.dtype

    @property
    def reach(self) -> Expr:
        """How many elements of memory there are to the last that its strides reach, where none of its sizes is 0."""
        known, more = 1, ZERO
        for size, st in zip(self.shape, self.stride):
            if type(size) is int and type(st) is int:
                known += (size - 1) * st
            else:
                more = more + (as_expr(size) - 1) * st
        return integer(known) if more is ZERO else more + known

    @property
    def repeats(self) -> list[Expr]:
        """How often elements are repeated (axes of stride 0), where that is 0 or may be: there is no element to read
        then. (Other axes have an index, which comes from a loop that runs.)"""
        return [
            as_expr(size)
            for size, st in zip(self.shape, self.stride)
            if type(st) is int and st == 0 and (type(size) is not int or size == 0)
        ]

    def __repr__(self) -> str:
        dims = ", ".join(map(str, self.shape))
        return f"{self.name}: {str(self.dtype).removeprefix('torch.')}[{dims}]{' of bits' if self.bits else ''}"


_values: dict[tuple, "Value"] = {}


class Value:
    """A hash-consed node. Compare with `is`. Graphs can be thousands of nodes deep: traverse with `walk`, never by
    recursion. `origin` is the aten node that it was first made for ("": none), for readers alone. `below` is what the
    value reaches, without itself, once somebody has walked over it, and `reads` the loads of it and itself."""

    __slots__ = ("op", "dtype", "args", "attr", "id", "origin", "below", "reads", "__weakref__")
    op: str
    dtype: torch.dtype
    args: tuple["Value", ...]
    attr: Any
    id: int
    _count = 0
    making_for = ""  # origin of the values that are made now

    @property
    def is_load(self) -> bool:
        return self.op == "load"

    @property
    def is_const(self) -> bool:
        return self.op == "const"

    @property
    def is_cast(self) -> bool:
        return self.op == "cast"

    @property
    def is_float_cast(self) -> bool:
        """Whether it is a cast to a float dtype, of whatever."""
        return self.op == "cast" and self.dtype.is_floating_point

    @property
    def is_accumulator(self) -> bool:
        """Whether it is what a reduction of the kernel has gathered."""
        return self.op == "acc"

    @property
    def is_rounding(self) -> bool:
        """Whether it is the rounding that eager does between two operators of a low precision type."""
        return self.is_cast and self.attr == "round"

    @property
    def position(self) -> Expr | None:
        """Where a load reads, or what an index stands for; None of any other."""
        return self.attr[1] if self.is_load else self.attr if self.op == "index" else None

    @property
    def symbols(self) -> frozenset[str]:
        """The names in its own position, without those of its operands."""
        return frozenset() if (expr := self.position) is None else expr.symbol_names()

    def __reduce__(self) -> tuple:
        return _again, (self.op, self.dtype, self.args, self.attr, self.origin)

    def __repr__(self) -> str:
        a = ", ".join([repr(self.attr)] * (self.attr is not None) + [f"%{arg.id}" for arg in self.args])
        return f"%{self.id} = {self.op}.{str(self.dtype).removeprefix('torch.')}({a})"


def make(op: str, dtype: torch.dtype, args: tuple = (), attr: Any = None) -> Value:
    k = (op, dtype, args, attr if op == "load" else _attr_key(attr))
    v = _values.get(k)
    if v is None:
        v = object.__new__(Value)
        v.op, v.dtype, v.args, v.attr = op, dtype, args, attr
        v.origin = Value.making_for
        v.below = v.reads = None
        Value._count += 1
        v.id = Value._count
        _values[k] = v
    return v


def _again(op: str, dtype: torch.dtype, args: tuple, attr: Any, origin: str) -> Value:
    """A node that was pickled."""
    before, Value.making_for = Value.making_for, origin
    try:
        return make(op, dtype, args, attr)
    finally:
        Value.making_for = before


def _attr_key(attr: Any) -> Any:
    if isinstance(attr, float):
        return ("float", attr.hex() if attr == attr else "nan")
    if isinstance(attr, tuple):
        return tuple(map(_attr_key, attr))
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


def index(expr: Expr, dtype: torch.dtype = torch.int64) -> Value:
    if expr.is_const and dtype == torch.int64:
        return const(expr.value, dtype)
    return make("index", dtype, _indirect_in(expr), expr)


def param(name: str, dtype: torch.dtype) -> Value:
    return make("param", dtype, (), name)


def acc(name: str, dtype: torch.dtype) -> Value:
    return make("acc", dtype, (), name)


def cast(value: Value, dtype: torch.dtype) -> Value:
    """Conversion as eager converts; nothing where the dtype is right already."""
    if value.dtype == dtype:
        return value
    if value.is_const and not (value.dtype.is_complex or dtype.is_complex) and _const_fits(value.attr, dtype):
        return const(value.attr, dtype)
    if value.op == "cast" and value.dtype in _HALVES and value.args[0].dtype in _BYTES and dtype.is_floating_point:
        (value,) = value.args  # (16 bits hold each of its numbers)
    return make("cast", dtype, (value,))


_HALVES, _BYTES = (torch.float16, torch.bfloat16), (torch.int8, torch.uint8)


def _const_fits(x: bool | int | float, dtype: torch.dtype) -> bool:
    """Whether a constant may be folded into another dtype without a rounding that eager would do at run time."""
    if dtype == torch.float64:
        return True
    if dtype == torch.bool:
        return x == x
    if dtype.is_floating_point:
        return x == int(x) and abs(x) <= 256 if x == x and abs(x) != float("inf") else True
    return x == x and abs(x) < 128 and x == int(x) and (x >= 0 or dtype.is_signed)


def round_to(value: Value, dtype: torch.dtype) -> Value:
    """The rounding between two operators of a low precision type."""
    return value if value.dtype == dtype else make("cast", dtype, (value,), "round")


def check_index(i: Value, size: Value, message: str) -> Value:
    """`i` if 0 <= i < size; else the kernel fails with `message` ("IndexError: index out of range in self")."""
    if i.is_const and size.is_const and 0 <= i.attr < size.attr:
        return i
    return make("check_index", torch.int64, (i, size), message)


def prim(op: str, *args: Value) -> Value:
    """An element-wise primitive; operands must have one dtype already (where/masked: the last two)."""
    row = PRIMS.get(op)
    if row is None or row.operands != len(args):
        takes = f"takes {row.operands} operands" if row is not None else "is not known"
        raise ValueError(f"loop IR: primitive {op!r} {takes}, got {len(args)}")
    if (row.on_bool or row.on_int) and not (dtype := args[0].dtype).is_floating_point:
        form = form_on(op, dtype == torch.bool, False)
        if form != op:
            return args[0] if form == "identity" else prim(form, *args)
    if op in _OF_POSITIONS and args[0].dtype == torch.int64 and all(arg.op in ("index", "const") for arg in args):
        e = _position(op, *(integer(arg.attr) if arg.is_const else arg.attr for arg in args))
        if e is not None:
            return index(e)
    if args[0].is_const or (op in ("logical_and", "logical_or") and args[1].is_const):
        folded = _fold(op, args)
        if folded is not None:
            return folded
    return make(op, torch.bool if row.truth else args[-1].dtype, args)


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
    if len(numbers) == 2 or any(abs(number) >= _FAR for number in numbers) or (op == "mul" and not numbers):
        return None
    if op in ("remainder", "div_floor") and not (b.is_const and b.value > 0):
        return None
    return _OF_POSITIONS[op](a, b)


def _fold(op: str, args: tuple[Value, ...]) -> Value | None:
    """Choices and comparisons of constants: what is left of index arithmetic on constant tensors. Float arithmetic is
    left to the machine that eager runs on."""
    arg = args[0]
    if op in ("where", "masked"):
        return args[1] if arg.attr else args[2]
    if op in ("logical_and", "logical_or") and arg.dtype == torch.bool:
        known, other = (arg, args[1]) if arg.is_const else (args[1], arg)
        return other if known.attr == (op == "logical_and") else known
    if op == "logical_not" and arg.dtype == torch.bool:
        return const(not arg.attr, torch.bool)
    if op in COMPARISONS and args[1].is_const:
        return const(COMPARISONS[op].holds(arg.attr, args[1].attr), torch.bool)
    if op in ("add", "mul", "sub") and arg.dtype == torch.int64 and args[1].is_const:
        r = {"add": operator.add, "mul": operator.mul, "sub": operator.sub}[op](arg.attr, args[1].attr)
        return const(r, torch.int64) if -(2**63) <= r < 2**63 else None
    return None


_indirect: weakref.WeakValueDictionary[str, Value] = weakref.WeakValueDictionary()


def indirect_symbol(value: Value) -> Expr:
    """A symbol for use inside an index expression whose run-time value is `value` (int64, already wrapped and bounds
    checked). `indirect_values()[symbol.name]` gives the value back. A load depends on the values behind its index."""
    if value.is_const:
        return integer(value.attr)
    name = f"ind{value.id}"
    _indirect[name] = value
    return symbol(name)


def indirect_values() -> Mapping[str, Value]:
    """Symbol name -> value. A value lives as long as a load that uses it."""
    return _indirect


def put(value: Value, positions: Iterable[Value]) -> Value:
    """What a nest stores at computed positions: its index holds `put_symbol(k)` where the k-th position (int64,
    checked) stands.
    """
    return make("put", value.dtype, (value, *positions))


def put_symbol(k: int) -> Expr:
    return symbol(f"at{k}")


def _indirect_in(expr: Expr) -> tuple[Value, ...]:
    if not _indirect:
        return ()
    names = [name for name in expr.symbol_names() if name in _indirect]
    return tuple(_indirect[name] for name in sorted(names)) if names else ()


class Axis(NamedTuple):
    symbol: Expr
    size: Any  # int or Expr over size symbols


def numel(axes: Iterable[Axis]) -> Expr:
    """How many elements the loops over these axes go through."""
    return mul_all(axis.size for axis in axes)


def is_position(op: str) -> bool:
    """Whether a reduction gives the position of an element: argmax, argmin."""
    return REDUCTIONS[op].better != ""


def reduced_dtype(op: str, dtype: torch.dtype) -> torch.dtype:
    """What a reduction of values of `dtype` gives."""
    return torch.int64 if is_position(op) else dtype


@dataclass
class Acc:
    name: str
    op: str
    dtype: torch.dtype
    value: Value
    running: bool = False
    origin: str = ""  # the aten node that it is the result of

    @property
    def is_position(self) -> bool:
        return is_position(self.op)

    @property
    def better(self) -> str:
        return REDUCTIONS[self.op].better

    @property
    def folded(self) -> torch.dtype:
        """The dtype of the values that are compared, or folded into one."""
        return self.value.dtype if self.is_position else self.dtype


@dataclass
class Store:
    buffer: Buffer
    index: Expr
    value: Value
    mode: str = "set"

    def __post_init__(self) -> None:
        # (held: what stands behind an index lives no longer than what refers to it)
        self.positions = _indirect_in(self.index)

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
            *(position for store in self.stores for position in store.positions),
            *(store.value for store in self.stores),
        ]

    def values(self) -> list[Value]:
        return walk(self.roots())


class Template(Protocol):
    """What a kernel computes as a whole, tile by tile, before its stages (templates.py)."""

    @property
    def axes(self) -> tuple[Axis, ...]:
        """All that it goes over."""

    @property
    def outer(self) -> tuple[Axis, ...]:
        """The kernel's outer axes."""

    @property
    def results(self) -> tuple[str, ...]:
        """What the kernel's stages find of it, as `acc`."""

    @property
    def flops(self) -> Expr: ...

    def roots(self) -> list[Value]:
        """All that it has to compute, as Stage.roots."""


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
    template: Template | None = None  # what is computed as a whole before the stages

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
    # a matrix product or a sum over windows: nothing is computed inside it, later operators join as its epilogue
    product: bool = False
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
        return self.buffer.on_gpu


def walk(roots: Iterable[Value], known: Container[int] = ()) -> list[Value]:
    """All values that `roots` reach (through arguments, indirect indices included), operands first, without recursion.
    Those whose ids are `known`, and what only they reach, are left out."""
    roots = list(roots)
    if len(roots) != 1 or known:
        return _walk(roots, known)
    (root,) = roots  # (each pass goes over the value of each nest)
    if root.below is None:
        if all(arg.below is not None or not arg.args for arg in root.args):
            root.below = tuple(dict.fromkeys(x for arg in root.args for x in (*(arg.below or ()), arg)))
        else:
            root.below = tuple(_walk(roots, ())[:-1])
    return [*root.below, root]


def _walk(roots: list[Value], known: Container[int]) -> list[Value]:
    seen: set[int] = set()
    out: list[Value] = []
    stack: list[Value | None] = roots[::-1]  # None: before it lies one whose operands are done
    while stack:
        value = stack.pop()
        if value is None:
            out.append(stack.pop())  # type: ignore[arg-type]
            continue
        if value.id in seen or value.id in known:
            continue
        seen.add(value.id)
        operands = [arg for arg in value.args if arg.id not in seen]
        if operands:
            stack += (value, None)
            stack += operands[::-1]
        else:
            out.append(value)
    return out


# ---- what is asked of expressions
def loads(roots: Iterable[Value]) -> list[Value]:
    roots = list(roots)
    if len(roots) != 1:
        return [value for value in walk(roots) if value.is_load]
    (root,) = roots
    if root.reads is None:
        root.reads = tuple([value for value in walk(roots) if value.is_load])
    return list(root.reads)


def loaded(roots: Iterable[Value]) -> set[Buffer]:
    return {value.attr[0] for value in loads(roots)}


def symbols_of(roots: Iterable[Value]) -> set[str]:
    """Names of the axes and sizes that values depend on, by what they load and where they stand."""
    return {name for value in walk(roots) for name in value.symbols}


def has_op(roots: Iterable[Value], op: str) -> bool:
    return any(value.op == op for value in walk(roots))


def known_position(value: Value) -> Expr | None:
    """An int64 as an expression of axes and sizes; None of one that depends on what is in memory, and of others."""
    return (
        as_expr(value.attr)
        if value.op in ("index", "const") and value.dtype == torch.int64 and not value.args
        else None
    )


def is_plain_load(value: Value) -> bool:
    """Whether a value is read at a position that no other value gives."""
    return value.is_load and not value.args


def is_const(value: Value, number: float) -> bool:
    return value.is_const and value.attr == number

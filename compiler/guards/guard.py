"""Guards: what a compiled entry relied on, as data.

capture writes `Guard`s, the guard compiler turns them into one program (C, or pure Python where the extension is not
built), and the report and the recompile reasons read them. `kind` says what is checked of the value at `source`:

kind            expected (classes, functions, modules and members of enums are held weakly: `weak.weakly`)
ID              the object itself (identity); used for None, True, False, modules, classes, functions
TYPE            the exact type
EQUALS          an immutable constant: same type and equal (NaN equals NaN, 0.0 differs from -0.0)
LEN             int: len(value), of a list, tuple, dict, set, str, ...
DICT_KEYS       tuple of keys, in order; of a set, its elements as it iterates
LACKS           a key that the dict at source does not have
HASATTR         (name, bool): whether the attribute exists, instance and class alike
TENSOR          TensorSpec
INT_SYMBOL      Expr symbol: the value is an int (not bool) below INT_LIMIT, of 2 or more unless the symbol is signed,
                and binds it
FLOAT           any float of which the comparisons in the tuple hold, each (operator's name, constant, outcome); the
                value is passed into the graph
PREDICATE       boolean Expr over the size symbols that TENSOR and INT_SYMBOL guards bound; source may be None
ALIAS           Source: both sources give the same object
NO_ALIAS        tuple of Sources: the objects are all different
NO_OVERLAP      tuple of Sources: the tensors' memory does not overlap (needed where one of them is mutated). Only the
                first `written` of them are mutated: the others may share memory with each other
STATE           GlobalState field dict: {"grad_mode": True, ...}; source is None
CODE            the code object of the function at source
FUNCTION        FunctionSpec: a Python function of this code (or an equal one of the same file) and these globals
CLASS           tuple of (name, found): what the names give in the class at source and its bases; `found` is the object,
                what `source_values.found_in_class` made of a descriptor, or Ellipsis where there is no such attribute
WEAK_ID         a weak reference: identity, without keeping the object alive (module instances, user objects). An object
                may be given too: it is referenced weakly where it can be

A size that is a bare symbol in a TENSOR guard is bound to 2 or more: 0 and 1 are never symbols, but for the symbols of
sizes that mark_unbacked named (`is_unbacked`). NO_OVERLAP compares the spans from first to last byte: interleaved views
count as overlapping.

A new kind is a row here and in `KINDS`, and in the tables by kind of these files: `guard_code.py` (its data for C) and
`guard_plan.py` (its cost), `python_program.py` (the check in Python), `explain.py` and `report/words.py` (its words),
`labextension/src/views/guards.ts` (the words of a group), and `frontend/entries/guard_filter.py` (stock's name).
`tests/house/test_tables.py` says which row is missing. C's check is a case of `native/guard_checks.c`, whose opcode
`native/opcodes.h` lists. Kinds that a later call may fail without its value being known stand in `forecast.py`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from ..symbolic.terms import is_signed
from .source import Source
from .weak import Weak, bare_code, reference, weakly

__all__ = ["Guard", "TensorSpec", "FunctionSpec", "GuardFailure", "KINDS", "STATE_FIELDS"]

KINDS = tuple(
    """ID TYPE EQUALS LEN DICT_KEYS LACKS HASATTR TENSOR INT_SYMBOL FLOAT PREDICATE ALIAS NO_ALIAS NO_OVERLAP STATE CODE
    FUNCTION CLASS WEAK_ID""".split()
)

# What STATE guards may hold; `compiler/guards/state.py` reads the present values.
STATE_FIELDS = tuple(
    """grad_mode inference_mode autocast deterministic default_dtype default_device torch_function functorch tracing
    num_threads matmul_precision anomaly saved_tensor_hooks decimal break_errors abstract_classes""".split()
)


@dataclass(frozen=True)
class TensorSpec:
    """What a TENSOR guard fixes. `shape` and `stride` hold ints, size expressions (a bare symbol is bound by this
    guard; any other expression is checked) or None for "not relied on"."""

    type: type  # exact Python class: torch.Tensor, torch.nn.Parameter, ...
    dtype: Any  # torch.dtype
    device: Any  # torch.device
    requires_grad: bool
    shape: tuple
    stride: tuple
    layout: Any = None  # torch.layout; None stands for strided
    storage_offset: Any = None  # usually not relied on
    is_conj: bool = False
    is_neg: bool = False
    data_ptr: int | None = None  # relied on only where a plan baked the address in
    is_inference: bool | None = None  # made in inference mode; None: not relied on


@dataclass(frozen=True, eq=False)
class FunctionSpec:
    """What a FUNCTION guard fixes. A function defined anew by the same text (a cell that ran again) fits; its closure
    and its defaults are guarded apart, where they are read."""

    code: Any  # types.CodeType; kept as one that is equal, and no function's
    globals: Any = None  # its __globals__; None: those of the frame's own function
    original: Any = field(init=False)  # a weak reference to the code that was given

    def __post_init__(self) -> None:
        object.__setattr__(self, "original", Weak(self.code))
        object.__setattr__(self, "code", bare_code(self.code))


@dataclass(frozen=True)
class Guard:
    source: Source | None
    kind: str
    expected: Any
    file: str | None = None  # the user's line that made capture rely on this
    line: int | None = None
    why: str = ""  # one short phrase: "branch on x.shape[0]", "attribute read"
    written: int | None = None  # of NO_OVERLAP; None: any of the tensors may be mutated

    def __post_init__(self) -> None:
        object.__setattr__(self, "expected", reference(self.expected) if self.kind == "ID" else weakly(self.expected))

    @property
    def takes_any_number(self) -> bool:
        """Whether an INT_SYMBOL holds for numbers below 2, too."""
        return self.kind == "INT_SYMBOL" and is_signed(self.expected.name)


@dataclass
class GuardFailure:
    """The first guard of an entry that did not hold: the reason of a recompile."""

    guard: Guard
    got: Any  # short, plain and printable: never keeps a tensor alive
    detail: str = ""  # for TENSOR: which part differs, e.g. "dtype", "shape[0]"
    expected_text: str = ""
    got_text: str = ""
    suggestion: str = ""
    extra: dict = field(default_factory=dict)

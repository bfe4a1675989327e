"""From a plan to the C guard program's instructions (`compiler/native/opcodes.h` names them)."""

from __future__ import annotations

import builtins
import copy
from types import ModuleType
from typing import Any, Callable, Iterable, Sequence

import torch

from ..symbolic.expr import is_signed, is_unbacked
from ..symbolic.stack_code import stack_code
from . import probe
from .guard import Guard, TensorSpec
from .guard_plan import Plan
from .state import FOUND, flag_function, read_field
from .tensors import is_symbol, key_template, tensor_mismatch
from .source_values import COMPARISONS, Unreachable, plain_key, same_code, same_found, step
from .weak import Weak

__all__ = ["Lowering", "lower_plan"]

_INT64_MAX = (1 << 63) - 1


def lower_plan(native: ModuleType, guards: Sequence[Guard], n_locals: int, plan: Plan) -> Any:
    """A `_native.GuardProgram` that runs the plan."""
    return Lowering(native, n_locals, plan).program(guards)


class Lowering:
    """The instructions of a plan. `program(guards)` is a program of them."""

    def __init__(self, native: ModuleType, n_locals: int, plan: Plan) -> None:
        self.native, self.n_locals, self.plan = native, n_locals, plan
        self.ops: dict[str, int] = native.OPCODES
        self.symbol = {name: i for i, name in enumerate(plan.symbols)}
        # slots of the watched part come first: the program keeps them between calls
        watched = [s[1] for s in plan.watched if s[0] == "load"]
        others = [s[1] for part in (plan.first, plan.last) for s in part if s[0] == "load"]
        self.slot = {s: i for i, s in enumerate([*watched, *others])}
        self.n_watched, self.n_others = len(watched), len(others)
        self.blame = self._blame()
        self.parts = [[self._instruction(s) for s in part] for part in plan.parts()]

    def exchanged(self, plan: Plan, steps: Iterable[tuple[int, int]]) -> Lowering:
        """The instructions of a plan that differs by what these steps, (part, number) each, hold."""
        out = copy.copy(self)
        out.plan, out.parts = plan, [list(part) for part in self.parts]
        for k, i in steps:
            out.parts[k][i] = out._instruction(plan.parts()[k][i])
        return out

    def program(self, guards: Sequence[Guard]) -> Any:
        return self.native.GuardProgram(
            list(guards), tuple(self.plan.symbols), *self.parts, self.n_watched, self.n_others, self.n_locals
        )

    def _blame(self) -> dict[int, int]:
        """For each slot the first check that needs it: the guard that fails where the slot cannot be loaded."""
        blame: dict[int, int] = {}
        steps = [s for part in self.plan.parts() for s in part]
        bases = {s[1]: s[3] for s in steps if s[0] == "load"}
        for s in steps:
            if s[0] == "check":
                for slot in s[3] if isinstance(s[3], tuple) else (s[3],):
                    while slot >= 0 and slot not in blame:
                        blame[slot] = s[1]
                        slot = bases[slot]
        return blame

    def _make(
        self,
        op: str,
        slot: int = -1,
        base: int = -1,
        guard: int = 0,
        obj: Any = None,
        n: int = 0,
        hash_: int = 0,
        flag: bool = False,
        data: Any = None,
        ask: Any = None,
    ) -> tuple:
        return (self.ops[op], slot, base, guard, obj, n, hash_, flag, data, ask)

    def _instruction(self, s: tuple) -> tuple:
        return self._load(s) if s[0] == "load" else self._check(s)

    def _load(self, s: tuple) -> tuple:
        _, slot, kind, base, key = s
        common: dict[str, Any] = dict(
            slot=self.slot[slot], base=self.slot[base] if base >= 0 else -1, guard=self.blame.get(slot, 0)
        )
        op = "L_" + kind.upper()
        if kind in ("local", "closure", "default"):
            return self._make(op, n=key, **common)
        if kind == "builtin":
            return self._make(op, obj=key, data=builtins.__dict__, **common)
        if kind in ("item", "dict", "kwdefault"):
            is_index = type(key) is int and abs(key) <= _INT64_MAX
            hash_ = hash(key) if plain_key(key) else -1
            return self._make(op, obj=key, n=key if is_index else 0, hash_=hash_, flag=is_index, **common)
        if kind == "asked":
            return self._make(op, ask=key, **common)
        if kind == "optimized":
            return self._make(op, n=key[0], hash_=key[1], **common)
        if kind in ("size", "stride", "offset"):
            return self._make(op, n=key if key is not None else 0, ask=_asker(kind, key), **common)
        return self._make(op, obj=key, **common)

    def _check(self, s: tuple) -> tuple:
        _, index, kind, where, payload = s
        many = isinstance(where, tuple)
        common: dict[str, Any] = dict(guard=index, base=-1 if many or where < 0 else self.slot[where])
        if kind == "TENSOR":
            return self._tensor(payload, common)
        if kind == "SIZES":
            code = [(self.ops["L_" + what.upper()], d, self._expr(e)) for what, d, e in payload]
            if any(c[2] is None for c in code):
                code = []
            return self._make(
                "C_SIZES" if code else "C_TENSOR_ASK",
                data=tuple(code) if code else None,
                ask=_sizes_asker(payload) if code else _sizes_asker_swapped(payload),
                **common,
            )
        if kind == "PREDICATE":
            return self._make("C_EXPR", data=self._expr(payload), ask=_expr_asker(payload), **common)
        if many:  # ALIAS, NO_ALIAS, NO_OVERLAP
            from .python_program import no_overlap

            slots = [self.slot[w] for w in where]
            if kind == "NO_OVERLAP" and payload is not None:  # a slot below zero: the tensor there is only read
                slots[payload:] = [~slot for slot in slots[payload:]]
            return self._make("C_" + kind, data=tuple(slots), ask=no_overlap, **common)
        return self._make(_NAMES.get(kind, "C_" + kind), **_OPERANDS[kind](payload), **common)

    def _tensor(self, spec: TensorSpec, common: dict) -> tuple:
        ask = _tensor_asker(spec)
        template = key_template(spec.dtype, spec.device, spec.layout or torch.strided)
        if (
            not probe.tensor_layout_known()
            or spec.layout not in (None, torch.strided)
            or template.example.device != spec.device
        ):
            return self._make("C_TENSOR_ASK", ask=ask, **common)
        word = self.native.read_tensor(template.example)[4]
        dims = tuple(self._dim(e) for e in (*spec.shape, *spec.stride))
        normal, inference = template.accepted(spec)
        data = (spec.type, word, normal, inference, bool(spec.requires_grad), dims, spec.storage_offset, spec.data_ptr)
        return self._make("C_TENSOR", obj=spec, data=data, ask=ask, **common)

    def _dim(self, expr: Any) -> tuple[int, int]:
        if isinstance(expr, int):
            return 1, int(expr)
        return (3 if is_unbacked(expr.name) else 2, self.symbol[expr.name]) if is_symbol(expr) else (0, 0)

    def _expr(self, expr: Any) -> tuple | None:
        return stack_code(expr, self.symbol, self.ops)


# ---- what C asks Python
def _asker(kind: str, key: Any) -> Callable[[Any], Any]:
    return lambda base: step(kind, base, key)


def _tensor_asker(spec: TensorSpec) -> Callable[[Any, dict], bool]:
    return lambda value, bindings: tensor_mismatch(value, spec, bindings) is None


def _sizes_asker(payload: tuple) -> Callable[[dict, Any], bool]:
    def ask(bindings: dict, value: Any) -> bool:
        try:
            return all(step(what, value, d) == e.eval(bindings) for what, d, e in payload)
        except (Unreachable, ZeroDivisionError):
            return False

    return ask


def _sizes_asker_swapped(payload: tuple) -> Callable[[Any, dict], bool]:
    ask = _sizes_asker(payload)
    return lambda value, bindings: ask(bindings, value)


def _expr_asker(expr: Any) -> Callable[[dict], bool]:
    def ask(bindings: dict) -> bool:
        try:
            return bool(expr.eval(bindings)) if hasattr(expr, "eval") else bool(expr)
        except ZeroDivisionError:
            return False

    return ask


# ---- state
# field of the state -> the functions that give its parts
_ASKED: dict[str, tuple[Callable[[], Any], ...]] = {
    "deterministic": (
        torch._C._get_deterministic_algorithms,
        torch._C._get_deterministic_algorithms_warn_only,
        torch._C._get_deterministic_fill_uninitialized_memory,
    ),
    "default_dtype": (torch.get_default_dtype,),
    "num_threads": (torch.get_num_threads,),
    "matmul_precision": (
        torch._C._get_float32_matmul_precision,
        torch._C._get_cublas_allow_tf32,
        torch._C._get_cudnn_allow_tf32,
        torch._C._get_cublas_allow_fp16_reduced_precision_reduction,
        torch._C._get_cublas_allow_bf16_reduced_precision_reduction,
    ),
}


def _state(expected: dict[str, Any]) -> tuple:
    """(autograd mask, autograd bits, ((C function, arguments, value), ...), predicate on the key words, predicate asked
    always).

    Fields split by what their value depends on: bits of a byte, the dispatch keys of the thread (their answer is
    remembered for the words it was given for), a C function without arguments, or anything else."""
    C = torch._C
    thread = probe.thread_state()
    mask = bits = 0
    calls: list[tuple] = []
    by_keys: dict[str, Any] = {}
    slow: dict[str, Any] = {}
    no_modes = "torch_function" in expected and expected["torch_function"][1] == ()
    for name, value in expected.items():
        if "." in name and not name.startswith(FOUND):
            calls.append((*flag_function(name), value))
        elif name in ("grad_mode", "inference_mode"):
            if thread is not None:
                bit = thread.grad_bit if name == "grad_mode" else thread.inference_bit
                mask |= bit
                bits |= bit if value else 0
            else:
                calls.append(
                    (C.is_grad_enabled if name == "grad_mode" else C.is_inference_mode_enabled, (), bool(value))
                )
        elif (
            (name == "autocast" and value == ())
            or (name == "functorch" and value is None)
            or (name == "tracing" and value is False)
        ):
            by_keys[name] = value
        elif name in _ASKED:
            values = value if len(_ASKED[name]) > 1 else (value,)
            calls += [(ask, (), wanted) for ask, wanted in zip(_ASKED[name], values)]
        elif (
            name == "torch_function"
            and value == (True, (), 0)
            and expected.get("default_device") is None
            and "default_device" in expected
        ):
            calls += [(C._len_torch_function_stack, (), 0), (C._is_torch_function_enabled, (), True)]
            by_keys["torch_dispatch_modes"] = 0
        elif name == "default_device" and value is None and no_modes and expected["torch_function"] == (True, (), 0):
            continue  # set_default_device pushes a mode: the empty stack says it
        else:
            slow[name] = value
    return mask, bits, tuple(calls), _fields_asker(by_keys), _fields_asker(slow)


def _fields_asker(expected: dict[str, Any]) -> Callable[[], bool] | None:
    if not expected:
        return None
    if list(expected) == ["abstract_classes"]:
        return expected["abstract_classes"].hold

    def read(name: str) -> Any:
        return torch._C._len_torch_dispatch_stack() if name == "torch_dispatch_modes" else read_field(name)

    return lambda: all(read(name) == value for name, value in expected.items())


def _held(payload: Any) -> dict[str, Any]:
    return {"obj": payload}


def _weakly(payload: Any) -> dict[str, Any]:
    return {"obj": payload if type(payload) is Weak else Weak(payload)}


# kind of guard -> the operands of its instruction
_OPERANDS: dict[str, Callable[[Any], dict[str, Any]]] = {
    "ID": _held,
    "WEAK_ID": _held,
    "EQUALS": _held,
    "TYPE": _weakly,
    "CODE": _weakly,
    "FUNCTION": lambda p: {"obj": p.code, "data": (p.globals, p.original() or p.code), "ask": same_code},
    "CLASS": lambda p: {"obj": tuple(part for pair in p for part in pair), "ask": same_found},
    "LACKS": lambda p: {"obj": p, "hash_": hash(p) if plain_key(p) else -1},
    "LEN": lambda p: {"n": p},
    "DICT_KEYS": lambda p: {"obj": tuple(p)},
    "HASATTR": lambda p: {"obj": p[0], "flag": bool(p[1])},
    "INT_SYMBOL": lambda p: {"n": p[0], "flag": is_signed(p[1])},
    "FLOAT": lambda p: {"data": tuple((COMPARISONS.index(op), c, outcome) for op, c, outcome in p or ())},
    "STATE": lambda p: {"data": _state(p)},
}
_NAMES = {"INT_SYMBOL": "C_INT"}  # of instructions that are not named after their kind

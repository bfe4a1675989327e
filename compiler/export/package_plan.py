"""The plan of a package as JSON: runtime/plan_parts.py with operators by name and schema, sizes as trees
(value_json.py) and tensors by number. `cpp/tcompile_package.cpp` reads the same."""

from __future__ import annotations

from typing import Any, Callable, Sequence

import torch

from ..errors import CacheFileError, ExportError
from ..native import native
from ..runtime.plan_parts import (
    ARG_LIST,
    ARG_OBJECT,
    ARG_TUPLE,
    C_FUNCTIONS,
    DTYPE_CODES,
    OUT_CALL,
    STEP_CALL,
    STEP_GONE,
    STEP_KERNEL,
    STEP_PRODUCT,
    STEP_TORCH,
    PlanParts,
    c_function,
)
from .value_json import decode, decode_expr, encode, encode_expr

__all__ = ["encode_plan", "decode_plan", "BUILTINS"]

# functions of the plan's own: a view of a tensor, a version more, a generator's state
BUILTINS = ("view", "count", "draw")
_LIBRARIES = ("aten", "mkldnn", "quantized", "_quantized")  # operators that libtorch itself has
_NUMBERED = (torch.dtype, torch.layout, torch.memory_format)
_NUMBERS: dict[Any, int] = {
    **DTYPE_CODES,
    torch.strided: 0,
    torch.contiguous_format: 0,
    torch.preserve_format: 1,
    torch.channels_last: 2,
    torch.channels_last_3d: 3,
}


class _Encoder:
    def __init__(self, own: dict[Any, Any], keep: Callable[[torch.Tensor], int]):
        """`own`: functions of the plan's own -> their names (of BUILTINS), an operator that stands for them, or None:
        left out; `keep`: puts a tensor among the package's, and gives its number."""
        self.own, self.keep = own, keep
        self.operators: dict[tuple[str, str], int] = {}
        self.device = "cpu"

    def plan(self, parts: PlanParts) -> dict[str, Any]:
        self.device = "cpu" if parts.device < 0 else "cuda"
        steps = [self.step(step) for step in parts.steps if not self.idle(step)]
        outputs = [[kind, self.call(what) if kind == OUT_CALL else what] for kind, what in parts.outputs]
        return {
            "inputs": parts.n_inputs,
            "symbols": [[name, *place] for name, place in parts.symbols.items()],
            "values": [encode_expr(value) for value in parts.values],
            "slots": [list(slot) for slot in parts.slots],
            "steps": steps,
            "outputs": outputs,
            "constants": [self.constant(constant) for constant in parts.constants],
            "scratch": parts.scratch,
            "operators": [list(operator) for operator in self.operators],
        }

    def idle(self, s: tuple) -> bool:
        """Whether the step is nothing to a package: its callers give no inputs away, and record no gradients."""
        return s[0] == STEP_GONE or s[0] == STEP_CALL and self.own.get(s[1][0], "") is None

    def step(self, s: tuple) -> list:
        if s[0] == STEP_KERNEL and s[4]:
            raise ExportError("a kernel takes a float that varies, which a package cannot give")
        if s[0] == STEP_PRODUCT:
            kind, which, slots, beta, alpha, call, gemm, _ = s
            return [kind, which, list(slots), beta, alpha, self.call(call), list(gemm)]
        if s[0] == STEP_TORCH:
            kind, _, words, reals, call = s
            name = c_function(call[0], self.device)
            return [kind, name, [list(word) for word in words], list(reals), self.call(call)]
        if s[0] == STEP_CALL:
            return [STEP_CALL, self.call(s[1])]
        return [list(x) if isinstance(x, tuple) else x for x in s]

    def call(self, c: tuple) -> list:
        function, args, names, outs, single = c
        instead = self.own.get(function)
        if isinstance(instead, torch._ops.OpOverload):
            args = args[: len(instead._schema.arguments)]
        return [self.operator(function), [self.argument(arg) for arg in args], list(names), list(outs), int(single)]

    def operator(self, f: Any) -> int:
        key = (self.own[f], "") if isinstance(self.own.get(f), str) else self.schema(self.own.get(f, f))
        return self.operators.setdefault(key, len(self.operators))

    def schema(self, op: Any) -> tuple[str, str]:
        s = getattr(op, "_schema", None)
        if s is None or s.name.partition("::")[0] not in _LIBRARIES:
            name = s.name if s is not None else getattr(op, "__name__", repr(op))
            raise ExportError(
                f"the program calls {name}, which is not an operator of torch's own library: a package runs "
                "without Python, and without what defines it. Write it "
                "with torch's operators, or save the program (`.save`)"
            )
        return f"{s.name}.{s.overload_name}" if s.overload_name else s.name, str(s)

    def argument(self, a: tuple) -> list:
        kind, what = a
        if kind in (ARG_LIST, ARG_TUPLE):
            return [kind, [self.argument(x) for x in what]]
        return [kind, self.constant(what) if kind == ARG_OBJECT else what]

    def constant(self, x: Any) -> Any:
        if isinstance(x, torch.Tensor):
            return {"tensor": self.keep(x)}
        number = _NUMBERS.get(x) if isinstance(x, _NUMBERED) else None
        return encode(x) if number is None else {"number": [str(x), number]}  # (C++ has numbers for these)


def encode_plan(parts: PlanParts, own: dict[Any, Any], keep: Callable[[torch.Tensor], int]) -> dict[str, Any]:
    return _Encoder(own, keep).plan(parts)


class _Decoder:
    def __init__(self, functions: Sequence[Any], kernels: dict[str, Any], tensors: Sequence[torch.Tensor], place: Any):
        self.functions, self.kernels, self.tensors, self.place = functions, kernels, tensors, place

    def plan(self, d: dict[str, Any], device: int) -> PlanParts:
        return PlanParts(
            n_inputs=d["inputs"],
            device=device,
            symbols={name: tuple(place) for name, *place in d["symbols"]},
            values=[decode_expr(e) for e in d["values"]],
            slots=[tuple(s) for s in d["slots"]],
            steps=[self.step(s) for s in d["steps"]],
            outputs=[(k, self.call(w) if k == OUT_CALL else w) for k, w in d["outputs"]],
            constants=[self.constant(c) for c in d["constants"]],
            scratch=d["scratch"],
        )

    def step(self, s: list) -> tuple:
        if s[0] == STEP_KERNEL:
            return (s[0], self.kernels[s[1]], *map(tuple, s[2:]))
        if s[0] == STEP_PRODUCT:
            kind, which, slots, beta, alpha, call, gemm = s
            return kind, which, tuple(slots), beta, alpha, self.call(call), tuple(gemm), ()
        if s[0] == STEP_TORCH:
            kind, name, words, reals, call = s
            address = native.torch_function(name) if native is not None and name.startswith(C_FUNCTIONS) else 0
            if not address:  # this torch exports no such function: its operator is called
                return STEP_CALL, self.call(call)
            return kind, address, tuple(map(tuple, words)), tuple(reals), self.call(call)
        return (s[0], self.call(s[1])) if s[0] == STEP_CALL else tuple(s)

    def call(self, c: list) -> tuple:
        operator, args, names, outs, single = c
        return self.functions[operator], tuple(map(self.argument, args)), tuple(names), tuple(outs), bool(single)

    def argument(self, a: list) -> tuple:
        kind, what = a
        if kind in (ARG_LIST, ARG_TUPLE):
            return kind, tuple(map(self.argument, what))
        return kind, self.constant(what) if kind == ARG_OBJECT else what

    def constant(self, x: Any) -> Any:
        if isinstance(x, dict) and "tensor" in x:
            return self.tensors[x["tensor"]]
        value = decode({"torch": x["number"][0]} if isinstance(x, dict) and "number" in x else x)
        return self.place if isinstance(value, torch.device) and value.type == self.place.type else value


def decode_plan(
    d: dict[str, Any],
    own: dict[str, Callable],
    kernels: dict[str, Any],
    tensors: Sequence[torch.Tensor],
    device: torch.device,
) -> PlanParts:
    """The plan for `device`. CacheFileError where this torch lacks an operator, or has it in another form."""
    functions = [own[name] if not schema else _operator(name, schema) for name, schema in d["operators"]]
    index = -1 if device.type == "cpu" else device.index
    return _Decoder(functions, kernels, tensors, device).plan(d, index)


def _operator(name: str, schema: str) -> Callable:
    from ..codegen.plan_functions import direct_function

    library, _, rest = name.partition("::")
    packet, _, overload = rest.partition(".")
    op = getattr(getattr(torch.ops, library), packet, None)
    op = getattr(op, overload or "default", None)
    if op is None or str(op._schema) != schema:
        raise CacheFileError(
            f"the package calls the operator {schema}, which torch {torch.__version__} "
            + ("does not have" if op is None else f"has as {op._schema}")
        )
    return direct_function(op)

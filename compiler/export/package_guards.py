"""The quick way into a package: its checks as guards, which C looks at (compiler/guards), and the few steps from the
arguments of a call to the plan's inputs, and from its results to the program's."""

from __future__ import annotations

import builtins
from typing import Any, Callable

import torch

from ..guards import source as S
from ..guards.guard import Guard, TensorSpec
from ..guards.guard_program import compile_guards
from ..guards.source import Source
from ..guards.source_values import is_constant
from ..symbolic.expr import maybe_int, symbol
from .program_calls import Check, ProgramCalls, path_text
from .value_json import decode, decode_expr

__all__ = ["binder", "quick_check", "Quick"]


def binder(signature: list) -> Callable[..., tuple]:
    """A function that binds arguments as the program's parameters, in their order. (Names come out of a manifest.)"""
    text: list[str] = []
    values: dict[str, Any] = {}
    starred = False
    for k, (name, kind, default) in enumerate(signature):
        if not name.isidentifier():
            raise ValueError(f"{name!r} is no parameter")
        if kind == "KEYWORD_ONLY" and not starred:
            text.append("*")
        starred |= kind in ("KEYWORD_ONLY", "VAR_POSITIONAL")
        values[f"_default{k}"] = None if default is None else default[0]
        stars = {"VAR_POSITIONAL": "*", "VAR_KEYWORD": "**"}.get(kind, "")
        text.append(f"{stars}{name}" + ("" if default is None else f"=_default{k}"))
        if kind == "POSITIONAL_ONLY" and (k + 1 == len(signature) or signature[k + 1][1] != kind):
            text.append("/")
    names = [name for name, _, _ in signature]
    exec(f"def program({', '.join(text)}):\n    return ({''.join(name + ', ' for name in names)})", values)
    return values["program"]


class Quick:
    """`given(bound)`: the plan's inputs, None where a check fails; `result(outputs, bound, given)`."""

    def __init__(self, check: Callable, inputs: list, readers: list[tuple[int, Callable]], build: Callable):
        self._check, self._inputs, self._readers, self._build = check, inputs, readers, build

    def given(self, bound: tuple) -> list | None:
        if self._check(_frame, bound) != -1:
            return None
        inputs = self._inputs.copy()
        for k, read in self._readers:
            inputs[k] = read(bound)
        return inputs

    def result(self, outputs: tuple, bound: tuple, given: list) -> Any:
        return self._build(outputs, bound)


def _frame() -> None:
    """Whose parameters the guards speak of."""


def quick_check(program: ProgramCalls, arguments: dict[str, dict], place: torch.device) -> Quick | None:
    """None where a check has no form as a guard."""
    index = {name: k for k, (name, _, _) in enumerate(program.signature)}
    state = {"autocast": (), "functorch": None}
    guards = [Guard(None, "STATE", state)]
    for c in program.checks:
        made = _guard(c, index, arguments, place)
        if made is None:
            return None
        guards.append(made)
    try:
        check = compile_guards(guards, len(index)).check
    except ValueError:  # a size that no argument gives alone
        return None
    inputs = [program.state[i.key] if i.kind == "state" else None for i in program.inputs]
    readers = []
    for k, i in enumerate(program.inputs):
        if i.kind != "state":
            path, dim = program.symbols[i.key] if i.kind == "size" else (i.path, None)
            readers.append((k, _reader(index, path, dim)))
    return Quick(check, inputs, readers, _building(program, index))


def _source(path: list, index: dict[str, int]) -> Source:
    source = S.local(index[path[0]], path[0])
    for kind, key in path[1:]:
        source = S.attr(source, key) if kind == "attr" else S.item(source, key)
    return source


def _guard(check: Check, index: dict[str, int], arguments: dict[str, dict], place: torch.device) -> Guard | None:
    if check.kind == "sizes":
        return Guard(None, "PREDICATE", decode_expr(check.expected))
    source = _source(check.path, index)
    if check.kind == "tensor":
        row = arguments[path_text(check.path)]
        shape = tuple(maybe_int(decode_expr(e)) for e in row["shape"])
        stride = tuple(maybe_int(decode_expr(e)) for e in row["stride"]) if "stride" in row else (None,) * len(shape)
        dtype = decode({"torch": check.expected["dtype"]})
        device = torch.device("cpu") if check.expected["device"] == "cpu" else place
        return Guard(source, "TENSOR", TensorSpec(torch.Tensor, dtype, device, False, shape, stride))
    if check.kind == "const":
        value = decode(check.expected)
        return Guard(source, "EQUALS", value) if value is None or is_constant(value) else None
    if check.kind == "type":
        module, _, name = check.expected.rpartition(".")
        wanted = getattr(builtins, name, None) if module == "builtins" else None
        return Guard(source, "TYPE", wanted) if isinstance(wanted, type) else None
    if check.kind == "len":
        return Guard(source, "LEN", check.expected)
    if check.kind == "keys":
        return Guard(source, "DICT_KEYS", tuple(decode(k) for k in check.expected))
    if check.kind == "int":
        return Guard(source, "INT_SYMBOL", symbol(check.expected))
    if check.kind == "same":
        return Guard(source, "ALIAS", _source(check.expected, index))
    if check.kind == "apart":
        return Guard(None, "NO_OVERLAP", (source, _source(check.expected, index)))
    return None


def _reader(index: dict[str, int], path: list, dim: int | None = None) -> Callable[[tuple], Any]:
    """The part of the arguments that a path names, or its size in a dimension. The guards have looked at the way."""
    first, rest = index[path[0]], path[1:]
    if not rest and dim is None:
        return lambda bound: bound[first]

    def read(bound: tuple) -> Any:
        value = bound[first]
        for kind, key in rest:
            value = getattr(value, key) if kind == "attr" else value[key]
        return value if dim is None else value.shape[dim]

    return read


def _building(program: ProgramCalls, index: dict[str, int]) -> Callable[[tuple, tuple], Any]:
    """How results are put together; what needs more than outputs goes the program's own way."""
    shape = program.result
    if shape[0] == "output":
        k = shape[1]
        return lambda outputs, bound: outputs[k]
    if shape[0] in ("tuple", "list") and all(part[0] == "output" for part in shape[1]):
        places = [part[1] for part in shape[1]]
        make = tuple if shape[0] == "tuple" else list
        return lambda outputs, bound: make([outputs[place] for place in places])
    sizes = {name: _reader(index, path, dim) for name, (path, dim) in program.symbols.items()}
    names = list(index)

    def build(outputs: tuple, bound: tuple) -> Any:
        values = {name: read(bound) for name, read in sizes.items()}
        return program._build(shape, outputs, dict(zip(names, bound)), values, program.state)

    return build

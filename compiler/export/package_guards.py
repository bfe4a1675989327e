"""The quick way into a package: its checks as guards, which C looks at (compiler/guards), and the few steps from the
arguments of a call to the plan's inputs, and from its results to the program's (native/packaged.c)."""

from __future__ import annotations

import builtins
import operator
import sys
from typing import Any, Callable

import torch

from ..guards import source as S
from ..guards.guard import Guard, TensorSpec
from ..guards.guard_program import compile_guards
from ..guards.source import Source
from ..guards.source_values import is_constant
from ..native import native
from ..symbolic.expr import maybe_int, symbol
from .program_calls import Check, ProgramCalls, Record, named_tuple, path_text
from .value_json import decode, decode_expr

__all__ = ["binder", "quick_call"]


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
        stars = _STARS.get(kind, "")
        text.append(f"{stars}{name}" + ("" if default is None else f"=_default{k}"))
        if kind == "POSITIONAL_ONLY" and (k + 1 == len(signature) or signature[k + 1][1] != kind):
            text.append("/")
    names = [name for name, _, _ in signature]
    exec(f"def program({', '.join(text)}):\n    return ({''.join(name + ', ' for name in names)})", values)
    return values["program"]


def _frame() -> None:
    """Whose parameters the guards speak of."""


def quick_call(
    program: ProgramCalls, arguments: dict[str, dict], place: torch.device, run: Callable, slow: Callable
) -> Callable:
    """program(*args, **kwargs) for calls that fit; the others go to `slow`, as all do where a check has no form as a
    guard.
    """
    index = {name: k for k, (name, _, _) in enumerate(program.signature)}
    state = {"autocast": (), "functorch": None}
    guards = [Guard(None, "STATE", state)]
    for c in program.checks:
        made = _guard(c, index, arguments, place)
        if made is None:
            return slow
        guards.append(made)
    try:
        checks = compile_guards(guards, len(index))
    except ValueError:  # a size that no argument gives alone
        return slow
    inputs = [program.state[i.key] if i.kind == "state" else None for i in program.inputs]
    places = [
        (k, *(program.symbols[i.key] if i.kind == "size" else (i.path, None)))
        for k, i in enumerate(program.inputs)
        if i.kind != "state"
    ]
    at, build, with_arguments = _building(program, index)
    return _in_c(program, index, checks, inputs, places, (at, build, with_arguments), run, slow)


_STARS = {"VAR_POSITIONAL": "*", "VAR_KEYWORD": "**"}


def _in_c(
    program: ProgramCalls,
    index: dict[str, int],
    checks: Any,
    inputs: list,
    places: list[tuple[int, list, int | None]],
    result: tuple[int, Callable, bool],
    run: Callable,
    slow: Callable,
) -> Callable:
    kinds = [kind for _, kind, _ in program.signature]
    # (a name that no keyword has, where no keyword gives the parameter)
    names = ["" if kind in _NO_KEYWORD else sys.intern(name) for name, kind, _ in program.signature]
    readers = [
        (k, index[path[0]], tuple((kind == "attr", key) for kind, key in path[1:]), -1 if dim is None else dim)
        for k, path, dim in places
    ]
    assert native is not None
    return native.PackageCall(
        tuple(names),
        tuple(None if default is None else (default[0],) for _, _, default in program.signature),
        sum(kind in ("POSITIONAL_ONLY", "POSITIONAL_OR_KEYWORD") for kind in kinds),
        *(kinds.index(kind) if kind in kinds else -1 for kind in _STARS),
        checks,
        _frame,
        run,
        tuple(inputs),
        tuple(readers),
        *result,
        slow,
    )


_NO_KEYWORD = ("POSITIONAL_ONLY", *_STARS)


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


def _building(program: ProgramCalls, index: dict[str, int]) -> tuple[int, Callable, bool]:
    """How results are put together: (the output that is the result, -1: none; build(outputs), or build(outputs,
    arguments); whether it takes these). What needs more than outputs goes the program's own way.
    """
    shape = program.result
    if shape[0] == "output":
        return shape[1], tuple, False
    of_outputs = _of_outputs(shape)
    if of_outputs is not None:
        return -1, of_outputs, False
    sizes = {name: _reader(index, path, dim) for name, (path, dim) in program.symbols.items()}
    names = list(index)

    def build(outputs: tuple, bound: tuple) -> Any:
        values = {name: read(bound) for name, read in sizes.items()}
        return program._build(shape, outputs, dict(zip(names, bound)), values, program.state)

    return -1, build, True


def _of_outputs(shape: Any) -> Callable[[tuple], Any] | None:
    """A function of outputs alone that gives a result of this shape; None where it holds arguments, state or sizes."""
    kind, of = shape[0], shape[1]
    if kind == "output":
        return operator.itemgetter(of)
    if kind == "const":
        value = decode(of)
        return (lambda outputs: value) if value is None or isinstance(value, _SHARED) else None
    if kind not in ("tuple", "list", "dict", "namedtuple", "record"):
        return None
    found = [_of_outputs(part if kind in ("tuple", "list") else part[1]) for part in of]
    parts = [part for part in found if part is not None]
    if len(parts) < len(found):
        return None
    if kind in ("tuple", "list"):
        make: Callable = tuple if kind == "tuple" else list
        return lambda outputs: make([part(outputs) for part in parts])
    if kind == "namedtuple":
        cls = named_tuple(shape[2], [key for key, _ in of])
        return lambda outputs: cls(*[part(outputs) for part in parts])
    keys = [decode(key) if kind == "dict" else key for key, _ in of]
    items = list(zip(keys, parts))
    fields: Callable = dict if kind == "dict" else Record
    return lambda outputs: fields([(key, part(outputs)) for key, part in items])


_SHARED = (bool, int, float, complex, str, bytes)  # constants that each call may give anew

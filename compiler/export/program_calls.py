"""How a program is called: what its arguments are bound to, the checks that they have to pass, and how its results are
put together. Of exported programs (exported_program.py) and of packages (load_package.py)."""

from __future__ import annotations

import collections
import inspect
import types
from dataclasses import dataclass, field
from typing import Any, Sized

import torch
import torch.nn as nn

from ..base.figures import plural
from ..errors import ExportError
from ..guards.tensors import memory_range
from ..symbolic.terms import is_signed
from . import value_json

__all__ = ["ProgramCalls", "Input", "Check", "Record", "named_tuple", "path_text"]


class Record(dict):
    """A result that was an object of fields (a ModelOutput, a dataclass) where its class is not at hand: a dict whose
    keys are also attributes, and whose values are found by number as well."""

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(f"the result has no field {name!r}; it has {', '.join(map(str, self))}") from None

    def __getitem__(self, key: Any) -> Any:
        return list(self.values())[key] if isinstance(key, (int, slice)) else super().__getitem__(key)


@dataclass
class Input:
    """One placeholder of the graph. kind "argument": found at `path` in the call's arguments; "state": the tensor of
    that name; "size": the value of a size symbol; "number": an int or float argument at `path`."""

    name: str
    kind: str
    path: list = field(default_factory=list)
    key: str = ""


@dataclass
class Check:
    """A fact about the arguments that the graph relies on. `path` starts with a parameter's name."""

    kind: str  # tensor, const, type, len, keys, int, float, same, apart, sizes
    path: list
    expected: Any
    where: str = ""  # the line that relies on it


def path_text(path: list) -> str:
    """As the caller would write it. What a parameter **kwargs took is called by its keyword."""
    text, steps = str(path[0]), path[1:]
    if text == "kwargs" and steps and isinstance(steps[0][1], str):
        text, steps = steps[0][1], steps[1:]
    for kind, key in steps:
        text += f".{key}" if kind == "attr" else f"[{key!r}]"
    return text


def _reach(arguments: dict[str, Any], path: list) -> Any:
    """The part of the arguments that a path names. LookupError where there is none."""
    value = arguments[path[0]]
    for kind, key in path[1:]:
        value = _field(value, key) if kind == "attr" else _item(value, key)
    return value


def _item(value: Any, key: Any) -> Any:
    """An item of a list, tuple or dict, read by these types' own methods: a subclass may make what is missing."""
    if isinstance(value, dict):
        found = dict.get(value, key, _MISSING)
        if found is not _MISSING:
            return found
    for cls in (tuple, list):
        if isinstance(value, cls):
            return cls.__getitem__(value, key)  # type: ignore[index]
    raise LookupError(key)


_MISSING = object()


def _field(value: Any, name: str) -> Any:
    """A field that holds data: of a namedtuple or dataclass, or an entry of the object's own dict. What a class defines
    (methods, properties) is none, and classes, functions and modules have none."""
    cls = type(value)
    fields = getattr(cls, "_fields", None)
    if isinstance(value, tuple) and isinstance(fields, tuple) and name in fields:
        return tuple.__getitem__(value, fields.index(name))
    if isinstance(value, _CODE) or "__" in name:
        raise LookupError(name)
    slot = next((vars(c)[name] for c in cls.__mro__ if name in vars(c)), None)
    if isinstance(slot, types.MemberDescriptorType) and name in getattr(cls, "__dataclass_fields__", ()):
        return slot.__get__(value, cls)
    try:
        return object.__getattribute__(value, "__dict__")[name]
    except AttributeError:
        raise LookupError(name) from None


_CODE = (
    type,
    types.ModuleType,
    types.FunctionType,
    types.MethodType,
    types.BuiltinFunctionType,
    types.CodeType,
    types.FrameType,
    nn.Module,
)


class ProgramCalls:
    """The outside of a program: its name, and

    signature   (name, kind, None or [default]) of each parameter
    inputs      what the placeholders of its graph are
    checks      what it relies on of the arguments
    result      how its results are put together
    state       name -> tensor: parameters, buffers, and tensors that the function held
    symbols     name of a size -> (path, dimension) of the argument that gives it
    """

    def __init__(
        self,
        name: str,
        signature: list,
        inputs: list[Input],
        checks: list[Check],
        result: Any,
        state: dict[str, torch.Tensor],
        symbols: dict[str, list],
        grad_matters: bool,
    ):
        self.name, self.signature, self.inputs, self.checks = name, signature, inputs, checks
        self.result, self.state, self.symbols, self.grad_matters = result, state, symbols, grad_matters
        self.classes: dict[str, type] = {}  # of results, where this process exported the program itself
        self._call = inspect.Signature(
            [
                inspect.Parameter(
                    name,
                    getattr(inspect.Parameter, kind),
                    default=inspect.Parameter.empty if default is None else default[0],
                )
                for name, kind, default in signature
            ]
        )

    def shown_sizes(self) -> str:
        """The sizes that may vary, and where they are read."""
        return ", ".join(
            f"{key} = {path_text(where[0])}.shape[{where[1]}]"
            if where[1] is not None
            else f"{key} = {path_text(where[0])}"
            for key, where in self.symbols.items()
        )

    # --- arguments
    def _given(self, arguments: dict[str, Any], sizes: dict[str, int], state: dict[str, torch.Tensor]) -> list[Any]:
        """What the graph's placeholders get."""
        given: list[Any] = []
        for i in self.inputs:
            if i.kind == "state":
                given.append(state[i.key])
            elif i.kind == "size":
                given.append(sizes[i.key])
            else:
                given.append(self._operand(i, self._part(arguments, i.path)))
        return given

    def _operand(self, i: Input, value: Any) -> Any:
        """An argument for the graph, of the kind that its calls were checked for."""
        if i.kind == "argument":
            if not isinstance(value, torch.Tensor):
                raise ExportError(f"{self.name}: `{path_text(i.path)}` must be a tensor, got {type(value).__name__}")
        elif not isinstance(value, (int, float)) or isinstance(value, int) and not -(2**63) <= value < 2**63:
            raise ExportError(
                f"{self.name}: `{path_text(i.path)}` must be a number of at most 64 bits, got {type(value).__name__}"
            )
        return value

    def _part(self, arguments: dict[str, Any], path: list) -> Any:
        try:
            return _reach(arguments, path)
        except (LookupError, TypeError):
            raise ExportError(f"{self.name}: the arguments have no `{path_text(path)}`") from None

    def _bind(self, args: tuple, kwargs: dict) -> dict[str, Any]:
        try:
            bound = self._call.bind(*args, **kwargs)
        except TypeError as e:
            raise ExportError(
                f"{self.name} was exported as {self.name}({', '.join(p[0] for p in self.signature)}): {e}"
            ) from None
        bound.apply_defaults()
        return dict(bound.arguments)

    # --- guards
    def check(self, arguments: dict[str, Any]) -> dict[str, int]:
        """The sizes that the arguments give the symbols. ExportError where they are not what the program was exported
        for.
        """
        sizes: dict[str, int] = {}
        later: list[tuple[Check, Any, list]] = []
        for c in self.checks:
            if c.kind == "sizes":
                if not value_json.evaluate(c.expected, sizes):
                    raise self._refusal(
                        c,
                        f"sizes with {_expr_text(c.expected)}",
                        ", ".join(f"{key} = {size}" for key, size in sizes.items()),
                    )
                continue
            try:
                value = _reach(arguments, c.path)
            except (LookupError, TypeError):
                raise self._refusal(c, "to be there", "nothing") from None
            if c.kind == "tensor":
                self._check_tensor(c, value, sizes, later)
            elif c.kind in ("same", "apart"):
                other = self._part(arguments, c.expected)
                if c.kind == "same" and value is not other:
                    raise self._refusal(c, f"the same object as {path_text(c.expected)}", "another one")
                if c.kind == "apart" and value is other or c.kind == "apart" and _overlap(value, other):
                    raise self._refusal(
                        c,
                        f"memory of its own, since it is changed in place or beside {path_text(c.expected)}",
                        "shared memory",
                    )
            else:
                self._check_value(c, value, sizes)
        for c, got, wanted in later:
            want = [value_json.evaluate(w, sizes) for w in wanted]
            if list(got) != want:
                raise self._refusal(c, f"shape {want}", f"shape {list(got)}")
        return sizes

    def _refusal(self, check: Check, expected: str, got: str) -> ExportError:
        hint = f" {check.where} relies on it." if check.where else ""
        return ExportError(
            f"{self.name}: argument `{path_text(check.path)}`: expected {expected}, got {got}.{hint}"
            if check.path
            else f"{self.name}: expected {expected}, got {got}.{hint}"
        )

    def _check_tensor(self, check: Check, value: Any, sizes: dict[str, int], later: list) -> None:
        if not isinstance(value, torch.Tensor):
            raise self._refusal(check, "a tensor", type(value).__name__)
        want = check.expected
        if type(value) not in (torch.Tensor, nn.Parameter, nn.Buffer):
            raise self._refusal(check, "a plain tensor", type(value).__name__)
        if str(value.dtype) != want["dtype"]:
            raise self._refusal(check, want["dtype"], str(value.dtype))
        if value.device.type != want["device"]:
            raise self._refusal(check, f"a tensor on {want['device']}", f"one on {value.device}")
        if self.grad_matters and value.requires_grad != want["requires_grad"] and torch._C.is_grad_enabled():
            raise self._refusal(check, f"requires_grad={want['requires_grad']}", f"requires_grad={value.requires_grad}")
        if value.dim() != len(want["shape"]):
            raise self._refusal(check, plural(len(want["shape"]), "dimension"), f"{value.dim()}")
        for d, (w, g) in enumerate(zip(want["shape"], value.shape)):
            if isinstance(w, list) and w[0] == "sym":
                g = int(g)
                if w[1] in sizes and sizes[w[1]] != g:
                    raise self._refusal(check, f"size {sizes[w[1]]} in dimension {d} (it is {w[1]})", f"{g}")
                if g < 2:
                    raise self._refusal(check, f"a size of 2 or more in dimension {d}", f"{g}")
                sizes[w[1]] = g
            elif isinstance(w, int) and w != g:
                raise self._refusal(
                    check,
                    f"size {w} in dimension {d}",
                    f"{int(g)}; to let it vary, export with dynamic={{{str(check.path[0])!r}: [{d}]}}",
                )
        if any(isinstance(w, list) and w[0] != "sym" for w in want["shape"]):
            later.append((check, tuple(value.shape), want["shape"]))

    def _check_value(self, check: Check, value: Any, sizes: dict[str, int]) -> None:
        if check.kind == "const":
            want = value_json.decode(check.expected)
            if type(value) is not type(want) or not (value == want or value != value and want != want):
                raise self._refusal(
                    check,
                    repr(want),
                    repr(value) if isinstance(value, (int, float, str, bool, type(None))) else type(value).__name__,
                )
        elif check.kind == "type":
            got = f"{type(value).__module__}.{type(value).__qualname__}"
            if got != check.expected:
                raise self._refusal(
                    check, f"a {check.expected.removeprefix('builtins.')}", f"a {got.removeprefix('builtins.')}"
                )
        elif check.kind == "len":
            got = len(value) if isinstance(value, Sized) else 0
            if got != check.expected:
                raise self._refusal(check, f"{check.expected} item{'' if check.expected == 1 else 's'}", str(got))
        elif check.kind == "keys":
            want = [value_json.decode(k) for k in check.expected]
            if not isinstance(value, dict) or list(value) != want:
                raise self._refusal(
                    check, f"the keys {want}", str(list(value)) if isinstance(value, dict) else type(value).__name__
                )
        elif check.kind == "int":
            signed = is_signed(check.expected)
            if type(value) is not int or value < 2 and not signed or abs(value) >= 2**63:
                raise self._refusal(check, "an int" if signed else "an int of 2 or more", repr(value))
            if sizes.setdefault(check.expected, value) != value:
                raise self._refusal(check, f"{check.expected} = {sizes[check.expected]}", str(value))
        elif check.kind == "float":
            if type(value) is not float:
                raise self._refusal(check, "a float", repr(value))
        else:
            raise ExportError(f"{self.name} holds a check of unknown kind {check.kind!r}")

    # --- results
    def _build(
        self, shape: Any, outputs: Any, arguments: dict[str, Any], sizes: dict[str, int], state: dict[str, torch.Tensor]
    ) -> Any:
        kind, of = shape[0], shape[1]

        def parts(items: list) -> list:
            return [self._build(item, outputs, arguments, sizes, state) for item in items]

        if kind == "output":
            return outputs[of]
        if kind == "argument":
            return self._part(arguments, of)
        if kind == "state":
            return state[of]
        if kind == "const":
            return value_json.decode(of)
        if kind == "size":
            return value_json.evaluate(of, sizes)
        if kind == "list":
            return parts(of)
        if kind == "tuple":
            return tuple(parts(of))
        if kind == "dict":
            return dict(zip([value_json.decode(k) for k, _ in of], parts([v for _, v in of])))
        fields = dict(zip([k for k, _ in of], parts([v for _, v in of])))
        cls = self.classes.get(shape[2])
        if kind == "namedtuple":
            if cls is None:
                cls = self.classes[shape[2]] = named_tuple(shape[2], list(fields))
            return cls(*fields.values())
        return cls(**fields) if cls is not None else Record(fields)


def named_tuple(name: str, fields: list[str]) -> type:
    """The class of a result whose own class is not at hand. `name`: its module's, a dot, its own."""
    return collections.namedtuple(name.rpartition(".")[2], fields)  # type: ignore[misc]


def _overlap(a: Any, b: Any) -> bool:
    if not (isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor)):
        return False
    (a0, a1), (b0, b1) = memory_range(a), memory_range(b)
    return a0 < b1 and b0 < a1


def _expr_text(e: Any) -> str:
    if not isinstance(e, list):
        return str(e)
    op, args = e[0], [_expr_text(a) if not isinstance(a, str) else a for a in e[1:]]
    if op == "sym":
        return args[0]
    sign = {
        "add": " + ",
        "mul": "*",
        "floordiv": "//",
        "mod": " % ",
        "lshift": " << ",
        "bitand": " & ",
        "eq": " == ",
        "ne": " != ",
        "le": " <= ",
        "and": " and ",
        "or": " or ",
    }.get(op)
    return sign.join(args) if sign else f"{op}({', '.join(args)})"

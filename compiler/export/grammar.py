"""What the file of an exported program may contain. Nothing else is read, and nothing runs before all of it is checked.

    file        a zip archive of stored (not compressed) entries: `program.json` and `tensors/0`, `tensors/1`, ... of
                raw bytes; together no
                larger than the file
    program     an object of exactly the fields in `FIELDS`, at most `MOST_DEPTH` values deep
    value       null, a flag, a finite number of at most 64 bits, a string, a list of values, or an object of one key
                that names a kind of
                value: float, complex, ellipsis, torch (a dtype, a memory format), device, slice, size, range, tuple,
                    set, frozenset, dict
    size        a number, ["sym", name] of a size that an argument gives, or [operation, size, ...] (`value_json.py`)
    path        [parameter, step, ...]; a step is ["item", key] of a list, tuple or dict, or ["attr", name] of a field:
                of a namedtuple or
                dataclass, or an entry of an object's own `__dict__`. No step leads to a method, a class, a module or a
                name with `__`
    input       [name, kind, path, key]: an argument, a tensor of `state`, a size, or a number
    check       [kind, path, expected, where]: a fact of an argument (`CHECKS`)
    result      [kind, of]: an output of the graph, an argument, a tensor of `state`, a constant, a size, or a list,
                tuple, dict, namedtuple
                or record of results (`RESULTS`)
    graph       rows [kind, name, target, arguments, keywords] (`graph_json.py`); targets are the listed operators
                (`safe_operators.py`), and the custom
                operators that the loading program names; numbers stay within bounds (`arithmetic.py`)
    tensor      dtype, shape, strides (which leave no gaps beyond `GAPS` times the data), device, flags
    state       [name, index of a tensor]; names are those of modules, joined by dots

A program that was loaded computes what its operators compute, for as long and with as much memory as they need: a loop
runs as long as its condition says.
"""

from __future__ import annotations

from typing import Any, Callable, Collection

from ..errors import ExportError
from ..base.quoting import file_name, is_plain_name
from . import value_json

__all__ = [
    "FIELDS",
    "MOST_DEPTH",
    "MOST_TEXT",
    "MOST_VALUES",
    "LONGEST_PATH",
    "GAPS",
    "check_path",
    "check_fields",
    "words",
    "state_name",
    "identifier",
    "Facts",
]

MOST_DEPTH = 100
MOST_TEXT = 1 << 26  # bytes of program.json
MOST_VALUES = 1 << 23
GAPS = 16
LONGEST_PATH = 64
_LONGEST_WORDS = 4096  # of a name or a line that messages quote

FIELDS: dict[str, type] = {
    "format": str,
    "version": int,
    "torch": str,
    "name": str,
    "training": bool,
    "grad_matters": bool,
    "signature": list,
    "graph": list,
    "inputs": list,
    "checks": list,
    "result": list,
    "state": list,
    "symbols": dict,
    "parameters": list,
    "tensors": list,
}


def check_fields(text: dict) -> None:
    """That the program's object has its fields, each of its type."""
    for name in text:
        if name not in FIELDS:
            raise ExportError(f"the file has an unknown field {str(name)[:40]!a}")
    for name, kind in FIELDS.items():
        if name not in text:
            raise ExportError(f"the file lacks the field {name!r}")
        if type(text[name]) is not kind:
            raise ExportError(f"the file's field {name!r} must be {kind.__name__}, got {type(text[name]).__name__}")


def words(value: Any) -> str:
    """A name or line that messages quote."""
    if not isinstance(value, str) or len(value) > _LONGEST_WORDS:
        raise ExportError(f"the file holds an invalid name: {str(value)[:40]!a}")
    return file_name(value)


def state_name(value: Any) -> str:
    """A name of a tensor, as modules have them: anything that is printed."""
    if not isinstance(value, str) or not value.isprintable() or len(value) > _LONGEST_WORDS:
        raise ExportError(f"the file holds an invalid name: {str(value)[:40]!a}")
    return value


def identifier(value: Any) -> str:
    if not (isinstance(value, str) and len(value) <= _LONGEST_WORDS and is_plain_name(value)):
        raise ExportError(f"the file holds an invalid name: {str(value)[:40]!a}")
    return value


def field_name(value: Any) -> str:
    if "__" in identifier(value):
        raise ExportError(f"the file reads the field {value[:40]!a}, which an exported program may not read")
    return value


def plain_key(value: Any) -> Any:
    """A key of a list or dict: any value that can be one."""
    try:
        hash(value)
    except TypeError:
        raise ExportError(f"the file reads the item {str(value)[:40]!a}, which is not a key") from None
    return value


_STEPS: dict[str, Callable[[Any], Any]] = {"item": plain_key, "attr": field_name}


def check_path(path: Any, parameters: Collection[str]) -> list:
    """A path, with its steps as pairs."""
    if (
        not isinstance(path, (list, tuple))
        or not 1 <= len(path) <= LONGEST_PATH
        or not isinstance(path[0], str)
        or path[0] not in parameters
    ):
        raise ExportError(f"the file reads an argument from nowhere: {str(path)[:80]!a}")
    steps = []
    for step in path[1:]:
        if (
            not isinstance(step, (list, tuple))
            or len(step) != 2
            or not isinstance(step[0], str)
            or step[0] not in _STEPS
        ):
            raise ExportError(f"the file holds an invalid step of a path: {str(step)[:80]!a}")
        steps.append([step[0], _STEPS[step[0]](step[1])])
    return [path[0], *steps]


class Facts:
    """Checks the parts of a program that speak of its arguments, state and sizes."""

    def __init__(self, parameters: Collection[str], state: Collection[str], symbols: Collection[str]):
        self.parameters, self.state, self.symbols = parameters, state, symbols
        self.known: set[str] = set()  # sizes that the checks so far have read
        self.later: list[Any] = []  # shapes that are compared when all checks were made

    # --- checks
    def check(self, kind: Any, path: Any, expected: Any) -> list:
        """One check, in the order in which they are made. Gives its path."""
        if not isinstance(kind, str) or kind not in CHECKS:
            raise ExportError(f"the file holds a check of unknown kind {str(kind)[:40]!a}")
        if kind == "sizes":
            value_json.check_expr(expected, self.known)
            if path:
                raise ExportError("the file holds a check of sizes of one argument")
            return []
        CHECKS[kind](self, expected)
        return check_path(path, self.parameters)

    def _tensor(self, expected: Any) -> None:
        if not isinstance(expected, dict) or set(expected) != {"dtype", "device", "requires_grad", "shape"}:
            raise ExportError("the file holds a check of a tensor without its facts")
        if not isinstance(expected["shape"], list) or type(expected["requires_grad"]) is not bool:
            raise ExportError("the file holds a check of a tensor without its facts")
        words(expected["dtype"])
        words(expected["device"])
        for s in expected["shape"]:
            if isinstance(s, list) and s[:1] == ["sym"]:
                self._symbol(s[1] if len(s) == 2 else None)
            elif isinstance(s, list):
                self.later.append(s)
            else:
                value_json.check_expr(s, ())

    def _symbol(self, name: Any) -> None:
        if not isinstance(name, str) or name not in self.symbols:
            raise ExportError(f"the file reads a size of no name: {str(name)[:40]!a}")
        self.known.add(name)

    def _keys(self, expected: Any) -> None:
        if not isinstance(expected, list):
            raise ExportError("the file holds a check of keys without a list")
        for key in expected:
            plain_key(value_json.decode(key))

    def finish(self) -> None:
        """That what was put off can be computed."""
        for s in self.later:
            value_json.check_expr(s, self.known)

    # --- results
    def result(self, shape: Any, outputs: int) -> None:
        if (
            not isinstance(shape, list)
            or not shape
            or not isinstance(shape[0], str)
            or shape[0] not in RESULTS
            or len(shape) != (3 if shape[0] in ("namedtuple", "record") else 2)
        ):
            raise ExportError(f"the file holds an invalid result: {str(shape)[:80]!a}")
        self.outputs = outputs
        RESULTS[shape[0]](self, *shape[1:])

    def _output(self, k: Any) -> None:
        if type(k) is not int or not 0 <= k < self.outputs:
            raise ExportError(f"the file returns the output {str(k)[:40]} of a graph that has {self.outputs}")

    def _state_name(self, name: Any) -> None:
        if not isinstance(name, str) or name not in self.state:
            raise ExportError(f"the file returns a tensor that it lacks: {str(name)[:40]!a}")

    def _sequence(self, parts: Any) -> None:
        if not isinstance(parts, list):
            raise ExportError("the file holds a result without its parts")
        for part in parts:
            self.result(part, self.outputs)

    def _mapping(self, parts: Any, key: Callable[[Any], Any] = lambda k: plain_key(value_json.decode(k))) -> None:
        if not isinstance(parts, list) or any(not isinstance(part, list) or len(part) != 2 for part in parts):
            raise ExportError("the file holds a result without its parts")
        keys = value_json.distinct([key(k) for k, _ in parts])
        if len(set(keys)) != len(keys):
            raise ExportError("the file holds a result that has a field twice")
        self._sequence([v for _, v in parts])

    def _namedtuple(self, parts: Any, label: Any) -> None:
        identifier(words(label).rpartition(".")[2])

        def field(name: Any) -> str:
            if identifier(name).startswith("_"):
                raise ExportError(f"the file holds a namedtuple with the field {name[:40]!a}")
            return name

        self._mapping(parts, field)

    def _record(self, parts: Any, label: Any) -> None:
        words(label)
        self._mapping(parts, words)


def _nothing(facts: Facts, expected: Any) -> None:
    if expected is not None:
        raise ExportError("the file holds a check that expects what it cannot")


def _count(facts: Facts, expected: Any) -> None:
    if type(expected) is not int or expected < 0:
        raise ExportError("the file holds a check of an invalid length")


# Kind of check -> what it may expect.
CHECKS: dict[str, Callable[[Facts, Any], Any]] = {
    "tensor": Facts._tensor,
    "const": lambda f, e: value_json.decode(e),
    "type": lambda f, e: words(e),
    "len": _count,
    "keys": Facts._keys,
    "int": Facts._symbol,
    "float": _nothing,
    "same": lambda f, e: check_path(e, f.parameters),
    "apart": lambda f, e: check_path(e, f.parameters),
    "sizes": _nothing,
}
# Kind of result -> what it may hold.
RESULTS: dict[str, Callable[..., Any]] = {
    "output": Facts._output,
    "argument": lambda f, p: check_path(p, f.parameters),
    "state": Facts._state_name,
    "const": lambda f, c: value_json.decode(c),
    "size": lambda f, e: value_json.check_expr(e, f.known),
    "list": Facts._sequence,
    "tuple": Facts._sequence,
    "dict": Facts._mapping,
    "namedtuple": Facts._namedtuple,
    "record": Facts._record,
}

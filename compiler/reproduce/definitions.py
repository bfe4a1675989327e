"""A function as text that runs by itself: its source, and that of all it refers to.

Functions and classes of the program are copied as source; those of installed packages are imported. Modules and other
objects are rebuilt from their attributes; tensors in them from their layout. What has neither is a ReproduceError that
names it.
"""

from __future__ import annotations

import ast
import builtins
import linecache
import site
import sys
import sysconfig
import textwrap
import types
from typing import Any

import torch

from ..base.quoting import identifier, is_plain_name
from ..errors import ReproduceError
from ..runtime.dispatch import Dispatcher
from . import in_file
from .seen_calls import Gone, SeenCall, value_of
from .literals import is_literal, literal
from .program_text import function_name
from .specs import InputSpec, spec_of

__all__ = ["Definitions"]

_DEEPEST = 30
_HOOKS = frozenset(torch.nn.Module().__dict__)
_HERE = frozenset(("torch", "tcompile", "base64", "math", "sys", "zlib", "Any"))  # imported in each file
_OWN = frozenset((*in_file.__all__, "program", "inputs", "SEED", "HOW"))  # defined in each file
# Arguments of the frame of a cell's own code are none: it is a function without parameters.
_MODULE = "<module>"


class Definitions:
    """Collects the text of what a program needs, each piece once, in an order in which it runs."""

    def __init__(self) -> None:
        self._imports: set[str] = set()
        self._blocks: list[str] = []
        self._names: dict[str, Any] = {}  # name in the file -> the object that it means
        self._depth = 0

    def text(self) -> str:
        """The imports and definitions, to stand in front of the program."""
        return "\n".join(sorted(self._imports)) + "\n\n" * bool(self._imports) + "\n\n".join(self._blocks)

    def call(self, call: SeenCall) -> tuple[str, str]:
        """The text of `program`, and the body of `inputs`."""
        function = call.function()
        if isinstance(function, Dispatcher):
            function = function.__wrapped__
        if not isinstance(function, types.FunctionType):
            raise ReproduceError("the function is no longer there: run the code again, and keep the function")
        if function.__code__.co_name == _MODULE:
            source = "".join(linecache.getlines(function.__code__.co_filename))
            self._needs(ast.parse(_without_magics(source)), function.__globals__, {}, skip=True)
            return f"def program():\n{textwrap.indent(_without_magics(source), '    ')}", "    return []"
        name = self.define(function.__name__, function)
        args = [self.expression(value_of(arg)) for arg in call.args]
        code = function.__code__
        first, keywords = code.co_argcount, code.co_kwonlyargcount
        words = [f"args[{i}]" for i in range(first)]
        words += [f"{code.co_varnames[i]}=args[{i}]" for i in range(first, first + keywords)]
        rest = first + keywords
        if code.co_flags & 4:  # *args
            words.insert(first, f"*args[{rest}]")
            rest += 1
        if code.co_flags & 8:  # **kwargs
            words.append(f"**args[{rest}]")
        made = "".join(f"        {arg},\n" for arg in args)
        return f"def program(*args):\n    return {name}({', '.join(words)})", f"    return [\n{made}    ]"

    def define(self, name: str, value: Any) -> str:
        """Give `value` the name `name` in the file; another where that is taken. Returns the name."""
        if value is torch and name == "torch":
            return name
        for known, other in self._names.items():
            if other is value and known == name:
                return known
        if name in _OWN:
            raise ReproduceError(f"every reproducer defines {name!r}: rename the program's")
        base, k = (name if is_plain_name(name) else identifier(name)), 1
        name = base
        while name in self._names or name in _HERE:
            name, k = f"{base}_{k}", k + 1
        self._names[name] = value
        self._depth += 1
        if self._depth > _DEEPEST:
            raise ReproduceError(f"{name} refers to other objects more than {_DEEPEST} deep")
        try:
            self._define(name, value)
        finally:
            self._depth -= 1
        return name

    def _define(self, name: str, value: Any) -> None:
        if isinstance(value, types.ModuleType):
            if value.__name__ == "__main__" or not _installed(getattr(value, "__file__", None)):
                raise ReproduceError(f"the module {value.__name__} belongs to the program: import its names instead")
            self._imports.add(f"import {value.__name__} as {name}" if value.__name__ != name else f"import {name}")
            return
        if isinstance(value, (types.FunctionType, type)):
            if _installed(_file(value)):
                self._import(name, value)
                return
            self._copy(name, value)
            return
        self._blocks.append(f"{name} = {self.expression(value)}")

    def _import(self, name: str, value: Any) -> None:
        module, path = value.__module__, value.__qualname__
        if "." in path or getattr(sys.modules.get(module), path, None) is not value:
            raise ReproduceError(f"{module}.{path} can't be imported by this name")
        self._imports.add(f"from {module} import {path}" + (f" as {name}" if path != name else ""))

    def _copy(self, name: str, value: Any) -> None:
        """The source of a function or class, after what it refers to."""
        source, tree, scope, cells = _source(value)
        self._needs(tree, scope, cells, own=value)
        self._blocks.append(source)
        if value.__name__ != name:
            self._blocks.append(f"{name} = {value.__name__}")

    def _needs(
        self, tree: ast.AST, scope: dict[str, Any], cells: dict[str, Any], *, own: Any = None, skip: bool = False
    ) -> None:
        """Define the names that the text uses and does not make. `skip`: what can't be defined is left to the text."""
        names = [item.id for item in ast.walk(tree) if isinstance(item, ast.Name) and isinstance(item.ctx, ast.Load)]
        made = (
            {item.id for item in ast.walk(tree) if isinstance(item, ast.Name) and isinstance(item.ctx, ast.Store)}
            if skip
            else ()
        )
        for name in dict.fromkeys(names):
            where = cells if name in cells else scope
            if name not in where or name in _HERE or name in made:
                continue
            value = where[name]
            if value is own or getattr(builtins, name, None) is value or self._names.get(name) is value:
                continue
            if name in self._names:
                raise ReproduceError(
                    f"the program has two different objects called {name}, and one file can't hold both"
                )
            self.define(name, value)

    def expression(self, value: Any) -> str:
        """Text that makes an equal value."""
        if isinstance(value, Gone):
            raise ReproduceError(f"an argument is {value.what}, which can't be written into a file")
        if isinstance(value, InputSpec):
            return value.text()
        if isinstance(value, torch.nn.Parameter):
            return f"torch.nn.Parameter({spec_of('parameter', value.detach()).text()}, {value.requires_grad})"
        if isinstance(value, torch.Tensor):
            return spec_of("tensor", value).text()
        if type(value) in (list, tuple):
            inside = ", ".join(self.expression(item) for item in value)
            return f"[{inside}]" if type(value) is list else f"({inside}{',' * (len(value) == 1)})"
        if type(value) is dict:
            return (
                "{" + ", ".join(f"{self.expression(key)}: {self.expression(item)}" for key, item in value.items()) + "}"
            )
        if is_literal(value):
            return literal(value)
        if isinstance(value, (types.FunctionType, type, types.ModuleType)):
            return self.define(value.__name__.rpartition(".")[2], value)
        if isinstance(value, types.BuiltinFunctionType):
            imports: set[str] = set()
            text = function_name(value, imports)
            self._imports.update(f"import {m}" for m in imports)
            return text
        return self._object(value)

    def _object(self, value: Any) -> str:
        """An instance, rebuilt from its class and attributes."""
        if not hasattr(value, "__dict__") or type(value).__module__ == "builtins":
            raise ReproduceError(f"a {type(value).__name__} can't be written into a file")
        self._depth += 1
        if self._depth > _DEEPEST:
            raise ReproduceError(f"a {type(value).__name__} refers to other objects more than {_DEEPEST} deep")
        try:
            kind = self.define(type(value).__name__, type(value))
            attributes = dict(value.__dict__)
            if isinstance(value, torch.nn.Module):
                held = {k: attributes[k] for k in ("_parameters", "_buffers", "_modules")}
                hooks = [hook for hook in _HOOKS if hook.endswith("hooks") and attributes.get(hook)]
                if hooks:
                    raise ReproduceError(f"the module {kind} has hooks ({hooks[0]}), which a file can't hold yet")
                plain = {
                    name: attribute
                    for name, attribute in attributes.items()
                    if name not in _HOOKS or name == "training"
                }
                attributes = {**plain, **held}
            inside = ", ".join(f"{name!r}: {self.expression(attribute)}" for name, attribute in attributes.items())
            return f"rebuilt({kind}, {{{inside}}})"
        finally:
            self._depth -= 1


def _installed(file: str | None) -> bool:
    """Whether the code comes with Python or an installed package: every reader has it."""
    if file is None or file.startswith("<frozen"):  # of the interpreter itself
        return True
    roots = (*(sysconfig.get_path(p) for p in ("stdlib", "purelib", "platlib")), *site.getsitepackages())
    return any(file.startswith(root + "/") for root in roots if root) or file.startswith(torch.__path__[0])


def _file(value: Any) -> str | None:
    if isinstance(value, types.FunctionType):
        return value.__code__.co_filename
    if value.__module__ in ("builtins", "__main__") or "<locals>" in value.__qualname__:
        methods = [f for f in vars(value).values() if isinstance(f, types.FunctionType)]
        own = [method for method in methods if method.__module__ == value.__module__]
        return own[0].__code__.co_filename if own else (None if value.__module__ == "builtins" else "")
    return getattr(sys.modules.get(value.__module__), "__file__", None)


def _source(value: Any) -> tuple[str, ast.AST, dict[str, Any], dict[str, Any]]:
    """Text and tree of a definition, the globals that it sees and its closure's variables."""
    cells: dict[str, Any] = {}
    if isinstance(value, types.FunctionType):
        file, scope, line = value.__code__.co_filename, value.__globals__, value.__code__.co_firstlineno
        cells = {
            name: c.cell_contents for name, c in zip(value.__code__.co_freevars, value.__closure__ or ()) if _full(c)
        }
    else:
        functions = [f for f in vars(value).values() if isinstance(f, types.FunctionType)]
        file = _file(value) or ""
        scope = functions[0].__globals__ if functions else vars(sys.modules[value.__module__])
        line = None
        for function in functions:
            cells |= {
                name: c.cell_contents
                for name, c in zip(function.__code__.co_freevars, function.__closure__ or ())
                if _full(c)
            }
        cells.pop("__class__", None)
    text = "".join(linecache.getlines(file))
    try:
        tree = ast.parse(_without_magics(text))
    except SyntaxError:
        raise ReproduceError(f"the source of {value.__qualname__} can't be read") from None
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)) and node.name == value.__name__:
            first = min([node.lineno, *(d.lineno for d in node.decorator_list)])
            if line is None or line in (first, node.lineno):
                lines = text.splitlines()[first - 1 : node.end_lineno]
                return textwrap.dedent("\n".join(lines)), node, scope, cells
    raise ReproduceError(f"the source of {value.__qualname__} is not at hand: only functions made by def can be copied")


def _full(cell: Any) -> bool:
    try:
        return cell.cell_contents is not _full
    except ValueError:
        return False


def _without_magics(text: str) -> str:
    """A cell's text as Python: lines of magics become comments."""
    return "\n".join(f"#{line}" if line.startswith(("%", "!")) else line for line in text.splitlines())

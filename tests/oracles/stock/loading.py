"""Stock's test modules are read from where their source lies, and changed on the way: nothing of them is written or
kept.

What a module imports from torch and the installed torch has not is an Untold. In the methods of its test cases each
assertion may end with Internal, and what is taken apart may be an Untold. Functions inside of tests, which are what is
compiled, stay as they are.
"""

from __future__ import annotations

import ast
import importlib
import importlib.abc
import importlib.machinery
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from .untold import Internal, Untold, enter_assertion, leave_assertion, length, unpacked

__all__ = ["install"]

missing: set[str] = set()  # names that the installed torch has not


def _module(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError:
        if not name.startswith("torch."):
            raise
        missing.add(name)
        return Untold()


def _name(module: str, name: str) -> Any:
    found = _module(module)
    if isinstance(found, Untold):
        return found
    try:
        return getattr(found, name)
    except AttributeError:
        try:
            return importlib.import_module(f"{module}.{name}")
        except ImportError:
            missing.add(f"{module}.{name}")
            return Untold()


def _package(name: str) -> Any:
    _module(name)
    return sys.modules[name.partition(".")[0]]


HELPERS = {
    "__stock_name__": _name,
    "__stock_module__": _module,
    "__stock_package__": _package,
    "__stock_enter__": enter_assertion,
    "__stock_leave__": leave_assertion,
    "__stock_internal__": Internal,
    "__stock_unpacked__": unpacked,
    "__stock_length__": length,
}


def _call(name: str, *args: ast.expr) -> ast.expr:
    return ast.Call(ast.Name(name, ast.Load()), list(args), [])


def _shape(target: ast.expr) -> ast.expr | None:
    """The names that a target takes apart, as an expression of nested tuples of None; None where there is a star."""
    if not isinstance(target, (ast.Tuple, ast.List)):
        return None if isinstance(target, ast.Starred) else ast.Constant(None)
    inner = [_shape(t) for t in target.elts]
    return None if None in inner else ast.Tuple([i for i in inner if i is not None], ast.Load())


class _Statements(ast.NodeTransformer):
    """The statements of a test module and of its test methods."""

    def __init__(self) -> None:
        self.in_function = self.nested = False

    def visit_Import(self, node: ast.Import) -> Any:
        if self.nested:
            return node
        out: list[ast.stmt] = []
        for alias in node.names:
            if not alias.name.startswith("torch."):
                out.append(ast.copy_location(ast.Import([alias]), node))
            elif alias.asname:
                out.append(self._assigned(node, alias.asname, _call("__stock_module__", ast.Constant(alias.name))))
            else:
                out.append(self._assigned(node, "torch", _call("__stock_package__", ast.Constant(alias.name))))
        return out

    def visit_ImportFrom(self, node: ast.ImportFrom) -> Any:
        if self.nested or node.level or not (node.module or "").startswith("torch") or node.names[0].name == "*":
            return node
        return [
            self._assigned(
                node, a.asname or a.name, _call("__stock_name__", ast.Constant(node.module), ast.Constant(a.name))
            )
            for a in node.names
        ]

    def _assigned(self, node: ast.stmt, name: str, value: ast.expr) -> ast.stmt:
        return ast.copy_location(ast.Assign([ast.Name(name, ast.Store())], value), node)

    def visit_ClassDef(self, node: ast.ClassDef) -> Any:
        if not self.in_function and any(
            isinstance(s, ast.FunctionDef) and s.name.startswith("test") for s in node.body
        ):
            for statement in node.body:
                if isinstance(statement, ast.FunctionDef):
                    self._method(statement)
        return node

    def visit_FunctionDef(self, node: ast.FunctionDef) -> Any:
        if not self.in_function and node.args.args and node.args.args[0].arg in ("self", "test_case"):
            self._method(node)  # a test that classes share, or a helper of tests
        elif self.in_function and any(isinstance(n, ast.Name) and n.id == "self" for n in ast.walk(node)):
            # a test's own helper: what asserts by its test case is not what is compiled
            self.nested, before = (True, self.nested)
            self.generic_visit(node)
            self.nested = before
        return node

    def _method(self, node: ast.FunctionDef) -> None:
        self.in_function = True
        body: list[ast.stmt] = []
        for statement in node.body:
            new = self.visit(statement)
            body += new if isinstance(new, list) else [new]
        node.body = body
        self.in_function = False

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> Any:
        return node

    def visit_Lambda(self, node: ast.Lambda) -> Any:
        return node

    def visit_Assert(self, node: ast.Assert) -> Any:
        self.generic_visit(node)
        return self._assertion(node) if self.in_function and not self.nested else node

    def visit_Expr(self, node: ast.Expr) -> Any:
        self.generic_visit(node)
        called = node.value.func if isinstance(node.value, ast.Call) else None
        if (
            self.in_function
            and isinstance(called, ast.Attribute)
            and called.attr.startswith("assert")
            and isinstance(called.value, ast.Name)
        ):
            return self._assertion(node)
        return node

    def _assertion(self, node: ast.stmt) -> ast.stmt:
        enter, leave = (ast.Expr(_call(f"__stock_{word}__")) for word in ("enter", "leave"))
        handler = ast.ExceptHandler(ast.Name("__stock_internal__", ast.Load()), None, [ast.Pass()])
        new = ast.Try([enter, node], [handler], [], [leave])
        for part in ast.walk(new):
            if part is not node and "lineno" in part._attributes and not hasattr(part, "lineno"):
                ast.copy_location(part, node)
        return new

    def visit_Call(self, node: ast.Call) -> Any:
        self.generic_visit(node)
        if (
            self.in_function
            and not self.nested
            and isinstance(node.func, ast.Name)
            and node.func.id == "len"
            and len(node.args) == 1
        ):
            node.func = ast.copy_location(ast.Name("__stock_length__", ast.Load()), node.func)
        return node

    def visit_Assign(self, node: ast.Assign) -> Any:
        self.generic_visit(node)
        shape = (
            _shape(node.targets[0])
            if len(node.targets) == 1 and isinstance(node.targets[0], (ast.Tuple, ast.List))
            else None
        )
        if self.in_function and not self.nested and shape is not None:
            node.value = ast.copy_location(_call("__stock_unpacked__", node.value, shape), node.value)
        return node


class _Loader(importlib.machinery.SourceFileLoader):
    def source_to_code(self, data: Any, path: Any, *, _optimization: int = -1) -> Any:  # type: ignore[override]
        tree = ast.fix_missing_locations(_Statements().visit(ast.parse(data, str(path))))
        return compile(tree, path, "exec", dont_inherit=True, optimize=_optimization)

    def get_code(self, fullname: str) -> Any:
        path = self.get_filename(fullname)
        return self.source_to_code(self.get_data(path), path)  # neither reads nor writes __pycache__

    def exec_module(self, module: ModuleType) -> None:
        module.__dict__.update(HELPERS)
        super().exec_module(module)


def install(source: Path) -> None:
    """Make the modules below `source`/test importable, each by its own name and below its folder's."""
    tests = source / "test"
    roots = {str(p) for p in (tests, tests / "inductor", tests / "dynamo")}
    details = (_Loader, importlib.machinery.SOURCE_SUFFIXES)

    def hook(path: str) -> importlib.machinery.FileFinder:
        if not str(path).startswith(str(tests)):
            raise ImportError
        return importlib.machinery.FileFinder(path, details)

    sys.path_hooks.insert(0, hook)
    sys.path[:0] = sorted(roots, key=len)
    importlib.invalidate_caches()

"""Counts that must not grow: circles of imports, imports of private names, long lines, functions with many branches.

Each bar is the number that the code has reached. Where a change makes a count smaller, its bar is lowered with it.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

from .test_imports import PACKAGES, ROOT, module_name, sources

LONG, BRANCHY, LONG_FUNCTION = 120, 25, 100
BARS = {
    "circles of imports at the top of modules": 0,
    "circles of imports, those in functions too": 0,
    "modules in the largest circle": 0,
    "imports of private names": 0,
    "long lines": 0,
    "functions with many branches": 0,
    "long functions": 0,
}
_BRANCHES = (ast.If, ast.For, ast.While, ast.IfExp, ast.ExceptHandler, ast.match_case)
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
Graph = dict[str, set[str]]


@lru_cache(maxsize=1)
def trees() -> dict[str, tuple[Path, ast.Module]]:
    return {module_name(p): (p, ast.parse(p.read_text(), str(p))) for p in sources(*PACKAGES)}


def branches(function: ast.AST) -> int:
    """Where a function may go on in two ways: statements, conditional expressions, operands of `and` and `or`."""
    return sum(
        isinstance(n, _BRANCHES) + (len(n.values) - 1 if isinstance(n, ast.BoolOp) else 0) for n in ast.walk(function)
    )


def imports(name: str, path: Path, tree: ast.Module) -> Iterator[tuple[str, str, bool]]:
    """(module, name or "", whether it stands in a function) of each import that runs; those for types do not."""
    inside = {id(n) for f in ast.walk(tree) if isinstance(f, _FUNCTIONS) for n in ast.walk(f)}
    for_types = {
        id(n)
        for i in ast.walk(tree)
        if isinstance(i, ast.If) and "TYPE_CHECKING" in ast.dump(i.test)
        for n in ast.walk(i)
    }
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]
    for n in ast.walk(tree):
        if id(n) in for_types:
            continue
        if isinstance(n, ast.Import):
            yield from ((alias.name, "", id(n) in inside) for alias in n.names)
        elif isinstance(n, ast.ImportFrom):
            base = package.split(".")[: len(package.split(".")) - n.level + 1] if n.level else []
            module = ".".join([*base, *([n.module] if n.module else [])])
            yield from ((module, alias.name, id(n) in inside) for alias in n.names)


def import_graphs() -> tuple[Graph, Graph]:
    """module -> the modules that it imports: at its top, and at all."""
    known = trees()
    top: Graph = {m: set() for m in known}
    every: Graph = {m: set() for m in known}
    for m, (path, tree) in known.items():
        for module, name, inside in imports(m, path, tree):
            to = f"{module}.{name}" if f"{module}.{name}" in known else module
            if to in known and to != m:
                every[m].add(to)
                if not inside:
                    top[m].add(to)
    return top, every


def circles(graph: Graph) -> list[list[str]]:
    """Groups of modules that import each other, directly or by way of others (Tarjan's algorithm)."""
    number: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(v: str) -> None:
        number[v] = low[v] = len(number)
        stack.append(v)
        for w in graph[v]:
            if w not in number:
                visit(w)
                low[v] = min(low[v], low[w])
            elif w in stack:
                low[v] = min(low[v], number[w])
        if low[v] == number[v]:
            group = stack[stack.index(v) :]
            del stack[stack.index(v) :]
            if len(group) > 1:
                found.append(sorted(group))

    for v in graph:
        if v not in number:
            visit(v)
    return found


def within(what: str, found: list[str]) -> None:
    listed = "\n".join(found)
    assert len(found) <= BARS[what], f"{len(found)} {what}, at most {BARS[what]}:\n{listed}"


def test_the_counters_count() -> None:
    source = "def f(x):\n    if x and not x or x:\n        for y in x: pass\n    return 1 if x else 2\n"
    assert branches(ast.parse(source)) == 5
    assert circles({"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a"}}) == [["a", "b", "c"]]
    tree = ast.parse("from .b import _c\nif TYPE_CHECKING:\n    import d\ndef f():\n    from . import e\n")
    assert list(imports("p.a", Path("a.py"), tree)) == [("p.b", "_c", False), ("p", "e", True)]


def test_modules_do_not_import_each_other() -> None:
    top, every = import_graphs()
    within("circles of imports at the top of modules", [", ".join(c) for c in circles(top)])
    found = circles(every)
    within("circles of imports, those in functions too", [", ".join(c) for c in found])
    within("modules in the largest circle", max(found, key=len, default=[]))


def test_private_names_stay_in_their_module() -> None:
    within(
        "imports of private names",
        [
            f"{m}: {name} of {module}"
            for m, (path, tree) in trees().items()
            for module, name, _ in imports(m, path, tree)
            if module.startswith("tcompile") and name.startswith("_") and not name.startswith("__")
        ],
    )


def test_lines_are_short() -> None:
    within(
        "long lines",
        [
            f"{path.relative_to(ROOT)}:{k}"
            for path, _ in trees().values()
            for k, line in enumerate(path.read_text().splitlines(), 1)
            if len(line) > LONG
        ],
    )


def test_functions_have_few_branches() -> None:
    counted = [
        (branches(f), f"{m}.{f.name}")
        for m, (_, tree) in trees().items()
        for f in ast.walk(tree)
        if type(f) in _FUNCTIONS
    ]
    within("functions with many branches", [f"{n} {name}" for n, name in sorted(counted, reverse=True) if n > BRANCHY])


def test_functions_are_short() -> None:
    within(
        "long functions",
        [
            f"{f.end_lineno - f.lineno + 1} lines: {m}.{f.name}"
            for m, (_, tree) in trees().items()
            for f in ast.walk(tree)
            if isinstance(f, _FUNCTIONS) and (f.end_lineno or 0) - f.lineno >= LONG_FUNCTION
        ],
    )

"""Which private names of torch the sources use, and whether the installed torch has them as they were.

When a new torch moves one, this says which, what it was for and where it is used, before programs break.
"""

from __future__ import annotations

import ast
import functools
import importlib
import inspect
import re
import types
from collections import defaultdict
from pathlib import Path
from typing import Any, Iterator

import pytest
import torch

from .torch_names import NOT_TORCH, OBJECTS, ROWS, Row

ROOT = Path(__file__).resolve().parents[2]
VERSION = tuple(map(int, re.findall(r"\d+", torch.__version__)[:2]))
OURS = re.compile("_tcompile_|_dynamo_|_torchdynamo_")  # attributes that we, or stock, put on the program's objects


class Name:
    """One name of the table."""

    def __init__(self, row: Row, text: str):
        self.row = row
        self.name, _, parameters = text.partition("(")
        self.parameters = [p.strip() for p in parameters.rstrip(")").split(",")] if parameters else []
        self.path = f"{row.home}.{self.name}"

    @property
    def expected(self) -> bool:
        row = self.row
        return (
            (not row.since or VERSION >= _version(row.since))
            and (not row.until or VERSION < _version(row.until))
            and not (row.cuda and torch.version.cuda is None)
        )

    def found(self) -> Any:
        """The object. Raises AttributeError or ImportError."""
        return functools.reduce(
            getattr,
            self.name.split("."),
            OBJECTS[self.row.home]() if self.row.home in OBJECTS else _module(self.row.home),
        )


def _version(text: str) -> tuple[int, ...]:
    return tuple(map(int, text.split(".")))


def _module(path: str) -> Any:
    """A module, or what lies in one."""
    try:
        return importlib.import_module(path)
    except ImportError:
        home, _, name = path.rpartition(".")
        if not home:
            raise
        return getattr(_module(home), name)


def _split(names: str) -> list[str]:
    return re.findall(r"[\w.]+(?:\([^)]*\))?", names)


NAMES = [Name(row, text) for row in ROWS for text in _split(row.names)]


# --- what the sources use
def private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


class Sources:
    """The private names in the sources: paths that begin at torch, and attributes and texts that nothing of ours is
    called.
    """

    def __init__(self) -> None:
        files = {
            str(p.relative_to(ROOT)): list(ast.walk(ast.parse(p.read_text())))
            for part in ("compiler", "extension", "kernel_magics")
            for p in sorted((ROOT / part).rglob("*.py"))
        }
        self.paths: dict[str, set[str]] = defaultdict(set)
        self.attributes: dict[str, set[str]] = defaultdict(set)
        self.texts: dict[str, set[str]] = defaultdict(set)
        own = {name for nodes in files.values() for node in nodes for name in _made(node)}
        for place, nodes in files.items():
            aliases = _aliases(nodes)
            for path in aliases.values():
                self._path(path, place)
            inner: set[int] = set()
            for node in nodes:
                if isinstance(node, ast.Attribute) and id(node) not in inner:
                    root, parts = _chain(node, inner)
                    if root in aliases:
                        self._path(".".join((aliases[root], *parts)), place)
                    for name in parts if root not in aliases else ():
                        if private(name) and name not in own and not OURS.match(name):
                            self.attributes[name].add(f"{place}:{node.lineno}")
                for word in _words(node):
                    if private(word) and word.isidentifier() and word not in own:
                        self.texts[word].add(f"{place}:{node.lineno}")

    def _path(self, path: str, place: str) -> None:
        parts = path.split(".")
        if any(map(private, parts)):
            self.paths[path].add(place)

    def of(self, name: str) -> str:
        """Where a name is used, in words."""
        last = name.rpartition(".")[2]
        places = {p for path, where in self.paths.items() if path == name or path.startswith(name + ".") for p in where}
        places |= self.attributes.get(last, set()) | self.texts.get(last, set())
        return ", ".join(sorted(places)[:6]) or "a table, a handler or a rule"


def _words(node: ast.AST) -> list[str]:
    """A text of the sources, and the words of one that is split into them."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "split":
        node = node.func.value
        return node.value.split() if isinstance(node, ast.Constant) and isinstance(node.value, str) else []
    return [node.value] if isinstance(node, ast.Constant) and isinstance(node.value, str) else []


def _made(node: ast.AST) -> Iterator[str]:
    """What a node of the sources gives a name to."""
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        yield node.name
    elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
        yield node.id
    elif (
        isinstance(node, ast.Attribute)
        and isinstance(node.ctx, ast.Store)
        and isinstance(node.value, ast.Name)
        and node.value.id in ("self", "cls")
    ):
        yield node.attr
    elif isinstance(node, ast.arg):
        yield node.arg
    elif isinstance(node, ast.alias):
        yield (node.asname or node.name).partition(".")[0]
    elif isinstance(node, ast.Assign) and any(isinstance(t, ast.Name) and t.id == "__slots__" for t in node.targets):
        yield from (c.value for c in ast.walk(node.value) if isinstance(c, ast.Constant))


def _aliases(nodes: list[ast.AST]) -> dict[str, str]:
    """Names in a module that stand for torch, or for something in it."""
    found: dict[str, str] = {}
    for node in nodes:
        if isinstance(node, ast.Import):
            for a in node.names:
                if a.name.partition(".")[0] == "torch":
                    found[a.asname or "torch"] = a.name if a.asname else "torch"
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and (node.module or "").partition(".")[0] == "torch":
            found |= {a.asname or a.name: f"{node.module}.{a.name}" for a in node.names}
    for node in nodes:
        if (
            isinstance(node, ast.Assign)
            and len(node.targets) == 1
            and isinstance(node.targets[0], ast.Name)
            and isinstance(node.value, ast.Attribute)
        ):
            root, parts = _chain(node.value, set())
            if root in found:
                found.setdefault(node.targets[0].id, ".".join((found[root], *parts)))
    return found


def _chain(node: ast.AST, inner: set[int]) -> tuple[str, list[str]]:
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
        inner.add(id(node))
    return node.id if isinstance(node, ast.Name) else "", parts[::-1]


@functools.cache
def sources() -> Sources:
    return Sources()


def _is_declared(path: str) -> bool:
    """Whether the table has the path, or an object that is neither module nor class and that the path reads further
    from.
    """
    for name in NAMES:
        if path == name.path:
            return True
        if path.startswith(name.path + "."):
            rest = path[len(name.path) + 1 :].split(".")
            if rest[0].startswith("__"):
                return True
            if name.expected:
                value = _value(name)
                if value is not None and not isinstance(value, (type, types.ModuleType, torch._ops.OpOverloadPacket)):
                    return True
    return False


@functools.cache
def _value(name: Name) -> Any:
    try:
        return name.found()
    except (AttributeError, ImportError):
        return None


def _is_module(path: str) -> bool:
    """A home, which is declared by what is taken from it."""
    try:
        return isinstance(_module(path), types.ModuleType)
    except (AttributeError, ImportError):
        return False


# --- tests
def test_every_private_name_of_torch_that_the_sources_use_is_in_the_table():
    undeclared = [
        f"{path} (in {', '.join(sorted(places))})"
        for path, places in sorted(sources().paths.items())
        if not _is_declared(path) and not _is_module(path)
    ]
    known = {part for n in NAMES for part in n.name.split(".")} | NOT_TORCH
    undeclared += [
        f"._{name[1:]} (in {', '.join(sorted(places))})"
        for name, places in sorted(sources().attributes.items())
        if name not in known
    ]
    homes = [
        torch,
        torch._C,
        torch.Tensor,
        torch.nn.modules.module,
        *(make() for home, make in OBJECTS.items() if home != "libtorch()"),
    ]
    undeclared += [
        f'"{name}" (in {", ".join(sorted(places))})'
        for name, places in sorted(sources().texts.items())
        if name not in known and not hasattr(torch.ops.aten, name) and any(hasattr(home, name) for home in homes)
    ]
    assert not undeclared, "private names of torch that tests/house/torch_names.py does not declare:\n" + "\n".join(
        undeclared
    )


def test_the_table_names_nothing_that_is_not_used():
    s = sources()
    words = {
        word
        for part in ("compiler", "extension", "kernel_magics")
        for p in (ROOT / part).rglob("*.py")
        for word in re.findall(r"\w+", p.read_text())
    }
    composed = re.compile("_(get_.*_sdp_enabled|set_sdp_use_.*|(raw_)?saved_.*)")  # made of parts in the sources
    unused = [
        n.path
        for n in NAMES
        if n.path not in s.paths and not composed.fullmatch(n.name) and n.name.split(".")[-1] not in words
    ]
    assert not unused, f"tests/house/torch_names.py names what nothing uses any more: {unused}"


def test_a_new_private_name_is_found():
    """The walk itself: by import, by alias, by a chain, by an attribute of an object."""
    nodes = list(
        ast.walk(
            ast.parse(
                "import torch\nfrom torch import _C as c, nn\nx = torch.utils\nx._new.f(c._other, nn._third)\nthing._fourth"
            )
        )
    )
    aliases = _aliases(nodes)
    assert aliases == {"torch": "torch", "c": "torch._C", "nn": "torch.nn", "x": "torch.utils"}
    chains = [_chain(node, set()) for node in nodes if isinstance(node, ast.Attribute)]
    assert ("x", ["_new", "f"]) in chains and ("c", ["_other"]) in chains and ("thing", ["_fourth"]) in chains
    assert (
        not _is_declared("torch.utils._new.f")
        and not _is_module("torch.utils._new.f")
        and _is_declared("torch._C._set_grad_enabled")
    )


@pytest.mark.parametrize(
    "changed, words",
    [
        (("tree", "leaves"), "takes (leaves, treespec), not (tree, leaves, ...)"),
        (("leaves",), "also asks for treespec"),
    ],
)
def test_a_changed_signature_is_said(changed, words):
    assert _changed(torch.utils._pytree.tree_unflatten, list(changed)) == words


@pytest.mark.parametrize("name", NAMES, ids=lambda name: name.path)
def test_the_installed_torch_has_it(name):
    row, where = name.row, sources().of(name.path)
    advice = (
        row.instead
        or "Find what stands in its place, mend these files, and say so (since, until, instead) in tests/house/torch_names.py."
    )
    try:
        value = name.found()
    except (AttributeError, ImportError) as error:
        if not name.expected:
            return
        if row.optional:
            pytest.skip(f"torch {torch.__version__} has no {name.path}: {row.optional}")
        pytest.fail(
            f"torch {torch.__version__} has no {name.path} ({error}).\nIt is used for: {row.use}; in {where}.\n{advice}"
        )
    if row.until and VERSION >= _version(row.until):
        pytest.fail(f"torch {torch.__version__} has {name.path}, which the table says is gone since {row.until}")
    if name.parameters:
        changed = _changed(value, name.parameters)
        assert not changed, (
            f"{name.path} of torch {torch.__version__} {changed}.\nIt is used for: {row.use}; in {where}.\n{advice}"
        )


def _changed(value: Any, parameters: list[str]) -> str:
    """How what is called differs from what the table says, in words."""
    if isinstance(value, torch._ops.OpOverload):
        arguments = value._schema.arguments
        present, required = (
            [a.name for a in arguments],
            [a.name for a in arguments[len(parameters) :] if not a.has_default_value()],
        )
    else:
        try:
            signature = inspect.signature(value)
        except ValueError:  # native code that tells nothing
            return ""
        present = list(signature.parameters)
        required = [
            p.name
            for p in list(signature.parameters.values())[len(parameters) :]
            if p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)
        ]
    if present[: len(parameters)] != parameters:
        return f"takes ({', '.join(present)}), not ({', '.join(parameters)}, ...)"
    return f"also asks for {', '.join(required)}" if required else ""


# --- functions of torch that capture replaces, by module and name: one that moved would be interpreted, or break,
# instead
REPLACED_UNTIL = {("torch.autograd.function", "Function.apply"): "2.14"}  # native since, and found by its descriptor
REPLACED_SINCE = {("torch.distributions.distribution", "_all_true_or_runtime_assert"): "2.15"}  # newer than these


def _replaced() -> dict[tuple[int, str], list[tuple[str, str]]]:
    """The functions that each handler replaces. One that is the same in several modules has moved between versions of
    torch.
    """
    import tcompile.compiler.frontend.engine  # noqa: F401  (all of capture)
    from tcompile.compiler.capture.kinds.callables import PYTHON_FUNCTIONS

    found: dict[tuple[int, str], list[tuple[str, str]]] = defaultdict(list)
    for (module, name), handler in PYTHON_FUNCTIONS.items():
        if module.partition(".")[0] == "torch" and not module.startswith("torch.ops."):
            found[id(handler), name].append((module, name))
    return found


@functools.cache
def _known_functions() -> frozenset[tuple[str, str]]:
    """(module, qualified name) of every Python function that is reached from the modules that handlers name."""
    found: set[tuple[str, str]] = set()
    seen: set[int] = set()

    def visit(value: Any, depth: int) -> None:
        if not isinstance(value, (types.FunctionType, type, property, staticmethod, classmethod, types.MethodType)):
            return
        value = getattr(value, "__func__", value)
        value = value.fget if isinstance(value, property) else value
        if id(value) in seen or depth > 3:
            return
        if isinstance(value, types.FunctionType):
            seen.add(id(value))
            found.add((value.__module__, value.__qualname__))
            for wrapped in (
                getattr(value, "__wrapped__", None),
                *(c.cell_contents for c in value.__closure__ or () if _is_set(c)),
            ):
                visit(wrapped, depth + 1)
            found.update(
                (value.__module__, f"{value.__qualname__}.<locals>.{c.co_name}")
                for c in value.__code__.co_consts
                if isinstance(c, types.CodeType)
            )
        elif isinstance(value, type) and value.__module__.startswith("torch"):
            seen.add(id(value))
            for inner in list(vars(value).values()):
                visit(inner, depth + 1)

    for module in {module for places in _replaced().values() for module, _ in places}:
        if not _is_module(module):
            continue
        for value in list(vars(_module(module)).values()):
            visit(value, 0)
    return frozenset(found)


def _is_set(cell: types.CellType) -> bool:
    try:
        cell.cell_contents
    except ValueError:
        return False
    return True


def test_functions_that_capture_replaces_are_where_it_looks_for_them():
    moved = []
    for places in _replaced().values():
        gone = [until for place in places if (until := REPLACED_UNTIL.get(place)) and VERSION >= _version(until)]
        gone += [since for place in places if (since := REPLACED_SINCE.get(place)) and VERSION < _version(since)]
        if any(place in _known_functions() for place in places) is bool(gone):
            moved.append(
                " or ".join(f"{module}: {name}" for module, name in places)
                + ", which REPLACED_UNTIL or REPLACED_SINCE says is not there" * bool(gone)
            )
    assert not moved, (
        f"torch {torch.__version__} has no Python functions of these names; capture's handlers for them are never called:\n"
        + "\n".join(moved)
    )

"""Imports go one way: kernel_magics -> compiler -> torch; stock's internals only in the two adapters."""

from __future__ import annotations

import ast
import functools
import os
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = {"compiler": "tcompile.compiler", "kernel_magics": "tcompile.kernel_magics", "extension": "tcompile"}
STOCK = ("torch._dynamo", "torch._inductor", "torch._functorch.aot_autograd")
ADAPTERS = {"compiler/backends/stock.py", "compiler/backends/registered.py"}
NOTEBOOK = (
    "IPython",
    "ipywidgets",
    "ipykernel",
    "jupyter",
    "jupyter_client",
    "jupyter_core",
    "jupyterlab",
    "nbformat",
    "nbclient",
    "nbconvert",
    "plotly",
    "anywidget",
    "traitlets",
    "notebook",
)
# What each folder of the compiler, and each module at its root, may import. All of them may import base, errors and
# events, but for those three themselves.
EVERYWHERE = {"base", "errors", "events"}
MAY_IMPORT: dict[str, set[str]] = {
    "base": set(),
    "errors": set(),
    "events": {"base"},
    "config": {"errors"},
    "marks": {"runtime"},
    "symbolic": set(),
    "native": set(),
    "guards": {"symbolic", "native"},
    "ops": {"symbolic", "native"},
    "graph": {"symbolic", "guards", "ops", "rewrite"},
    "rewrite": {"symbolic", "ops", "graph"},
    "capture": {"symbolic", "guards", "ops", "graph", "runtime", "marks"},
    "autograd": {
        *("symbolic", "native", "guards", "ops", "graph", "rewrite", "capture", "runtime"),
        *("config", "stages"),
    },
    "lowering": {"symbolic", "ops"},
    "fusion": {"symbolic", "ops", "lowering"},
    "codegen": {"symbolic", "ops", "lowering", "fusion"},
    "runtime": {"symbolic", "native", "ops", "lowering", "fusion", "codegen", "stages"},
    "stages": {"config", "graph", "rewrite", "runtime"},
    "backends": {"symbolic", "capture", "graph", "autograd", "runtime", "report", "config", "stages"},
    "report": {"symbolic", "guards", "graph", "lowering", "fusion", "config", "stages", "reproduce"},
    "reproduce": {"symbolic", "graph", "runtime", "config"},
    "minifier": {"reproduce", "stages", "api"},
    "logs": {"report"},
    "frontend": {"guards", "graph", "capture", "autograd", "runtime", "backends", "config", "logs", "marks", "stages"},
    "export": {
        *("symbolic", "native", "guards", "ops", "graph", "capture", "lowering", "codegen", "runtime", "backends"),
        *("frontend", "marks", "stages", "config", "api"),
    },
    "api": {"frontend", "backends", "report", "runtime", "config", "marks", "stages"},
}


def sources(*folders: str) -> list[Path]:
    return [p for folder in folders for p in sorted((ROOT / folder).rglob("*.py")) if "labextension" not in p.parts]


def module_name(path: Path) -> str:
    folder, *rest = path.relative_to(ROOT).with_suffix("").parts
    return ".".join([PACKAGES.get(folder, folder), *(part for part in rest if part != "__init__")])


class Source(NamedTuple):
    """What one source names, each with its line."""

    imported: list[tuple[str, int]]  # modules in imports, absolute; `import_module("literal")` too
    plain: list[tuple[str, int]]  # those that are written absolute
    chains: list[tuple[str, int]]  # `torch._dynamo.config`, as written: torch imports such a module when it is touched


@functools.cache
def read(path: Path) -> Source:
    """One walk for all tests: parsing everything takes seconds."""
    package = module_name(path)
    if path.name != "__init__.py":
        package = package.rpartition(".")[0]
    source = Source([], [], [])
    for node in ast.walk(ast.parse(path.read_text(), str(path))):
        if isinstance(node, ast.Import):
            source.plain.extend((alias.name, node.lineno) for alias in node.names)
            source.imported.extend((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if not node.level:
                source.plain.append((base, node.lineno))
            else:
                parts = package.split(".")
                base = ".".join([*parts[: len(parts) - node.level + 1], *([base] if base else [])])
            source.imported.append((base, node.lineno))
            source.imported.extend((f"{base}.{alias.name}", node.lineno) for alias in node.names)
        elif isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
            function = node.func
            name = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
            if name in ("import_module", "__import__") and isinstance(node.args[0].value, str):
                source.imported.append((node.args[0].value, node.lineno))
        elif isinstance(node, ast.Attribute) and (chain := dotted(node)):
            source.chains.append((chain, node.lineno))
    return source


def dotted(node: ast.expr) -> str:
    """`a.b.c` of a chain of attributes that begins at a name."""
    parts = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    return ".".join([node.id, *reversed(parts)]) if isinstance(node, ast.Name) else ""


def under(name: str, package: str) -> bool:
    return name == package or name.startswith(package + ".")


def test_the_readers_see_what_they_should(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = tmp_path / "compiler" / "capture" / "sample.py"
    source.parent.mkdir(parents=True)
    source.write_text(
        "import torch._dynamo.config\nfrom torch import _inductor\nfrom ..guards import guard\n"
        "import importlib\nimportlib.import_module('torch._functorch.aot_autograd')\n"
        "torch._dynamo.reset()\n"
    )
    monkeypatch.setattr(sys.modules[__name__], "ROOT", tmp_path)
    names = {name for name, _ in read(source).imported}
    assert {
        "torch._dynamo.config",
        "torch._inductor",
        "tcompile.compiler.guards.guard",
        "torch._functorch.aot_autograd",
    } <= names
    assert ("torch._dynamo.reset", 6) in set(read(source).chains)


def test_stock_internals_only_in_the_adapters() -> None:
    found = []
    for path in sources("compiler", "kernel_magics", "extension"):
        if str(path.relative_to(ROOT)) in ADAPTERS:
            continue
        for name, line in (*read(path).imported, *read(path).chains):
            if any(under(name, stock) for stock in STOCK):
                found.append(f"{path.relative_to(ROOT)}:{line}: {name}")
    assert not found, "\n".join(found)


def test_compiler_knows_no_notebook() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{line}: {name}"
        for path in sources("compiler")
        for name, line in read(path).imported
        if any(under(name, package) for package in (*NOTEBOOK, "tcompile.kernel_magics"))
    ]
    assert not found, "\n".join(found)


def test_absolute_names_only_through_tcompile() -> None:
    """`import compiler` from the repository's root would make a second copy of a module."""
    found = [
        f"{path.relative_to(ROOT)}:{line}: {name}"
        for path in sources(*PACKAGES, "tests")
        for name, line in read(path).plain
        if name.split(".")[0] in PACKAGES
    ]
    assert not found, "\n".join(found)


def places() -> set[str]:
    """The folders of the compiler and the modules at its root."""
    root = ROOT / "compiler"
    return {p.parent.name for p in root.glob("*/__init__.py")} | {p.stem for p in root.glob("*.py")} - {"__init__"}


def test_the_table_of_imports_names_every_folder_and_module() -> None:
    assert set(MAY_IMPORT) == places()


@pytest.mark.parametrize("place", sorted(MAY_IMPORT))
def test_each_imports_what_the_table_allows(place: str) -> None:
    allowed = MAY_IMPORT[place] | {place} | (set() if place in EVERYWHERE else EVERYWHERE)
    path = ROOT / "compiler" / place
    found = [
        f"{path.relative_to(ROOT)}:{line}: {name}"
        for path in (sorted(path.rglob("*.py")) if path.is_dir() else [path.with_suffix(".py")])
        for name, line in read(path).imported
        if any(under(name, f"tcompile.compiler.{other}") for other in set(MAY_IMPORT) - allowed)
    ]
    assert not found, "\n".join(found)


def test_names_of_modules_are_said_once() -> None:
    """A name alone says which module is meant. The printers of kernels (cpp, triton, cuda) are alike by design."""
    seen: dict[str, list[str]] = {}
    for path in sources("compiler"):
        if path.stem != "__init__" and not {"cpp", "triton", "cuda"} & set(path.parts):
            seen.setdefault(path.stem, []).append(str(path.relative_to(ROOT)))
    assert not [paths for paths in seen.values() if len(paths) > 1]


def test_folders_are_small_enough_to_read() -> None:
    files = [p for p in sources("compiler") if p.stem != "__init__"]
    folders = {p.parent for p in files}
    crowded = {str(f.relative_to(ROOT)): n for f in folders if (n := sum(p.parent == f for p in files)) > 20}
    assert not crowded and sum(p.parent == ROOT / "compiler" for p in files) <= 8


def run(code: str, tmp_path: Path) -> str:
    env = {**os.environ, "TCOMPILE_CACHE_DIR": str(tmp_path / "cache")}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=300, env=env, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def test_import_is_light(tmp_path: Path) -> None:
    """`import tcompile` needs no Jupyter, and brings none along."""
    code = (
        "import sys, tcompile, tcompile.compiler\n"
        f"print([m for m in sys.modules if m.split('.')[0] in {NOTEBOOK!r} or m.startswith('torch._dynamo')])"
    )
    assert run(code, tmp_path).strip() == "[]"


def test_inference_leaves_stock_unimported(tmp_path: Path) -> None:
    """Compiling an MLP on the fast path pays for no import of torch's own compiler, nor of sympy."""
    code = """
import sys, torch, tcompile
model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10)).eval()
compiled = tcompile.compile(model)
x = torch.randn(8, 64)
with torch.no_grad():
    assert torch.allclose(compiled(x), model(x), atol=1e-5)      # assert_close would import sympy
print([m for m in ("torch._dynamo", "torch._inductor", "torch._functorch.aot_autograd", "sympy") if m in sys.modules])
"""
    assert run(code, tmp_path).strip() == "[]"


def test_torch_alone_is_enough(tmp_path: Path) -> None:
    """torch installs without numpy, and so does tcompile: interpolation too, whose positions are tables made at compile
    time; and nothing warns.
    """
    code = """
import sys, warnings
sys.modules["numpy"] = None                              # an import of it fails, as where it is not installed
with warnings.catch_warnings():
    warnings.simplefilter("ignore")                      # torch's own word on that
    import torch
warnings.simplefilter("error")
import tcompile
@tcompile.compile(fullgraph=True)
def f(x):
    return torch.nn.functional.interpolate(torch.sin(x) * 2, scale_factor=2.5)
x = torch.randn(2, 3, 8, 9)
with warnings.catch_warnings():
    warnings.filterwarnings("ignore", message="Failed to initialize NumPy")
    assert torch.allclose(f(x), torch.nn.functional.interpolate(torch.sin(x) * 2, scale_factor=2.5), atol=1e-5)
    print(len(tcompile.explain(f)(x).kernels))
"""
    assert run(code, tmp_path).strip() == "2"

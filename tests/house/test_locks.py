"""Locks, threads and pools are made in compiler/base/forks.py, which knows them when the process forks."""

from __future__ import annotations

import ast
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
MAKERS = {
    "Lock",
    "RLock",
    "Condition",
    "Semaphore",
    "BoundedSemaphore",
    "Event",
    "Barrier",
    "Thread",
    "Timer",
    "ThreadPoolExecutor",
    "ProcessPoolExecutor",
    "ThreadPool",
    "Pool",
    "allocate_lock",
    "start_new_thread",
    "Manager",
    "flock",
    "lockf",
}
MODULES = {
    "threading",
    "_thread",
    "multiprocessing",
    "concurrent.futures",
    "concurrent.futures.thread",
    "multiprocessing.pool",
    "multiprocessing.dummy",
    "fcntl",
}
# build.py is a script, which ends before anything else runs
ALONE = {"compiler/base/forks.py", "compiler/native/build.py"}


def makers(text: str) -> list[int]:
    """Lines that make something of the kind, or give the collector of cycles a rest, by whatever name it was
    imported.
    """
    found, modules, names = [], set(MODULES), {}
    tree = ast.parse(text)
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for a in node.names:
                if a.name in MODULES and a.asname:
                    modules.add(a.asname)
        elif isinstance(node, ast.ImportFrom) and node.module in MODULES:
            names.update({a.asname or a.name: a.name for a in node.names})
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and (
            node.attr in MAKERS and ast.unparse(node.value) in modules or ast.unparse(node) == "gc.disable"
        ):
            found.append(node.lineno)
        elif isinstance(node, ast.Name) and names.get(node.id) in MAKERS and isinstance(node.ctx, ast.Load):
            found.append(node.lineno)
    return found


def test_they_are_made_in_one_place() -> None:
    elsewhere = []
    for folder in ("compiler", "extension", "kernel_magics"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            name = path.relative_to(ROOT).as_posix()
            if name not in ALONE:
                elsewhere += [f"{name}:{line}" for line in makers(path.read_text(encoding="utf-8"))]
    assert not elsewhere, "make these by compiler/base/forks.py, which frees them in the child of a fork"


def test_the_search_finds_them() -> None:
    for text in (
        "import threading\nx = threading.Lock()",
        "import threading as t\nx = t.RLock()",
        "from threading import Condition as C\nx = C()",
        "import concurrent.futures\nwith concurrent.futures.ThreadPoolExecutor(2) as p: pass",
        "class A:\n    import _thread\n    l = _thread.allocate_lock()",
        "from concurrent.futures import ThreadPoolExecutor\nx = lambda: ThreadPoolExecutor()",
        "import gc\ngc.disable()",
    ):
        assert makers(text), text
    assert not makers("import threading\nclass A(threading.local): pass\nthreading.get_ident()")

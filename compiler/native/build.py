"""Build the C extension in place: `python compiler/native/build.py [--force] [--sanitize]`.

Used by developers, by `make` and by the wheel's build hook, so it imports nothing of tcompile and needs neither torch
nor its headers: only a C compiler and the headers of the running interpreter. Every *.c file of this folder is one
part of the one extension module `_native`.

Where torch is installed and a C++ compiler is there, node.cpp becomes a module of its own, for that version of torch
alone, because it includes torch's headers (15 s). Without it calls with gradients take a microsecond more.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Sequence

__all__ = ["build_inplace", "build_node", "target", "node_target", "is_fresh"]

HERE = Path(__file__).resolve().parent
FLAGS = [
    "-O2",
    "-g0",
    "-fPIC",
    "-fwrapv",
    "-fno-strict-aliasing",
    "-fvisibility=hidden",
    "-pthread",
    "-Wall",
    "-DNDEBUG",
]
# --sanitize: what a use of freed memory, or undefined behaviour, ends (tools/sanitize.py). Functions are called through
# pointers of other types on purpose (torch's C functions), and c10's words are read as they lie.
SANITIZE = [
    "-O1",
    "-g",
    "-fno-omit-frame-pointer",
    "-fsanitize=address,undefined",
    "-fno-sanitize=alignment,vptr",
    "-fno-sanitize-recover=undefined",
    "-UNDEBUG",
]
LINK = ["-bundle", "-undefined", "dynamic_lookup"] if sys.platform == "darwin" else ["-shared", "-ldl"]


def target(folder: Path = HERE) -> Path:
    """Where the extension of the running interpreter lies: `_native.<abi>.so`."""
    return folder / f"_native{sysconfig.get_config_var('EXT_SUFFIX')}"


def node_target(torch_version: str, folder: Path = HERE) -> Path:
    """Where node.cpp's module for this Python and this torch lies: `_node.torch-<version>.<abi>.so`."""
    return folder / f"_node.torch-{torch_version}{sysconfig.get_config_var('EXT_SUFFIX')}"


def _sources() -> list[Path]:
    return sorted(HERE.glob("*.c"))


def is_fresh(path: Path | None = None) -> bool:
    """Whether the built extension is newer than every C source and header."""
    path = path or target()
    if not path.exists():
        return False
    built = path.stat().st_mtime
    return all(f.stat().st_mtime <= built for f in (*HERE.glob("*.c"), *HERE.glob("*.h"), Path(__file__)))


def _compiler(variable: str = "CC", others: tuple[str, ...] = ("gcc", "cc", "clang")) -> list[str]:
    command = os.environ.get(variable) or sysconfig.get_config_var(variable) or others[0]
    words = shlex.split(command)
    if shutil.which(words[0]) is None:
        for other in others:
            if shutil.which(other):
                return [other]
        raise RuntimeError(
            f"no compiler: {words[0]!r} is not on PATH, nor {', '.join(others)}; install one or set {variable}"
        )
    return words


def build_inplace(force: bool = False, more: Sequence[str] = ()) -> Path:
    """Compile the extension for the running interpreter and put it beside its sources.

    Returns the path of the shared library. Raises RuntimeError with the compiler's output where it fails: callers who
    can live without the extension (all of tcompile can) catch that and say so.
    """
    out = target()
    if not force and is_fresh(out):
        return out
    include = sysconfig.get_paths()["include"]
    flags = [*FLAGS, *more, "-std=gnu11", "-Wno-unused-function", f"-I{include}", f"-I{include}/internal", f"-I{HERE}"]
    cc = _compiler()
    with tempfile.TemporaryDirectory(prefix="tcompile-native-") as tmp:

        def compile_one(source: Path) -> Path:
            obj = Path(tmp) / (source.stem + ".o")
            _run([*cc, *flags, "-c", str(source), "-o", str(obj)])
            return obj

        with ThreadPoolExecutor(max_workers=os.cpu_count() or 1) as pool:
            objects = list(pool.map(compile_one, _sources()))
        library = Path(tmp) / out.name
        _run([*cc, *more, *map(str, objects), "-pthread", *LINK, "-o", str(library)])
        _move_into_place(library, out)
    return out


def build_node(force: bool = False, more: Sequence[str] = ()) -> Path | None:
    """Compile node.cpp for the running interpreter and the torch installed for it, and put it beside its source.

    Returns the path of the shared library, None where there is no torch. Raises RuntimeError with the compiler's output
    where it fails; all of tcompile works without it.
    """
    spec = importlib.util.find_spec("torch")
    if spec is None or not spec.submodule_search_locations:
        return None
    torch = Path(spec.submodule_search_locations[0])
    version = re.search(r"__version__ = ['\"](.+?)['\"]", (torch / "version.py").read_text())
    if version is None:
        raise RuntimeError(f"{torch / 'version.py'} names no version")
    out, source = node_target(version[1]), HERE / "node.cpp"
    if not force and out.exists() and out.stat().st_mtime >= source.stat().st_mtime:
        return out
    headers = [torch / "include", torch / "include" / "torch" / "csrc" / "api" / "include"]
    libraries = [f"-l{name}" for name in ("torch_python", "torch_cpu", "torch", "c10")]
    with tempfile.TemporaryDirectory(prefix="tcompile-native-") as tmp:
        library = Path(tmp) / out.name
        _run(
            [
                *_compiler("CXX", ("g++", "c++", "clang++")),
                *FLAGS,
                *more,
                "-std=c++20",
                f"-I{sysconfig.get_paths()['include']}",
                *[word for folder in headers for word in ("-isystem", str(folder))],
                str(source),
                f"-L{torch / 'lib'}",
                *libraries,
                *LINK,
                "-o",
                str(library),
            ]
        )
        _move_into_place(library, out)
    return out


def _move_into_place(library: Path, out: Path) -> None:
    """Whole, so that a process which has the old one loaded keeps it."""
    partial = out.with_name(f"{out.name}.{os.getpid()}.tmp")
    shutil.copy2(library, partial)
    os.replace(partial, out)


def _run(command: list[str]) -> None:
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}\n{done.stdout}")
    if done.stdout.strip():
        print(done.stdout.strip(), file=sys.stderr)


if __name__ == "__main__":
    sanitize = SANITIZE if "--sanitize" in sys.argv[1:] else []
    force = bool(sanitize) or "--force" in sys.argv[1:]
    print(build_inplace(force, sanitize))
    print(build_node(force, sanitize) or "no torch is installed: node.cpp was not built")

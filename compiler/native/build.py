"""Build the C extension in place: `python compiler/native/build.py [--force]`.

Used by developers, by `make` and by the wheel's build hook, so it imports nothing of tcompile and needs neither torch
nor its headers: only a C compiler and the headers of the running interpreter. Every *.c file of this folder is one
part of the one extension module `_native`.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

__all__ = ["build_inplace", "target", "is_fresh"]

HERE = Path(__file__).resolve().parent


def target(folder: Path = HERE) -> Path:
    """Where the extension of the running interpreter lies: `_native.<abi>.so`."""
    return folder / f"_native{sysconfig.get_config_var('EXT_SUFFIX')}"


def _sources() -> list[Path]:
    return sorted(HERE.glob("*.c"))


def is_fresh(path: Path | None = None) -> bool:
    """Whether the built extension is newer than every C source and header."""
    path = path or target()
    if not path.exists():
        return False
    built = path.stat().st_mtime
    return all(f.stat().st_mtime <= built for f in (*HERE.glob("*.c"), *HERE.glob("*.h"), Path(__file__)))


def _compiler() -> list[str]:
    command = os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc"
    words = shlex.split(command)
    if shutil.which(words[0]) is None:
        for other in ("gcc", "cc", "clang"):
            if shutil.which(other):
                return [other]
        raise RuntimeError(f"no C compiler: {words[0]!r} is not on PATH, nor gcc, cc, clang; install one or set CC")
    return words


def build_inplace(force: bool = False) -> Path:
    """Compile the extension for the running interpreter and put it beside its sources.

    Returns the path of the shared library. Raises RuntimeError with the compiler's output where it fails: callers who
    can live without the extension (all of tcompile can) catch that and say so. The library is moved into place whole,
    so a process that has the old one loaded keeps it.
    """
    out = target()
    if not force and is_fresh(out):
        return out
    include = sysconfig.get_paths()["include"]
    flags = [
        "-O2",
        "-g0",
        "-fPIC",
        "-std=gnu11",
        "-fwrapv",
        "-fno-strict-aliasing",
        "-fvisibility=hidden",
        "-pthread",
        "-Wall",
        "-Wno-unused-function",
        "-DNDEBUG",
        f"-I{include}",
        f"-I{include}/internal",
        f"-I{HERE}",
    ]
    link = ["-bundle", "-undefined", "dynamic_lookup"] if sys.platform == "darwin" else ["-shared", "-ldl"]
    cc = _compiler()
    with tempfile.TemporaryDirectory(prefix="tcompile-native-") as tmp:

        def compile_one(source: Path) -> Path:
            obj = Path(tmp) / (source.stem + ".o")
            _run([*cc, *flags, "-c", str(source), "-o", str(obj)])
            return obj

        with ThreadPoolExecutor(max_workers=os.cpu_count() or 1) as pool:
            objects = list(pool.map(compile_one, _sources()))
        library = Path(tmp) / out.name
        _run([*cc, *map(str, objects), "-pthread", *link, "-o", str(library)])
        partial = out.with_name(out.name + f".{os.getpid()}.tmp")
        shutil.copy2(library, partial)
        os.replace(partial, out)
    return out


def _run(command: list[str]) -> None:
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}\n{done.stdout}")
    if done.stdout.strip():
        print(done.stdout.strip(), file=sys.stderr)


if __name__ == "__main__":
    print(build_inplace(force="--force" in sys.argv[1:]))

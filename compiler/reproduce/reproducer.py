"""A reproducer: the text of one file, that saves and runs."""

from __future__ import annotations

import inspect
import os
import platform
import re
import subprocess
import sys
import tempfile
import textwrap
from dataclasses import dataclass
from typing import Any, Sequence

import torch

from ..base.quoting import well_formed
from ..errors import ReproduceError
from . import in_file
from .literals import literal
from .specs import InputSpec

__all__ = ["Reproducer", "Run", "file_text"]

_FIRST = ("tensor", "rebuilt")  # definitions of the program may call these
_BARE_IMPORTS = ("base64", "math", "sys", "zlib")


@dataclass(frozen=True)
class Run:
    """What running a reproducer's file in a new process gave. `failed`: the failure showed, or the file broke."""

    status: int  # 0: no failure, 1: it showed, negative: the signal that ended the process
    output: str

    @property
    def failed(self) -> bool:
        return self.status != 0


@dataclass(frozen=True)
class Reproducer:
    """One Python file that shows a failure by itself. `print(r)`, `r.save("bug.py")`, `r.run()`."""

    text: str
    kind: str = "graph"  # "graph" | "kernel" | "break" | "number" | "program"
    title: str = ""
    nodes: int = 0  # operations of its program; 0 where the program is the user's own source
    verdict: str = ""  # what minify saw last: "differs: ...", "raises: ..."
    tests: int = 0  # programs that minify tried

    def save(self, path: str | os.PathLike) -> str:
        """Write the file. Returns its path."""
        path = os.fspath(path)
        with open(path, "w", encoding="utf-8") as f:
            f.write(well_formed(self.text))
        return path

    def run(self, timeout: float = 300.0) -> Run:
        """Run the file in a new process, for `timeout` seconds at most (subprocess.TimeoutExpired)."""
        with tempfile.TemporaryDirectory() as folder:
            done = subprocess.run(
                [sys.executable, self.save(os.path.join(folder, "reproducer.py"))],
                capture_output=True,
                text=True,
                timeout=timeout,
            )
        return Run(done.returncode, done.stdout + done.stderr)

    def __str__(self) -> str:
        return self.text


def file_text(
    program: str,
    inputs: Sequence[InputSpec] | str,
    *,
    title: str,
    how: dict[str, Any],
    check: str = "compare_with_eager",
    modules: Sequence[str] = (),
    setup: str = "",
    seed: int = 0,
    version: str = "",
) -> str:
    """The whole file. `inputs`: specs, or the body of a function that returns the arguments. `check` is a function of
    `in_file`."""
    if isinstance(inputs, str):
        body = inputs
    else:
        made = "".join(f"        {spec.text()},  # {spec.name}\n" for spec in inputs)
        body = f"    return [\n{made}    ]" if made else "    return []"
    lines = [
        f'"""{_plain(title)}',
        "",
        f"Made by tcompile {version or 'source tree'} with torch {torch.__version__} on Python"
        f" {platform.python_version()}, {platform.system()} {platform.machine()}.",
        "Run it: 1 is the exit status where the failure shows, 0 where it does not. --kernels shows the code.",
        '"""',
        "",
        "from __future__ import annotations",
        "",
        *(f"import {m}" for m in sorted({*_BARE_IMPORTS, *modules} - {"torch", "tcompile"})),
        "from typing import Any",
        "",
        "import torch",
        "",
        "",
        *(_source_of(name) for name in _FIRST),
        "",
        *([setup.rstrip(), ""] if setup else []),
        "",
        f"SEED = {seed}",
        f"HOW = {literal(how)}  # the arguments of tcompile.compile",
        "",
        "",
        program,
        "",
        "",
        "def inputs():",
        "    torch.manual_seed(SEED)",
        body,
        "",
        "",
        "# ---- the same in every reproducer",
        *(_source_of(name) for name in in_file.__all__ if name not in _FIRST),
        "",
        'if __name__ == "__main__":',
        "    import tcompile",
        "",
        f"    sys.exit(check_and_say({check}, tcompile, program, inputs, HOW, SEED))",
        "",
    ]
    text = "\n".join(lines)
    try:
        compile(text, "reproducer.py", "exec")
    except SyntaxError as e:
        raise ReproduceError(f"the file would not be Python: {e}") from e
    return text


def _plain(title: str) -> str:
    """In a docstring."""
    text = "".join(c if c.isprintable() or c == "\n" else " " for c in title)
    return re.sub(r'["\\]', "'", "\n".join(textwrap.fill(line, 116) for line in text.splitlines()))


def _source_of(name: str) -> str:
    return inspect.getsource(getattr(in_file, name)) + "\n"

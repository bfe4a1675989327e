"""What compilers make of the texts that tests give them, kept by content beside the tests' kernels: a text that an
earlier run compiled, or the other process of this one, is not compiled again.
"""

from __future__ import annotations

import functools
import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

FOLDER = Path(os.environ["TCOMPILE_CACHE_DIR"]) / "of-tests"  # (set by conftest.py)


@functools.cache
def _version(program: str) -> str:
    return subprocess.run([program, "--version"], capture_output=True, text=True, check=True).stdout


def compile_once(command: Sequence[str], text: str, source: str, result: str) -> tuple[Path, str]:
    """Run `command SOURCE -o RESULT` on a text: the result's path, and what the compiler said. A failure is not kept.
    `source` and `result` are the endings of the two files."""
    key = hashlib.sha256("\0".join((_version(command[0]), *command, source, result, text)).encode()).hexdigest()[:40]
    folder = FOLDER / key
    if not folder.exists():
        FOLDER.mkdir(parents=True, exist_ok=True)
        making = Path(tempfile.mkdtemp(dir=FOLDER))
        (making / ("it" + source)).write_text(text)
        done = subprocess.run(
            [*command, "it" + source, "-o", "it" + result], capture_output=True, text=True, cwd=making
        )
        assert not done.returncode, done.stderr[:4000]
        (making / "said").write_text(done.stdout + done.stderr)
        try:
            making.rename(folder)
        except OSError:  # another process was faster
            shutil.rmtree(making)
    return folder / ("it" + result), (folder / "said").read_text()

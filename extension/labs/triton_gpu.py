"""A lab's Triton kernels on a GPU, in a process of its own: the notebook's process has Triton's interpreter."""

from __future__ import annotations

import inspect
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, Callable

import torch

from .words import say

__all__ = ["OnGpu", "on_gpu", "script_of"]

SECONDS = 180  # Triton compiles each kernel
_HEAD = "import torch\nimport triton\nimport triton.language as tl\n"
_TAIL = """
for name, difference in {program}("cuda").items():
    print(f"{{name}}: {{difference:.3g}}")
"""


class OnGpu:
    """What a run on the GPU said, as text."""

    def __init__(self, text: str):
        self.text = text

    def __repr__(self) -> str:
        return self.text


def on_gpu(program: Callable[[str], dict[str, float]], *kernels: Any) -> OnGpu:
    """Run `program("cuda")` with these kernels, compiled by Triton. It gives the largest difference by name."""
    if not torch.cuda.is_available():
        return OnGpu(say("no_gpu"))
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "kernels.py"  # Triton reads a kernel's source from its file
        file.write_text(script_of(program, *kernels), encoding="utf-8")
        env = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
        try:
            done = subprocess.run([sys.executable, str(file)], env=env, capture_output=True, text=True, timeout=SECONDS)
        except subprocess.TimeoutExpired:
            return OnGpu(say("waited", seconds=SECONDS))
    if done.returncode:
        return OnGpu(say("raised", error="\n".join(done.stderr.strip().splitlines()[-8:])))
    return OnGpu(say("on_gpu", device=torch.cuda.get_device_name()) + "\n" + done.stdout.rstrip())


def script_of(program: Callable[..., Any], *kernels: Any) -> str:
    """The kernels and the program as a file that runs by itself."""
    sources = [inspect.getsource(getattr(kernel, "fn", kernel)) for kernel in kernels]
    tail = _TAIL.format(program=program.__name__)
    return "\n\n".join([_HEAD, *sources, inspect.getsource(program), tail])

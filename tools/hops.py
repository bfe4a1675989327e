"""How a tensor gets from a cell to its kernel: the calls between modules on that way, counted while it is compiled.

    python tools/hops.py        # prints the hops and the two counts

A cell with `y = torch.relu(x @ w + b)` runs under `%%tcompile`, with an empty disk cache. A *hop* is a call from a
module of this repository into another one. At each point below the stack is read, and a hop counts once however often
it is taken. Two sets of points are counted, one within the other.

- The *spine*: the function that begins each stage (`STAGES` in `compiler/stages.py`), and the one that makes the
  program which `native/plan.c` runs. This is what a reader follows to find a stage.
- The *whole way*: the spine, and in each stage the functions that handle the tensor: where its node is recorded, where
  it is made functional and decomposed, the rules that lower it, and so on (`WORK`).

Helpers that only answer a question (a dtype, a cost, a guard) return before the tensor moves on. They stand on no stack
that is read here, and are no hops.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
CELL = "%%tcompile --quiet\ny = torch.relu(x @ w + b)"
SETUP = "import torch\nx, w, b = torch.randn(64, 64), torch.randn(64, 64), torch.randn(64)"
PLAN = ("runtime.native_program", "make_program")
WORK: tuple[tuple[str, str, str], ...] = (
    ("captured", "capture.entry.graph_builder", "GraphBuilder.record"),
    ("made functional", "graph.functionalize", "Functionalizer.record"),
    ("decomposed", "graph.decompose.promotion_casts", "add"),
    ("lowered, the sum", "lowering.rules.pointwise", "add"),
    ("lowered, the product", "lowering.rules.products.products", "mm"),
    ("grouped", "fusion.groups", "group_steps"),
    ("built", "fusion.build_kernel", "build_kernel"),
    ("given memory", "fusion.memory.memory_plan", "plan_memory"),
    ("printed", "codegen.cpp.printer", "print_kernel"),
    ("planned", "codegen.host", "host_plan"),
    ("compiled", "runtime.toolchain", "compile_units"),
)
Hop = tuple[str, str]


class Stacks:
    """A profile function of Python's: it keeps our modules on the stack at each call of a function looked for."""

    def __init__(self, points: set[tuple[str, str]]):
        self.points = points
        self.of: dict[tuple[str, str], list[list[str]]] = {}
        self._modules: dict[CodeType, str | None] = {}

    def __call__(self, frame: FrameType, event: str, _: Any) -> None:
        if event != "call" or (module := self._module(frame.f_code)) is None:
            return
        point = (module, frame.f_code.co_qualname)
        if point not in self.points:
            return
        stack: list[str] = []
        at: FrameType | None = frame
        while at is not None:
            name = self._module(at.f_code)
            if name is not None and (not stack or stack[-1] != name):
                stack.append(name)
            at = at.f_back
        self.of.setdefault(point, []).append(stack[::-1])

    def _module(self, code: CodeType) -> str | None:
        """Where a function stands: "kernel_magics.cell", and modules of the compiler without its name."""
        if code not in self._modules:
            path = Path(os.path.realpath(code.co_filename))
            ours = any(path.is_relative_to(ROOT / folder) for folder in ("compiler", "kernel_magics", "extension"))
            name = ".".join(path.relative_to(ROOT).with_suffix("").parts) if ours else None
            self._modules[code] = name.removeprefix("compiler.") if name is not None else None
        return self._modules[code]


def hops(stacks: list[list[str]]) -> list[Hop]:
    """The distinct calls between modules of some stacks, in the order in which they come."""
    return list(dict.fromkeys(hop for stack in stacks for hop in zip(stack, stack[1:])))


def measure() -> tuple[list[Hop], list[Hop]]:
    """(hops of the spine, hops of the whole way) of a cell that is compiled in this process."""
    from IPython.core.interactiveshell import InteractiveShell

    import tcompile
    from tcompile.compiler import stages

    functions = [tuple(s.function.split(":")) for s in stages.STAGES if s.name != "autograd"]  # (nothing asks for it)
    spine = [*((module, name) for module, name in functions), PLAN]
    work = [(module, name) for _, module, name in WORK]
    shell = InteractiveShell.instance(colors="nocolor")
    tcompile.load_ipython_extension(shell)
    shell.run_cell(SETUP)
    stages.load()
    found = Stacks({*spine, *work})
    sys.setprofile(found)
    try:
        shell.run_cell(CELL).raise_error()
    finally:
        sys.setprofile(None)
    missing = [f"{module}:{name}" for module, name in found.points if (module, name) not in found.of]
    if missing:
        raise SystemExit(f"the cell did not come by {', '.join(sorted(missing))}: name what stands there now")
    return tuple(hops([s for p in points for s in found.of[p]]) for points in (spine, [*spine, *work]))  # type: ignore


def main() -> None:
    if "TCOMPILE_CACHE_DIR" not in os.environ or "--here" not in sys.argv:
        with tempfile.TemporaryDirectory() as folder:  # kernels that are on disk are not compiled
            environment = {**os.environ, "TCOMPILE_CACHE_DIR": folder, "IPYTHONDIR": folder}
            sys.exit(subprocess.run([sys.executable, __file__, "--here"], env=environment).returncode)
    spine, whole = measure()
    for hop in whole:
        print("spine " if hop in spine else "      ", " -> ".join(hop))
    for name, found in (("spine", spine), ("whole way", whole)):
        print(f"{name}: {len(found)} hops in {len({m for hop in found for m in hop})} files")


if __name__ == "__main__":
    main()

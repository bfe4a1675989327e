"""Whether an installed tcompile works: a function, and a cell that begins with %%tcompile. Exit status 1 where not.

python tools/try_wheel.py          with the Python of the environment that it was installed into
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import torch

CELL = "y = torch.relu((a + b) * c - d) * 2 + 1"


def main() -> int:
    sys.path[:] = [p for p in sys.path if Path(p or ".").resolve() != Path(__file__).resolve().parent]
    import tcompile
    from tcompile.compiler.native import native, why_missing

    print(f"tcompile {tcompile.__version__} of {Path(tcompile.__file__).parent}, torch {torch.__version__}")
    print("C extension:", "there" if native is not None else f"missing: {why_missing}")
    report = tcompile.explain(lambda x: torch.sin(x) * 2 + 1)(torch.randn(100))
    print(report.summary.line)
    good = native is not None and report.summary.kernels == 1
    if importlib.util.find_spec("IPython") is None:
        print("IPython is not installed: no cell was tried")
        return 0 if good else 1
    from IPython.core.interactiveshell import InteractiveShell

    shell = InteractiveShell.instance()
    shell.run_cell("import torch\na, b, c, d = (torch.randn(64, 64) for _ in range(4))\n%load_ext tcompile")
    done = shell.run_cell(f"%%tcompile time=off -o r\n{CELL}")
    made = shell.user_ns.get("r")
    good = good and done.success and made is not None and made.summary.kernels == 1
    expected = eval(CELL.partition("= ")[2], {"torch": torch}, shell.user_ns)
    torch.testing.assert_close(shell.user_ns["y"], expected)
    print("the cell:", made.summary.line if made is not None else "no report")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())

"""Run a notebook as a person would with Run All, and print what each cell showed.

    run_notebook.py notebooks/00_quickstart.ipynb --out build/demo [--timeout 600]

Writes the executed notebook and an HTML page of it to --out. Exit status 1 where a cell raised, naming the cell.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
import time
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError
from nbconvert import HTMLExporter

WIDTH = 118


def text_of(output: nbformat.NotebookNode) -> str:
    """What a terminal can show of an output: streams, the text/plain of the rest, the traceback of an error."""
    if output.output_type == "stream":
        return output.text
    if output.output_type == "error":
        text = "\n".join(output.traceback)
        return text if sys.stdout.isatty() else re.sub(r"\x1b\[[0-9;]*m", "", text)
    return output.get("data", {}).get("text/plain", "")


def show(index: int, cell: nbformat.NotebookNode) -> None:
    if cell.cell_type == "markdown":
        print(f"\n{cell.source.strip()}")
    elif cell.cell_type == "code":
        print(f"\n[{index}] " + cell.source.strip().replace("\n", "\n    "))
        shown = "".join(text_of(o).rstrip("\n") + "\n" for o in cell.outputs if text_of(o).strip())
        if shown:
            print("  | " + shown.rstrip("\n").replace("\n", "\n  | "))


def run(path: Path, out: Path, timeout: int) -> int:
    notebook = nbformat.read(path, as_version=4)
    client = NotebookClient(
        notebook,
        timeout=timeout,
        kernel_name="python3",
        store_widget_state=False,
        extra_arguments=["--log-level=ERROR"],  # its warnings about loopback are noise here
        resources={"metadata": {"path": str(path.parent)}},
    )
    started, failed = time.perf_counter(), None
    print("=" * WIDTH + f"\n{path}\n" + "=" * WIDTH, flush=True)
    with client.setup_kernel():
        for index, cell in enumerate(notebook.cells):
            try:
                client.execute_cell(cell, index)
            except CellExecutionError as error:
                failed = (index, error)
            show(index, cell)
            sys.stdout.flush()
            if failed:
                break
    out.mkdir(parents=True, exist_ok=True)
    nbformat.write(notebook, out / path.name)
    html, _ = HTMLExporter().from_notebook_node(notebook)
    (out / path.with_suffix(".html").name).write_text(html)
    print("=" * WIDTH)
    if failed:
        print(f"cell {failed[0]} raised; the cells after it did not run: {failed[1].ename}: {failed[1].evalue}")
        return 1
    cells = sum(c.cell_type == "code" for c in notebook.cells)
    print(f"{cells} cells in {time.perf_counter() - started:.1f} s, none failed")
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("notebook", type=Path)
    parser.add_argument("--out", type=Path, default=Path("build/demo"))
    parser.add_argument("--timeout", type=int, default=600, help="seconds a cell may take")
    options = parser.parse_args()
    os.environ.setdefault("PYDEVD_DISABLE_FILE_VALIDATION", "1")  # else the kernel prints a debugger's warning
    return run(options.notebook, options.out, options.timeout)


if __name__ == "__main__":
    sys.exit(main())

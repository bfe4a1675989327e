"""The control under More that writes a file of a graph or a kernel: downloaded from a living kernel, it runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import tcompile
from tcompile.compiler.reproduce import in_file

from . import notebooks
from .conftest import Lab, Server

SETUP = "import torch\n%load_ext tcompile\nx = torch.randn(64, 64)"
CELL = "%%tcompile time=off\ny = torch.tanh(x * 2).sum(0)"


def test_a_kernel_is_downloaded_as_a_file_that_runs(browser: Any, server: Server, tmp_path: Path) -> None:
    cells = [notebooks.code_cell(text, 0) for text in (SETUP, CELL)]
    for i, cell in enumerate(cells):
        cell.update(execution_count=None, id=f"cell{i}")
    lab = Lab(browser, server, width=1400, height=1300)
    try:
        lab.open(server.add("reproduce.ipynb", notebooks.notebook(*cells)), kernel=True)
        lab.command("notebook:run-all-cells")
        cell = lab.page.locator(".jp-Notebook .jp-Cell").nth(1)
        cell.locator(".tc-head").wait_for(timeout=90_000)
        report = cell.locator(".tc-report")
        if "tc-open" not in (report.get_attribute("class") or ""):
            cell.locator(".tc-head").click()
        report.locator(".tc-tab:has-text('more')").click()
        chooser = report.locator("select[aria-label='A file of']")
        chooser.wait_for(timeout=20_000)
        chooser.select_option("kernels/0")
        with lab.page.expect_download() as got:
            report.locator("button:has-text('download as Python')").click()
        lab.shot("reproduce", report)
        path = tmp_path / got.value.suggested_filename
        got.value.save_as(path)
        assert path.name == "kernels_0.py"
        space: dict[str, Any] = {"__name__": "reproducer"}
        exec(compile(path.read_text(), str(path), "exec"), space)
        assert "torch.ops.aten.tanh" in path.read_text()
        kind, words = in_file.compare_with_eager(
            tcompile, space["program"], space["inputs"], space["HOW"], space["SEED"]
        )
        assert (kind, words) == ("same", "")
        lab.check()
    finally:
        lab.context.close()

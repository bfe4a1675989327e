"""JupyterLab without our extension, as VS Code, Colab and other people's servers are: the static report, and widgets by
their own protocol.
"""

from __future__ import annotations

from typing import Any

import pytest

from . import notebooks
from .conftest import Lab, Server

CELLS = [
    "%load_ext tcompile\nimport torch\nx = torch.randn(64, 64)",
    "%%tcompile -o r time=100ms\ndef f(x):\n    if x.sum() > 1e9:\n        return x\n    return torch.relu(x * 2).sum(-1)\ny = f(x)",
    "r.graph_widget()",
    "r.speedup_widget()",
]


def test_static_report_and_live_widgets(chromium: str, browser: Any, tmp_path_factory: pytest.TempPathFactory) -> None:
    server = Server(tmp_path_factory.mktemp("plain"), ours=False)
    try:
        cells = [{**notebooks.code_cell(text, i), "execution_count": None} for i, text in enumerate(CELLS)]
        lab = Lab(browser, server, width=1200, height=2000)
        lab.open(server.add("plain.ipynb", notebooks.notebook(*cells)), kernel=True)
        assert not lab.page.evaluate("() => window.jupyterapp.commands.hasCommand('tcompile:show-panel')")
        lab.command("notebook:run-all-cells")
        page = lab.page
        static = page.locator(".tcr > details")
        static.wait_for(timeout=120_000)
        static.locator("summary").first.click()
        assert (
            "The branch depends on the value of a tensor" in static.inner_text()
            and "torch.where" in static.inner_text()
        )
        page.wait_for_function("document.querySelectorAll('.tc-panel-root').length === 2", timeout=60_000)
        assert page.locator(".tc-graph-canvas").is_visible()
        again = page.locator("button", has_text="time again")
        again.wait_for(timeout=60_000)
        before = page.evaluate("() => document.querySelector('.tc-figures').outerHTML")
        again.click()
        page.wait_for_function(
            "before => document.querySelector('.tc-figures')?.outerHTML !== before", arg=before, timeout=60_000
        )
        lab.check()
        lab.context.close()
    finally:
        server.stop()

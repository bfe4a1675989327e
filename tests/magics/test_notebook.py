"""Notebooks run by nbclient in a real kernel, saved, and exported by nbconvert."""

import os

import pytest

from tcompile.compiler.report import MIME, CompileReport
from tcompile.kernel_magics.render.html import render_html
from tests.kernels import notebook_client

pytestmark = pytest.mark.slow

HERE = os.path.dirname(os.path.abspath(__file__))
SETUP = f"""import sys; sys.path.insert(0, {HERE!r})
import standin
from tcompile.kernel_magics import magics
magics.load(get_ipython(), standin.StandIn()); None"""
CELL = """%%tcompile -o r time=20ms
import torch
BREAK = True
text = "<script>alert(1)</script> & <b>bold</b>"
def f(x):
    return torch.sin(x) * x + 2
x = torch.ones(8)
compile_now = (f, x)
f(x).shape"""


@pytest.fixture(scope="module", autouse=True)
def libraries():
    """Imported by the tests: nbformat's grammar of addresses takes seconds, of which collecting needs none."""
    global nbformat, nbclient
    nbformat, nbclient = pytest.importorskip("nbformat"), pytest.importorskip("nbclient")


def notebook_of(*cells):
    nb = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(c) for c in cells])
    nb.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3", "language": "python"}
    return nb


def client_of(nb):
    return notebook_client(nb, timeout=60, store_widget_state=False)


def execute(*cells):
    nb = notebook_of(SETUP, *cells)
    client_of(nb).execute()
    return nb


def outputs(cell, kind):
    return [o for o in cell.outputs if o.output_type == kind]


@pytest.fixture(scope="module")
def notebook():
    return execute(
        CELL,
        "%tcompile on time=off",
        "1 + 1",
        "import asyncio\nawait asyncio.sleep(0)\ncompile_now = (f, x)\n7",
        "%tcompile last",
        "r.widget()",
    )


def test_report_under_the_cell(notebook):
    cell = notebook.cells[1]
    shown = outputs(cell, "display_data")
    assert len(shown) == 1 and set(shown[0].data) == {"text/plain", "text/html", MIME}
    data = shown[0].data[MIME]
    r = CompileReport.from_json(data)
    assert r.summary.status == "partly" and r.speedups.status == "measured" and r.source.cell == 2
    assert r.graph_breaks[0].file == "In[2]" and r.graph_breaks[0].line == 6
    assert [m.line for m in r.marks] == [6] and r.marks[0].kind == "break" and r.marks[0].cell == 2
    assert outputs(cell, "execute_result")[0].data["text/plain"] == "torch.Size([8])"
    assert len(nbformat.writes(notebook)) < 200_000


def test_all_user_text_is_escaped(notebook):
    """In the summary that is saved, and in the whole report, which shows the names that kernels were made from, too."""
    data = outputs(notebook.cells[1], "display_data")[0].data
    whole = render_html(CompileReport.from_json(data[MIME]))
    assert "&lt;b&gt;&amp;" in whole
    for html in (data["text/html"], whole):
        assert "&lt;script&gt;alert(1)" in html and "&lt;b&gt;bold" in html
        assert not [raw for raw in ("<script", "<b>&", "<b>bold", "http://", "https://") if raw in html]


def test_on_shows_reports_only_where_something_was_compiled(notebook):
    assert not outputs(notebook.cells[3], "display_data")
    assert (
        outputs(notebook.cells[4], "display_data")
        and outputs(notebook.cells[4], "execute_result")[0].data["text/plain"] == "7"
    )
    assert MIME in outputs(notebook.cells[5], "execute_result")[0].data


def test_widget_has_a_fallback(notebook):
    o = [o for o in notebook.cells[6].outputs if "data" in o]
    assert o and "application/vnd.jupyter.widget-view+json" in o[0].data


def test_exported_page_reads_without_network_or_scripts_of_ours(notebook):
    nbconvert = pytest.importorskip("nbconvert")
    exporter = nbconvert.HTMLExporter(embed_images=True)
    body, _ = exporter.from_notebook_node(notebook)
    assert "1 break (line 6" in body and "use torch.where" in body and "data:image/svg+xml;base64" in body


def test_errors_stop_run_all():
    bad = (
        "%%tcompile\n1 / 0",
        "%%tcompile\nfor in x:\n    pass",
        "%%tcompile mod=1\n1",
        "%%tcompile\nawait __import__('asyncio').sleep(0)\nboom",
    )
    with pytest.raises(nbclient.exceptions.CellExecutionError):
        execute(bad[0], "after = 1")
    nb = notebook_of(SETUP, *(text for b in bad for text in (b, "1 + 1")))
    client = client_of(nb)
    with client.setup_kernel():  # one for all: most of a short notebook is the start of its kernel
        for k, cell in enumerate(nb.cells):
            if cell.source in bad:
                with pytest.raises(nbclient.exceptions.CellExecutionError):
                    client.execute_cell(cell, k)
                assert outputs(cell, "error") or "UsageError" in str(cell.outputs)
            else:
                client.execute_cell(cell, k)
                if k:
                    assert outputs(cell, "execute_result")[0].data["text/plain"] == "2"

"""The notebooks as they are stored: outputs of their own text, static pictures, nothing of the machine that ran them."""

from __future__ import annotations

import base64
import json
import re
import struct
import zlib
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from ..scripts import script

ROOT = Path(__file__).resolve().parents[2]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
each = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)


def nbformat() -> ModuleType:
    """Imported by the tests: its grammar of addresses takes seconds, of which collecting needs none."""
    return pytest.importorskip("nbformat")


@pytest.fixture(scope="module")
def gallery() -> ModuleType:
    nbformat()
    return script("tools/gallery.py")


def outputs(path: Path) -> dict[str, list]:
    cells = nbformat().read(path, as_version=4).cells
    return {c.source: c.outputs for c in cells if c.cell_type == "code"}


def lines(path: Path, word: str) -> str:
    """What the first cell with this word showed, as text."""
    found = next(shown for source, shown in outputs(path).items() if word in source)
    return "\n".join(o.get("text") or o.data["text/plain"] for o in found)


@each
def test_what_is_stored_is_static_and_of_this_text(path: Path, gallery: ModuleType) -> None:
    assert gallery.stale(path) is None
    text = path.read_text(encoding="utf-8")
    assert len(text) < 700_000
    assert not re.search(r"(?<![\w.])/(root|home|work|tmp)/", text), "a path of the machine that ran it"
    kinds, pictures = set(), 0
    for shown in outputs(path).values():
        for o in shown:
            assert o.output_type in ("stream", "display_data", "execute_result"), o
            kinds |= set(o.get("data", {}))
            pictures += "data:image/" in o.get("data", {}).get("text/html", "")
    assert kinds <= set(gallery.KEPT) and pictures >= 2


def test_old_outputs_are_noticed(tmp_path: Path, gallery: ModuleType) -> None:
    notebook = nbformat().read(NOTEBOOKS[0], as_version=4)
    next(c for c in notebook.cells if c.cell_type == "code").source += "\nprint(1)"
    nbformat().write(notebook, tmp_path / "00.ipynb")
    assert "make gallery" in gallery.stale(tmp_path / "00.ipynb")


def test_the_quick_start_says_what_its_reports_say() -> None:
    path = NOTEBOOKS[0]
    prose = " ".join(c.source for c in nbformat().read(path, as_version=4).cells if c.cell_type == "markdown")
    assert "Six operators" in prose and len(lines(path, "kernels[0].origins").split(", ")) == 6
    assert "one graph and two places that ran as plain Python" in prose
    assert "1 graph · 2 breaks (no change needed)" in lines(path, "library_train(net")
    assert "1 graph · 0 breaks" in lines(path, "bert_report\n")


def test_an_output_is_stored_without_what_needs_a_kernel(gallery: ModuleType) -> None:
    sample = json.loads((ROOT / "tests" / "report" / "sample_report.json").read_text(encoding="utf-8"))
    camera = SimpleNamespace(shot=lambda report, tab: b"a picture of " + tab.encode())
    shown = nbformat().v4.new_output("display_data", {gallery.MIME: sample, "text/plain": "a line", "x/widget": "y"})
    kept = gallery.stored(shown, "graph", camera)
    assert set(kept.data) == {"text/plain", "text/html"}
    assert base64.b64encode(b"a picture of graph").decode() in kept.data["text/html"]
    assert "<script" not in kept.data["text/html"]
    assert gallery.stored(nbformat().v4.new_output("display_data", {"x/widget": "y"}), None, camera) is None
    warned = nbformat().v4.new_output("stream", text="W1125 23:02 x.py] no CUDA\nkept\n")
    assert gallery.stored(warned, None, camera).text == "kept\n"


def test_a_small_png_is_a_png(gallery: ModuleType) -> None:
    """Two rows of three pixels, in two colours."""
    data = gallery.small_png(3, 2, [0xFF0000, 0x00FF00], bytes([0, 1, 0, 1, 1, 0]))
    at, parts = 8, {}
    while at < len(data):
        size, name = struct.unpack(">I4s", data[at : at + 8])
        parts[name] = data[at + 8 : at + 8 + size]
        assert struct.unpack(">I", data[at + 8 + size : at + 12 + size])[0] == zlib.crc32(name + parts[name])
        at += 12 + size
    assert struct.unpack(">II", parts[b"IHDR"][:8]) == (3, 2) and parts[b"PLTE"] == b"\xff\0\0\0\xff\0"
    assert zlib.decompress(parts[b"IDAT"]) == bytes([0, 0, 1, 0, 0, 1, 1, 0])


def test_the_picture_of_calls_has_the_same_facts_as_text() -> None:
    from tcompile.labs.pictures import timeline

    picture = timeline({"a < b": [True, False, True], "c": [True, False, False]}, (16, 24, 1))
    assert repr(picture) == "a < b: compilations: 2 (calls 16, 1)\nc: compilations: 1 (calls 16)"
    assert picture.svg.count("<rect") == 2 + 6 and "a &lt; b, 24: served" in picture.svg


def test_a_picture_is_as_wide_as_what_it_says() -> None:
    """Names of many series were cut off at the right."""
    from tcompile.labs.pictures import bars

    names = [f"an engine with a long name, number {i}" for i in range(6)]
    picture = bars({"row": {name: i + 1 for i, name in enumerate(names)}})
    width = float(re.search(r"width='([\d.]+)'", picture.svg)[1])
    last = max(float(x) for x in re.findall(r"<text x='([\d.]+)'", picture.svg))
    assert all(name in picture.svg for name in names) and last + 6 * len(names[-1]) < width

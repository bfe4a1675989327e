"""Runs the notebooks and stores them with what they showed, for readers without a kernel: code hosts and nbviewer.

    python tools/gallery.py [NOTEBOOK ...]      all of notebooks/*.ipynb, if none is named
    python tools/gallery.py --check             which stored outputs are not of the present text?

A report is stored as text, as a picture of its views (the interactive page, photographed by Chromium), and as static
HTML. A cell's tag says which view: `view-code`, `view-graph`, `view-guards`, `view-speed`, `view-more`; `no-picture`
stores none. The first is the overview. The report's data is left out: running the cell brings it back.
"""

from __future__ import annotations

import argparse
import base64
import datetime
import hashlib
import json
import os
import re
import struct
import sys
import tempfile
import zlib
from pathlib import Path
from typing import Any

import nbformat

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "notebooks"
MIME = "application/vnd.tcompile.report.v1+json"
KEPT = ("text/plain", "text/html", "image/png", "image/svg+xml")  # what needs neither scripts nor a kernel
TABS = ("overview", "code", "graph", "profile", "guards", "speed", "more")
WIDTH, TALLEST = 980, 760  # of a picture, in CSS pixels
WARNING = re.compile(r"^[WI]\d{4} .*\n?", re.M)  # torch's log of this machine: no CUDA found
HTML_LIMIT = 16_000  # characters of a report's static HTML


def digest(notebook: Any) -> str:
    """Of all code: stored outputs are of the notebook whose digest they carry."""
    sources = [c.source for c in notebook.cells if c.cell_type == "code"]
    return hashlib.sha256(json.dumps(sources).encode()).hexdigest()[:16]


def tab_of(cell: Any) -> str | None:
    """The view that a cell's tag asks for."""
    tags = cell.metadata.get("tags", [])
    if "no-picture" in tags:
        return None
    asked = [t.removeprefix("view-") for t in tags if t.startswith("view-")]
    if any(t not in TABS for t in asked):
        sys.exit(f"unknown view {asked}; there are {', '.join(TABS)}")
    return asked[0] if asked else "overview"


# A picture's 256 most frequent colours, and for each pixel the nearest of them.
PALETTE = """async png => {
  const picture = await createImageBitmap(await (await fetch('data:image/png;base64,' + png)).blob());
  const canvas = new OffscreenCanvas(picture.width, picture.height), context = canvas.getContext('2d');
  context.drawImage(picture, 0, 0);
  const data = context.getImageData(0, 0, picture.width, picture.height).data;
  const counts = new Map(), pixels = new Uint8Array(data.length / 4), places = new Map();
  const key = i => data[i] << 16 | data[i + 1] << 8 | data[i + 2];
  for (let i = 0; i < data.length; i += 4) counts.set(key(i), (counts.get(key(i)) ?? 0) + 1);
  const colours = [...counts].sort((a, b) => b[1] - a[1] || a[0] - b[0]).slice(0, 256).map(c => c[0]);
  const far = (a, b) => [16, 8, 0].reduce((sum, s) => sum + ((a >> s & 255) - (b >> s & 255)) ** 2, 0);
  for (const c of counts.keys())
    places.set(c, colours.reduce((best, d, i) => far(c, d) < far(c, colours[best]) ? i : best, 0));
  for (let i = 0; i < pixels.length; i++) pixels[i] = places.get(key(4 * i));
  let text = '';
  for (let i = 0; i < pixels.length; i += 32768) text += String.fromCharCode(...pixels.subarray(i, i + 32768));
  return [picture.width, picture.height, colours, btoa(text)];
}"""


def small_png(width: int, height: int, colours: list[int], pixels: bytes) -> bytes:
    """A PNG file with a palette: a third of what a browser writes."""

    def chunk(name: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))

    rows = b"".join(b"\0" + pixels[y * width : (y + 1) * width] for y in range(height))
    head = struct.pack(">IIBBBBB", width, height, 8, 3, 0, 0, 0)
    palette = b"".join(c.to_bytes(3, "big") for c in colours)
    parts = (b"IHDR", head), (b"PLTE", palette), (b"IDAT", zlib.compress(rows, 9)), (b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunk(name, data) for name, data in parts)


class Camera:
    """Photographs a report's page in a headless Chromium."""

    def __init__(self, path: str):
        from playwright.sync_api import sync_playwright

        self.playwright = sync_playwright().start()
        flags = ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
        self.browser = self.playwright.chromium.launch(executable_path=path, args=flags)

    def close(self) -> None:
        self.browser.close()
        self.playwright.stop()

    def shot(self, report: Any, tab: str) -> bytes:
        with tempfile.TemporaryDirectory() as folder:
            page = self.browser.new_page(viewport={"width": WIDTH, "height": TALLEST})
            page.goto(f"file://{report.save(str(Path(folder) / 'report.html'))}")
            page.wait_for_selector(".tc-open .tc-tab")
            page.click(f".tc-tab:nth-child({TABS.index(tab) + 1})")
            page.wait_for_timeout(600)  # a graph is laid out after its tab is shown
            box = page.locator(".tc-report").first.bounding_box()
            clip = {**box, "height": min(box["height"], TALLEST - box["y"])}
            png = base64.b64encode(page.screenshot(clip=clip, animations="disabled")).decode()
            page.goto("data:text/html,")  # the report's page may fetch nothing
            picture, high, colours, pixels = page.evaluate(PALETTE, png)
            page.close()
            return small_png(picture, high, colours, base64.b64decode(pixels))


def stored(output: Any, tab: str | None, camera: Camera) -> Any:
    """An output as it is kept: what shows without scripts and without a kernel. None if nothing of it does."""
    if output.output_type == "stream":
        output.text = WARNING.sub("", output.text)
        return output if output.text else None
    data = dict(output.data)
    if MIME in data:
        from tcompile import CompileReport
        from tcompile.kernel_magics.render.html import render_html

        report = CompileReport.from_json(json.loads(json.dumps(data[MIME])))
        text = render_html(report, HTML_LIMIT)
        if tab is not None:
            png = base64.b64encode(camera.shot(report, tab)).decode()
            alt = f"The report of this cell, its view {tab}: {report.summary.line}"
            text = f'<img alt="{alt}" width="{WIDTH}" style="max-width:100%" src="data:image/png;base64,{png}">' + text
        data["text/html"] = text
    output.data = {mime: value for mime, value in data.items() if mime in KEPT}
    output.metadata = {}
    return output if output.data else None


def without_paths(text: str, cache: str) -> str:
    """Folders of this machine are nobody's business: the repository's becomes `.`, a home `~`, the cache `~/.cache`."""
    text = text.replace(cache, "~/.cache").replace(f"{ROOT}/", "./")
    return re.sub(r"/(?:home/\w+|root)(?=/)", "~", text)


def run(path: Path, browser: str, timeout: int) -> str | None:
    """Runs one notebook and stores it; gives what went wrong."""
    from nbclient import NotebookClient
    from nbclient.exceptions import CellExecutionError

    notebook = nbformat.read(path, as_version=4)
    client = NotebookClient(
        notebook,
        timeout=timeout,
        kernel_name="python3",
        store_widget_state=False,
        record_timing=False,
        extra_arguments=["--log-level=ERROR"],
        resources={"metadata": {"path": str(path.parent)}},
    )
    with tempfile.TemporaryDirectory() as cache:  # empty: compile times are those of a first run
        try:
            client.execute(env={**os.environ, "XDG_CACHE_HOME": cache})
        except CellExecutionError as error:
            return f"{path.name}: {error.ename}: {error.evalue}"
    camera = Camera(browser)
    try:
        for cell in notebook.cells:
            if cell.cell_type == "code":
                outputs = [stored(o, tab_of(cell), camera) for o in cell.outputs]
                cell.outputs = [o for o in outputs if o is not None]
    finally:
        camera.close()
    notebook.metadata = {
        "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
        "language_info": {"name": "python"},
        "gallery": {"digest": digest(notebook), "date": str(datetime.date.today())},
    }
    text = nbformat.writes(notebook)
    path.write_text(without_paths(text, cache) + "\n", encoding="utf-8")
    print(f"{path.name}: {len(text) / 1000:.0f} kB", flush=True)
    return None


def stale(path: Path) -> str | None:
    """Why the stored outputs of a notebook are not those of its text, or None."""
    notebook = nbformat.read(path, as_version=4)
    kept = notebook.metadata.get("gallery", {}).get("digest")
    return None if kept == digest(notebook) else f"{path.name}: its outputs are of another text: make gallery"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("notebooks", type=Path, nargs="*")
    parser.add_argument("--check", action="store_true", help="run nothing; say which outputs are old")
    parser.add_argument("--timeout", type=int, default=600, help="seconds a cell may take")
    parser.add_argument("--threads", type=int, help="of the kernel, where other work shares the machine")
    options = parser.parse_args()
    if options.threads:
        os.environ["OMP_NUM_THREADS"] = str(options.threads)
    paths = options.notebooks or sorted(FOLDER.glob("*.ipynb"))
    if options.check:
        wrong = [text for text in map(stale, paths) if text]
    else:
        from environment import find_browser  # tools/environment.py

        browser = find_browser()
        if browser is None:
            sys.exit("pictures need a Chromium: make browser")
        os.environ.setdefault("PYDEVD_DISABLE_FILE_VALIDATION", "1")  # else the kernel prints a debugger's warning
        wrong = [text for text in (run(p.resolve(), browser, options.timeout) for p in paths) if text]
    if wrong:
        print("\n".join(wrong), file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())

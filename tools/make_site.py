"""Gathers the pages of the site, and builds it: docs/, the repository's other texts, notebooks that were run, the
reference of Python names from their docstrings.

    python tools/make_site.py [--no-notebooks]      build/site-source, then build/site by mkdocs

mkdocs and its theme lie in a folder of their own (`--generator`, `make docs` makes it). Notebooks are run once for each
text of theirs and kept in build/site-notebooks. The site loads nothing from elsewhere.
"""

from __future__ import annotations

import argparse
import hashlib
import inspect
import json
import os
import posixpath
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))
import tour  # noqa: E402
from environment import find_browser  # noqa: E402

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "build" / "site-source"
SITE = ROOT / "build" / "site"
KEPT = ROOT / "build" / "site-notebooks"
MIME = "application/vnd.tcompile.report.v1+json"

# file of the repository -> page of the site; all else in docs/ keeps its place
PAGES = {
    "docs/start.md": "index.md",
    "README.md": "index.md",
    "ARCHITECTURE.md": "architecture.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security.md",
    "CHANGELOG.md": "changes.md",
    "notebooks/labs/INSTRUCTORS.md": "course.md",
    "tests/benchmarks/results": "measurements.md",
}
SHIM = re.compile(r'<script src="https://unpkg\.com/iframe-worker/shim"></script>')
# A worker whose script runs in a hidden frame of the page.
WORKER = """
if (location.protocol === 'file:') {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      this.frame = document.createElement('iframe');
      this.frame.hidden = true;
      document.body.append(this.frame);
      this.loaded = new Promise(resolve => (this.frame.onload = resolve));
      const text = this.frame.contentDocument;
      text.open();
      text.write('<script>postMessage = data => parent.postMessage(data, "*");<\\/script>');
      text.write('<script src="' + new URL(url, location).href + '"><\\/script>');
      text.close();
      addEventListener('message', event => {
        if (event.source !== this.frame.contentWindow) return;
        event.stopImmediatePropagation();
        this.dispatchEvent(new MessageEvent('message', { data: event.data }));
      });
    }
    postMessage(data) {
      const frame = this.frame.contentWindow;
      this.loaded.then(() => frame.dispatchEvent(new MessageEvent('message', { data })));
    }
    terminate() {
      this.frame.remove();
    }
  };
}
"""
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
_LONGEST = 88  # characters of a signature in one line
LINK = re.compile(r"(!?)\[([^\]]*)\]\(([^)\s]+)\)")
_WIDE = ["---", "hide: [navigation]", "---", ""]  # a page that has no others beside it
CSS = """\
.md-typeset table:not([class]) { font-size: .64rem; }
.md-grid { max-width: 70rem; }
"""


def place_of(path: str) -> str | None:
    """The site's page for a file of the repository, or None where it has none."""
    if path in PAGES:
        return PAGES[path]
    if path.startswith("tests/benchmarks/results/"):
        return "measurements/" + path.rpartition("/")[2]
    if path.startswith("notebooks/") and path.endswith(".ipynb") and path.count("/") == 1:
        return "gallery/" + Path(path).stem + ".html"
    if path.startswith("docs/") and (ROOT / path).is_file():
        return path.removeprefix("docs/")
    return None


def with_links(text: str, origin: str, page: str) -> str:
    """A text whose links lead to the site's pages. Links to files that are not on it become their text. Code blocks
    stay as they are."""

    def changed(found: re.Match) -> str:
        picture, words, target = found.groups()
        if "://" in target or target.startswith(("#", "mailto:")):
            return found[0]
        file, _, anchor = target.partition("#")
        there = place_of(posixpath.normpath(posixpath.join(posixpath.dirname(origin), file)))
        if there is None:
            return words if words.startswith("`") else f"`{words}`"
        where = posixpath.relpath(there, posixpath.dirname(page) or ".")
        return f"{picture}[{words}]({where}{'#' + anchor if anchor else ''})"

    parts = re.split(r"(^```.*?^```$)", text, flags=re.M | re.S)
    return "".join(part if part.startswith("```") else LINK.sub(changed, part) for part in parts)


def put(origin: str, page: str) -> None:
    target = SOURCE / page
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(with_links((ROOT / origin).read_text(encoding="utf-8"), origin, page), encoding="utf-8")


def texts() -> None:
    for path in sorted((ROOT / "docs").rglob("*")):
        origin = path.relative_to(ROOT).as_posix()
        page = place_of(origin)
        if path.suffix == ".md" and page:
            put(origin, page)
        elif path.suffix in (".svg", ".png") and page:
            (SOURCE / page).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, SOURCE / page)
    for origin, page in PAGES.items():
        if origin != "README.md" and (ROOT / origin).is_file():
            put(origin, page)
    index = SOURCE / "index.md"
    index.write_text("\n".join(_WIDE) + index.read_text(encoding="utf-8"), encoding="utf-8")
    (SOURCE / "site.css").write_text(CSS, encoding="utf-8")


def measurements() -> None:
    """Every file of results, newest first."""
    rows = []
    for path in sorted((ROOT / "tests" / "benchmarks" / "results").glob("*.md"), reverse=True):
        page = f"measurements/{path.name}"
        put(path.relative_to(ROOT).as_posix(), page)
        first = path.read_text(encoding="utf-8").splitlines()[0].lstrip("# ")
        rows.append(f"| {path.name[:10]} | [{first.replace('|', '/')}]({page}) |")
    head = ["# Measurements", "", "Each with machine, versions and date, as it was taken.", ""]
    table = ["| date | what |", "| --- | --- |", *rows, ""]
    (SOURCE / "measurements.md").write_text("\n".join(head + table), encoding="utf-8")


def python_page() -> str:
    """The public names with signature and docstring."""
    import tcompile

    lines = ["# Python", "", "Public names, from their docstrings. `import tcompile` gives them all.", ""]
    for name in tcompile.__all__:
        value = getattr(tcompile, name)
        if name.startswith("_") or not (inspect.isclass(value) or callable(value) or inspect.ismodule(value)):
            continue
        if inspect.ismodule(value):
            lines += [f"## tcompile.{name}", "", *_doc(value)]
            continue
        lines += [f"## {name}", "", "```python", f"{_signature(name, value)}", "```", "", *_doc(value)]
        if inspect.isclass(value) and not issubclass(value, BaseException):
            for own, member in vars(value).items():
                if not own.startswith("_") and (inspect.isfunction(member) or isinstance(member, classmethod)):
                    function = inspect.unwrap(getattr(value, own))
                    title = f"### {name}.{own}"
                    lines += [title, "", "```python", _signature(f"{name}.{own}", function), "```", "", *_doc(function)]
    return "\n".join(lines)


def _signature(name: str, value: Any) -> str:
    try:
        text = str(inspect.signature(value))
    except (TypeError, ValueError):
        text = "(...)"
    if len(text) > 1500 or inspect.isclass(value) and issubclass(value, BaseException):
        text = ""
    text = re.sub(r"<[\w.]+ object at 0x[0-9a-f]+>|<factory>", "...", text)
    text = re.sub(r"(: |-> )'([^']+)'", r"\1\2", text)  # annotations are kept as text
    if len(name) + len(text) > _LONGEST and text.startswith("("):
        inside, _, gives = text[1:].rpartition(")")
        text = (
            "(\n"
            + "".join(f"    {p},\n" for p in re.split(r", (?=\*{0,2}\w+[:,]|\*,|/,|\*{1,2}\w)", inside))
            + f"){gives}"
        )
    return name + text


def _doc(value: Any) -> list[str]:
    """A docstring as a page: what is set in columns stays so."""
    text = inspect.cleandoc(value.__doc__ or "")
    out: list[str] = []
    for block in re.split(r"\n\s*\n", text):
        columns = any(re.match(r"\s*\S+ {2,}\S", line) or line.startswith("    ") for line in block.splitlines())
        out += ["```text", block, "```", ""] if columns else [block.replace("<", "&lt;"), ""]
    return out


def executed(path: Path) -> Path:
    """The folder with the notebook as it ran, and its page."""
    key = hashlib.sha256(path.read_bytes()).hexdigest()[:16]
    folder = KEPT / f"{path.stem}-{key}"
    if not (folder / f"{path.stem}.html").exists():
        print(f"running {path.name}", flush=True)
        command = [sys.executable, str(ROOT / "tools" / "run_notebook.py"), str(path), "--out", str(folder)]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            sys.exit(f"{path.name} did not run:\n{(done.stdout + done.stderr)[-3000:]}")
    return folder


def gallery(run: bool) -> None:
    """A page for each notebook as it ran, and each of its reports as an interactive page of its own."""
    import nbformat
    from nbconvert import HTMLExporter
    from tcompile import CompileReport

    lines = [
        *_WIDE,
        "# Gallery",
        "",
        "Notebooks as they ran, and their reports: each opens here as it does under a cell, without a kernel.",
        "",
    ]
    target = SOURCE / "gallery"
    target.mkdir(parents=True)
    for path in sorted((ROOT / "notebooks").glob("*.ipynb")):
        here = executed(path) / path.name if run else path
        notebook = nbformat.read(here, as_version=4)
        exporter = HTMLExporter(embed_images=True)
        page, _ = exporter.from_notebook_node(notebook, {"metadata": {"name": path.stem}})
        (target / f"{path.stem}.html").write_text(with_a_way_back(without_requests(page)), encoding="utf-8")
        title, _, rest = notebook.cells[0].source.partition("\n")
        about = without_links(rest.strip().split("\n\n")[0])
        lines += [f"## [{title.lstrip('# ')}](gallery/{path.stem}.html)", "", about, ""]
        reports = [o["data"][MIME] for c in notebook.cells for o in c.get("outputs", []) if MIME in o.get("data", {})]
        for i, data in enumerate(reports, 1):
            name = f"{path.stem}-report-{i}.html"
            report = CompileReport.from_json(json.loads(json.dumps(data)))
            report.save(str(target / name))
            lines.append(f"- [report {i}](gallery/{name}): {report.summary.line.replace('   ', ' · ')}")
        lines.append("")
    (SOURCE / "gallery.md").write_text("\n".join(lines), encoding="utf-8")


def the_tour() -> None:
    """Each view as a picture, and a walk as a recording, of the largest report of the quick start. Where no browser is,
    the page says so."""
    lines = ["# A tour", "", "The views of a report under a cell. Pictures and recording were made with this site.", ""]
    target = SOURCE / "tour"
    target.mkdir(parents=True)
    reports = sorted((SOURCE / "gallery").glob("00_quickstart-report-*.html"), key=lambda p: p.stat().st_size)
    browser = find_browser() if reports else None
    if browser is None:
        lines += ["They need a browser, or notebooks that were run: there was none when this site was made.", ""]
    else:
        from playwright.sync_api import sync_playwright

        with sync_playwright() as driver:
            running = driver.chromium.launch(executable_path=browser, args=FLAGS)
            page = running.new_page(viewport={"width": tour.WIDTH, "height": tour.TALLEST})
            page.goto(f"file://{reports[-1]}")
            page.wait_for_selector(".tc-open .tc-tab")
            tour.views(page, target)
            tour.recording(page, target / "walk.png")
            running.close()
        for tab, words in tour.VIEWS.items():
            lines += [f"## {tab.capitalize()}", "", words, "", f"![The tab {tab} of a report](tour/{tab}.png)", ""]
        walk = "A walk through one call by arrow keys: each step says what it is, and Enter zooms in."
        lines += ["## By keyboard", "", walk, "", "![The recording of a walk by arrow keys](tour/walk.png)", ""]
        lines += [f"[This report, live](gallery/{reports[-1].name})", ""]
    (SOURCE / "tour.md").write_text("\n".join(lines), encoding="utf-8")


def without_links(text: str) -> str:
    return LINK.sub(lambda found: found[2], text)


def without_requests(page: str) -> str:
    """A notebook's page that asks nobody for scripts: nbconvert's loaders of formulas and of widgets are taken out."""
    page = re.sub(r'<script[^>]*\ssrc="https?://[^"]*"[^>]*>\s*</script>', "", page)
    page = re.sub(
        r"<script[^>]*>(?:(?!</script>).)*https?://(?:(?!</script>).)*</script>", _keep_data, page, flags=re.S
    )
    page = re.sub(r'<link[^>]*href="https?://[^"]*"[^>]*>', "", page)
    return page.replace("<head>", '<head><link rel="icon" href="data:,">', 1)


def with_a_way_back(page: str) -> str:
    """A notebook's page, with a link to the gallery on top."""
    link = '<p style="padding:8px 24px 0"><a href="../gallery.html">← Gallery</a></p>'
    return re.sub(r"<body[^>]*>", lambda found: found[0] + link, page, count=1)


def _keep_data(found: re.Match) -> str:
    """Data is no program: it stays, whatever addresses it names."""
    return found[0] if re.match(r'<script[^>]*type="application/[\w.+-]*json"', found[0]) else ""


def build(generator: str) -> int:
    paths = [p for p in (generator, os.environ.get("PYTHONPATH", "")) if p]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "NO_MKDOCS_2_WARNING": "1"}
    command = [sys.executable, "-m", "mkdocs", "build", "-q", "-f", str(ROOT / "docs" / "mkdocs.yml")]
    status = subprocess.call(command, env=env)
    # Its addresses begin at a server's root: from a folder, or hosted below a root, it has no style and no links.
    (SITE / "404.html").unlink(missing_ok=True)
    return status


def from_disk(page: str) -> str:
    """A page whose search works from disk, where browsers refuse workers, without asking for the theme's script."""
    return SHIM.sub(lambda found: f"<script>{WORKER}</script>", page)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--generator", default="", help="folder with mkdocs and its theme")
    parser.add_argument("--no-notebooks", action="store_true", help="show notebooks as they are, without running them")
    options = parser.parse_args()
    shutil.rmtree(SOURCE, ignore_errors=True)
    SOURCE.mkdir(parents=True)
    texts()
    measurements()
    (SOURCE / "python.md").write_text(python_page(), encoding="utf-8")
    gallery(not options.no_notebooks)
    the_tour()
    status = build(options.generator)
    if not status:
        for path in SITE.rglob("*.html"):
            text = path.read_text(encoding="utf-8")
            if SHIM.search(text):
                path.write_text(from_disk(text), encoding="utf-8")
        print("build/site/index.html")
    return status


if __name__ == "__main__":
    sys.exit(main())

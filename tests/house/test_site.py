"""The site: links of docs/ resolve, figures are those of the measurements, every page has a place."""

import re
from pathlib import Path

import pytest

from ..scripts import script

ROOT = Path(__file__).resolve().parents[2]
DOCS = sorted((ROOT / "docs").rglob("*.md"))
PROSE = [*DOCS, *(ROOT / n for n in ("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "SECURITY.md"))]


@pytest.fixture(scope="module")
def site():
    return script("tools/make_site.py")


def without_code(text):
    return re.sub(r"^```.*?^```$|`[^`\n]*`", "", text, flags=re.M | re.S)


def anchors(path):
    titles = re.findall(
        r"^#+ (.+)$", re.sub(r"^```.*?^```$", "", path.read_text(encoding="utf-8"), flags=re.M | re.S), re.M
    )
    return {
        re.sub(r"[^\w\- ]", "", re.sub(r"[`*]|\]\([^)]*\)", "", t)).strip().lower().replace(" ", "-") for t in titles
    }


@pytest.mark.parametrize("page", PROSE, ids=lambda p: p.relative_to(ROOT).as_posix())
def test_links_resolve(page):
    wrong = []
    for target in re.findall(r"\]\(([^)\s]+)\)", without_code(page.read_text(encoding="utf-8"))):
        if "://" in target or target.startswith("mailto:"):
            continue
        file, _, anchor = target.partition("#")
        there = (page.parent / file).resolve() if file else page
        if not there.exists() or anchor and anchor not in anchors(there):
            wrong.append(target)
    assert not wrong


def test_figures_of_the_comparison_are_in_their_measurements():
    """Each part of the page names its measurements; every number of it stands there."""
    text = (ROOT / "docs" / "compare.md").read_text(encoding="utf-8")
    checked = 0
    for part in re.split(r"^## ", text, flags=re.M)[1:]:
        files = re.findall(r"\.\./(tests/benchmarks/results/[\w.-]+\.md)", part)
        if not files:
            continue
        there = "\n".join((ROOT / f).read_text(encoding="utf-8") for f in files)
        dates = {Path(f).name[:10] for f in files}
        assert dates <= set(
            re.findall(r"\d{4}-\d\d-\d\d", re.sub(r"\([^)]*\)", lambda m: m[0].partition(",")[0], part))
        )
        numbers = re.findall(r"(?<![\w.-])\d+\.\d+(?![\w-]|\.\d)", re.sub(r"\]\([^)]*\)", "", part))
        derived = {"0.05", "0.34"} if part.startswith("Capture") else set()
        missing = [n for n in numbers if n not in derived and not re.search(rf"(?<![\d.]){re.escape(n)}(?!\d)", there)]
        assert not missing, (part.splitlines()[0], missing)
        checked += len(numbers)
    assert checked > 50


def test_every_page_has_a_place_in_the_menu(site):
    yaml = pytest.importorskip("yaml")
    config = yaml.safe_load((ROOT / "docs" / "mkdocs.yml").read_text(encoding="utf-8"))

    def pages(items):
        for item in items:
            for value in item.values():
                yield from pages(value) if isinstance(value, list) else [value]

    named = list(pages(config["nav"]))
    made = {
        "gallery.md",
        "tour.md",
        "python.md",
        "measurements.md",
        *(v for v in site.PAGES.values() if v.endswith(".md")),
    }
    made |= {p for p in (site.place_of(path.relative_to(ROOT).as_posix()) for path in DOCS) if p}
    assert len(named) == len(set(named)) and set(named) == made
    assert config["theme"]["font"] is False and config["strict"] is True
    assert "://" not in "".join(str(x) for x in (config.get("extra_javascript"), config.get("extra_css")))


def test_links_lead_to_pages_of_the_site(site):
    text = "[a](../README.md), [b](../options.md#x), [`c.py`](../../compiler/api.py), [d](https://x.org)\n```\n[e](f.md)\n```"
    assert site.with_links(text, "docs/how-to/operator.md", "how-to/operator.md") == (
        "`a`, [b](../options.md#x), `c.py`, [d](https://x.org)\n```\n[e](f.md)\n```"
    )
    assert site.with_links("[q](../notebooks/00_quickstart.ipynb)", "docs/notebook.md", "notebook.md") == (
        "[q](gallery/00_quickstart.html)"
    )


def test_a_notebooks_page_asks_nobody(site):
    page = (
        '<head><script src="https://cdn.org/x.js"></script><link href="https://cdn.org/x.css" rel="a">'
        '<script>load("https://cdn.org/y")</script><script type="application/vnd.x+json">{"a":"https://b"}</script>'
        "<script>let x = 1</script></head>"
    )
    left = site.without_requests(page)
    assert "cdn.org" not in left and "https://b" in left and "let x = 1" in left


def test_a_page_from_disk_asks_nobody_for_its_search(site):
    scripts = "https://unpkg.com/iframe-worker/shim", "search/search_index.js"
    page = "<p>a</p>" + "".join(f'<script src="{s}"></script>' for s in scripts)
    left = site.from_disk(page)
    assert "unpkg" not in left and "window.Worker" in left and left.count("</script>") == 2


def test_the_reference_has_every_public_name_with_its_docstring(site):
    import tcompile

    text = site.python_page()
    for name in tcompile.__all__:
        value = getattr(tcompile, name)
        if name.startswith("_") or isinstance(value, str):
            continue
        assert re.search(rf"^## (tcompile\.)?{name}$", text, re.M), name
        if callable(value) and not name.endswith("ipython_extension"):
            assert (value.__doc__ or "").strip().splitlines()[0][:40].replace("<", "&lt;") in text
    assert not re.search(r"0x[0-9a-f]{6}", text)

"""The documentation is true: examples run, generated pages are current, and files that are named exist."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).resolve().parents[2]
HOW_TOS = sorted((ROOT / "docs" / "how-to").glob("*.md"))
GUIDES = sorted((ROOT / "docs" / "guide").glob("*.md"))
RUN_ALL = """
import contextlib, io, json, runpy, sys, traceback
outcomes = []
for script in sys.argv[1:]:
    printed, failed = io.StringIO(), ""
    try:
        with contextlib.redirect_stdout(printed):
            runpy.run_path(script, run_name="__main__")
    except BaseException:
        failed = traceback.format_exc()
    outcomes.append((printed.getvalue(), failed))
print(json.dumps(outcomes))
"""


def blocks(page):
    return re.findall(r"^```python\n(.*?)^```", page.read_text(encoding="utf-8"), re.S | re.M)


def example(page):
    """The program of a page. A guide's is what begins with its imports: the rest goes on with the reader's program."""
    return "\n".join(b for b in blocks(page) if page in HOW_TOS or b.startswith("import tcompile, torch"))


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory):
    """By page: what its example printed, and how it failed. One process for all: most of a short one is importing."""
    folder = tmp_path_factory.mktemp("examples")
    scripts = {page: folder / f"example_{page.stem}.py" for page in (*HOW_TOS, *GUIDES) if example(page)}
    for page, script in scripts.items():
        script.write_text(example(page), encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-c", RUN_ALL, *map(str, scripts.values())],
        capture_output=True,
        text=True,
        timeout=600,
        cwd=folder,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return dict(zip(scripts, json.loads(done.stdout)))


@pytest.mark.parametrize("page", HOW_TOS, ids=lambda p: p.stem)
def test_the_example_of_a_how_to_runs(page, outcomes):
    assert blocks(page), f"{page.name} has no example"
    _, failed = outcomes[page]
    assert not failed, failed


@pytest.mark.parametrize("page", GUIDES, ids=lambda p: p.stem)
def test_the_examples_of_a_guide_run(page, outcomes):
    if not example(page):
        assert page.stem == "it-is-slow"  # whose example is a cell
        return
    printed, failed = outcomes[page]
    assert not failed and printed.strip(), failed


def test_there_is_a_how_to_for_each_kind_of_change():
    named = set(re.findall(r"docs/how-to/([\w-]+)\.md", (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")))
    assert named == {p.stem for p in HOW_TOS} and len(named) == 6


def test_generated_pages_are_current():
    sys.path.insert(0, str(ROOT / "tools"))
    try:
        import reference
    finally:
        sys.path.remove(str(ROOT / "tools"))
    names = reference.stale()
    if not torch.__version__.startswith(newest_torch()):
        names = [n for n in names if n != "operators.md"]  # another torch has other operators
    assert not names, f"run `make docs`: {names}"


def newest_torch():
    """The torch that constraints.txt installs, and that pages are made with."""
    return re.search(r"^torch==([\d.]+)", (ROOT / "constraints.txt").read_text(encoding="utf-8"), re.M)[1]


@pytest.mark.parametrize("page", ["ARCHITECTURE.md", "CONTRIBUTING.md"])
def test_files_that_are_named_exist(page):
    text = (ROOT / page).read_text(encoding="utf-8")
    names = {p.name for folder in ("compiler", "kernel_magics") for p in (ROOT / folder).rglob("*.*")}
    missing = []
    for path in re.findall(r"`([\w/]+\.(?:py|c|cpp))`", text):
        if "/" not in path:
            missing += [path] if path not in names else []
        elif not (ROOT / path).exists() and not (ROOT / "compiler" / path).exists():
            missing.append(path)
    assert not missing


def test_architecture_is_short():
    assert len((ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8").split()) <= 1500


@pytest.mark.parametrize("page", ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md"])
def test_links_lead_somewhere(page):
    text = (ROOT / page).read_text(encoding="utf-8")
    targets = [t.partition("#")[0] for t in re.findall(r"\]\(([^)]+)\)", text) if "://" not in t]
    assert not [t for t in targets if t and not (ROOT / t).exists()]

"""The documentation is true: examples run, generated pages are current, and files that are named exist."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).resolve().parents[2]
HOW_TOS = sorted((ROOT / "docs" / "how-to").glob("*.md"))


@pytest.mark.parametrize("page", HOW_TOS, ids=lambda p: p.stem)
def test_the_example_of_a_how_to_runs(page, tmp_path):
    blocks = re.findall(r"^```python\n(.*?)^```", page.read_text(encoding="utf-8"), re.S | re.M)
    assert blocks, f"{page.name} has no example"
    script = tmp_path / "example.py"
    script.write_text("\n".join(blocks), encoding="utf-8")
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=300, cwd=tmp_path)
    assert done.returncode == 0, done.stderr[-3000:]


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


def test_architecture_names_files_that_exist_and_is_short():
    text = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    assert len(text.split()) <= 1500
    names = {p.name for folder in ("compiler", "kernel_magics") for p in (ROOT / folder).rglob("*.*")}
    missing = []
    for path in re.findall(r"`([\w/]+\.(?:py|c|cpp))`", text):
        if "/" not in path:
            missing += [path] if path not in names else []
        elif not (ROOT / path).exists() and not (ROOT / "compiler" / path).exists():
            missing.append(path)
    assert not missing


@pytest.mark.parametrize("page", ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md"])
def test_links_lead_somewhere(page):
    text = (ROOT / page).read_text(encoding="utf-8")
    targets = [t.partition("#")[0] for t in re.findall(r"\]\(([^)]+)\)", text) if "://" not in t]
    assert not [t for t in targets if t and not (ROOT / t).exists()]

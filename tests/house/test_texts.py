"""The list of texts for translators is what the labextension's sources say."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

HOME = Path(__file__).resolve().parents[2] / "labextension"


def test_texts_for_translators_are_current():
    node = shutil.which("node")
    if node is None or not (HOME / "node_modules" / "typescript").exists():
        pytest.skip("Node or the labextension's packages are not installed (make labextension)")
    run = subprocess.run([node, "scripts/texts.mjs", "--check"], cwd=HOME, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr


def test_every_text_is_listed_once():
    lines = (HOME / "texts" / "tcompile.pot").read_text(encoding="utf-8").splitlines()
    texts = [line for line in lines if line.startswith("msgid ") and line != 'msgid ""']
    assert len(texts) == len(set(texts)) > 300


def test_no_text_holds_what_gettext_takes_for_a_placeholder():
    """JupyterLab's translator makes `%` of `%%` and looks for the first argument at `%1`."""
    lines = (HOME / "texts" / "tcompile.pot").read_text(encoding="utf-8").splitlines()
    assert not [line for line in lines if re.search(r"%%|%\d", line)]

"""What the labextension knows of the options is what the kernel knows."""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_hover_help_is_that_of_the_options() -> None:
    sys.path.insert(0, str(ROOT / "tools"))
    try:
        from option_catalogue import TARGET, text
    finally:
        sys.path.remove(str(ROOT / "tools"))
    assert TARGET.read_text(encoding="utf-8") == text(), "run: python tools/option_catalogue.py"


def test_every_option_is_read_somewhere() -> None:
    from tcompile.compiler.config import OPTIONS

    texts = "".join(p.read_text() for p in (ROOT / "compiler").rglob("*.py") if p.name != "config.py")
    assert [name for name in OPTIONS if f'"{name}"' not in texts] == []

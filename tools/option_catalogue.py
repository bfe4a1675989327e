"""Writes labextension/src/options.json, from which JupyterLab gives hover help on a cell's options. A test holds the
two equal.
"""

from __future__ import annotations

import json
from pathlib import Path

TARGET = Path(__file__).resolve().parents[1] / "labextension" / "src" / "options.json"


def text() -> str:
    from tcompile.kernel_magics.options import catalogue

    rows = [{**o, "values": [] if o["name"] == "backend" else o["values"]} for o in catalogue()]
    return json.dumps(rows, indent=1, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    TARGET.write_text(text(), encoding="utf-8")

"""What a student has reached, in a file beside the notebooks."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

__all__ = ["FILE", "read", "note"]

FILE = ".tcompile-labs.json"


def read(folder: Path) -> dict[str, Any]:
    """{"1": {"exercises": {name: [points, of]}, "best": {figure: value}}}; empty where none can be read."""
    try:
        data = json.loads((folder / FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return data if isinstance(data, dict) else {}


def note(folder: Path, number: int, exercises: dict[str, tuple[float, float]], score: dict[str, float]) -> None:
    """Add what a check found: of each exercise the latest, of each figure the best (the least)."""
    data = read(folder)
    lab = data.setdefault(str(number), {"exercises": {}, "best": {}})
    lab["exercises"].update({name: list(points) for name, points in exercises.items()})
    for name, value in score.items():
        lab["best"][name] = min(value, lab["best"].get(name, value))
    fresh = folder / f"{FILE}.{os.getpid()}"
    fresh.write_text(json.dumps(data, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    os.replace(fresh, folder / FILE)

"""What `%tcompile status`, `%tcompile cache` and the command line say, as lines of text."""
from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

from ..compiler import config
from ..compiler.report.numbers import plural, size

__all__ = ["status_lines", "cache_lines", "clear_cache", "cache_folder", "changed_options"]


def changed_options() -> dict[str, Any]:
    """Options of tcompile.config that differ from their defaults."""
    now = config.defaults()
    return {name: now[name] for name, o in config.OPTIONS.items() if now[name] != o.default}


def status_lines(session: Any) -> list[str]:
    """The state of one session."""
    on = session.always
    out = ["tcompile is " + (f"on for every cell (mode={on.options.mode})" if on is not None else "off; %%tcompile on top of a cell uses it for that cell")]
    out.append(f"{plural(session.cells, 'cell')} ran through it in this kernel")
    if session.last is not None:
        m = session.last.summary
        out.append(f"last report: {m.line}")
    changed = changed_options()
    out.append("options: " + (", ".join(f"{k}={v!r}" for k, v in changed.items()) if changed else "all at their defaults"))
    out += cache_lines()
    return out


def cache_folder() -> Path:
    """Where compiled kernels are kept on disk."""
    configured = config.defaults()["cache_dir"]
    return Path(configured) if configured else Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tcompile"


def cache_lines() -> list[str]:
    folder = cache_folder()
    files = [f for f in folder.rglob("*") if f.is_file()] if folder.is_dir() else []
    total = sum(f.stat().st_size for f in files)
    limit = config.defaults()["cache_size_limit_mb"]
    state = "on" if config.defaults()["cache"] else "off (tcompile.config.cache)"
    return [f"disk cache: {state}, {_home(folder)}, {plural(len(files), 'file')}, {size(total)} of at most {limit} MB"]


def clear_cache() -> list[str]:
    folder = cache_folder()
    before = sum(1 for f in folder.rglob("*") if f.is_file()) if folder.is_dir() else 0
    shutil.rmtree(folder, ignore_errors=True)
    left = sum(1 for f in folder.rglob("*") if f.is_file()) if folder.is_dir() else 0
    return [f"disk cache: {plural(before - left, 'file')} deleted" + (f", {left} could not be" if left else "")]


def _home(folder: Path) -> str:
    home = os.path.expanduser("~")
    return "~" + str(folder)[len(home):] if str(folder).startswith(home + os.sep) else str(folder)

"""What `%tcompile status`, `%tcompile cache` and the command line say, as lines of text."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from ..compiler import config
from ..compiler.base.figures import plural, size

__all__ = ["status_lines", "cache_facts", "cache_lines", "clear_cache", "cache_folder", "changed_options"]


def changed_options() -> dict[str, Any]:
    """Options of tcompile.config that differ from their defaults."""
    now = config.defaults()
    return {name: now[name] for name, o in config.OPTIONS.items() if now[name] != o.default}


def status_lines(session: Any) -> list[str]:
    """The state of one session."""
    on = session.always
    out = [
        "tcompile is "
        + (
            f"on for every cell (mode={on.options.mode})"
            if on is not None
            else "off; %%tcompile on top of a cell uses it for that cell"
        )
    ]
    out.append(f"{plural(session.cells, 'cell')} ran through it in this kernel")
    if session.last is not None:
        m = session.last.summary
        out.append(f"last report: {m.line}")
    changed = changed_options()
    out.append(
        "options: " + (", ".join(f"{k}={v!r}" for k, v in changed.items()) if changed else "all at their defaults")
    )
    out += cache_lines()
    return out


def cache_folder() -> Path:
    """Where compiled kernels are kept on disk."""
    from ..compiler.runtime.cache import cache_root

    return cache_root(config.Options())


def cache_facts() -> dict[str, Any]:
    """The disk cache in figures: on, folder, kernels, bytes, limit_bytes, temporary, and why it is that."""
    from ..compiler.runtime import cache

    facts = cache.inspect(config.Options())
    return {
        **facts,
        "why": cache.why_unusable(cache_folder()) if facts["temporary"] else "",
        "folder": _home(facts["folder"]),
        "on": bool(config.defaults()["cache"]),
    }


def cache_lines() -> list[str]:
    facts = cache_facts()
    state = "on" if facts["on"] else "off (tcompile.config.cache)"
    note = f" (temporary: {facts['why']})" if facts["why"] and facts["on"] else ""
    return [
        f"disk cache: {state}, {facts['folder']}{note}, {plural(facts['kernels'], 'kernel')}, {size(facts['bytes'])} of"
        f" at most {size(facts['limit_bytes'])}"
    ]


def clear_cache() -> list[str]:
    from ..compiler.runtime import cache

    return [f"disk cache: {plural(cache.clear(config.Options()), 'kernel')} deleted"]


def _home(folder: str) -> str:
    home = os.path.expanduser("~")
    return "~" + folder[len(home) :] if folder.startswith(home + os.sep) else folder

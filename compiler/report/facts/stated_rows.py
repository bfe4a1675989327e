"""What stages state (a kernel's trials and IR, a memory plan, the symbols of sizes), as rows of the report."""

from __future__ import annotations

from typing import Any, Mapping

from ...base.labels import label
from .. import schema as s
from ..words import short

__all__ = ["plain_choices", "trial", "ir_text", "known_int", "memory_row", "symbol_rows"]


def plain_choices(choices: Mapping[str, Any]) -> dict[str, Any]:
    return {str(k): v if isinstance(v, (int, float, bool, str, type(None))) else short(v) for k, v in choices.items()}


def trial(t: Any) -> s.Trial:
    """A candidate as autotuning states it: a Trial, (config, seconds), or an object with `config` or `choices`,
    `seconds` or `us` (microseconds), `chosen` or `kept`, `error`. Whatever else it holds belongs to the
    configuration."""
    if isinstance(t, s.Trial):
        return t
    if isinstance(t, dict):
        rest = {
            k: v for k, v in t.items() if k not in ("config", "choices", "seconds", "us", "chosen", "kept", "error")
        }
        config = t.get("config", t.get("choices"))
        config = {} if config is None else dict(config) if isinstance(config, dict) else {"variant": str(config)}
        seconds = t["us"] * 1e-6 if t.get("seconds") is None and t.get("us") is not None else t.get("seconds")
        config |= {k: v for k, v in rest.items() if v not in (0, None, False)}
        return s.Trial(config, seconds, bool(t.get("chosen") or t.get("kept")), str(t.get("error") or ""))
    config, seconds = (t[0], t[1]) if isinstance(t, (tuple, list)) and len(t) > 1 else (t, None)
    return s.Trial(dict(config) if isinstance(config, dict) else {"variant": str(config)}, seconds)


def ir_text(kernel: Any) -> str:
    if kernel is None:
        return ""
    if isinstance(kernel, str):
        return kernel
    from ...lowering.print_loops import print_kernel

    return print_kernel(kernel, kernel.name, origins=True)


def memory_row(graph: int | None, facts: dict[str, Any]) -> s.Memory:
    """The memory plan of a graph, from what its schedule stated."""
    buffers = [b if isinstance(b, s.MemoryBuffer) else s.MemoryBuffer(**b) for b in facts.get("buffers") or ()]
    return s.Memory(
        graph,
        known_int(facts.get("peak_bytes")),
        known_int(facts.get("without_reuse_bytes")),
        known_int(facts.get("eager_peak_bytes")),
        facts.get("steps") or 0,
        buffers,
        list(facts.get("live") or ()),
        peak_at=facts.get("peak_at") or "",
        peak_line=list(facts.get("peak_line") or ()),
    )


def known_int(x: Any) -> int | None:
    """An int, or None for what has no value."""
    try:
        return None if x is None else int(x)
    except (TypeError, ValueError):  # a size expression without a value
        return None


def symbol_rows(env: Any) -> list[s.Symbol]:
    out = []
    sources = getattr(env, "sources", None) or {}
    ranges = getattr(env, "ranges", None) or {}
    for name, hint in (getattr(env, "hints", None) or {}).items():
        src: Any = sources.get(name) if isinstance(sources, dict) else None
        lo, hi = (ranges.get(name) or (2, None))[:2] if isinstance(ranges, dict) else (2, None)
        pinned = next((g for g in getattr(env, "guards", ()) if name in g[0].symbol_names()), None)
        y = s.Symbol(
            str(name),
            known_int(hint),
            known_int(lo),
            known_int(hi),
            src.name() if hasattr(src, "name") else str(src or ""),
        )
        if pinned is not None:
            y.file, y.line, y.why = (
                label(pinned[1]),
                pinned[2],
                f"{pinned[0]}: {pinned[3]}" if pinned[3] else str(pinned[0]),
            )
        out.append(y)
    return out

"""Logs: listeners on events that print through `logging`, switched on by name as torch's are.

    tcompile.set_logs(graph_breaks=True, recompiles=True)          # set_logs() switches all off
    TCOMPILE_LOGS="graph_breaks,+guards" python train.py           # + : more detail

Each name is a logger `tcompile.<name>`, so that handlers and levels can be set as for any other.
"""

from __future__ import annotations

import difflib
import logging
import os
from typing import Any, Callable

from . import events
from .errors import OptionError
from .base.figures import plural, seconds
from .base.source_text import source_line

__all__ = ["set_logs", "from_environment", "LOGS"]

LOGS: dict[str, str] = {
    "graph": "captured graphs, as torch-level operations with their lines",
    "aten": "graphs after functionalization and decomposition",
    "graph_breaks": "where and why a graph ended, and what to write instead",
    "guards": "what each compiled entry relies on (+: with lines and kinds)",
    "recompiles": "which guard failed, expected and got (+: of every entry)",
    "output_code": "generated kernels and entry functions",
    "fusion": "which operators share a kernel and why (+: every refusal)",
    "autotuning": "candidates that were measured, and the winner",
    "schedule": "kernels in order, library calls, memory plan",
}

_root = logging.getLogger("tcompile")
_on: dict[str, int] = {}  # name -> logging level in force
_handler: logging.Handler | None = None


def set_logs(*, all: bool | int | None = None, **names: bool | int) -> None:
    """Switch logs on (True, or a logging level: logging.DEBUG gives more detail) and off (False). Without arguments:
    all off.

    Names: graph, aten, graph_breaks, guards, recompiles, output_code, fusion, autotuning, schedule. Raises OptionError
    for another.
    """
    for key, value in {**names, **({"all": all} if all is not None else {})}.items():
        if key not in LOGS and key != "all":
            raise OptionError(f"set_logs: unknown log {key!r}.{_hint(key)}")
        if not isinstance(value, (bool, int)):
            raise OptionError(f"set_logs: {key} is True, False or a logging level, got {value!r}")
    if all is None and not names:
        _on.clear()
    for key, value in {**(dict.fromkeys(LOGS, all) if all is not None else {}), **names}.items():
        if value is False or value is None:
            _on.pop(key, None)
        else:
            _on[key] = logging.INFO if value is True else int(value)
            logging.getLogger(f"tcompile.{key}").setLevel(_on[key])
    _install()


def from_environment(text: str | None = None) -> None:
    """Set logs from TCOMPILE_LOGS (or `text`): names separated by commas, `+name` for more detail, `-name` off, `all`.
    An unknown name is said and left out: a typing error in the environment must not stop a program."""
    text = os.environ.get("TCOMPILE_LOGS", "") if text is None else text
    settings: dict[str, Any] = {}
    for word in filter(None, (w.strip() for w in text.split(","))):
        name = word.lstrip("+-")
        value: Any = logging.DEBUG if word[0] == "+" else word[0] != "-"
        if name == "all":
            settings = dict.fromkeys(LOGS, value) | settings
        elif name in LOGS:
            settings[name] = value
        else:
            _ensure_handler()
            _root.warning("TCOMPILE_LOGS: unknown log %r.%s", name, _hint(name))
    if settings:
        set_logs(**settings)


def _hint(name: str) -> str:
    near = difflib.get_close_matches(name, LOGS, 1, 0.5)
    return f" Did you mean {near[0]!r}?" if near else f" Logs: {', '.join(LOGS)}."


def _install() -> None:
    events.unsubscribe(_listen)
    if _on:
        events.subscribe(_listen)
        _ensure_handler()


def log_guards(result: Any) -> None:
    """Option `print_guards`: what the log of that name writes of a CaptureResult, where it is not on anyway."""
    if "guards" not in _on:
        _ensure_handler()
        logging.getLogger("tcompile.guards").setLevel(logging.INFO)
        logging.getLogger("tcompile.guards").info("%s", _guards(result, False))


def log_error(name: str, error: BaseException) -> None:
    """Option `verbose`: an internal error with the compiler's own frames."""
    _ensure_handler()
    _root.error("compiling %s", name, exc_info=error)


def _ensure_handler() -> None:
    """Print to stderr, unless the program has set up logging itself."""
    global _handler
    if _handler is None and not _root.handlers and not logging.getLogger().handlers:
        _handler = logging.StreamHandler()
        _handler.setFormatter(logging.Formatter("[%(name)s] %(message)s"))
        _root.addHandler(_handler)
        _root.propagate = False


def _listen(event: events.Event) -> None:
    for name, write in _WRITERS.get(event.kind, ()):
        level = _on.get(name)
        if level is not None:
            text = write(event, level <= logging.DEBUG)
            if text:
                logging.getLogger(f"tcompile.{name}").log(max(level, logging.INFO), "%s", text)


# -- what each log says
# ----------------------------------------------------------------------------------------------------
def _graph_text(title: str, graph: Any, inputs: Any = ()) -> str:
    from .report.graph_nodes import nodes_of
    from .base.labels import label

    nodes = nodes_of(graph, {i.name for i in inputs if getattr(i, "static", False)}, label)
    names = [node.name for node in nodes]
    out = [title]
    for node in nodes:
        args = node.args
        for k in reversed(range(len(node.inputs))):
            args = args.replace(f"%{k}", names[node.inputs[k]])
        shape = f": {node.dtype}{node.shape}" if node.shape is not None else ""
        line = f"   # {node.file}:{node.line}" if node.line else ""
        out.append(f"    {node.name}{shape} = {node.op}({args}){line}")
    return "\n".join(out)


def _graph(event: Any, more: bool) -> str:
    return _graph_text(f"captured graph of {_frame(event)}", event.graph.graph_module, event.graph.inputs)


def _aten(event: Any, more: bool) -> str:
    return _graph_text(f"aten graph {event.facts.get('name') or ''}".rstrip(), event.graph_module)


def _break(event: Any, more: bool) -> str:
    brk = event.brk
    code = brk.code or source_line(brk.file, brk.line).rstrip("\n")
    out = [f"graph break at {brk.file}:{brk.line} in {brk.function or '?'}: {brk.reason}", f"    {code.strip()}"]
    if brk.remedy:
        out.append(f"    instead: {brk.remedy}")
    if more:
        out += [f"    called from {fn} ({file}:{line})" for fn, file, line in brk.call_chain]
    return "\n".join(out)


def _guards(result: Any, more: bool) -> str:
    from .report.words import guard_class, guard_text

    guards = result.guards
    out = [f"{plural(len(guards), 'guard')} of {result.code.co_qualname}"]
    for guard in guards:
        where = f"   # {guard.file}:{guard.line} {guard.why}".rstrip() if more and guard.line else ""
        out.append(f"    {guard_text(guard)}" + (f" [{guard.kind}, {guard_class(guard)}]" if more else "") + where)
    return "\n".join(out)


def _recompile(event: Any, more: bool) -> str:
    from .report.words import failure_subject, failure_words

    out = []
    for failure in event.failures if more else event.failures[:1]:
        expected, got = failure_words(failure)
        what = ".".join(filter(None, failure_subject(failure)))
        at = f" ({failure.guard.file}:{failure.guard.line})" if failure.guard.line else ""
        out.append(f"recompiling {_frame(event)}: {what}: {expected} → {got}{at}")
        if failure.suggestion:
            out.append(f"    {failure.suggestion}")
    return "\n".join(out)


def _limit(event: Any, more: bool) -> str:
    return f"{_frame(event)} reached the recompile limit ({event.limit}): it runs eager from now on"


def _kernel_code(event: Any, more: bool) -> str:
    return f"kernel {event.name} ({event.facts.get('language') or 'cpp'})\n{event.source}"


def _entry_code(event: Any, more: bool) -> str:
    source = getattr(getattr(event.facts.get("entry"), "meta", None), "source", "")
    return f"entry of {_frame(event)}\n{source}" if source else ""


def _fused(event: Any, more: bool) -> str:
    k = event.facts.get("kernel")
    why = list(getattr(k, "fused_because", None) or ())
    return (
        f"{event.name}: {', '.join(map(str, event.facts.get('origins') or getattr(k, 'origins', ()) or ()))}"
        + "".join(f"\n    {reason}" for reason in why)
    )


def _unfused(event: Any, more: bool) -> str:
    rows = event.facts.get("unfused") or () if more else ()
    return "\n".join(f"not fused: {a} and {b}: {why}" for a, b, why in rows)


def _autotune(event: Any, more: bool) -> str:
    from .report.facts.stated_rows import trial

    trials = sorted(map(trial, event.trials), key=lambda tried: (tried.seconds is None, tried.seconds))
    out = [f"{plural(len(trials), 'candidate')} for {getattr(event.kernel, 'name', event.kernel)}"]
    for tried in trials if more else trials[:5]:
        out.append(
            f"    {'*' if tried.chosen else ' '} {seconds(tried.seconds)}  {tried.words()}"
            + (f"  {tried.error}" if tried.error else "")
        )
    return "\n".join(out)


def _schedule(event: Any, more: bool) -> str:
    kernels = (
        [getattr(k, "name", str(k)) for k in event.facts.get("kernels") or ()]
        if not isinstance(event.facts.get("kernels"), int)
        else [str(event.kernels)]
    )
    memory = {
        key: value for key, value in (event.facts.get("memory") or {}).items() if more or key not in ("buffers", "plan")
    }
    return (
        f"kernels: {', '.join(kernels) or 'none'}\n    library calls:"
        f" {', '.join(map(str, event.facts.get('extern') or ())) or 'none'}\n    memory: {memory}"
    )


def _frame(event: Any) -> str:
    frame = event.facts.get("frame")
    return str(getattr(frame, "co_qualname", None) or frame or "?")


_WRITERS: dict[str, list[tuple[str, Callable[[Any, bool], str]]]] = {
    "graph": [("graph", _graph)],
    "aten": [("aten", _aten)],
    "break": [("graph_breaks", _break)],
    "capture_end": [("guards", lambda e, more: _guards(e.result, more))],
    "recompile": [("recompiles", _recompile)],
    "limit": [("recompiles", _limit)],
    "kernel": [("output_code", _kernel_code), ("fusion", _fused)],
    "entry": [("output_code", _entry_code)],
    "autotune": [("autotuning", _autotune)],
    "schedule": [("schedule", _schedule), ("fusion", _unfused)],
}

"""What a view, or whoever can send a message in its place, may ask the kernel."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from tcompile.compiler import config
from tcompile.kernel_magics.controls import CONTROLS
from tcompile.kernel_magics.live import Live
from tcompile.kernel_magics.questions import QUESTIONS, AskError, checked

JUNK: list[Any] = [None, True, 0, -1, 10**30, float("nan"), float("inf"), -1.5, "", "x" * 5000, "\0", "\ud800", [], [[]], [None], {}, {"a": 1}, {"shape": 3},
                   {"__class__": {}}, b"x", object()]  # fmt: skip
GOOD: list[dict[str, Any]] = [
    {"ask": "retime", "seconds": 2, "compare": ["eager", "torch"]},
    {"ask": "try", "settings": {"mode": "max-autotune", "disable_fusion": True, "force_fuse": "sum_1:mul_2, exp:sum_1"}},
    {"ask": "sweep", "call": "f", "argument": 0, "dim": -1, "sizes": [1, 2, 3], "dynamic": None},
    {"ask": "forecast", "function": 0, "given": {"x": {"shape": [1, 2], "dtype": "float32"}, "k": "4"}},
    {"ask": "check"}, {"ask": "text", "kernel": 3}, {"ask": "page"}, {"ask": "reproducer", "what": "kernels/0"}, {"ask": "controls"}, {"ask": "on", "line": "mode=max-autotune"}, {"ask": "on"}, {"ask": "off"},
]  # fmt: skip


def test_every_question_has_its_fields_declared() -> None:
    assert set(Live(SimpleNamespace(shell=None)).asks) == set(QUESTIONS) > set(CONTROLS)


@pytest.mark.parametrize("message", GOOD, ids=lambda m: m["ask"])
def test_what_views_ask(message: dict[str, Any]) -> None:
    out = checked({"id": 7, "report": "r", **message}, QUESTIONS)
    assert out["report"] == "r" and all(out[k] == v for k, v in message.items())


@pytest.mark.parametrize("message", GOOD, ids=lambda m: m["ask"])
def test_fields_of_any_other_type_are_refused_in_words(message: dict[str, Any]) -> None:
    """A bad value is refused, or is one that the field can have: then it is left as it is."""
    for field in [k for k in message if k != "ask"] + ["new", "report"]:
        for junk in JUNK:
            try:
                out = checked({**message, field: junk}, QUESTIONS)
            except AskError as e:
                assert str(e).isprintable() and len(str(e)) < 400
            else:
                assert field != "new" and (out.get(field) == junk or junk is None or field == "given")
                assert type(junk) in (type(None), type(out.get(field)), int, list)


def test_what_is_too_large_to_show_is_refused_in_words() -> None:
    deep: list[Any] = []
    for _ in range(3000):
        deep = [deep]
    for message in GOOD:
        for field in [k for k in message if k != "ask"]:
            for junk in (deep, {"a": deep}, 10**6000):
                with pytest.raises(AskError):
                    checked({**message, field: junk}, QUESTIONS)


@pytest.mark.parametrize(
    "message",
    [
        *JUNK,
        {"ask": None},
        {"ask": "eval"},
        {"ask": ["try"]},
        {"ask": "__class__"},
        {"ask": "try"},
        {"ask": "sweep", "call": "f"},
    ],
    ids=lambda junk: "object" if type(junk) is object else repr(junk),
)
def test_what_is_no_question(message: Any) -> None:
    with pytest.raises(AskError):
        checked(message, QUESTIONS)


@pytest.mark.parametrize(
    "name",
    [
        n
        for n in config.OPTIONS
        if n not in ("disable_fusion", "emulate_precision", "pattern_matcher", "force_fuse", "force_split")
    ]
    + ["backend", "fullgraph", "dynamic", "given", "__class__"],
)
def test_options_that_are_not_offered(name: str) -> None:
    value = config.OPTIONS[name].default if name in config.OPTIONS else "eager"
    with pytest.raises(AskError, match="what can be tried is mode, autocast, disable_fusion"):
        checked({"ask": "try", "settings": {name: value}}, QUESTIONS)
    with pytest.raises(AskError, match="mode="):
        checked({"ask": "on", "line": f"{name}={value}"}, QUESTIONS)


@pytest.mark.parametrize(
    "line",
    [
        "mode=x",
        "mode=default cxx=sh",
        "mode=default\ncxx=sh",
        "--mode default",
        "mode=default --quiet",
        "backend=eager",
        "-o x",
        3,
        ["mode=default"],
    ],
)
def test_lines_that_are_not_a_mode(line: Any) -> None:
    with pytest.raises(AskError):
        checked({"ask": "on", "line": line}, QUESTIONS)


@pytest.fixture
def shell(tmp_path: Any) -> Any:
    from IPython.core.interactiveshell import InteractiveShell
    from tcompile.kernel_magics import magics

    InteractiveShell.clear_instance()
    sh = InteractiveShell.instance(colors="nocolor")
    sh.history_manager.enabled = False
    sh.session = magics.load(sh).session
    with config.patch(cache_dir=str(tmp_path)):
        yield sh
    sh.session.engine.reset()
    magics.unload(sh)
    InteractiveShell.clear_instance()


def test_no_message_runs_a_command(shell: Any, tmp_path: Any) -> None:
    """By the comm and by a widget: the kernel answers every message, in words, and nothing but its own compiler
    runs.
    """
    anywidget = pytest.importorskip("anywidget")
    from tcompile.kernel_magics import widgets

    assert anywidget
    shell.run_cell("import torch\nx = torch.ones(3)\ndef f(x):\n    return x.sin() * 2")
    assert shell.run_cell("%%tcompile time=20ms\nout = [f(x)]").success
    report, sentinel = shell.session.last, tmp_path / "ran"
    evil = {
        "cxx": f"sh -c 'touch {sentinel}'",
        "cache_dir": str(tmp_path / "elsewhere"),
        "debug": True,
        "debug_dir": str(tmp_path / "debug"),
    }
    sent: list[dict[str, Any]] = []
    comm = SimpleNamespace(
        comm_id="c", send=sent.append, on_msg=lambda f: None, on_close=lambda f: None, close=lambda: None
    )
    widget = widgets._widget_class("export default {}")(report)
    widget.send = sent.append
    messages: list[Any] = [{"ask": "try", "settings": {k: v}, "seconds": 0.01} for k, v in evil.items()]
    messages += [{"ask": "try", "settings": evil}, {"ask": "on", "line": f"cxx={evil['cxx']}"}, *JUNK, {"ask": "page", "say": 1},
                 {"ask": "sweep", "call": "f", "argument": 0, "dim": 0, "sizes": [1 << 31]},
                 {"ask": "forecast", "given": {"x": "(" * 999}}, {"ask": "forecast", "given": {"x": "-" * 999 + "1"}}]  # fmt: skip
    for k, m in enumerate(messages):
        m = {"id": k, "report": report.id, **m} if isinstance(m, dict) and "ask" in m else m
        before = len(sent)
        shell.session.live._answer(comm, m)
        widget._asked(widget, m, [])
        assert len(sent) == before + 2 and all("error" in a and "Traceback" not in a["error"] for a in sent[before:]), m
    assert not sentinel.exists()
    assert not (tmp_path / "elsewhere").exists() and not (tmp_path / "debug").exists() and shell.session.always is None

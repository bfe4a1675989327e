"""Texts that are others at each call (names, paths): they do not recompile what only holds them, and what looks into
them is right."""

from __future__ import annotations

import functools
import os.path
import types

import pytest
import torch

import tcompile
from tcompile.compiler import events
from tcompile.compiler.config import Options
from tcompile.compiler.frontend import hook
from tcompile.compiler.runtime import frame_hook

X = torch.linspace(-1, 1, 6)
TEXTS = ["gelu", "tanh", "run-3", "", "a/b", "tanh", "gelu"]


class Record:
    def __init__(self, name, n=1):
        self.name, self.n = name, n


def hold(x, text):
    return x.sin() * 2, [text], {"name": text}


def join_names(x, text):
    return x + 1, f"{text}-{x.shape[0]}.pt", "name: " + text, "%s!" % text, f"{text:>8}", f"{text!r}", str(text)


def paths(x, text):
    p = os.path.join("runs", text)
    return x * 2, p, os.path.basename(p), os.path.dirname(p), os.path.normpath(p)


def record(x, text):
    r = Record(text)
    y = x * r.n
    return y, r.name, vars(r)["name"]


def tell(x, text):
    print("name", text)
    return x.cos()


def hand_on(x, text):
    def inner(t, *, name):
        return t * 3, name

    return (lambda **named: inner(x, **named))(name=text)


def kind_of(x, text):
    return x + 1, isinstance(text, str), type(text) is str, text is None


def choose(x, text):
    return torch.nn.functional.gelu(x, approximate="tanh" if text == "tanh" else "none"), bool(text)


def give_to_torch(x, text):
    if text in ("tanh",):
        return torch.nn.functional.gelu(x, approximate=text)
    return x * len(text)


def look_inside(x, text):
    return x + len(text), text.upper(), text[:2], "/" in text, text.split("/"), [c for c in text], text * 2


def as_key(x, text):
    table = {"gelu": 1.0, "tanh": 2.0}
    made = {text: x}
    return x * table.get(text, 3.0), made, text in table, hash(text) == hash(str(text)), {text}


def order(x, text):
    return x, sorted([text, "m"]), text < "m", max(text, "b"), text != "b"


def matched(x, text):
    match text:
        case "gelu":
            return x + 1
        case "tanh" | "run-3":
            return x + 2
    return x + 3


def raises(x, text):
    y = x + 1
    try:
        raise ValueError(text)
    except ValueError as e:
        return y, str(e), e.args


def breaks(x, text):
    y = x.sin()
    n = os.getpid() > 0
    return y.cos() * n, text


HELD = (hold, join_names, paths, record, tell, hand_on, kind_of)
LOOKED_AT = (choose, give_to_torch, look_inside, as_key, order, matched, raises, breaks)


def versions(f, capsys):
    """How many captures the calls took; each equals eager."""
    captures = []
    compiled = tcompile.compile(f, backend="eager", options={"recompile_limit": 32})
    with events.listen(lambda e: captures.append(e) if e.kind == "capture_end" else None):
        for text in TEXTS:
            want = f(X, text)
            said = capsys.readouterr().out
            got = compiled(X, text)
            assert capsys.readouterr().out == said
            assert plain(got) == plain(want)
    return len(captures)


def plain(value):
    """Tensors as their numbers, texts as they are, with their classes."""
    if isinstance(value, torch.Tensor):
        return value.dtype, value.tolist()
    if isinstance(value, dict):
        return {k: plain(v) for k, v in value.items()}
    return type(value), [plain(v) for v in value] if isinstance(value, (tuple, list)) else value


@pytest.mark.parametrize("f", HELD, ids=lambda f: f.__name__)
def test_what_holds_a_text_is_compiled_twice_at_most(f, capsys):
    assert versions(f, capsys) == 2


@pytest.mark.parametrize("f", LOOKED_AT, ids=lambda f: f.__name__)
def test_what_looks_into_a_text_is_right(f, capsys):
    assert versions(f, capsys) <= 2 * len(TEXTS)


def test_a_text_that_is_looked_into_after_all_is_guarded():
    def f(x, text):
        name = f"{text}.pt"
        return x + (1 if name == "a.pt" else 2), name

    compiled = tcompile.compile(f, backend="eager")
    for text in ("a", "b", "c", "a", "d", "b"):
        assert plain(compiled(X, text)) == plain(f(X, text))


@pytest.mark.skipif(not frame_hook.available(), reason="the C extension is not built")
@pytest.mark.parametrize(
    "body",
    [
        "d = tempfile.mkdtemp()\ny = torch.sin(x) * 2\nlog.append(d)",
        "d = tempfile.mkdtemp()\nf = os.path.join(d, 'a.txt')\ny = torch.sin(x) * 2\nlog.append(f)",
        "name = f'run-{time.time()}'\ny = torch.sin(x) * 2\nlog.append(name)",
        "seed = random.randrange(10**6)\ntorch.manual_seed(seed)\ny = torch.sin(x) * 2\nlog.append(seed)",
        "r = Record(tempfile.mkdtemp())\ny = torch.sin(x) * 2 * r.n\nlog.append(r.name)",
        "n = globals().get('n', 0) + 1\ny = torch.sin(x) * 2\nlog.append(f'step {n}')",
    ],
    ids=["path", "joined path", "name", "seed", "object", "counter"],
)
def test_paths_names_seeds_and_counters_do_not_recompile_a_cell(body, capsys):
    import random
    import tempfile
    import time

    names = dict(torch=torch, tempfile=tempfile, time=time, random=random, os=os, x=X, log=[], Record=Record)
    code, opts = compile(body, "<cell 1>", "exec"), Options.make(None, "eager", False, None, None)
    captured = []
    try:
        with events.listen(lambda e: captured.append(e) if e.kind == "capture_end" else None):
            for _ in range(3):
                hook.run_code(code, names, opts)
            captured.clear()
            for _ in range(3):
                hook.run_code(code, names, opts)
                torch.testing.assert_close(names["y"], torch.sin(X) * 2)
        assert not captured and len(set(map(str, names["log"]))) == 6
    finally:
        hook.reset()
        for folder in names["log"]:
            if isinstance(folder, str) and os.path.isdir(folder):
                os.rmdir(folder)


class Plain:
    pass


def text_of_error(x, o):
    try:
        raise KeyError(o)
    except KeyError as e:
        return x + 1, str(e), repr(e)


HOLDING = {
    "partial": lambda x, o: (x + 1, repr(functools.partial(max, o))),
    "namespace": lambda x, o: (x + 1, f"{types.SimpleNamespace(a=o)}"),
    "error": lambda x, o: (x + 1, str(ValueError(o)), repr(ValueError(o))),
    "raised": text_of_error,
    "static": lambda x, o: (x + 1, repr(staticmethod(o))),
    "list": lambda x, o: (x + 1, repr([o]), f"{(o,)}", "%s" % {1: o}),
}


@pytest.mark.parametrize("name", HOLDING)
def test_addresses_in_texts_are_those_of_the_call(name):
    f = HOLDING[name]
    fast = tcompile.compile(f, backend="eager")
    held = [Plain(), lambda: 1, Plain(), lambda: 2]  # all at once: each has another address
    for o in held:
        assert fast(X, o)[1:] == f(X, o)[1:]


def test_addresses_in_texts_are_those_of_what_is_made():
    def f(x):
        made = Plain()
        fn = lambda: made  # noqa: E731
        return x + 1, made, fn, repr(staticmethod(fn)), repr([fn]), str({"a": made}), repr(functools.partial(fn))

    fast = tcompile.compile(f, backend="eager")
    for _ in range(2):
        _, made, fn, *texts = fast(X)
        assert [hex(id(made if k == 2 else fn)) in text for k, text in enumerate(texts)] == [True] * 4

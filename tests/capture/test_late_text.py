"""Text of numbers that vary is made by the entry: printing a loss or a step costs no entry for each value."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import io
import logging
import types

import pytest
import torch

import tcompile

X = torch.arange(4.0)
TABLE = {"k0": 1, "k1": 2, "k2": 3}
LOG = logging.getLogger("tests.late_text")


class Holder:
    pass


def printed(x, v):
    print(
        f"loss {v:.3f}",
        v,
        "%.3f %s" % (v, "a"),
        "{} {:>8.2f}".format(v, v),
        str(v) + "x",
        repr(v),
        f"{v!r:>20}",
        [v, {"a": (v,)}],
        end="!",
    )
    return x + 1


def stored(x, v):
    messages, holder = [], Holder()
    messages.append(f"v={v}")
    messages += [f"w={v + 1}"]
    holder.name = f"o{v}"
    for name in ("other",):
        setattr(holder, name, f"b{v}")
    text = f"step {v}"
    return (
        x + v,
        messages,
        vars(holder),
        text,
        text + "!",
        "<" + text,
        ", ".join([text, "b", str(v)]),
        f"[{text}]",
        {"t": text},
        str(text),
    )


def logged(x, v):
    LOG.warning("x %s %s", v, f"step {v}")
    LOG.warning(f"y {v}")
    return x + 1


def of_items(x, v):
    print(f"sum {(x.sum() * v).item():.3f}")
    return x + 1


def looked_into(x, v):
    text = f"a{v}"
    return (
        x + 1,
        text.upper(),
        text[0],
        bool(text),
        text or "z",
        isinstance(text, str),
        type(text),
        text.startswith("a1"),
        sorted([text, "b"]),
        text * 2,
        len(text),
        "2" in text,
        text == "a3",
        [*text],
        list(map(str.lower, [text])),
    )


def keys(x, v):
    text = f"k{int(v) % 3}"
    return x * TABLE[text] + (text == "k1"), {text: 1}, getattr(torch, f"a{'bs' if v else 'bs'}")(x)


def raised(x, v):
    try:
        if v > 0:
            raise ValueError(f"bad {v}")
    except ValueError as error:
        return x, str(error), error.args
    return x + 1, "", ()


def run(fn, *args):
    out, heard = io.StringIO(), []
    handler = logging.Handler()
    handler.emit = lambda record: heard.append(record.getMessage())
    LOG.addHandler(handler)
    LOG.propagate = False
    try:
        with contextlib.redirect_stdout(out):
            result = fn(*args)
    finally:
        LOG.removeHandler(handler)
    return result, out.getvalue(), heard


@pytest.mark.parametrize("values", [[-2.5, 0.25, 1e20, float("nan"), 3.0, float("inf")], [2, 3, -4, 5, 11, 12]])
@pytest.mark.parametrize(
    "fn,entries", [(printed, 3), (stored, 3), (logged, 3), (of_items, 5), (looked_into, 99), (keys, 99), (raised, 99)]
)
def test_as_eager(fn, entries, values):
    if fn is keys and type(values[0]) is float:
        values = values[:2]
    with tcompile.record() as recorded:
        compiled = tcompile.compile(fn, backend="eager")
        for v in values:
            assert str(run(compiled, X, v)) == str(run(fn, X, v))
    assert len(recorded.report().entries) <= entries


def test_conversions_that_depend_on_the_number():
    def fn(x, v):
        return x + 1, "%d" % v

    compiled = tcompile.compile(fn, backend="eager")
    for v in (1.5, 2.5, 3.5, float("nan")):
        try:
            wanted = fn(X, v)[1]
        except ValueError as error:
            with pytest.raises(ValueError, match=str(error)):
                compiled(X, v)
        else:
            assert compiled(X, v)[1] == wanted


def test_the_errors_of_a_format_are_the_programs():
    def fn(x, v):
        return x, f"{v:d}"

    compiled = tcompile.compile(fn, backend="eager")
    for v in (1.5, 2.5, 3.5):
        with pytest.raises(ValueError, match="Unknown format code 'd'"):
            compiled(X, v)


@dataclasses.dataclass
class Held:
    value: object


def _caught(value):
    try:
        raise KeyError(value, [value])
    except KeyError as e:
        return str(e), repr(e)


@pytest.mark.parametrize(
    "hold",
    [
        lambda v: v,
        lambda v: [v, (v,)],
        lambda v: {"a": [v]},
        lambda v: collections.deque([v]),
        lambda v: collections.OrderedDict(a=v),
        Held,
        lambda v: collections.defaultdict(list, a=[v]),
        lambda v: ValueError("a", (v,)),
        lambda v: slice(v),
        lambda v: types.SimpleNamespace(a=[v]),
    ],
)
@pytest.mark.parametrize(
    "read",
    [
        lambda x, k: x.shape,
        lambda x, k: torch.Size((x.shape[0], 3)),
        lambda x, k: x.shape[0],
        lambda x, k: k,
        lambda x, k: x.int().sum().item(),
        lambda x, k: x.sum().item(),
    ],
)
def test_text_of_what_holds_numbers(hold, read, capsys):
    """The text never shows the symbol that stands for a number, however deep the number lies."""

    def f(x, k):
        v = hold(read(x, k))
        print(v, [v])
        return x + 1, str(v), f"{v!r}|{v}", ascii(v), "%s" % [v], "{}".format(v), _caught(v)

    compiled = tcompile.compile(f, backend="eager")
    for n in (4, 5, 6):
        got = compiled(torch.ones(n, 2), n)
        said = capsys.readouterr().out
        assert got[1:] == f(torch.ones(n, 2), n)[1:]
        assert said == capsys.readouterr().out


def test_a_shape_that_is_printed_stays_dynamic():
    graphs = []
    compiled = tcompile.compile(
        lambda x: (x + 1, str([x.shape]), f"{x.shape}"), backend=lambda gm, inputs: graphs.append(gm) or gm.forward
    )
    for n in range(4, 9):
        assert compiled(torch.ones(n, 2))[1:] == (f"[torch.Size([{n}, 2])]", f"torch.Size([{n}, 2])")
    assert len(graphs) == 2

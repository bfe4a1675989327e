"""Guards in words: one plain sentence for each, and the short text of an expected value."""

from __future__ import annotations

import re
from typing import Any

import torch

from ..base.figures import with_article
from ..guards.guard import Guard, GuardFailure, TensorSpec
from ..guards.weak import present

__all__ = [
    "guard_text",
    "expected_text",
    "fixed_words",
    "guard_class",
    "spec_text",
    "failure_words",
    "failure_subject",
    "short",
]

_WATCHED_ROOTS = ("global", "function", "const", "builtin")


def short(x: Any, limit: int = 80) -> str:
    """A value as short text that never prints a tensor's data."""
    if not isinstance(x, type) and (type(x).__name__ in ("Tensor", "Parameter") or hasattr(x, "data_ptr")):
        return f"{type(x).__name__}{list(getattr(x, 'shape', []))}"
    name = getattr(x, "__qualname__", None)
    if isinstance(x, type) or callable(x) and name:
        return str(name)
    if type(x).__name__ == "module":
        return f"module {x.__name__}"
    try:
        text = repr(x)
    except Exception as e:  # a user's __repr__ may fail; the report must not
        text = f"<{type(x).__name__}, its repr raises {type(e).__name__}>"
    text = re.sub(r" at 0x[0-9a-f]+", "", text)
    return text if len(text) <= limit else text[: limit - 1] + "…"


def spec_text(spec: TensorSpec) -> str:
    """`float32[s0, 64] cpu`, with what is unusual added."""
    shape = ", ".join("any" if d is None else str(d) for d in spec.shape)
    extra = [
        t
        for t, on in (
            ("requires grad", spec.requires_grad),
            ("conj", spec.is_conj),
            ("neg", spec.is_neg),
            ("this memory", spec.data_ptr is not None),
        )
        if on
    ]
    return f"{_dtype(spec)}[{shape}] {spec.device}" + "".join(f", {e}" for e in extra)


def _dtype(spec: TensorSpec) -> str:
    return str(spec.dtype).removeprefix("torch.")


_ORDINALS = ("first", "second", "third", "fourth", "fifth", "sixth")


def _shape_words(shape: tuple) -> str:
    if not shape:
        return "0-dimensional"
    if all(type(d) is int for d in shape):
        return "of shape (" + ", ".join(map(str, shape)) + ")"
    parts = []
    for i, d in enumerate(shape):
        which = f"{_ORDINALS[i]} size" if i < len(_ORDINALS) else f"size {i}"
        if d is None:
            size = "any"
        elif type(d) is int:
            size = str(d)
        else:
            size = f"any from 2 up (`{d}`)" if str(d).isidentifier() else f"`{d}`"
        parts.append(f"{which} {size}")
    return f"{len(shape)}-D, " + ", ".join(parts)


def expected_text(g: Guard) -> str:
    e = g.expected
    if g.kind == "TENSOR" and isinstance(e, TensorSpec):
        return spec_text(e)
    if g.kind == "STATE" and isinstance(e, dict):
        return ", ".join(f"{k}={short(v)}" for k, v in e.items())
    if g.kind in ("NO_ALIAS", "NO_OVERLAP"):
        return ", ".join(_name(x) for x in e)
    if g.kind == "ALIAS":
        return _name(e)
    if g.kind == "FUNCTION":  # (the repr of its module's names would be pages long)
        return f"the code of {e.code.co_qualname}"
    if g.kind == "CLASS":
        return ", ".join(name for name, _ in e[:6]) + (f" and {len(e) - 6} more" if len(e) > 6 else "") + " as found"
    if g.kind == "HASATTR":
        return f"{'has' if e[1] else 'has no'} {e[0]}"
    if g.kind == "FLOAT" and not e:  # of any value
        return ""
    if g.kind == "WEAK_ID":
        obj = e() if callable(e) else e
        return f"this {type(obj).__name__}" if obj is not None else "an object that is gone"
    return short(present(e))


_GIVEN = re.compile(r"\w+(\[[^\[\].]+\])*")  # names, and items of what they name
_ITEM = "__value"  # what capture calls the item of a loop
_FIXED = {"EQUALS": "value", "LEN": "length", "DICT_KEYS": "keys"}


def fixed_words(g: Guard) -> str:
    """What of a value that a call is given may not change, in a few words; nothing of what lies deeper in objects."""
    if g.source is None:
        return ""
    name = g.source.name()
    if not _GIVEN.fullmatch(name) or g.source.root.kind not in ("local", "global", "closure"):
        return ""
    if g.kind == "LEN" and name.startswith(_ITEM):  # (a loop takes its item apart: nobody gives it another length)
        return ""
    if g.kind != "TENSOR" or not isinstance(g.expected, TensorSpec):
        return _FIXED.get(g.kind, "")
    sizes = g.expected.shape
    fixed = [d for d, size in enumerate(sizes) if type(size) is int]
    if len(fixed) == len(sizes):
        return "shape or dtype"
    named = " or ".join(f"{_ORDINALS[d]} size" if d < len(_ORDINALS) else f"size {d}" for d in fixed)
    return f"{named or 'number of dimensions'} or dtype"


def _name(source: Any) -> str:
    return source.name() if hasattr(source, "name") else str(source)


def guard_text(g: Guard) -> str:
    """One sentence: what has to hold for the entry to be used again."""
    s = f"`{g.source.name()}`" if g.source is not None else ""
    e, x = g.expected, expected_text(g)
    if g.kind == "TENSOR" and isinstance(e, TensorSpec):
        kind = {"Tensor": "tensor", "Parameter": "parameter"}.get(e.type.__name__, e.type.__name__)
        grad = ", requires grad" if e.requires_grad else ""
        what = with_article(f"{_dtype(e)} {kind}")
        return f"{s} is {what} on {e.device}, {_shape_words(e.shape)}{grad}".replace(", of shape", " of shape")
    if g.kind == "STATE" and isinstance(e, dict):
        return _state_words(e)
    return {
        "ID": f"{s} is {x}",
        "TYPE": f"{s} is exactly {with_article(x)}",
        "EQUALS": f"{s} is {x}",
        "LEN": f"{s} has {x} item{'' if g.expected == 1 else 's'}",
        "DICT_KEYS": f"{s} has the keys {x}",
        "LACKS": f"{s} has no {x}",
        "HASATTR": f"{s} {x}",
        "INT_SYMBOL": f"{s} is any whole number (`{x}`)",
        "FLOAT": f"{s} is a float, of any value",
        "PREDICATE": x,
        "ALIAS": f"{s} and `{x}` are one object",
        "NO_ALIAS": f"different objects: {x}",
        "NO_OVERLAP": f"tensors that share no memory: {x}",
        "CODE": f"{s} still has the code it had",
        "FUNCTION": f"{s} is a function of the code and module it had",
        "CLASS": f"{s} still gives what capture looked up in it",
        "WEAK_ID": f"{s} is {x}",
    }.get(g.kind, f"{s} {g.kind} {x}")


def _state_words(state: dict[str, Any]) -> str:
    """Gradient and inference mode in words; of the rest what is not as torch starts with."""
    out = []
    if "grad_mode" in state:
        out.append("gradients are " + ("on" if state["grad_mode"] else "off"))
    if state.get("inference_mode"):
        out.append("inference mode is on")
    if state.get("autocast"):
        out.append(f"autocast is {short(state['autocast'], 40)}")
    if len(state) > len(out):
        out.append("torch's other settings are as they were")
    return ", ".join(out)


def guard_class(g: Guard) -> str:
    """ "watched", "checked" or "once", as the guard itself says or, failing that, by where its source starts."""
    given = getattr(g, "cls", None)
    if given:
        return str(given)
    if g.source is None or g.kind in ("TENSOR", "INT_SYMBOL", "FLOAT", "PREDICATE", "NO_OVERLAP"):
        return "checked"
    return "watched" if g.source.root.kind in _WATCHED_ROOTS else "checked"


def failure_words(f: GuardFailure) -> tuple[str, str]:
    """Expected and got of a failed guard: the bare values where one value differs (`8`, `16`), sentences otherwise."""
    g = f.guard
    expected = f.expected_text.rpartition(" was ")[2] if g.kind == "INT_SYMBOL" else _part(g, f.detail)
    if expected is not None and f.got_text.endswith(f" is {f.got}"):  # words already: `a Tensor`
        return expected, str(f.got)
    if expected is not None and isinstance(f.got, (int, float, str, torch.dtype, torch.device)):
        return expected, f.got if isinstance(f.got, str) and g.kind == "TENSOR" else short(f.got)
    if g.kind == "PREDICATE" and f.got:
        return f.detail, str(f.got)
    got = f.got_text or (f.got if isinstance(f.got, str) else short(f.got))
    return f.expected_text or expected_text(g), got


def _part(g: Guard, detail: str) -> str | None:
    """The expected value alone, of the part of the guard that `detail` names."""
    if g.kind in ("EQUALS", "LEN"):
        return short(g.expected)
    if g.kind == "ID" and type(present(g.expected)) is bool:
        return str(present(g.expected))
    if g.kind != "TENSOR" or not isinstance(g.expected, TensorSpec):
        return None
    m = re.fullmatch(r"(shape|stride)\[(\d+)\]", detail)
    if m:
        return str(getattr(g.expected, m.group(1))[int(m.group(2))])
    return str(getattr(g.expected, detail)) if detail in ("dtype", "device", "requires_grad") else None


def failure_subject(f: GuardFailure) -> tuple[str, str]:
    """Source and detail of what changed: (`x`, `shape[0]`), (`n`, ``), (``, `grad mode`)."""
    g = f.guard
    name = g.source.name() if g.source is not None else ""
    if g.kind == "LEN":
        return f"len({name})", ""
    return name, f.detail if g.kind in ("TENSOR", "STATE", "PREDICATE") or not name else ""

"""Functional forms of operators that write their arguments and have none: the program's own, and those of libraries.

`mine::scale_(Tensor(a!) x, float by) -> ()` gets
`tcompile_functional::mine_scale__default(Tensor x, float by) -> Tensor`.
The form gives the operator's own results first, then what each written argument holds afterwards. Called as it is, it
copies what is written and calls the operator on the copies. Lowering calls the operator itself, on memory of the plan
(lowering/rules/written.py).
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any, Callable, Iterable

import torch

__all__ = [
    "Form",
    "counting",
    "form_of",
    "functional_form",
    "may_be_left_out",
    "shown_name",
    "sharing",
    "spread",
    "spread_names",
]

_library = torch.library.Library("tcompile_functional", "DEF")
_WRITTEN = re.compile(r"\(\w+!\)")
_READABLE = re.compile(r"\W")


@dataclass(frozen=True)
class Form:
    """`functional` computes what `op` computes. names: those of op's parameters; written: those of them that it writes;
    fresh: how many results of its own come first. moved: of each written one, how far the last call moved its version:
    an operator of the program's moves it as often as its body writes, which nobody knows before it has run."""

    functional: torch._ops.OpOverload
    op: torch._ops.OpOverload
    names: tuple[str, ...]
    written: tuple[str, ...]
    fresh: int
    moved: dict[str, int] = field(default_factory=dict, compare=False)

    @property
    def counts(self) -> bool:
        """Whether it is the program's own. torch's operators move a version by one, launches of kernels by none."""
        op = self.op
        while op in _shared:
            op = _shared[op]
        return op.namespace not in ("aten", "prims", "tcompile_kernels")

    def call(self, /, *args: Any, **kwargs: Any) -> Any:  # (an operator's parameter may be called `self`)
        """The operator, with a look at the versions of what it writes."""
        given = {**dict(zip(self.names, args)), **kwargs}
        before = {k: given[k]._version for k in self.written if not given[k].is_inference()}
        out = self.op(*args, **kwargs)
        self.moved.update({key: given[key]._version - version for key, version in before.items()})
        return out


_shared_library = torch.library.Library("tcompile_sharing", "DEF")
_sharing: dict[tuple[torch._ops.OpOverload, tuple[tuple[str, str], ...]], torch._ops.OpOverload] = {}
_spread: dict[tuple, torch._ops.OpOverload] = {}
_shared: dict[torch._ops.OpOverload, torch._ops.OpOverload] = {}  # such an operator -> the one it calls
_forms: dict[torch._ops.OpOverload, Form | None] = {}
_of_functional: dict[torch._ops.OpOverload, Form] = {}


def functional_form(op: torch._ops.OpOverload) -> Form | None:
    """The form of an operator that writes tensors. None where its schema says more than that: results that are views,
    lists of tensors that are written, or tensors that may be left out.
    """
    if op not in _forms:
        _forms[op] = _make(op)
    return _forms[op]


def form_of(functional: Any) -> Form | None:
    """The form that an operator of a graph belongs to."""
    return _of_functional.get(functional)


def counting(op: Any) -> Callable[..., Any] | None:
    """What to call for an operator whose writes are counted when it runs; None for others."""
    form = _forms.get(op)
    return form.call if form is not None and form.counts else None


def sharing(op: torch._ops.OpOverload, same: tuple[tuple[str, str], ...]) -> torch._ops.OpOverload:
    """`op` where some arguments are the tensor that another one writes: (name, name of the written one). It has no
    parameters for them, and gives none of the arguments back."""
    key = op, same
    if key not in _sharing:
        _sharing[key] = _shared_operator(op, dict(same))
    return _sharing[key]


def spread(
    op: torch._ops.OpOverload, lengths: tuple[tuple[str, int], ...], results: tuple[int | None, ...]
) -> torch._ops.OpOverload:
    """`op` where each list of tensors that it writes, `lengths` says of how many, is a parameter for each tensor. A
    tensor that may be left out is none or one. `results`: of how many tensors its own results are, which come one by
    one; None for what is no list."""
    key = op, lengths, results
    if key not in _spread:
        _spread[key] = _spread_operator(op, dict(lengths), results)
    return _spread[key]


def may_be_left_out(op: torch._ops.OpOverload, name: str) -> bool:
    """Whether a parameter is a tensor that calls may leave out."""
    return next(str(arg.type) for arg in op._schema.arguments if arg.name == name) == "Optional[Tensor]"


def spread_names(name: str, length: int) -> list[str]:
    """The parameters that stand for a list."""
    return [f"{name}_{i}" for i in range(length)]


def _shared_operator(op: torch._ops.OpOverload, same: dict[str, str]) -> torch._ops.OpOverload:
    parameters = {a: text for a, text in _parameters(op) if a.name not in same}
    return _operator(
        op, parameters.items(), lambda given: {**given, **{key: given[value] for key, value in same.items()}}
    )


def _spread_operator(
    op: torch._ops.OpOverload, lengths: dict[str, int], results: tuple[int | None, ...]
) -> torch._ops.OpOverload:
    parameters: list[tuple[Any, str]] = []
    for a, text in _parameters(op):
        names = spread_names(a.name, lengths[a.name]) if a.name in lengths else None
        parameters += [(a, text)] if names is None else [(a, f"Tensor({name}!) {name}") for name in names]

    def together(given: dict[str, Any]) -> dict[str, Any]:
        whole: dict[str, Any] = {}
        for key, length in lengths.items():
            tensors = [given.pop(n) for n in spread_names(key, length)]
            whole[key] = tensors if not may_be_left_out(op, key) else tensors[0] if tensors else None
        return {**given, **whole}

    return _operator(op, parameters, together, results)


def _operator(
    op: torch._ops.OpOverload,
    parameters: Iterable[tuple[Any, str]],
    arguments: Callable[[dict], dict],
    results: tuple[int | None, ...] = (),
) -> torch._ops.OpOverload:
    """An operator of ours that calls `op` with what `arguments` makes of its own, and gives none of them back.
    `parameters`: their texts, each with the parameter of op that it stands for. `results`: as in spread()."""
    texts: list[str] = []
    names: list[str] = []
    for a, text in parameters:
        if a.kwarg_only and "*" not in texts:
            texts.append("*")
        texts.append(text)
        names.append(text.partition("=")[0].split()[-1])
    returns = [r for r in op._schema.returns if str(r.type) != "NoneType"]
    own = [str(r.type) for r in returns if r.alias_info is None]
    counts = results or (None,) * len(own)
    own = [text for kind, count in zip(own, counts) for text in ([kind] if count is None else ["Tensor"] * count)]
    name = f"{_plain_name(op)}_{len(_shared)}"
    _shared_library.define(f"{name}({', '.join(texts)}) -> ({', '.join(own)})")

    def run(*args: Any, **kwargs: Any) -> Any:
        out = op(**arguments({**dict(zip(names, args)), **kwargs}))
        outs = out if isinstance(out, (tuple, list)) else () if out is None else (out,)
        if len(returns) == 1 and isinstance(out, list):
            outs = (out,)
        given_back = (o for o, r in zip(outs, returns) if r.alias_info is None)
        fresh = tuple(t for o, count in zip(given_back, counts) for t in ((o,) if count is None else o))
        return fresh if len(fresh) > 1 else fresh[0] if fresh else None

    _shared_library.impl(name, run, "CompositeExplicitAutograd")
    made = getattr(torch.ops.tcompile_sharing, name).default
    _shared[made] = op
    return made


def _parameters(op: torch._ops.OpOverload) -> list[tuple[Any, str]]:
    """Each parameter, and as the schema writes it: "Tensor(a!) x", "int[2] size=[1, 1]"."""
    text = str(op._schema).partition("(")[2].rpartition(") ->")[0]
    parts, depth, begin = [], 0, 0
    for i, c in enumerate(text):
        depth += (c in "([") - (c in ")]")
        if c == "," and not depth:
            parts.append(text[begin:i].strip())
            begin = i + 1
    parts.append(text[begin:].strip())
    return list(zip(op._schema.arguments, [part for part in parts if part and part != "*"], strict=True))


def _plain_name(op: torch._ops.OpOverload) -> str:
    return _READABLE.sub("_", f"{op.namespace}_{op._schema.name.partition('::')[2]}_{op._overloadname}")


def shown_name(op: Any) -> str:
    """What reports call an operator: a form by the operator that the program calls, a launch by its kernel."""
    form = _of_functional.get(op)
    op = op if form is None else form.op
    op = _shared.get(op, op)
    if getattr(op, "namespace", "") == "tcompile_kernels":
        return f"{op._schema.name.partition('::')[2]} (Triton kernel)"
    return str(op)


def _make(op: torch._ops.OpOverload) -> Form | None:
    schema = op._schema
    written = [arg for arg in schema.arguments if arg.alias_info is not None and arg.alias_info.is_write]
    returns = [r for r in schema.returns if str(r.type) != "NoneType"]
    own = [r for r in returns if r.alias_info is None]
    if any(str(a.type) != "Tensor" for a in written) or any(str(r.type) != "Tensor" for r in own):
        return None
    if any(x.alias_info is not None and not x.alias_info.is_write for x in (*schema.arguments, *returns)):
        return None
    parameters = _WRITTEN.sub("", str(schema)).partition("(")[2].rpartition(") ->")[0]
    name = f"{_plain_name(op)}_{len(_of_functional)}"  # a notebook defines an operator of one name again and again
    results = ", ".join(["Tensor"] * (len(own) + len(written)))
    _library.define(f"{name}({parameters}) -> ({results})")
    names, writes = tuple(arg.name for arg in schema.arguments), tuple(a.name for a in written)

    def run(*args: Any, **kwargs: Any) -> Any:
        given = {**dict(zip(names, args)), **kwargs}
        copies = {write: _copy(given[write]) for write in writes}
        out = form.call(**{**given, **copies}) if form.counts else op(**{**given, **copies})
        outs = out if isinstance(out, (tuple, list)) else () if out is None else (out,)
        fresh = [o for o, r in zip(outs, returns) if r.alias_info is None]
        values = (*fresh, *copies.values())
        return values if len(values) > 1 else values[0]

    _library.impl(name, run, "CompositeExplicitAutograd")
    form = Form(getattr(torch.ops.tcompile_functional, name).default, op, names, writes, len(own))
    _of_functional[form.functional] = form
    return form


def _copy(x: torch.Tensor) -> torch.Tensor:
    """A copy with the same strides, gaps included: a kernel goes by them."""
    return torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device=x.device).copy_(x)

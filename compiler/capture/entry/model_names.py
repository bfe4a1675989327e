"""Names of a model's parameters, for those that a graph reaches through an optimizer: `net.0.weight` says more than
`opt.param_groups[0]['params'][0]`. Of gradients and of the optimizer's state, too.
"""

from __future__ import annotations

import re
from types import CellType, FunctionType
from typing import Any, Iterator, Mapping

import torch

__all__ = ["ParameterNames"]

_PARAMETER = re.compile(r"(?P<of>[\w.]+)\.param_groups\[(?P<group>\d+)\]\['params'\]\[(?P<index>\d+)\]")
_STATE = re.compile(rf"[\w.]+\.state\[{_PARAMETER.pattern}\]\['(?P<what>\w+)'\]")
_MOST_DEEP = 64  # modules within modules: more is a cycle


class ParameterNames:
    """What parameters are called in the modules that a function reaches: its globals, what it closes over, its
    arguments and their attributes. Runs no code of theirs."""

    def __init__(self, namespace: Mapping[str, Any], func: Any = None, args: tuple = ()):
        self.namespace, self.func, self.args = namespace, func, args
        self.known: dict[tuple[str, ...], str] = {}  # (optimizer, group, index) -> name
        self._by_id: dict[int, str] | None = None

    def of(self, name: str, real: Any) -> str:
        """The name of an input that is called `name` by its source, in the model's terms where these are known."""
        if ".param_groups[" not in name:
            return name
        state = _STATE.fullmatch(name)
        if state is not None:
            parameter = self.known.get(state.group("of", "group", "index"))
            return name if parameter is None else f"{parameter}.{state['what']}"
        found = _PARAMETER.match(name)
        if found is None or name[found.end() :] not in ("", ".grad"):
            return name
        called = self._names().get(id(real))
        if called is None:
            return name
        self.known[found.group("of", "group", "index")] = called.removesuffix(".grad")
        return called

    def _names(self) -> dict[int, str]:
        if self._by_id is None:
            self._by_id = {}
            for name, module in self._modules():
                for path, p in _parameters(module, name, _MOST_DEEP):
                    self._by_id.setdefault(id(p), path)
                    if p.grad is not None:
                        self._by_id.setdefault(id(p.grad), f"{path}.grad")
        return self._by_id

    def _modules(self) -> Iterator[tuple[str, torch.nn.Module]]:
        reached = dict(self.namespace)
        if isinstance(self.func, FunctionType):
            code = self.func.__code__
            reached |= {n: _content(c) for n, c in zip(code.co_freevars, self.func.__closure__ or ())}
            reached |= dict(zip(code.co_varnames, self.args))
        for name, value in reached.items():
            if isinstance(value, torch.nn.Module):
                yield name, value
        for name, value in zip(getattr(getattr(self.func, "__code__", None), "co_varnames", ()), self.args):
            inside = getattr(value, "__dict__", None)
            if type(inside) is dict and not isinstance(value, (torch.nn.Module, torch.Tensor)):
                yield from (
                    (f"{name}.{key}", item) for key, item in inside.items() if isinstance(item, torch.nn.Module)
                )


def _content(cell: CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # it is empty
        return None


def _parameters(module: torch.nn.Module, path: str, deep: int) -> Iterator[tuple[str, torch.Tensor]]:
    facts = module.__dict__
    for name, value in (facts.get("_parameters") or {}).items():
        if type(value) in (torch.Tensor, torch.nn.Parameter) and value.is_leaf:
            yield f"{path}.{name}", value
    for name, inner in (facts.get("_modules") or {}).items():
        if isinstance(inner, torch.nn.Module) and deep:
            yield from _parameters(inner, f"{path}.{name}", deep - 1)

"""Calling nn.Modules: hooks are looked at, then `forward` is interpreted. A module is never a leaf."""

from __future__ import annotations

import collections
import dataclasses
import itertools
import types
from typing import TYPE_CHECKING, Any

import torch
from torch.nn.modules.lazy import LazyModuleMixin

from ...guards import source as S
from . import attributes
from .lookups import class_attribute
from .parameters import interpret
from .objects.class_attributes import guarded_function
from ..machine.nesting import passes_on
from ..machine.signals import Break, Skip

if TYPE_CHECKING:
    from ..machine.machine import Machine

__all__ = ["call_module"]

_HOOKS = ("_backward_hooks", "_backward_pre_hooks", "_forward_hooks", "_forward_pre_hooks")
_GLOBAL_HOOKS = (
    "_global_backward_hooks",
    "_global_backward_pre_hooks",
    "_global_forward_hooks",
    "_global_forward_pre_hooks",
)
_TABLES = tuple(
    """_forward_pre_hooks _forward_hooks _backward_hooks _backward_pre_hooks _forward_pre_hooks_with_kwargs
    _forward_hooks_with_kwargs _forward_hooks_always_called""".split()
)
_nn = torch.nn.modules.module
_wrapped_call = torch.nn.Module.__call__
_call_impl = torch.nn.Module._call_impl


def _path_of(machine: Machine, module: torch.nn.Module) -> str:
    """`layers.0.attention`, from the way the module was reached."""
    source = machine.world.source_of(module)
    if source is None:
        return type(module).__name__
    parts = []
    for step in source.path()[1:]:
        if step.kind == "attr" and step.key not in ("_modules", "__self__"):
            parts.append(str(step.key))
        elif step.kind in ("item", "dict"):
            parts.append(str(step.key))
    root = source.root
    if root.kind == "local" and root.key[1] != "self":
        parts.insert(0, root.key[1])
    elif root.kind in ("global", "closure"):
        parts.insert(0, root.key if isinstance(root.key, str) else root.key[1])
    return ".".join(parts)


@passes_on
def call_module(machine: Machine, module: torch.nn.Module, args: list, kwargs: dict) -> Any:
    """module(*args, **kwargs)."""
    cls = type(module)
    call = class_attribute(cls, "__call__")
    original = cls.__dict__.get("__tcompile_original__")
    if original is not None:  # a module compiled by this compiler: captured with the rest
        return call_module(machine, attributes.original_of(machine, module, original), args, kwargs)
    if machine.opts.leaf:
        raise Break("library", f"{cls.__name__} is called: that module is compiled by itself")
    if isinstance(module, LazyModuleMixin) and "_initialize_hook" in module.__dict__:
        raise Skip(f"{cls.__name__} learns its shapes from this call", quiet=True)
    outer = machine.module_path
    machine.module_path = _path_of(machine, module)
    try:
        if call is not _wrapped_call:
            if not isinstance(call, types.FunctionType):
                raise Break("unsupported", f"{cls.__name__}.__call__ is not a Python function")
            return machine.call(guarded_function(machine, cls, "__call__", call), [module, *args], kwargs)
        if id(cls) not in machine.world.made:
            machine.world.guard(
                S.attr(machine.world.anchor(cls), "__call__"), "ID", call, "modules are called as they always are"
            )
        if module.__dict__.get("_compiled_call_impl") is not None:
            raise Break("unsupported", "the module was compiled by torch.compile already")
        if class_attribute(cls, "_call_impl") is not _call_impl or "_call_impl" in module.__dict__:
            return machine.call(types.MethodType(call, module), args, kwargs)
        if (source := machine.world.source_of(module)) is not None:
            attributes.guard_own_lacks(machine, source, "_call_impl")
        if _no_hooks(machine, module):
            return machine.call(machine.getattr(module, "forward"), args, kwargs)
        if (hooks := _plain_hooks(machine, module)) is not None:
            return interpret(machine, _with_hooks, [module, *hooks, tuple(args), kwargs], {})
        return machine.call(types.MethodType(torch.nn.Module._call_impl, module), args, kwargs)
    finally:
        machine.module_path = outer


def _no_hooks(machine: Machine, module: torch.nn.Module) -> bool:
    """True where no hook runs on this call, which is then relied on."""
    world = machine.world
    d = module.__dict__
    source = world.source_of(module)
    for name in _HOOKS:
        if d[name]:
            return False
    for name in _GLOBAL_HOOKS:
        if getattr(_nn, name):
            return False
    if source is not None:
        for name in _HOOKS:
            world.guard(attributes._member_source(source, type(module), name), "LEN", 0, "module hooks")
    anchor = world.anchor(_nn)
    for name in _GLOBAL_HOOKS:
        world.guard(S.attr(anchor, name), "LEN", 0, "global module hooks")
    return True


@dataclasses.dataclass(frozen=True)
class NthHook:
    """Asks a table of hooks for one of them, by its place: the numbers of hooks are other ones in an equal module."""

    n: int

    @property
    def __name__(self) -> str:
        return f"hook {self.n}"

    def __call__(self, table: dict) -> Any:
        return next(itertools.islice(table.values(), self.n, None), None)


def _plain_hooks(machine: Machine, module: torch.nn.Module) -> tuple[tuple, tuple] | None:
    """The hooks that are called before forward and after it; None where there are others, or some of them get keyword
    arguments or are always called."""
    world, d, kind = machine.world, module.__dict__, type(module)
    source = world.source_of(module)
    if (
        source is None
        or not all(name in d for name in _TABLES)
        or any(id(d.get(name)) in world.shadows for name in _TABLES)
    ):
        return None
    if any(d[name] for name in _TABLES[2:]) or any(getattr(_nn, name) for name in _GLOBAL_HOOKS):
        return None
    found = []
    for name in _TABLES:
        where, table = attributes._member_source(source, kind, name), d[name]
        if name in _TABLES[:2] and type(table) is not collections.OrderedDict:
            return None
        world.guard(where, "LEN", len(table), "module hooks")
        found.append([world.load(h, S.asked(where, NthHook(n)), "a hook") for n, h in enumerate(table.values())])
    anchor = world.anchor(_nn)
    for name in _GLOBAL_HOOKS:
        world.guard(S.attr(anchor, name), "LEN", 0, "global module hooks")
    return tuple(found[0]), tuple(found[1])


def _with_hooks(module: Any, before: tuple, after: tuple, args: tuple, kwargs: dict) -> Any:
    """What Module._call_impl does where all hooks are of these two kinds."""
    for hook in before:
        changed = hook(module, args)
        if changed is not None:
            args = changed if isinstance(changed, tuple) else (changed,)
    result = module.forward(*args, **kwargs)
    for hook in after:
        changed = hook(module, args, result)
        if changed is not None:
            result = changed
    return result

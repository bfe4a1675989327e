"""Compiled nn.Modules: an object that shares all of the module's state and differs in its call alone.

`wrap_module(m, engine)` gives an instance of a subclass of type(m) whose `__dict__` is m's own: parameters, buffers,
hooks, train/eval and state_dict keys are the module's, whichever of the two is changed. Only `__call__` and `forward`
go through the compiler. It pickles and copies as the original module does, which is its `_orig_mod`.
"""

from __future__ import annotations

import _abc
import abc
import copy
import functools
import operator
import sys
import types
import weakref
from typing import Any

import torch.nn as nn
from torch.fx._symbolic_trace import is_fx_symbolic_tracing
from torch.nn.modules import module as _nn

from .engine import Engine
from ..capture.kinds.callables import PYTHON_FUNCTIONS
from ..runtime.stock_hook import hidden

__all__ = ["wrap_module", "original_module", "calls_of", "call_module"]

# a class of ours keeps its base, not the other way
_classes: weakref.WeakKeyDictionary[type, weakref.ref[type]] = weakref.WeakKeyDictionary()
# The compiled callables belong to the stand-in alone, so they can't live in the dict that it shares with the module:
# they have a slot.
_SLOT = "_tcompile_calls"
# What a call of a module goes through, as torch has it: the program may exchange each.
_NAMES_OF_CALL = operator.attrgetter("__call__", "_call_impl")
_CALL = _NAMES_OF_CALL(nn.Module)


def call_module(module: nn.Module, /, *args: Any, **kwargs: Any) -> Any:
    """The function that is captured for a module with hooks, or with a forward of its own: its whole call."""
    return module(*args, **kwargs)


class CompiledCalls:
    """The callables of one compiled module: its forward where nothing else would run, else its whole call."""

    def __init__(self, module: nn.Module, engine: Engine):
        self.module, self.engine = module, engine
        self.whole = engine.dispatcher(
            types.FunctionType(call_module.__code__.replace(), call_module.__globals__, "call_module")
        )
        forward = type(module).forward
        own = (
            isinstance(forward, types.FunctionType)
            and (forward.__module__, forward.__qualname__) not in PYTHON_FUNCTIONS
        )
        self.forward_function = forward if own else None
        self.forward = engine.dispatcher(forward) if self.forward_function is not None else None

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        module = self.module
        d = module.__dict__
        if (
            self.forward is None
            or d["_forward_hooks"]
            or d["_forward_pre_hooks"]
            or d["_backward_hooks"]
            or d["_backward_pre_hooks"]
            or "forward" in d
            or "_call_impl" in d
            or type(module).forward is not self.forward_function
            or _nn._global_forward_hooks
            or _nn._global_forward_pre_hooks
            or _nn._global_backward_hooks
            or _nn._global_backward_pre_hooks
            or (now := _NAMES_OF_CALL(type(module))) != _CALL
            # (torch exchanges nn.Module's to see the modules of who traces: not this one)
            and not (now == _NAMES_OF_CALL(nn.Module) and is_fx_symbolic_tracing())
        ):
            return self.whole(module, *args, **kwargs)
        return self.forward(module, *args, **kwargs)

    def between_hooks(self) -> bool:
        """Whether FSDP2's hooks run around forward, because the module around this one is called outside: then they
        are not captured, to end a graph each, but run as torch has them."""
        module = self.module
        states = sys.modules.get("torch.distributed._composable_state")
        if states is None or self.forward is None or "forward" in module.__dict__:
            return False
        reference = states._module_state_mapping.get(module)
        state = reference() if isinstance(reference, weakref.ref) else reference
        return getattr(state, "_is_root", None) is False and getattr(state, "_modules", ()) == (module,)

    def call_forward(self, args: tuple, kwargs: dict) -> Any:
        """`compiled.forward(...)`: as it is called on the module, without hooks."""
        module = self.module
        if self.forward is None or type(module).forward is not self.forward_function:
            return type(module).forward(module, *args, **kwargs)
        return self.forward(module, *args, **kwargs)


def _class_for(base: Any) -> type:
    known = _classes.get(base)
    c = known() if known is not None else None
    if c is None:

        @hidden
        def __call__(self: Any, *args: Any, **kwargs: Any) -> Any:
            calls = calls_of(self)
            if self._forward_pre_hooks and calls.between_hooks():
                return nn.Module.__call__(self, *args, **kwargs)  # (which calls forward, below)
            return calls(*args, **kwargs)

        @hidden
        @functools.wraps(base.forward)
        def forward(self: Any, /, *args: Any, **kwargs: Any) -> Any:
            return calls_of(self).call_forward(args, kwargs)

        def __reduce_ex__(self: Any, protocol: Any) -> Any:
            # loads as the module itself, also where this package is not
            return operator.getitem, ([original_module(self)], 0)

        def __copy__(self: Any) -> Any:
            calls = calls_of(self)
            return wrap_module(copy.copy(calls.module), calls.engine)

        def __deepcopy__(self: Any, memo: dict) -> Any:
            calls = calls_of(self)
            return wrap_module(copy.deepcopy(calls.module, memo), calls.engine)

        def __repr__(self: Any) -> str:
            return f"tcompile.compile({original_module(self)!r})"

        namespace = {
            "__module__": base.__module__,
            "__doc__": base.__doc__,
            "__call__": __call__,
            "forward": forward,
            "__reduce_ex__": __reduce_ex__,
            "__copy__": __copy__,
            "__deepcopy__": __deepcopy__,
            "__repr__": __repr__,
            "__slots__": (_SLOT,),
            "_orig_mod": property(original_module),
            "__tcompile_original__": staticmethod(original_module),
        }
        c = _derive(base, namespace)
        _classes[base] = weakref.ref(c)
    return c


def _derive(base: type, namespace: dict[str, Any]) -> type:
    """A subclass that its base does not hear of: neither `__init_subclass__` nor a metaclass of the program's (which
    register classes, or ask for keywords) is called."""
    name = f"Compiled{base.__name__}"
    if base.__basicsize__ != nn.Module.__basicsize__:  # it has slots: its subclasses are made in one step
        return type(name, (base,), namespace)
    made = type.__new__(type(base), name, (nn.Module,), namespace)
    made.__bases__ = (base,)
    if isinstance(made, abc.ABCMeta):
        _abc._abc_init(made)
    return made


def calls_of(compiled: Any) -> CompiledCalls:
    return compiled._tcompile_calls


def original_module(m: Any) -> Any:
    """The module that was compiled, or `m` itself."""
    return calls_of(m).module if _SLOT in type.__dict__["__dict__"].__get__(type(m)) else m


def wrap_module(module: nn.Module, engine: Engine) -> nn.Module:
    """A compiled stand-in for `module` that shares its state."""
    module = original_module(module)
    c = _class_for(type(module))
    new = object.__new__(c)
    new.__dict__ = module.__dict__
    object.__setattr__(new, _SLOT, CompiledCalls(module, engine))
    _share_parts(module, new)
    return new


def _share_parts(module: nn.Module, new: nn.Module) -> None:
    """Where FSDP2 has sharded the module, it finds what it knows of it by the stand-in, too: as a part of another
    module the stand-in is what that one has."""
    states = sys.modules.get("torch.distributed._composable_state")
    known = states._module_state_mapping if states is not None else {}
    if module in known:
        known[new] = known[module]

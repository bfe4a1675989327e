"""Forms of calls: what the time of a call depends on, as far as its arguments say it, in words that any session makes
again. Tensors count by dtype, device and shape, modules by their classes and parameters, other objects by their class.
"""

from __future__ import annotations

import hashlib
import inspect
import itertools
import sys
import types
import weakref
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

__all__ = ["Form", "form_of", "code_digest"]

_LOOK = 16  # elements of a container that are looked at


class Form(NamedTuple):
    """What the time of a call depends on."""

    trains: bool  # it records gradients
    gpu: bool
    parts: tuple


@dataclass
class _Seen:
    """What the arguments of a call show on the way."""

    trains: bool = False
    gpu: bool = False


def form_of(args: tuple) -> Form:
    seen = _Seen()
    parts = tuple(_part(arg, seen) for arg in args)
    return Form(seen.trains and torch._C.is_grad_enabled(), seen.gpu, (torch._C.is_grad_enabled(), *parts))


def _part(a: Any, seen: _Seen) -> Any:
    kind = type(a)
    if kind in (torch.Tensor, torch.nn.Parameter):
        seen.trains |= a.requires_grad
        seen.gpu |= a.is_cuda
        return str(a.dtype), a.device.type, a.requires_grad, tuple(a.shape)
    if torch.nn.Module in kind.__mro__:  # isinstance would ask the object, which may be the user's own code
        model = _model_of(a)
        seen.trains |= model.trains
        seen.gpu |= model.gpu
        return model.digest, bool(a.__dict__.get("training"))
    if kind in (list, tuple):
        return kind.__name__, len(a), *(_part(x, seen) for x in a[:_LOOK])
    if kind is dict:
        return "dict", len(a), *((str(k), _part(x, seen)) for k, x in itertools.islice(a.items(), _LOOK))
    if a is None or kind in (bool, str):
        return repr(a)[:64]
    return f"{kind.__module__}.{kind.__qualname__}"


class _Model(NamedTuple):
    """A module with those below: their classes and parameters as one word."""

    digest: str
    trains: bool
    gpu: bool


_models: dict[int, tuple[weakref.ref, _Model]] = {}  # by id: the program may compare its modules in its own way


def _model_of(module: torch.nn.Module) -> _Model:
    known = _models.get(id(module))
    if known is not None:
        return known[1]
    h, trains, gpu = hashlib.sha256(), False, False
    kinds = {type(x): None for x in torch.nn.Module.modules(module)}
    for kind in kinds:
        h.update(f"{kind.__module__}.{kind.__qualname__};".encode())
        code = getattr(inspect.unwrap(kind.forward), "__code__", None)
        if code is not None:
            h.update(code_digest(code).encode())
    for name, p in torch.nn.Module.named_parameters(module):
        h.update(f"{name} {p.dtype} {tuple(p.shape)} {p.requires_grad};".encode())
        trains |= p.requires_grad
        gpu |= p.is_cuda
    model = _Model(h.hexdigest()[:16], trains, gpu)
    key = id(module)

    def gone(_: object) -> None:
        _models.pop(key, None)

    _models[key] = weakref.ref(module, gone), model
    return model


def code_digest(code: types.CodeType) -> str:
    """A code object, as any session knows it again: with the version of its package, which what it calls depends on."""
    package = code.co_filename.replace("\\", "/").rpartition("-packages/")[2]
    version = getattr(sys.modules.get(package.partition("/")[0]), "__version__", "")
    h = hashlib.sha256(f"{package} {code.co_qualname} {version} {code.co_names}".encode())
    h.update(code.co_code)
    return h.hexdigest()[:16]

"""Random numbers of Python's and numpy's generators, drawn by the entry in the order in which the program draws them.

A number is never fixed by capture: the entry draws before the graph runs, and what it drew is an input of the graph.
Where the program needs a number itself, for a branch or a size, it breaks. Where the graph fails the generators are put
back before the call runs again.
"""

from __future__ import annotations

import random
import sys
import types
from typing import TYPE_CHECKING, Any, Sequence

import torch

from ...graph.tensor import trace_tensor_like
from ...guards import source as S
from ...guards.guard import TensorSpec
from ..arrays.array_value import make_array
from ..kinds.callables import FUNCTIONS, PYTHON_FUNCTIONS
from .scalars import float_symbol
from ..machine.signals import Break
from ..machine.stack_values import constant_only

if TYPE_CHECKING:
    from ..machine.machine import Machine

__all__ = ["generator_states", "restore_generators"]

_PYTHON = ("uniform", "gauss", "normalvariate", "expovariate", "betavariate", "triangular", "lognormvariate")
_NUMPY = tuple(
    """random random_sample rand randn uniform normal standard_normal randint exponential permutation""".split()
)


def _source(machine: Machine, fn: Any, args: Sequence, kwargs: dict) -> S.Source:
    args, named = (
        tuple(machine.deep_plain(arg) for arg in args),
        {name: machine.deep_plain(value) for name, value in kwargs.items()},
    )
    if not constant_only((*args, *named.values())) or len(machine.graph.scopes) > 1:
        raise Break("random_python")
    source = S.drawn(len(machine.world.draws), fn, args, tuple(named.items()))
    machine.world.draws.append(source)
    return source


def _float(machine: Machine, source: S.Source) -> Any:
    return float_symbol(machine, 0.5, source)  # stands for any number: no use of its value is allowed


def _drawn_float(machine: Machine, fn: Any, args: Sequence, kwargs: dict) -> Any:
    return _float(machine, _source(machine, fn, args, kwargs))


def _method(machine: Machine, owner: Any, *args: Any, name: str, **kwargs: Any) -> Any:
    if owner is not random._inst:  # type: ignore[attr-defined]
        raise Break("random_python")
    return _drawn_float(machine, getattr(random, name), args, kwargs)


def _numpy(machine: Machine, *args: Any, name: str, **kwargs: Any) -> Any:
    numpy = sys.modules["numpy"]
    plain = [machine.deep_plain(arg) for arg in args], {key: machine.deep_plain(value) for key, value in kwargs.items()}
    if not constant_only((*plain[0], *plain[1].values())):
        raise Break("numpy", f"numpy.random.{name} is called")
    # its kind: the numbers come from the entry's draw
    sample = machine.native(getattr(numpy.random.RandomState(0), name), *plain[0], **plain[1])
    if type(sample) is float:
        return _drawn_float(machine, getattr(numpy.random, name), args, kwargs)
    if type(sample) is not numpy.ndarray or sample.dtype.kind not in "fi":
        raise Break("numpy", f"numpy.random.{name} is called")
    source = _source(machine, getattr(numpy.random, name), args, kwargs)
    real = torch.from_numpy(sample)
    trace, inner = trace_tensor_like(real), S.array(source)
    machine.world.register(real, inner)
    machine.world.tensors[id(real)] = trace
    machine.world.reals[id(trace)] = real
    machine.graph.add_input(
        real,
        trace,
        inner,
        TensorSpec(torch.Tensor, real.dtype, real.device, False, tuple(real.shape), real.stride()),
        False,
    )
    return make_array(trace, False, source)


def _numpy_method(machine: Machine, owner: Any, *args: Any, name: str, **kwargs: Any) -> Any:
    if owner is not sys.modules["numpy"].random.mtrand._rand:
        raise Break("numpy", "a generator of numpy's is used")
    return _numpy(machine, *args, name=name, **kwargs)


FUNCTIONS[random.random] = lambda machine, *args, **kwargs: _drawn_float(machine, random.random, args, kwargs)
for _name in _PYTHON:
    PYTHON_FUNCTIONS[("random", f"Random.{_name}")] = lambda machine, owner, *args, name=_name, **kwargs: _method(
        machine, owner, *args, name=name, **kwargs
    )
try:
    import numpy.random as _numpy_random
except ImportError:  # torch works without
    pass
else:
    for _name in _NUMPY:
        _fn = getattr(_numpy_random, _name)
        if isinstance(_fn, types.MethodType):  # a method of numpy's own generator
            FUNCTIONS[_fn.__func__] = lambda machine, owner, *args, name=_name, **kwargs: _numpy_method(
                machine, owner, *args, name=name, **kwargs
            )
        else:
            FUNCTIONS[_fn] = lambda machine, *args, name=_name, **kwargs: _numpy(machine, *args, name=name, **kwargs)


def generator_states() -> tuple:
    """The states of Python's and numpy's generators."""
    numpy = sys.modules.get("numpy")
    return random.getstate(), numpy.random.get_state() if numpy is not None else None


def restore_generators(states: tuple) -> None:
    random.setstate(states[0])
    if states[1] is not None:
        sys.modules["numpy"].random.set_state(states[1])

"""numpy's functions on plain numbers, as models use them for constants: np.sqrt(d), np.log(10000.0). Computed during
capture.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from .array_value import Array
from ..kinds.callables import CLASSES, FUNCTIONS
from .numpy_arrays import call_numpy
from ..machine.signals import Break
from ...graph.tensor import TraceTensor

if TYPE_CHECKING:
    from ..machine.machine import Machine

__all__: list[str] = []

_NAMES = tuple(
    """sqrt cbrt square exp exp2 expm1 log log2 log10 log1p sin cos tan tanh arctan arctan2 ceil floor trunc rint
    absolute negative sign power maximum minimum add subtract multiply divide floor_divide remainder isnan isinf
    isfinite""".split()
)


def _computed(machine: Machine, *args: Any, fn: Any, **kwargs: Any) -> Any:
    import numpy

    if any(type(arg) is Array or isinstance(arg, TraceTensor) or isinstance(arg, (list, tuple)) for arg in args):
        return call_numpy(machine, fn, list(args), kwargs)
    if kwargs or not all(type(arg) in (int, float, bool) or isinstance(arg, numpy.generic) for arg in args):
        raise Break("numpy", f"the native function numpy.{fn.__name__} is called")
    value = machine.native(fn, *args)
    if not machine.is_atom(value):
        machine.world.anchor(value)  # a number of numpy's, fixed by its arguments
    return value


def _register() -> None:
    try:
        import numpy
    except ImportError:  # torch works without
        return
    for name in _NAMES:
        fn = getattr(numpy, name, None)
        if fn is not None:
            FUNCTIONS[fn] = functools.partial(_computed, fn=fn)
    for cls in {numpy.dtype(c).type for c in "?bBhHiIlLqQefdFD"}:
        CLASSES[cls] = functools.partial(_computed, fn=cls)


_register()

"""Global state that a capture relied on, read into plain values that compare by ==.

One reader per field of `guard.STATE_FIELDS`. A STATE guard holds {field: value}; capture takes `read_state()` at the
start of a frame and guards the fields it may have relied on (`DEFAULT_FIELDS` where it cannot tell).

field             value
grad_mode         bool
inference_mode    bool
autocast          tuple of (device type, dtype) for each device type with autocast enabled; () for none
deterministic     (use_deterministic_algorithms, warn_only, fill_uninitialized_memory)
default_dtype     torch.dtype
default_device    torch.device set by torch.set_default_device, or None
torch_function    (torch function enabled, types of the active TorchFunctionModes, number of TorchDispatchModes);
                  the mode behind default_device is left out
functorch         innermost functorch level (vmap, grad, jvp, ...), or None
tracing           whether torch.jit.trace is at work
num_threads       int
matmul_precision  (float32 matmul precision, cuda allow_tf32, cudnn allow_tf32, reduced-precision reductions fp16, bf16)
anomaly           (anomaly mode, check_nan)
saved_tensor_hooks  bool
decimal           this thread's context of arithmetic on decimal.Decimal
break_errors      whether graph breaks are errors (error_on_graph_break), which the program puts back later
abstract_classes  abc's token, which each register() moves; guards hold SubclassAnswers, which equal it while they hold
a dotted name     what that C function of torch (or sys) gives, such as torch._C._get_cudnn_enabled: flags that the
                  program read.
                  With an argument behind a colon: torch.get_autocast_dtype:cpu
importlib.util.find_spec:name  whether Python finds that module
"""

from __future__ import annotations

import abc
import decimal
import sys
import threading
import types
import weakref
from typing import Any, Callable, Iterable

import torch
from torch.utils._device import DeviceContext

from ..base.break_errors import are_errors
from ..base.packages import is_found
from .guard import STATE_FIELDS

__all__ = [
    "read_state",
    "read_field",
    "flag_name",
    "flag_function",
    "DEFAULT_FIELDS",
    "FOUND",
    "AUTOCAST_DEVICES",
    "hidden_hooks",
    "SubclassAnswers",
]

# What any capture may have relied on. Not among them: matmul_precision (190 ns to read), which matters to code that
# computes matrix products by itself, not where torch's kernels are called; num_threads; anomaly.
DEFAULT_FIELDS = tuple(
    """grad_mode inference_mode autocast deterministic default_dtype default_device torch_function functorch
    tracing""".split()
)

FOUND = "importlib.util.find_spec:"  # a field, with the module's name behind it

_C = torch._C


def _autocast_devices() -> tuple[str, ...]:
    names = ["cpu", "cuda", "xpu", "mps"]
    try:
        private = torch._C._get_privateuse1_backend_name()
    except (AttributeError, RuntimeError):
        private = "privateuseone"
    names.append(private)
    found = []
    for name in names:
        try:
            torch._C.is_autocast_enabled(name)
        except (RuntimeError, TypeError):
            continue
        found.append(name)
    return tuple(found)


AUTOCAST_DEVICES = _autocast_devices()


def _autocast() -> tuple:
    return tuple(
        (device, torch.get_autocast_dtype(device))
        for device in AUTOCAST_DEVICES
        if torch._C.is_autocast_enabled(device)
    )


def _deterministic() -> tuple[bool, bool, bool]:
    return (
        _C._get_deterministic_algorithms(),
        _C._get_deterministic_algorithms_warn_only(),
        _C._get_deterministic_fill_uninitialized_memory(),
    )


def _default_device_mode() -> Any:
    return getattr(torch._GLOBAL_DEVICE_CONTEXT, "device_context", None)


def _default_device() -> Any:
    mode = _default_device_mode()
    return None if mode is None else mode.device


def _torch_function() -> tuple[bool, tuple, int]:
    n = _C._len_torch_function_stack()
    modes: tuple = ()
    if n:
        default = _default_device_mode()
        stack = [_C._get_function_stack_at(i) for i in range(n)]
        modes = tuple((type(m), m.device) if type(m) is DeviceContext else type(m) for m in stack if m is not default)
    return (_C._is_torch_function_enabled(), modes, _C._len_torch_dispatch_stack())


def _functorch() -> int | None:
    return _C._functorch.maybe_current_level()


def _tracing() -> bool:
    return _C._get_tracing_state() is not None


def _matmul_precision() -> tuple:
    return (
        torch.get_float32_matmul_precision(),
        _C._get_cublas_allow_tf32(),
        _C._get_cudnn_allow_tf32(),
        _C._get_cublas_allow_fp16_reduced_precision_reduction(),
        _C._get_cublas_allow_bf16_reduced_precision_reduction(),
    )


def _anomaly() -> tuple[bool, bool]:
    return (torch.is_anomaly_enabled(), torch.is_anomaly_check_nan_enabled())


# While the compiler works, hooks for saved tensors are taken off (autograd/modes.py): whether the caller has any is
# noted here.
hidden_hooks = threading.local()


def _saved_tensor_hooks() -> bool:
    return getattr(hidden_hooks, "any", False) or _C._autograd._top_saved_tensors_default_hooks(True) is not None


def _decimal() -> tuple:
    """What arithmetic on decimal.Decimal depends on in this thread."""
    c = decimal.getcontext()
    return (c.prec, c.rounding, c.Emin, c.Emax, c.capitals, c.clamp, *c.traps.items())


_READERS: dict[str, Callable[[], Any]] = {
    "grad_mode": torch._C.is_grad_enabled,
    "inference_mode": torch.is_inference_mode_enabled,
    "autocast": _autocast,
    "deterministic": _deterministic,
    "default_dtype": torch.get_default_dtype,
    "default_device": _default_device,
    "torch_function": _torch_function,
    "functorch": _functorch,
    "tracing": _tracing,
    "num_threads": torch.get_num_threads,
    "matmul_precision": _matmul_precision,
    "anomaly": _anomaly,
    "saved_tensor_hooks": _saved_tensor_hooks,
    "decimal": _decimal,
    "break_errors": are_errors,
    "abstract_classes": abc.get_cache_token,
}
assert set(_READERS) == set(STATE_FIELDS)


def read_field(name: str) -> Any:
    """The present value of one field. Raises KeyError for a field that STATE guards do not know."""
    reader = _READERS.get(name)
    if reader is not None:
        return reader()
    if name.startswith(FOUND):
        return is_found(name.removeprefix(FOUND))
    fn, args = flag_function(name)
    return fn(*args)


def flag_function(name: str) -> tuple[Callable[..., Any], tuple[str, ...]]:
    """The C function and the arguments that a flag's name stands for. Raises KeyError where there is none."""
    path, _, argument = name.partition(":")
    module, _, function = path.rpartition(".")
    fn = getattr(sys.modules.get(module), function, None)
    if not isinstance(fn, types.BuiltinFunctionType):
        raise KeyError(name)
    return fn, (argument,) if argument else ()


def flag_name(fn: Any, args: Iterable[Any]) -> str | None:
    """The field that stands for `fn(*args)`, a function of C that reads a flag: no arguments, or one str."""
    args = tuple(args)
    module = getattr(fn, "__module__", None)
    if (
        not isinstance(fn, types.BuiltinFunctionType)
        or not module
        or len(args) > 1
        or any(type(arg) is not str or not arg for arg in args)
    ):
        return None
    name = f"{module}.{fn.__name__}" + (f":{args[0]}" if args else "")
    return name if getattr(sys.modules.get(module), fn.__name__, None) is fn else None


def read_state(fields: Iterable[str] = DEFAULT_FIELDS) -> dict[str, Any]:
    """The present values, as a STATE guard's `expected` holds them."""
    return {field: _READERS[field]() for field in fields}


class SubclassAnswers:
    """What isinstance and issubclass said of abstract classes of the program's: what the field `abstract_classes` has
    to be.

    Python counts all registrations of a process in one token. Imports move it, too (numpy and sympy register their
    numbers), so that this equals any token under which the answers are what they were.
    """

    def __init__(self) -> None:
        self._token = abc.get_cache_token()
        self._answers: dict[tuple[int, int], tuple[weakref.ref[type], weakref.ref[type], bool]] = {}  # by ids
        self._any_change = False  # whether any registration may matter

    def note(self, cls: Any, abstract: type) -> None:
        if not isinstance(cls, type) or _says_its_class(cls):
            self._any_change = True
        else:
            key = id(cls), id(abstract)
            known = self._answers.get(key)  # a loop asks the same again and again: the first answer counts
            if known is None or known[0]() is not cls or known[1]() is not abstract:
                self._answers[key] = weakref.ref(cls), weakref.ref(abstract), issubclass(cls, abstract)

    def hold(self) -> bool:
        token = abc.get_cache_token()
        if token == self._token:
            return True
        if self._any_change or self.changed() is not None:
            return False
        self._token = token
        return True

    def changed(self) -> tuple[type, type, bool] | None:
        """The first question whose answer is another one, with the old answer. Classes that are gone ask nothing."""
        for cls_, abstract_, answer in self._answers.values():
            cls, abstract = cls_(), abstract_()
            if cls is not None and abstract is not None and issubclass(cls, abstract) is not answer:
                return cls, abstract, answer
        return None

    def __eq__(self, token: Any) -> bool:
        return self is token or type(token) is int and self.hold()

    __hash__ = object.__hash__


def _says_its_class(cls: type) -> bool:
    """Whether objects of a class answer themselves what their class is, as mocks do."""
    found = next(vars(c)["__class__"] for c in cls.__mro__ if "__class__" in vars(c))
    return found is not vars(object)["__class__"]

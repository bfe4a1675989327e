"""The registry of callables: what capture does for a function or class instead of calling or interpreting it."""

from __future__ import annotations

import inspect
import types
from typing import TYPE_CHECKING, Any, Callable

from ..machine.signals import Break

if TYPE_CHECKING:
    from ..machine.machine import Machine

__all__ = [
    "FUNCTIONS",
    "CLASSES",
    "PYTHON_FUNCTIONS",
    "CLASS_METHODS",
    "TAKES_FUNCTION",
    "KEEPS_TEXTS",
    "BREAK_MODULES",
    "function",
    "cls",
    "python_function",
    "class_method",
    "own_class_method",
    "run_handler",
]

FUNCTIONS: dict[Any, Callable] = {}  # native function -> handler(machine, *args, **kwargs)
CLASSES: dict[type, Callable] = {}  # class -> handler(machine, *args, **kwargs)
PYTHON_FUNCTIONS: dict[tuple[str, str], Callable] = {}  # (module, qualified name) -> handler, instead of interpreting
# name -> (descriptor of a native class method, handler(machine, cls, *args, **kwargs))
CLASS_METHODS: dict[str, tuple[Any, Callable]] = {}
TAKES_FUNCTION: set[Callable] = set()  # those of the handlers that are given the function first
KEEPS_TEXTS: set[Callable | None] = set()  # those that do not look into texts, but put them off or pass them on
BREAK_MODULES: dict[str, str] = {
    "random": "random_python",
    "torch.random": "rng_state",
    "torch.cuda.random": "rng_state",
    "torch._functorch.apis": "higher_order",
    "torch._functorch.eager_transforms": "higher_order",
    "torch._functorch.vmap": "higher_order",
    "torch.autograd": "backward",
    "torch._compile": "disabled",
    "subprocess": "io",
    "socket": "io",
    "threading": "unsupported",
    "multiprocessing": "unsupported",
    "pickle": "io",
    "torch.serialization": "io",
    "torch.nn.init": "rng_state",
    "asyncio.events": "async",
    "ctypes": "c_call",
}


def function(*fns: Any) -> Callable:
    def add(handler: Callable) -> Callable:
        for fn in fns:
            FUNCTIONS[fn] = handler
        return handler

    return add


def cls(*classes: type) -> Callable:
    def add(handler: Callable) -> Callable:
        for c in classes:
            CLASSES[c] = handler
        return handler

    return add


def python_function(*names: tuple[str, str], wants_function: bool = False) -> Callable:
    """Register what is done instead of interpreting a Python function; `wants_function` gives the handler the function
    object first.
    """

    def add(handler: Callable) -> Callable:
        if wants_function:
            TAKES_FUNCTION.add(handler)
        for name in names:
            PYTHON_FUNCTIONS[name] = handler
        return handler

    return add


def class_method(owner: type, name: str) -> Callable:
    """Register what is done instead of calling a class method of a native class, which `owner` has from there; the
    handler gets the class that it is called on first. A class method written in Python is none of these."""

    def add(handler: Callable) -> Callable:
        native = inspect.getattr_static(owner, name)
        if isinstance(native, types.ClassMethodDescriptorType):
            CLASS_METHODS[name] = native, handler
        return handler

    return add


def own_class_method(fn: Any, owner: type) -> Callable | None:
    """The handler of a bound class method. It compares as equal to what the descriptor binds, also where super() found
    it.
    """
    native, handler = CLASS_METHODS.get(fn.__name__, (None, None))
    return (
        handler
        if native is not None and issubclass(owner, native.__objclass__) and native.__get__(None, owner) == fn
        else None
    )


def run_handler(handler: Callable, machine: Machine, args: list, kwargs: dict) -> Any:
    """A builtin as its handler does it. Arguments that the handler has no place for are for the builtin itself to
    refuse or to take.
    """
    try:
        return handler(machine, *args, **kwargs)
    except TypeError as e:
        if e.__traceback__ is None or e.__traceback__.tb_next is not None:  # raised inside, not by the call
            raise
    raise Break("c_call", "a builtin is called with arguments that capture does not know")

"""Calls: what a callable is decides whether it is interpreted, recorded, computed now, logged as an effect, or a
break.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import itertools
import operator
import reprlib
import types
import weakref
from typing import TYPE_CHECKING, Any, Callable, Iterable

import torch

from ...guards import source as S
from ...guards.source_values import is_constant
from ...guards.state import flag_name
from ...marks import why_disabled
from ...runtime.dispatch import Dispatcher
from . import builtin_calls, callables, classes, modules, operators
from ..library import optimizers
from ..tensors import subclass_calls, tensor_calls, tensor_factories
from ..library.backward_reads import refuse_operator
from .native.native_methods import call_native_method, settled_arguments
from .caches import call_cached
from ..tensors.patched_torch import relies_on_parts
from ..library.functional_transforms import Transformed, call_object, jacobian_wrapper
from ..machine.generators import InlineGenerator, PythonIterator
from .inline_policy import (
    ASKS_FOR_STOCK,
    CONSTANT_BY_NAME,
    is_disabled,
    is_leaf_function,
    is_of_torch,
    is_trusted_function,
    is_trusted_module,
    known_constant_functions,
    runs_code,
)
from ..machine.nesting import passes_on
from ..machine.programs import handler
from ..machine.signals import Break, Plainly, Raised
from ..library.torch_marks import is_allowed_in_graph, marked_call
from ..library.watched_warnings import Warned, unless_it_warns
from ...graph.tensor import TraceTensor
from ..tensors.tensor_subclasses import answers_calls
from ..machine.stack_values import ATOMS, BOUND_NATIVE, MISSING, NULL, has_owner, is_placement, native_owner
from ..arrays.numpy_arrays import call_numpy
from .lookups import class_attribute, found_in
from .objects.class_attributes import guarded_function
from .parameters import bind
from .containers import as_mapping
from .elements import items

if TYPE_CHECKING:
    from ..machine.frame import Frame
    from ..machine.machine import Machine

__all__ = ["call", "call_python", "call_torch_function", "name_of"]

_TRANSFORMS = torch.func.jacrev.__code__.co_filename
_LRU = type(functools.lru_cache(lambda: None))
_OPTIMIZERS = optimizers.OWNERS
_UNBOUND_NATIVE = (types.MethodDescriptorType, types.WrapperDescriptorType)
_RECURSIVE_REPRS = frozenset(
    (
        reprlib.recursive_repr()(repr).__code__,
        *(  # type: ignore[arg-type]
            f(repr).__code__ for f in (getattr(dataclasses, "_recursive_repr", None),) if f is not None
        ),
    )
)
_LEGACY_TYPE = type(torch.FloatTensor)
_OPS = (torch._ops.OpOverload, torch._ops.OpOverloadPacket)
# functions of torch that only answer begin so
_QUERY_PREFIXES = tuple(
    """_get_ get_ is_ _is_ _has has_ _len_ are_ _are_ __set_forward promote_types can_cast result_type _jit_ _cuda_is
    _cuda_getDevice _log_api_usage_once _dispatch _show_config _mps_is _parse_to""".split()
)


@passes_on
def call(machine: Machine, fn: Any, args: list, kwargs: dict) -> Any:
    """fn(*args, **kwargs) of the program."""
    cls = type(fn)
    if machine.subclassed and (result := subclass_calls.call(machine, fn, args, kwargs)) is not NotImplemented:
        return result
    of_type = _OF_TYPE.get(cls)
    if of_type is not None:
        return of_type(machine, fn, args, kwargs)
    if cls is types.MethodType:
        if machine.world.is_outside(fn) and not isinstance(fn.__self__, _OPTIMIZERS):
            owner, function = machine.getattr(fn, "__self__"), machine.getattr(fn, "__func__")
            return call(machine, function, [owner, *args], kwargs)
        owner = fn.__self__
        if isinstance(owner, (InlineGenerator, PythonIterator)):
            return machine.native(fn, *args, **kwargs)
        if isinstance(owner, _OPTIMIZERS):
            return optimizers.call_method(machine, owner, fn, args, kwargs)
        if type(owner) is TraceTensor and getattr(TraceTensor, fn.__name__, None) is fn.__func__:
            return tensor_calls.call_method(machine, owner, fn.__name__, args, kwargs)
        return call(machine, fn.__func__, [owner, *args], kwargs)
    if cls is _LEGACY_TYPE and not fn.is_cuda:
        return tensor_factories.call_legacy_constructor(machine, fn.dtype, args, kwargs)
    for kinds, of_kind in _OF_KIND:
        if isinstance(fn, kinds):
            return of_kind(machine, fn, args, kwargs)
    if cls.__name__ == "builtin_function_or_method":
        return _call_unbound_native(machine, fn, args, kwargs)
    method = class_attribute(cls, "__call__")
    if isinstance(method, types.FunctionType):
        if is_allowed_in_graph(fn) and hasattr(fn, "__name__"):  # what nodes are printed by
            return _call_opaque(machine, fn, args, kwargs)
        return call(machine, guarded_function(machine, cls, "__call__", method), [fn, *args], kwargs)
    if method is MISSING:
        raise Raised(TypeError(f"'{cls.__name__}' object is not callable"))
    if method is not MISSING and isinstance(method, torch.nn.Module):
        return call(machine, method, args, kwargs)
    return _call_native(machine, fn, None, args, kwargs)


def _call_bound_native(machine: Machine, fn: Any, args: list, kwargs: dict) -> Any:
    """A native function, or a native method that is bound to its owner."""
    constant = known_constant_functions().get(id(fn))
    if constant is not None:
        return constant[1] and machine.says_compiling()
    owner = native_owner(fn)
    if type(owner) is TraceTensor:
        return tensor_calls.call_method(machine, owner, fn.__name__, args, kwargs)
    if machine.world.is_outside(fn) and has_owner(fn):
        return _call_outside_method(machine, fn, owner, args, kwargs)
    try:
        return _call_native(machine, fn, owner, args, kwargs)
    except IndexError as error:  # an argument that is not there
        if error is machine.escaped or not _lacks_arguments(fn, args, kwargs):
            raise
        return machine.native(fn, *args, **kwargs)  # raises the TypeError


def _call_outside_method(machine: Machine, fn: Any, owner: Any, args: list, kwargs: dict) -> Any:
    """A bound native method from outside: the method of that name of the owner that this one has."""
    if type(found_in(type(owner), fn.__name__)) not in _UNBOUND_NATIVE:
        kind = f"{type(owner).__name__}.{fn.__name__}"
        raise Break("unknown_object", f"a bound method {kind} that came from outside is called")
    source = machine.world.sources[id(fn)]
    machine.world.guard(S.attr(source, "__name__"), "EQUALS", fn.__name__, "a bound method from outside")
    owner = machine.world.load(owner, S.attr(source, "__self__"), "the owner of a bound method")
    return call(machine, machine.getattr(owner, fn.__name__), args, kwargs)


def _call_native(machine: Machine, fn: Any, owner: Any, args: list, kwargs: dict) -> Any:
    """A builtin function, or a builtin method bound to `owner`."""
    try:
        handler = callables.FUNCTIONS.get(fn)
    except TypeError:
        handler = None
    if machine.late_texts and handler not in callables.KEEPS_TEXTS:
        args, kwargs = settled_arguments(fn, owner, args, kwargs)
    if is_of_torch(fn, owner) and (machine.devices.entered or machine.devices.left):
        kwargs = machine.devices.named(fn, kwargs)
    if handler is not None:
        return callables.run_handler(handler, machine, args, kwargs)
    if isinstance(owner, (types.ModuleType, type(None))) or isinstance(owner, type):
        if isinstance(owner, type) and (callables.own_class_method(fn, owner) or not is_of_torch(fn, owner)):
            return builtin_calls.call_class_function(machine, fn, owner, args, kwargs)
        if is_of_torch(fn, owner):
            return call_torch_function(machine, fn, args, kwargs)
        if builtin_calls.is_pure(fn):
            return builtin_calls.pure(machine, fn, args, kwargs)
        if type(fn) in (operator.itemgetter, operator.attrgetter, operator.methodcaller):
            return builtin_calls.take_parts(machine, fn, args)
        module = getattr(fn, "__module__", None) or getattr(owner, "__name__", "") or ""
        kind = {
            "time": "time",
            "random": "random_python",
            "_random": "random_python",
            "io": "io",
            "_io": "io",
            "posix": "io",
            "numpy": "numpy",
            "ctypes": "c_call",
            "_ctypes": "c_call",
        }.get(module.partition(".")[0], "c_call")
        if kind == "numpy" or type(fn).__module__ == "numpy":
            return call_numpy(machine, fn, args, kwargs)
        name = getattr(fn, "__qualname__", None) or getattr(fn, "__name__", None) or type(fn).__name__
        where = f"the native function {module + '.' if module else ''}{name} is called"
        raise Break(
            kind,
            where + ", which capture knows nothing about" if kind == "c_call" else where if kind == "numpy" else "",
        )
    return call_native_method(machine, fn, owner, args, kwargs)


def _lacks_arguments(fn: Any, args: list, kwargs: dict) -> bool:
    """Whether native code refuses a call for the number and the names of its arguments."""
    try:
        signature = inspect.signature(fn)
    except (TypeError, ValueError):
        return not args and not kwargs
    try:
        signature.bind(*args, **kwargs)
    except TypeError:
        return True
    return False


def call_torch_function(machine: Machine, fn: Any, args: list, kwargs: dict) -> Any:
    if any(is_placement(type(arg)) for arg in args) and all(
        type(arg) in ATOMS or is_placement(type(arg)) for arg in args
    ):
        return machine.native(fn, *args, **kwargs)
    try:
        if fn in tensor_factories.FACTORIES:
            return tensor_factories.call_factory(machine, fn, args, kwargs)
    except TypeError as exc:
        raise Break("unknown_object") from exc
    name = getattr(fn, "__name__", "")
    if (made := tensor_factories.of_numbers(machine, fn, args, kwargs)) is not NotImplemented:
        return made
    if tensor_calls.holds_tensor(args) or tensor_calls.holds_tensor(kwargs):
        return tensor_calls.call_function(machine, fn, args, kwargs)
    if name.startswith(_QUERY_PREFIXES):
        args = [machine.deep_plain(arg) for arg in args]
        value = machine.native(fn, *args, **kwargs)
        flag = flag_name(fn, args) if not kwargs else None
        if flag is not None and is_constant(value):
            machine.world.state(flag, machine.flags_before.get(flag, value))
        return value
    if name in ("manual_seed", "seed", "set_rng_state", "get_rng_state", "initial_seed"):
        raise Break("rng_state")
    args = [machine.deep_plain(arg) for arg in args]
    if (
        any(tensor_calls.holds_tensor(arg) for arg in args)
        or not name.startswith("_")
        and (answers_calls(args) or answers_calls(kwargs.values()))
    ):
        return tensor_calls.call_function(machine, fn, args, kwargs)
    if any(type(v) is torch._C._InferenceMode for v in (getattr(fn, "__self__", None), *args)):
        raise Break("inference_mode")
    raise Break(
        "setting" if name.startswith(("_set_", "set_")) else "c_call",
        f"the function torch.{name} is called, which changes or reads state that capture does not follow",
    )


def _call_unbound_native(machine: Machine, fn: Any, args: list, kwargs: dict) -> Any:
    return _call_native(machine, fn, None, args, kwargs)


def _call_operator(machine: Machine, fn: Any, args: list, kwargs: dict) -> Any:
    """torch.ops.aten.add.Tensor(...)"""
    values = (*args, *kwargs.values())
    needs_grad = torch._C.is_grad_enabled() and any(
        isinstance(value, TraceTensor) and value.requires_grad for value in values
    )
    refuse_operator(machine, fn, needs_grad)
    return tensor_calls.call_function(machine, fn, args, kwargs)


def _refuse_call(machine: Machine, fn: Any, args: list, kwargs: dict) -> Any:
    raise Raised(TypeError("'generator' object is not callable"))


def call_higher_order(machine: Machine, fn: Any, args: list, kwargs: dict) -> Any:
    """An operator of torch whose operands are functions, called as an object: torch.ops.higher_order.cond."""
    handler = callables.PYTHON_FUNCTIONS.get(("torch.ops.higher_order", fn.name()))
    if handler is None:
        raise Break("higher_order", f"torch.ops.higher_order.{fn.name()} is called")
    return callables.run_handler(handler, machine, args, kwargs)


@passes_on
def _call_original(machine: Machine, fn: Any, original: Any, args: list, kwargs: dict) -> Any:
    """Calling a compiled or scripted function: the function that it was made from, which is fixed with it."""
    if machine.world.is_outside(fn):
        machine.world.guard(machine.world.sources[id(fn)], "ID", fn, "compiled function")
    return call(machine, original, args, kwargs)


@passes_on
def _call_dispatcher(machine: Machine, fn: Dispatcher, args: list, kwargs: dict) -> Any:
    """A function compiled by this compiler: captured with the rest."""
    return _call_original(machine, fn, fn.__wrapped__, args, kwargs)


@passes_on
def _call_scripted(machine: Machine, fn: torch.jit.ScriptFunction, args: list, kwargs: dict) -> Any:
    original = getattr(fn, "_torchdynamo_inline", None)
    if original is None:
        raise Break(
            "unsupported", "a function of torch.jit is called", "call the Python function that it was made from"
        )
    return _call_original(machine, fn, original, args, kwargs)


def _call_descriptor(machine: Machine, fn: Any, args: list, kwargs: dict) -> Any:
    """An unbound method of a C class: torch.Tensor.add(x, y), list.append(l, v), object.__setattr__(o, n, v)."""
    if not args:
        raise Raised(TypeError(f"unbound method {fn.__name__}() needs an argument"))
    owner = args[0]
    if type(owner) is TraceTensor:
        return tensor_calls.call_method(machine, owner, fn.__name__, args[1:], kwargs)
    return call_native_method(machine, fn, owner, args[1:], kwargs)


def _call_opaque(machine: Machine, fn: Any, args: list, kwargs: dict) -> Any:
    """A callable that torch.compiler.allow_in_graph marked, as one call in the graph."""
    machine.world.guard(machine.world.source_of(fn) or machine.world.anchor(fn), "ID", fn, "callable allowed in graphs")
    return tensor_calls.call_function(machine, fn, args, kwargs)


def _target(reference: Any) -> Any:
    """What a weak reference refers to; itself where it is something else."""
    return reference() if type(reference) is weakref.ref else reference


def _call_weakref(machine: Machine, ref: Any, args: list, kwargs: dict) -> Any:
    """ref(): the target of a reference from outside is read again at each call."""
    target, world = ref(), machine.world
    if machine.referenced:
        raise Plainly(
            "lifetime",
            "a weak reference is read when its object may be gone",
            "read it before the compiled region, or outside of it",
        )
    if not world.is_outside(ref):  # made inside (weak_reference), to an object from outside
        return target
    return world.load(target, S.asked(world.sources[id(ref)], _target), "target of a weak reference")


@passes_on
def _call_partial(machine: Machine, fn: functools.partial, args: list, kwargs: dict) -> Any:
    if machine.world.is_outside(fn):
        function = machine.getattr(fn, "func")
        first, named = (
            list(machine.iterate(machine.getattr(fn, "args"))),
            dict(machine.plain(machine.getattr(fn, "keywords"))),
        )
    else:
        function, first, named = fn.func, list(fn.args), dict(fn.keywords)
    return call(machine, function, [*first, *args], {**named, **kwargs})


def _known_answer(machine: Machine, fn: types.FunctionType, module: str) -> Any:
    """What a call of `fn` gives during capture, whatever the program does; MISSING where nothing is known of it."""
    constant = known_constant_functions().get(id(fn))
    answer = CONSTANT_BY_NAME.get((module, fn.__name__), MISSING) if constant is None else constant[1]
    if answer is not True:
        return answer
    asks = machine.frames[-1].scope.namespace.get("__name__")
    return asks not in ASKS_FOR_STOCK and machine.says_compiling()


@passes_on
def _call_function(machine: Machine, fn: types.FunctionType, args: list, kwargs: dict) -> Any:
    module = fn.__module__ or ""
    if (answer := _known_answer(machine, fn, module)) is not MISSING:
        return answer
    replaced = callables.PYTHON_FUNCTIONS.get((module, fn.__qualname__))
    if replaced is not None:
        return callables.run_handler(
            replaced, machine, [fn, *args] if replaced in callables.TAKES_FUNCTION else args, kwargs
        )
    if fn.__code__.co_filename == _TRANSFORMS and (transformed := jacobian_wrapper(machine, fn)) is not None:
        return call_object(machine, transformed, args, kwargs)
    if fn.__dict__ and (result := marked_call(machine, fn, args, kwargs)) is not NotImplemented:
        return result
    if fn.__code__ in _RECURSIVE_REPRS and hasattr(fn, "__wrapped__"):
        return call(machine, fn.__wrapped__, args, kwargs)  # what it adds is a stop for objects that contain themselves
    if is_disabled(fn):
        reason = why_disabled(fn)
        raise Break("disabled", f"{fn.__qualname__} is marked to stay uncompiled" + (reason and f": {reason}"))
    trusted = is_trusted_module(module)
    if trusted:
        if builtin_calls.is_logging(fn):
            return builtin_calls.log_effect(machine, fn, args, kwargs)
        if _is_one_node(machine, fn, args, kwargs):
            try:
                return unless_it_warns(tensor_calls.call_function, machine, fn, args, kwargs)
            except Warned:
                return call_python(machine, fn, args, kwargs)
        kind = callables.BREAK_MODULES.get(module)
        if kind is not None and not (module == "torch.nn.init" and fn.__name__.startswith(("_calculate", "calculate"))):
            raise Break(kind)
    elif fn.__name__ in ("warning_once", "info_once"):
        return builtin_calls.log_effect(machine, fn, args, kwargs)
    elif module.partition(".")[0] == "numpy":
        return call_numpy(machine, fn, args, kwargs)
    elif module.startswith("triton.runtime.") and _launches_kernel(fn):
        raise Break("triton_kernel")
    return call_python(machine, fn, args, kwargs)


def _is_one_node(machine: Machine, fn: types.FunctionType, args: list, kwargs: dict) -> bool:
    """Whether a function of torch's, written in Python, becomes one node of the graph."""
    values = (*args, *kwargs.values())
    return (
        is_leaf_function(fn)
        and (tensor_calls.holds_tensor(args) or tensor_calls.holds_tensor(kwargs))
        and not any(map(runs_code, values))
        and not (fn.__module__ == "torch.nn.functional" and torch.SymFloat in map(type, values))
        and relies_on_parts(machine, fn)
    )


def _launches_kernel(fn: types.FunctionType) -> bool:
    return fn.__qualname__.endswith((".run", ".warmup")) and fn.__qualname__ != "Heuristics.run"


@passes_on
def call_python(machine: Machine, fn: types.FunctionType, args: list, kwargs: dict) -> Any:
    """Interpret a Python function."""
    world = machine.world
    code = fn.__code__
    if code in machine.opaque:
        return _call_opaque(machine, fn, args, kwargs)
    source = world.source_of(fn)
    if source is None and id(fn) not in world.created:
        source = world.anchor(fn)
    if source is not None and not is_trusted_function(fn):
        world.guard_function(source, fn, "function")
    if code.co_flags & 0x380:
        raise Break("async", "a coroutine or async generator is called")
    slots = bind(machine, fn, args, kwargs)
    if machine.opts.library is None:
        return machine.call_code(code, machine.scope_of(fn.__globals__), fn, slots)
    return _follow(machine, fn, slots)


@passes_on
def _follow(machine: Machine, fn: types.FunctionType, slots: dict[int, Any]) -> Any:
    """Interpret a function as far as the policy goes: a call into a library is followed unless it is left alone, and
    given up where it runs for long before any tensor work."""
    code, library = fn.__code__, machine.opts.library
    if machine.following is not None:
        if machine.instructions > machine.following[0] and machine.graph.calls == machine.following[1]:
            raise Break("library", "it runs for a long time without tensor work")
    elif library.is_library(code):
        if library.left_alone(code):
            raise Break(
                "library", f"{fn.__qualname__} is library code that is left to Python: {library.left_alone(code)}"
            )
        patience = library.instructions if _has_tensor(slots.values()) else library.instructions_without
        machine.following = machine.instructions + patience, machine.graph.calls
        try:
            return machine.call_code(code, machine.scope_of(fn.__globals__), fn, slots)
        finally:
            machine.following = None
    return machine.call_code(code, machine.scope_of(fn.__globals__), fn, slots)


def _has_tensor(values: Iterable[Any]) -> bool:
    """Whether a call's parameters, or what containers among them show first, are tensors."""
    for value in values:
        inside = value if type(value) in (tuple, list) else value.values() if type(value) is dict else ()
        if isinstance(value, TraceTensor) or any(isinstance(x, TraceTensor) for x in itertools.islice(inside, 16)):
            return True
    return False


# Where a callable's exact type is here, nothing else is asked. Handlers that go on to the call of a Python function are
# marked by passes_on. Methods and objects with __call__ are done in call() itself, which costs no frame.
_OF_TYPE: dict[type, Callable[[Machine, Any, list, dict], Any]] = {
    types.FunctionType: _call_function,
    **dict.fromkeys(BOUND_NATIVE, _call_bound_native),
    types.MethodDescriptorType: _call_descriptor,
    types.WrapperDescriptorType: _call_descriptor,
    types.ClassMethodDescriptorType: _call_unbound_native,
    functools.partial: _call_partial,
    _LRU: call_cached,
    weakref.ReferenceType: _call_weakref,
    Transformed: call_object,
    Dispatcher: _call_dispatcher,
    torch.jit.ScriptFunction: _call_scripted,
    InlineGenerator: _refuse_call,
}
_OF_KIND: tuple[tuple[Any, Callable[[Machine, Any, list, dict], Any]], ...] = (
    (type, classes.instantiate),
    (torch.nn.Module, modules.call_module),
    (_OPS, _call_operator),
    (torch._ops.HigherOrderOperator, call_higher_order),
)

callables.FUNCTIONS.update(operators.OPERATOR_FUNCTIONS)


# --- the instructions
def name_of(fn: Any) -> str:
    """`module.f()`, as errors of calls name a function; builtins without their module."""
    module, name = getattr(fn, "__module__", None), getattr(fn, "__qualname__", None)
    if name is None:
        return str(fn)
    return f"{name}()" if module in (None, "builtins") else f"{module}.{name}()"


@handler("CALL")
@passes_on
def call_instruction(machine: Machine, frame: Frame, ins: Any) -> None:
    stack, n = frame.stack, ins.arg
    args = stack[-n:] if n else []
    first, second = stack[-n - 2], stack[-n - 1]
    del stack[-n - 2 :]
    if first is NULL:
        fn = second
    else:
        fn = first
        if second is not NULL:
            args.insert(0, second)
    kwargs = {}
    if ins.kwnames:
        k = len(ins.kwnames)
        kwargs = dict(zip(ins.kwnames, args[-k:]))
        del args[-k:]
    stack.append(call(machine, fn, args, kwargs))


@handler("CALL_FUNCTION_EX")
@passes_on
def call_function_ex(machine: Machine, frame: Frame, ins: Any) -> None:
    kwargs = as_mapping(machine, frame.stack.pop()) if ins.arg & 1 else {}
    given = frame.stack.pop()
    second, first = frame.stack.pop(), frame.stack.pop()
    fn = second if first is NULL else first
    if (
        not isinstance(given, (tuple, list))
        and not hasattr(type(given), "__iter__")
        and not hasattr(type(given), "__getitem__")
    ):
        raise Raised(TypeError(f"{name_of(fn)} argument after * must be an iterable, not {type(given).__name__}"))
    args = items(machine, given)
    if first is not NULL and second is not NULL:
        args.insert(0, second)
    for k in kwargs:
        if not isinstance(k, str):
            raise Raised(TypeError("keywords must be strings"))
    frame.stack.append(call(machine, fn, args, kwargs))

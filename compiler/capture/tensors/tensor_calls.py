"""Calls that take or make tensors: run on TraceTensors for their metadata, and recorded as nodes of the graph."""

from __future__ import annotations

import operator
import types
import warnings
from typing import TYPE_CHECKING, Any, Callable, Iterable

import torch

from ...graph.recurrent import for_symbols
from ...graph.traced_calls import call_factory_overload, factory_overload
from ...graph.tensor import DataDependentError, TraceTensor
from ...guards.state import read_field
from ..arrays.array_value import Array
from ..arrays.outside_arrays import varying_number
from ..kinds import choices
from ..numbers import tensor_reads, scalars
from ..kinds.elements import asks_back
from .patched_torch import method_target
from ..entry.graph_builder import as_trace
from ..machine.exceptions import calling_code
from ..machine.signals import Break, Raised
from ..numbers.scalars import holds_scale, scaled
from .symbolic_index import select_symbols
from .tensor_errors import true_error
from .tensor_subclasses import answers_calls
from ..library.operator_warnings import quietly, warn_of_operator
from ..library.watched_warnings import refuse_watched_operator
from ..machine.stack_values import ATOMS, is_numpy_scalar

if TYPE_CHECKING:
    from ..machine.machine import Machine

__all__ = [
    "call_function",
    "call_method",
    "call_operator",
    "holds_tensor",
    "METADATA_METHODS",
    "METHODS",
    "CONVERSIONS",
    "copy_constructed",
    "from_the_program",
    "is_current_gpu",
    "note_current_gpu",
    "plain_argument",
]

# Properties of a tensor that its metadata decides.
METADATA_METHODS = frozenset(
    """size dim ndimension numel nelement stride storage_offset is_contiguous is_floating_point is_complex is_signed
    element_size get_device is_same_size is_inference is_conj is_neg has_names __len__ dim_order is_shared is_pinned
    is_set_to sparse_dim dense_dim __hash__""".split()
)
_BREAK_METHODS: dict[str, str] = {
    "item": "item",
    "tolist": "tolist",
    "numpy": "numpy",
    "__array__": "numpy",
    "__bool__": "data_dependent_branch",
    "__int__": "item",
    "__float__": "item",
    "__index__": "item",
    "__complex__": "item",
    "data_ptr": "tensor_metadata",
    "register_hook": "tensor_hook",
    "register_post_accumulate_grad_hook": "tensor_hook",
    "retain_grad": "tensor_hook",
    "storage": "storage",
    "untyped_storage": "storage",
    "_typed_storage": "storage",
    "__dlpack__": "tensor_metadata",
    "resize_": "tensor_attribute",
    "resize_as_": "tensor_attribute",
    "set_": "tensor_attribute",
    "share_memory_": "tensor_attribute",
    "apply_": "unsupported",
    "map_": "unsupported",
    "map2_": "unsupported",
    "detach_": "tensor_attribute",
    "t_": "tensor_attribute",
    "transpose_": "tensor_attribute",
    "swapaxes_": "tensor_attribute",
    "swapdims_": "tensor_attribute",
    "squeeze_": "tensor_attribute",
    "unsqueeze_": "tensor_attribute",
    "as_strided_": "tensor_attribute",
    "rename_": "tensor_attribute",
    "__repr__": "print",
    "__str__": "print",
    "__format__": "print",
    "nonzero": "data_dependent_shape",
    "masked_select": "data_dependent_shape",
    "unique": "data_dependent_shape",
    "unique_consecutive": "data_dependent_shape",
    "__reduce_ex__": "unsupported",
    "__deepcopy__": "unsupported",
    "pin_memory": "unsupported",
    "to_sparse": "unsupported",
    "record_stream": "unsupported",
    "__contains__": "data_dependent_branch",
    "equal": "data_dependent_branch",
    "allclose": "data_dependent_branch",
}
# methods that other modules of capture do, or NotImplemented: handler(machine, tensor, *args, **kwargs)
METHODS: dict[str, Callable] = {}
CONVERSIONS: dict[str, Callable] = {}  # to numpy's arrays ("numpy"), and from them ("tensor"): numpy_arrays.py
_INPLACE_OPERATORS = frozenset(
    (
        operator.iadd,
        operator.isub,
        operator.imul,
        operator.itruediv,
        operator.ifloordiv,
        operator.imod,
        operator.ipow,
        operator.imatmul,
        operator.iand,
        operator.ior,
        operator.ixor,
        operator.ilshift,
        operator.irshift,
        operator.setitem,
    )
)
_INDEXING = (operator.getitem, operator.setitem)
_BREAK_FUNCTIONS: dict[Any, str] = {
    torch.nonzero: "data_dependent_shape",
    torch.unique: "data_dependent_shape",
    torch.equal: "data_dependent_branch",
    torch.allclose: "data_dependent_branch",
    torch.masked_select: "data_dependent_shape",
    torch.unique_consecutive: "data_dependent_shape",
}
_EXACT_FOR_INTS = (torch.float32, torch.float64, torch.int64)
_RECURRENT = frozenset(("lstm", "gru", "rnn_tanh", "rnn_relu"))


_LEGACY = type(torch.FloatTensor)


def holds_tensor(value: Any, depth: int = 0) -> bool:
    """Whether a value is a TraceTensor or a container that holds one."""
    if isinstance(value, torch.Tensor):
        return True
    if depth < 6:
        if isinstance(value, (list, tuple)):
            return any(holds_tensor(item, depth + 1) for item in value)
        if isinstance(value, dict):
            return any(holds_tensor(item, depth + 1) for item in value.values())
    return False


def _run(machine: Machine, fn: Callable, args: list, kwargs: dict) -> Any:
    env = machine.env
    if env.hints:
        env.location = machine.user_line()
    _refuse_objects(args)
    _refuse_objects(kwargs.values())
    if machine.world.pending:
        refuse_watched_operator(machine, fn, args, kwargs)
    if warn_of_operator(machine, fn, args, kwargs):
        return machine.native(quietly, fn, *args, **kwargs)
    try:
        return machine.native(from_the_program(machine), fn, *args, **kwargs)
    except Raised as raised:
        raise Raised(true_error(fn, args, kwargs, raised.exc)) from None


def from_the_program(machine: Machine) -> Callable:
    """What calls its first argument with the others. Torch's C++ gives some warnings once in a process, which is now:
    they name the program's line, and are counted as its module's.
    """
    if not machine.frames:  # on the way to a place where several frames stop
        return operator.call
    frame = machine.frames[-1]
    return types.FunctionType(calling_code(frame.position()), frame.scope.namespace)


def _refuse_objects(values: Iterable) -> None:
    """Torch would call methods of an object that it is given for a number or a sequence, behind the interpreter's
    back.
    """
    for value in values:
        cls = type(value)
        if cls is TraceTensor or cls in ATOMS:
            continue
        if cls is list or cls is tuple:
            _refuse_objects(value)
        elif asks_back(value):
            raise Break(
                "unknown_object",
                f"a torch function is given an object of type {cls.__name__}, whose methods it would call",
            )


def _finish(machine: Machine, kind: str, target: Any, args: list, kwargs: dict, result: Any) -> Any:
    result = as_trace(result)
    if result is None or holds_tensor(result):
        return machine.graph.record(kind, target, tuple(args), kwargs, result)
    return result


def plain_argument(machine: Machine, value: Any) -> Any:
    """A value as torch takes it: numpy's scalars are numbers to it, a range is a sequence, and a truth is known."""
    return varying_number(machine, value) if type(value) is Array else _plain_numbers(machine.deep_plain(value))


def _plain_numbers(value: Any) -> Any:
    cls = type(value)
    if cls is range:
        return list(value)
    if cls is torch.SymBool:
        return bool(value)
    if cls in (tuple, list):
        parts = [_plain_numbers(item) for item in value]
        return cls(parts) if any(part is not item for part, item in zip(parts, value)) else value
    if cls is slice:
        return slice(*(_plain_numbers(v) for v in (value.start, value.stop, value.step)))
    return value.item() if cls not in ATOMS and is_numpy_scalar(value) else value


def call_operator(machine: Machine, fn: Callable, args: list) -> Any:
    """An operator of Python, at least one operand being a tensor."""
    args = [
        arg if type(arg) is TraceTensor or type(arg) is int or type(arg) is float else plain_argument(machine, arg)
        for arg in args
    ]
    if scalars.holds_float(args):
        return scalars.scalar_operation(machine, fn, args, lambda f, a: call_operator(machine, f, a))
    _refuse_objects(args)
    if machine.choices:
        choices.check_operands(machine, fn, args)
    if fn in _INDEXING and type(args[0]) is TraceTensor:
        args[1] = _by_arrays(machine, args[1])
        result = _indexed(machine, fn, args)
        if result is not NotImplemented:
            return result
    if fn is operator.setitem and type(args[2]) is torch.SymInt and type(args[0]) is TraceTensor:
        args[2] = scalars.full_of(machine, args[2], args[0])
    if fn in _INPLACE_OPERATORS:
        machine.graph.writes_to(args[0])
    if machine.world.pending:
        refuse_watched_operator(machine, fn, args)
    env = machine.env
    if env.hints:
        env.location = machine.user_line()
    try:
        result = fn(*args)
    except Exception as exc:
        if fn in _INDEXING and isinstance(exc, DataDependentError) and _holds_scalar(args[1]):
            raise Break(
                "item",
                "a 0-dim tensor is used as an index, which reads its value into Python",
                "index with a 1-dim tensor (i.reshape(1)), or use torch.index_select or torch.gather",
            ) from None
        machine.translate(exc)
        raise Raised(true_error(fn, args, {}, exc)) from None
    if type(result) is TraceTensor or result is None:
        return machine.graph.record("call_function", fn, tuple(args), {}, result)
    return _finish(machine, "call_function", fn, args, {}, result)


def _by_arrays(machine: Machine, key: Any) -> Any:
    """A key with numpy's arrays as the tensors that torch makes of them."""
    if type(key) is tuple:
        return tuple([_by_arrays(machine, k) for k in key])
    if type(key) is not Array or key._tensor.dtype is torch.bool and key._tensor.dim():
        return key._tensor if type(key) is Array else key
    if key._tensor.dtype not in _WHOLE:  # (of others it asks each number for itself)
        raise Break("numpy", f"a tensor is indexed by numbers of numpy's of type {key._tensor.dtype}")
    return call_method(machine, key._tensor, "long", [], {})


_WHOLE = (torch.int64, torch.int32, torch.int16, torch.int8)


def _indexed(machine: Machine, fn: Callable, args: list) -> Any:
    """x[key] and x[key] = value in other operators, where symbols or tensors are keys; NotImplemented for others."""
    x = args[0]
    if machine.env.hints and (selected := select_symbols(machine, x, args[1], call_method)) is not None:
        if selected[1] is ... and fn is operator.getitem:
            return selected[0]
        if selected[1] is ... and type(args[2]) is torch.SymInt:
            return call_method(machine, selected[0], "fill_", [args[2]], {})
        return call_operator(machine, fn, [*selected, *args[2:]])
    if not machine.index_by_tensors or fn is not operator.getitem:
        return NotImplemented
    keys = _keys(args[1])
    if {type(key) for key in keys} not in ({TraceTensor}, {TraceTensor, int}):
        return NotImplemented
    for d in reversed(range(len(keys))):
        if type(keys[d]) is int:
            x = call_method(machine, x, "select", [d, keys[d]], {})
    return call_function(
        machine, torch.ops.aten.index.Tensor, [x, [key for key in keys if type(key) is TraceTensor]], {}
    )


def _keys(key: Any) -> tuple:
    return key if isinstance(key, tuple) else (key,)


def _holds_scalar(key: Any) -> bool:
    return any(isinstance(k, TraceTensor) and k.dim() == 0 for k in _keys(key))


def call_function(machine: Machine, fn: Callable, args: list, kwargs: dict) -> Any:
    """A torch function as one node."""
    args = [plain_argument(machine, arg) for arg in args]
    kwargs = {key: plain_argument(machine, value) for key, value in kwargs.items()}
    if any(map(is_current_gpu, (*args, *kwargs.values()))):
        note_current_gpu(machine)
    if answers_calls(args) or kwargs and answers_calls(kwargs.values()):
        return machine.torch_override(fn, args, kwargs)
    if scalars.holds_float(args) or scalars.holds_float(kwargs.values()):
        result = _function_of_floats(machine, fn, args, kwargs)
        if result is not NotImplemented:
            return result
        args, kwargs = scalars.pinned(args), scalars.pinned(kwargs)
    if machine.choices:
        choices.check_operands(machine, fn, (*args, *kwargs.values()))
    _refuse_shape_of_data(fn, args, kwargs)
    if fn is torch.where:
        args = _where_arguments(machine, args)
    name = getattr(fn, "__name__", "")
    if name.partition(".")[0] in _RECURRENT:
        args = _recurrent_arguments(machine, name, args, kwargs)
    _note_writes(machine, fn, name, args, kwargs)
    if kwargs.get("generator") is not None:
        raise Break("rng_state", "a torch.Generator is used")
    if not holds_tensor(args) and (factory := factory_overload(fn, args, kwargs)) is not None:
        machine.world.state("default_dtype", torch.get_default_dtype())
        return _finish(
            machine, "call_function", fn, args, kwargs, machine.native(call_factory_overload, factory, args, kwargs)
        )
    outputs = _versions(kwargs.get("out"))
    result = _run(machine, for_symbols(fn, args, kwargs), args, kwargs)
    if any(tensor._version == before for tensor, before in outputs):
        raise Break("unsupported", f"{name}() leaves its out= argument as it is where tensors hold no data")
    return _finish(machine, "call_function", fn, args, kwargs, result)


def _function_of_floats(machine: Machine, fn: Callable, args: list, kwargs: dict) -> Any:
    """A function of floats that may vary; NotImplemented where only the numbers that they are now will do."""
    name = fn.__name__ if type(fn) is types.BuiltinFunctionType else ""
    if (given := scalars.by_tensor(machine, name, args, kwargs)) is not None:
        return call_function(machine, fn, *given)
    if kwargs and args and type(args[0]) is TraceTensor and holds_scale(args[0], name, args[1:], kwargs):
        return scaled(machine, args[0], name, args[1:], kwargs, call_method)
    if len(args) == 2:
        made = scalars.filled(
            machine, name, lambda number: call_function(machine, fn, [args[0], number], kwargs), args[1]
        )
        if made is not None:
            return made
    if not kwargs:
        return scalars.scalar_operation(machine, fn, args, lambda f, a: call_function(machine, f, a, {}))
    return NotImplemented


def _refuse_shape_of_data(fn: Callable, args: list, kwargs: dict) -> None:
    """Break for functions whose result has a shape or a value that data decide."""
    try:
        kind = _BREAK_FUNCTIONS.get(fn)
    except TypeError:
        kind = None
    if kind is not None:
        raise Break(kind)
    if fn is torch.where and len(args) + len(kwargs) == 1:
        raise Break("data_dependent_shape")


def _where_arguments(machine: Machine, args: list) -> list:
    """torch.where(condition, x, y) with ints that vary as tensors, where the other side says of which dtype."""
    like = next((arg for arg in args[1:] if type(arg) is TraceTensor), None)
    if torch.SymInt not in map(type, args) or like is None or like.dtype not in _EXACT_FOR_INTS:
        return args
    return [scalars.full_of(machine, arg, like) if type(arg) is torch.SymInt else arg for arg in args]


def _recurrent_arguments(machine: Machine, name: str, args: list, kwargs: dict) -> list:
    """torch.lstm and the like run in C++, which takes symbols for sizes and reads batch sizes from memory."""
    if "batch_sizes" in kwargs or len(args) > 3 and isinstance(args[3], (list, tuple)):
        raise Break("item", f"{name}() on packed data reads its batch sizes from a tensor")  # there is no such memory
    if args and type(args[0]) is TraceTensor and type(args[0].storage_offset()) is torch.SymInt:
        return [call_method(machine, args[0], "clone", [], {}), *args[1:]]  # sequences[i]: nothing but its place varies
    return args


def _note_writes(machine: Machine, fn: Callable, name: str, args: list, kwargs: dict) -> None:
    """Tell the graph which of its arguments a function writes to."""
    if kwargs.get("out") is not None:
        machine.graph.writes_to(kwargs["out"])
    if _in_place(fn, args, kwargs) or name.endswith("_") and not name.endswith("__"):
        machine.graph.writes_to(args[0] if args else kwargs.get("input"))
    if name in ("batch_norm", "instance_norm") and type(fn) is types.FunctionType:
        machine.graph.writes_to([*args[1:3], kwargs.get("running_mean"), kwargs.get("running_var")])


def _versions(out: Any) -> list[tuple[TraceTensor, int]]:
    """The tensors of out=, and their versions. Of tensors without data some of torch's functions make new results, and
    leave these alone.
    """
    if isinstance(out, (tuple, list)):
        return [pair for t in out for pair in _versions(t)]
    return [(out, out._version)] if type(out) is TraceTensor and not out.is_inference() else []


def copy_constructed(machine: Machine, name: str, source: TraceTensor, options: dict) -> TraceTensor:
    """torch.tensor(source) and x.new_tensor(source), with the warning that torch's C++ gives for them."""
    machine.call(
        warnings.warn,
        [
            "To copy construct from a tensor, it is recommended to use sourceTensor.detach().clone() or "
            f"sourceTensor.detach().clone().requires_grad_(True), rather than {name}(sourceTensor)."
        ],
    )
    copy = call_method(machine, call_method(machine, source, "detach", [], {}), "clone", [], {})
    wanted = {key: option for key, option in options.items() if key in ("dtype", "device") and option is not None}
    copy = call_method(machine, copy, "to", [], wanted) if wanted else copy
    return call_method(machine, copy, "requires_grad_", [], {}) if options.get("requires_grad") else copy


def _in_place(fn: Any, args: list, kwargs: dict) -> bool:
    """Whether a flag among the arguments asks for the first one to be changed."""
    if kwargs.get("inplace") is True:
        return True
    if type(fn) is types.FunctionType:  # written in Python: its parameters have names
        names = fn.__code__.co_varnames[: fn.__code__.co_argcount]
        if not fn.__code__.co_flags & 0x04:
            return "inplace" in names and names.index("inplace") < len(args) and args[names.index("inplace")] is True
    return any(arg is True for arg in args[1:])


def call_method(machine: Machine, obj: TraceTensor, name: str, args: list, kwargs: dict) -> Any:
    """A method of a tensor."""
    if name == "numpy":
        return CONVERSIONS["numpy"](machine, obj, *args, **kwargs)
    if machine.choices:
        choices.check_attribute(machine, obj, name)
        choices.check_operands(machine, None, (*args, *kwargs.values()))
    if name in METHODS and (result := METHODS[name](machine, obj, *args, **kwargs)) is not NotImplemented:
        return result
    if name in _BREAK_METHODS:
        return _read(machine, obj, name)
    args = [plain_argument(machine, arg) for arg in args]
    kwargs = {key: plain_argument(machine, value) for key, value in kwargs.items()}
    if name == "cuda" and torch.cuda.is_available() or any(map(is_current_gpu, (*args, *kwargs.values()))):
        note_current_gpu(machine)
    if kwargs and holds_scale(obj, name, args, kwargs):
        return scaled(machine, obj, name, args, kwargs, call_method)
    if scalars.holds_float(args) or scalars.holds_float(kwargs.values()):
        if name == "new_tensor" and len(args) == 1 and type(args[0]) is torch.SymFloat:
            name, args = "new_full", [(), *args]
        result = _method_of_floats(machine, obj, name, args, kwargs)
        if result is not NotImplemented:
            return result
        args, kwargs = scalars.pinned(args), scalars.pinned(kwargs)
    if "from" in kwargs:  # x.random_(**{"from": 1, "to": 5}): a word of Python's, which no text can name
        args = [*args, kwargs.pop("from"), *([kwargs.pop("to")] if "to" in kwargs else [])]
    if name in _OWN_WAYS and (result := _OWN_WAYS[name](machine, obj, args, kwargs)) is not NotImplemented:
        return result
    if name in METADATA_METHODS:
        return _run(machine, getattr(obj, name), args, kwargs)
    if _writes_itself(name):
        machine.graph.writes_to(obj)
    if kwargs.get("generator") is not None:
        raise Break("rng_state", "a torch.Generator is used")
    result = _run(machine, getattr(obj, name), args, kwargs)
    target = method_target(name)
    return _finish(machine, "call_method" if target is name else "call_function", target, [obj, *args], kwargs, result)


def _writes_itself(name: str) -> bool:
    """Whether a method of that name writes to its tensor: add_, __iadd__, __setitem__."""
    return name.endswith("_") and (not name.endswith("__") or name.startswith("__i")) or name == "__setitem__"


def _read(machine: Machine, obj: TraceTensor, name: str) -> Any:
    """A method that needs data: a number that the graph gives, or a break."""
    read = tensor_reads.METHODS.get(name) if obj.tt_wrapper is None else None
    if read is not None and (number := read(machine, obj)) is not NotImplemented:
        return number
    raise Break(_BREAK_METHODS[name])


def _method_of_floats(machine: Machine, obj: TraceTensor, name: str, args: list, kwargs: dict) -> Any:
    """A method given floats that may vary; NotImplemented where only the numbers that they are now will do."""
    if (given := scalars.by_tensor(machine, name, [obj, *args], kwargs)) is not None:
        return call_method(machine, obj, name, given[0][1:], given[1])
    if len(args) == 2:
        made = scalars.filled(
            machine, name, lambda number: call_method(machine, obj, name, [args[0], number], kwargs), args[1]
        )
        if made is not None:
            return made
    same = scalars.METHODS.get(name)
    if same is None or kwargs:
        return NotImplemented
    return (
        call_operator(machine, same, [obj, *args])
        if name.endswith("_")
        else call_function(machine, same, [obj, *args], {})
    )


def _storage_offset(machine: Machine, obj: TraceTensor, args: list, kwargs: dict) -> Any:
    machine.world.rely_on_tensor(obj, "storage_offset")
    return NotImplemented


def _is_inference(machine: Machine, obj: TraceTensor, args: list, kwargs: dict) -> Any:
    machine.world.rely_on_tensor(obj, "is_inference")
    real = machine.world.reals.get(id(obj))
    return NotImplemented if real is None else real.is_inference()


def _type(machine: Machine, obj: TraceTensor, args: list, kwargs: dict) -> Any:
    """x.type() tells the type; x.type(torch.HalfTensor) is a tensor of the CPU."""
    if not args and not kwargs:
        return _run(machine, obj.type, args, kwargs)
    if args and type(args[0]) is _LEGACY and args[0].__module__ == "torch":
        return call_method(machine, call_method(machine, obj, "cpu", [], {}), "to", [args[0].dtype], {})
    return NotImplemented


def _requires_grad(machine: Machine, obj: TraceTensor, args: list, kwargs: dict) -> Any:
    wanted = args[0] if args else kwargs.get("requires_grad", True)
    if obj.requires_grad == wanted and not (obj.is_leaf and obj._is_view()):
        # (a view made under no_grad becomes a leaf)
        return obj
    if wanted is True and id(obj) not in machine.world.reals and obj.is_floating_point():  # a leaf of the graph's own
        return _finish(machine, "call_method", "requires_grad_", [obj], {}, obj.requires_grad_())
    raise Break("tensor_attribute", "requires_grad of a tensor is changed")


def _iterate(machine: Machine, obj: TraceTensor, args: list, kwargs: dict) -> Any:
    return machine.iterate(obj)


def _new_tensor(machine: Machine, obj: TraceTensor, args: list, kwargs: dict) -> Any:
    source = args[0] if args else kwargs.get("data")
    if type(source) is not TraceTensor:
        return NotImplemented
    given = {name: value for name, value in kwargs.items() if value is not None}
    return copy_constructed(machine, "tensor.new_tensor", source, {"dtype": obj.dtype, "device": obj.device, **given})


def _new(machine: Machine, obj: TraceTensor, args: list, kwargs: dict) -> Any:
    """x.new(2, 3), x.new(torch.Size((2, 3))): uninitialised. Other sequences are values, and a node's argument does not
    tell which one it was.
    """
    size = kwargs.get("size", args[0] if len(args) == 1 and isinstance(args[0], torch.Size) else args)
    if not size and type(size) is list or not all(type(n) in (int, torch.SymInt) for n in size):
        return NotImplemented
    options = {name: value for name, value in kwargs.items() if name != "size"}
    return call_method(machine, obj, "new_empty", [list(size)], options)


# Methods that are done in a way of their own, once their arguments are plain; NotImplemented: as any other.
_OWN_WAYS: dict[str, Callable] = {
    "storage_offset": _storage_offset,
    "is_inference": _is_inference,
    "type": _type,
    "requires_grad_": _requires_grad,
    "__iter__": _iterate,
    "new_tensor": _new_tensor,
    "new": _new,
}


# --- the GPU that is current
CURRENT_GPU = "torch._C._cuda_getDevice"


def note_current_gpu(machine: Machine) -> None:
    """The program asks which one it is: that is guarded."""
    machine.world.state(CURRENT_GPU, read_field(CURRENT_GPU))


def is_current_gpu(device: Any) -> bool:
    """Whether this stands for the GPU that is current when the program runs."""
    kind = type(device)
    return (
        device == "cuda" if kind is str else kind is torch.device and device.type == "cuda" and device.index is None
    ) and torch.cuda.is_available()

"""TraceTensor: a tensor without data. Running torch code on it tells shapes, dtypes and strides, and can be recorded.

It is a wrapper subclass: shape and stride are ints or SymInts of ours. Python and C++ composite operators decompose on
it exactly as in eager, autograd included, and each aten operator then arrives in `__torch_dispatch__`, where the rules
of `graph/meta` give the metadata of the results. With a recorder set (`recording`), it hears every operator.
"""

from __future__ import annotations

import sys
import types
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Iterable, Iterator, Mapping, Protocol

import torch

from ..symbolic.env import ShapeEnv
from ..symbolic.expr import Expr, as_expr, maybe_int
from ..symbolic.node import wrap
from ..ops import conjugates, cudnn, grad_scaling, lstm
from . import known_values
from .fallback import meta_by_running
from .known_values import Storage, Traced
from .meta.core import RULES, DataDependentError, TensorMeta, fold, same, state
from .meta.refused import refuses_output
from .meta.types import category
from .older_torch import symbolic_keys
from .opinfo import OpInfo, op_info

__all__ = [
    "TraceTensor",
    "TensorMeta",
    "DataDependentError",
    "trace_tensor_like",
    "tensor_meta",
    "from_meta",
    "recording",
    "marked",
    "Recorder",
    "Storage",
    "is_torchs_own",
]

_INSTEAD = {**conjugates.INSTEAD, **cudnn.INSTEAD, **grad_scaling.INSTEAD, **lstm.INSTEAD}


class Recorder(Protocol):
    def record(self, info: OpInfo, args: tuple, kwargs: dict, out: Any) -> None:
        """One operator ran: its arguments as they came (TraceTensors, tensors, SymInts) and its results."""


class TraceTensor(torch.Tensor, Traced):
    """Metadata only. `tt_meta` TensorMeta, `tt_storage` Storage, `tt_env` ShapeEnv or None where nothing is symbolic.
    Set `_is_param = True` on one that stands for an nn.Parameter: isinstance(t, nn.Parameter) is then true."""

    tt_env: ShapeEnv | None
    tt_wrapper: torch.Tensor | None = None  # what it stands for, of a wrapper subclass (wrappers/)
    tt_differentiable = False  # a wrapper from outside that requires grad: to eager a leaf, or a result of its own

    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(
        cls, meta: TensorMeta, env: ShapeEnv | None = None, storage: Storage | None = None, requires_grad: bool = False
    ) -> "TraceTensor":
        if not _registered:
            _register()
        keys = None
        if env is None:
            shape, stride, offset = meta.shape, meta.stride, meta.storage_offset
        else:
            shape = [size if size.__class__ is int else wrap(size, env) for size in meta.shape]
            stride = [s if s.__class__ is int else wrap(s, env) for s in meta.stride]
            offset = wrap(meta.storage_offset, env)
            if any(size.__class__ is not int for size in shape):
                keys = _symbolic_keys
        tensor = torch.Tensor._make_wrapper_subclass(
            cls,
            shape,
            strides=stride,
            storage_offset=offset,
            dtype=meta.dtype,
            device=meta.device,
            requires_grad=requires_grad,
            _extra_dispatch_keys=keys,
        )
        tensor.tt_meta, tensor.tt_env, tensor.tt_storage = meta, env, storage or Storage()
        return tensor

    @classmethod
    def __torch_dispatch__(cls, func: Any, classes: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        return _rule_entry(cls, func, classes, args, kwargs)

    def __repr__(self, *, tensor_contents: Any = None) -> str:
        return f"TraceTensor({self.tt_meta})"

    def tolist(self) -> Any:
        if (value := known_values.known(self)) is not None:
            return value.tolist()
        raise DataDependentError("tolist() needs the tensor's data")

    def numpy(self, *args: Any, **kwargs: Any) -> Any:
        raise DataDependentError("numpy() needs the tensor's data")

    def data_ptr(self) -> int:
        raise DataDependentError("data_ptr() needs the tensor's memory")

    def __array__(self, *args: Any, **kwargs: Any) -> Any:
        raise DataDependentError("conversion to a numpy array needs the tensor's data")

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise DataDependentError("a tensor being traced cannot be pickled or copied")


def is_torchs_own(value: Any) -> bool:
    """Whether a class or module of torch's has this from torch, as far as can be seen: the program's functions are
    known by their globals.
    """
    inner = (
        value.fget
        if isinstance(value, property)
        else value.__func__
        if isinstance(value, (staticmethod, classmethod))
        else value
    )
    if not isinstance(inner, types.FunctionType):
        return True
    name = inner.__globals__.get("__name__")
    return isinstance(name, str) and (
        name.partition(".")[0] == "torch" or name.partition(".")[0] in sys.stdlib_module_names
    )


for _cls in (torch.Tensor, torch._C.TensorBase):
    for _name, _value in vars(_cls).items():
        if (
            _name not in vars(TraceTensor)
            and is_torchs_own(_value)
            and _name not in ("__new__", "__weakref__", "__dict__", "__init_subclass__")
        ):
            # a method of torch.Tensor that the program exchanges is not called here
            setattr(TraceTensor, _name, _value)

_registered = False
_symbolic_keys: Any = None  # dispatch keys of tensors of symbolic sizes, beyond the usual ones


def _rule_entry(cls: type, op: Any, classes: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
    if len(classes) > 1 and state.tracing_wrapper:
        return NotImplemented  # it is for the class of a wrapper inside of a wrapper to say
    return dispatch_operator(op, args, kwargs or {})


def _register() -> None:
    """Tell torch, operator by operator, that TraceTensor has a dispatch rule (torch.library.register_torch_dispatch).

    It would find `__torch_dispatch__` anyway, but before it looks there, torch asks whether the tensor is a DTensor,
    and for that it imports torch.distributed and sympy (0.6 s) once per process. Operators without a rule of ours are
    left
    out: they take the slow path anyway.
    """
    global _registered, _symbolic_keys
    _registered, _symbolic_keys = True, symbolic_keys()
    from torch._library.simple_registry import GenericTorchDispatchRuleHolder, SimpleOperatorEntry, singleton

    class Entry(SimpleOperatorEntry):
        """An entry whose other parts are made when somebody asks for them: a thousand whole ones take 40 ms."""

        def __init__(self, qualname: str):
            self.qualname = qualname
            self.torch_dispatch_rules = GenericTorchDispatchRuleHolder(qualname)

        def __getattr__(self, name: str) -> Any:
            if name.startswith("__"):
                raise AttributeError(name)
            self.__dict__.update({**SimpleOperatorEntry(self.qualname).__dict__, **self.__dict__})
            return self.__dict__[name]

    entries = singleton._data
    bases = {name.partition(".")[0] for name in RULES}
    for full in torch._C._dispatch_get_all_op_names():
        ns, _, name = full.partition("::")
        base, _, overload = name.partition(".")
        if (
            ns == "aten"
            and not overload.endswith("out")
            and (base in bases or (base[-1:] == "_" and base[:-1] in bases))
        ):
            entry = entries.get(full)
            if entry is None:
                entry = entries[full] = Entry(full)
            entry.torch_dispatch_rules._data[TraceTensor] = _rule_entry


def _plain(x: Any) -> Any:
    """An argument as rules see it."""
    cls = x.__class__
    if cls is TraceTensor:
        return x.tt_meta if x.tt_env is None or not x.tt_env.replacements else tensor_meta(x)
    if cls is int or cls is float or cls is bool or x is None or cls is str:
        return x
    if cls is list or cls is tuple:
        return [_plain(y) for y in x]
    if isinstance(x, torch.Tensor):
        return tensor_meta(x)
    if cls is torch.SymInt:
        return _sym(x)
    if cls is torch.SymBool:
        return bool(x)
    if cls is torch.SymFloat:
        return float(x.node.guard_float("", 0))
    return x


def _sym(x: torch.SymInt) -> Any:
    e = as_expr(x)
    env = x.node.env if hasattr(x.node, "env") else None
    if env is not None:
        if state.env is None:
            state.env = env
        e = env.replace(e)
    return fold(e)


def _find_env(args: Iterable[Any]) -> ShapeEnv | None:
    for arg in args:
        cls = arg.__class__
        if cls is TraceTensor:
            if arg.tt_env is not None:
                return arg.tt_env
        elif cls is list or cls is tuple:
            env = _find_env(arg)
            if env is not None:
                return env
        elif cls is torch.SymInt:
            return getattr(arg.node, "env", None)
    return None


def holds_outer(values: Iterable[Any]) -> bool:
    """Whether one of an operator's arguments stands for a wrapper."""
    for value in values:
        cls = value.__class__
        if cls is TraceTensor:
            if value.tt_wrapper is not None:
                return True
        elif (cls is list or cls is tuple) and holds_outer(value):
            return True
    return False


def dispatch_operator(op: torch._ops.OpOverload, args: tuple, kwargs: dict) -> Any:
    question = _METADATA.get(op)
    if question is not None:
        return question(args[0])
    if state.by_class is not None and (holds_outer(args) or kwargs and holds_outer(kwargs.values())):
        return state.by_class(op, args, kwargs)
    instead = _INSTEAD.get(op)
    if instead is not None and (result := instead(*args, **kwargs)) is not NotImplemented:
        return result
    info = op_info(op)
    if info.uncounted:
        written = _flat([_argument(info, write, args, kwargs) for write in info.writes])
        torch.autograd.graph.increment_version(
            [tensor for tensor in written if tensor is not None and not tensor.is_inference()]
        )
    if info.composite is not None:
        # not op.decompose, which prefers Python decompositions that differ from C++ (dropout copies)
        if not (info.passed_by and torch.is_inference_mode_enabled()):
            return op._op_dk(info.composite, *args, **kwargs)
        with torch._C._SetExcludeDispatchKeyGuard(_VIEWS, False):  # this is below that; the parts are to make views
            return op._op_dk(info.composite, *args, **kwargs)
    outer = state.env
    env = state.env = _find_env(args) or (_find_env(kwargs.values()) if kwargs else None)
    try:
        kind = info.kind
        if kind == "pure" or kind == "view":
            if op is _READ and (value := known_values.known(args[0])) is not None:
                return value.item()
            margs = [_plain(arg) for arg in args]
            mkwargs = {name: _plain(item) for name, item in kwargs.items()} if kwargs else kwargs
            if info.rule is not None:
                result = info.rule(*margs, **mkwargs)
            else:
                result = meta_by_running(op, tuple(margs), mkwargs)
            out = (_wrap_views if kind == "view" else _wrap_results)(info, result, args, kwargs, env)
            known_values.know_result(info, args, kwargs, out)
        elif kind == "metadata":
            out = _reshaped_in_place(info, args, kwargs)
        else:
            out = _written(info, op, args, kwargs)
        if state.recorder is not None:
            state.recorder.record(info, args, kwargs, out)
    finally:
        state.env = outer
    return out


def _fixed(xs: Any) -> Any:
    """C++ code that wants plain sizes gets the hints, by guards."""
    return [int(x) for x in xs] if isinstance(xs, (tuple, list, torch.Size)) else int(xs)


_VIEWS = torch._C.DispatchKey.ADInplaceOrView
_UNITS = ("aten", "prims", "tcompile_kernels")  # whose operators move a version by one, or by nothing
_READ = torch.ops.aten._local_scalar_dense.default
# what C++ asks of a tensor with symbolic sizes instead of reading its fields
_METADATA: dict[Any, Any] = {
    torch.ops.aten.size.default: lambda t: _fixed(_sym_tuple(t, "shape")),
    torch.ops.aten.stride.default: lambda t: _fixed(_sym_tuple(t, "stride")),
    torch.ops.aten.storage_offset.default: lambda t: _fixed(t.storage_offset()),
    torch.ops.aten.numel.default: lambda t: _fixed(t.numel()),
    torch.ops.aten.dim.default: lambda t: len(t.tt_meta.shape),
    torch.ops.aten.sym_size.default: lambda t: _sym_tuple(t, "shape"),
    torch.ops.aten.sym_stride.default: lambda t: _sym_tuple(t, "stride"),
}


def _sym_tuple(tensor: TraceTensor, field: str) -> list:
    return [wrap(x, tensor.tt_env) for x in getattr(tensor_meta(tensor), field)]


def _wrap_results(info: OpInfo, result: Any, args: tuple, kwargs: dict, env: ShapeEnv | None) -> Any:
    if isinstance(result, TensorMeta):
        return TraceTensor(result, env, _alias_storage(info, 0, args, kwargs))
    if isinstance(result, list) or (info.list_result and isinstance(result, tuple)):
        storage = _alias_storage(info, 0, args, kwargs)
        return [TraceTensor(m, env, storage) for m in result]
    if isinstance(result, tuple):
        return tuple(
            TraceTensor(m, env, _alias_storage(info, i, args, kwargs)) if isinstance(m, TensorMeta) else _public(m, env)
            for i, m in enumerate(result)
        )
    return _public(result, env)


def _wrap_views(info: OpInfo, result: Any, args: tuple, kwargs: dict, env: ShapeEnv | None) -> Any:
    source = _argument(info, 0, args, kwargs)
    with _of_kind(source) if torch.is_inference_mode_enabled() else nullcontext():
        out = _wrap_results(info, result, args, kwargs, env)
    conjugates.mark(info.op, source, out)
    return out


def _public(x: Any, env: ShapeEnv | None) -> Any:
    return wrap(x, env) if isinstance(x, Expr) and env is not None else x


def _argument(info: OpInfo, i: int, args: tuple, kwargs: dict) -> Any:
    return args[i] if i < len(args) else kwargs.get(info.arg_names[i])


def _alias_storage(info: OpInfo, i: int, args: tuple, kwargs: dict) -> Storage | None:
    j = info.aliases[i] if i < len(info.aliases) else None
    if j is None:
        return None
    argument = _argument(info, j, args, kwargs)
    return argument.tt_storage if isinstance(argument, TraceTensor) else None


def _written(info: OpInfo, op: torch._ops.OpOverload, args: tuple, kwargs: dict) -> Any:
    """In-place and out= operators: the shapes must fit; what was written to is what comes back."""
    targets = [_argument(info, write, args, kwargs) for write in info.writes]
    if any(isinstance(target, torch.Tensor) and not isinstance(target, TraceTensor) for target in targets):
        raise NotImplementedError(f"{op} writes into a tensor that C++ made for itself, which the graph would not see")
    for t in _flat(targets):
        if t is not None:
            known_values.forget(t.tt_storage)
            t.tt_storage.own_writes |= op.namespace not in _UNITS
            if state.tracing_wrapper:
                state.written_inside.append(t)
    fresh: list = []
    names = {info.arg_names[write] for write in info.writes} if info.kind == "out" else ()
    margs = [_plain(arg) for i, arg in enumerate(args) if info.kind != "out" or i not in info.writes]
    mkwargs = {name: _plain(value) for name, value in kwargs.items() if name not in names}
    if info.rule is not None or info.kind == "out" and info.functional is not None:
        # without a rule the operator that only gives its results is run: with out= arguments it would give these back,
        # resized
        result = (
            info.rule(*margs, **mkwargs)
            if info.rule is not None
            else meta_by_running(info.functional, tuple(margs), mkwargs)
        )
        metas = list(result) if isinstance(result, (tuple, list)) else [result]
        flat = _flat(targets)
        if len(metas) > len(flat):  # results of their own come before what is written
            fresh, metas = metas[: len(metas) - len(flat)], metas[len(metas) - len(flat) :]
        if info.kind == "out":
            _check_outputs(info, flat, metas, tuple(margs), mkwargs)
        for t, meta in zip(flat, metas):
            if isinstance(t, torch.Tensor) and isinstance(meta, TensorMeta):
                _check_written(op, tensor_meta(t), meta)
    elif info.functional is None:
        resizes = info.kind == "out" and op.namespace == "aten"  # (those of others give back what they are given)
        given = _outputs_without_elements(info, args, kwargs) if resizes else (args, kwargs)
        result = meta_by_running(
            op, tuple(map(_plain, given[0])), {key: _plain(value) for key, value in given[1].items()}
        )
        return _results_of_a_write(info, result, args, kwargs)
    if info.n_results == 0:
        return None
    if fresh:
        wrapped = tuple(TraceTensor(m, state.env) for m in fresh)
        return wrapped if info.n_results > 1 else wrapped[0]
    outs = tuple(_argument(info, alias, args, kwargs) for alias in info.aliases if alias is not None)
    return outs[0] if info.n_results == 1 else outs


def _outputs_without_elements(info: OpInfo, args: tuple, kwargs: dict) -> tuple[list, dict]:
    """The arguments with empty outputs: what is written says its shape then, and nobody warns that it was resized."""

    def empty(t: Any) -> Any:
        return _plain(t).replace(shape=(0,), stride=(1,), storage_offset=0) if isinstance(t, TraceTensor) else t

    names = {info.arg_names[write] for write in info.writes}
    return [empty(arg) if i in info.writes else arg for i, arg in enumerate(args)], {
        name: empty(value) if name in names else value for name, value in kwargs.items()
    }


def _results_of_a_write(info: OpInfo, result: Any, args: tuple, kwargs: dict) -> Any:
    """What an operator that writes, and has no functional form, gives: arguments of its own where its schema says so,
    else new tensors.
    """
    if info.n_results == 0:
        return None
    metas = result if info.n_results > 1 else (result,)
    outs = []
    for alias, meta in zip(info.aliases, metas, strict=True):
        if alias is not None:
            outs.append(_argument(info, alias, args, kwargs))
            if info.kind == "out" and isinstance(outs[-1], torch.Tensor) and isinstance(meta, TensorMeta):
                _check_written(info.op, tensor_meta(outs[-1]), meta)  # one of another shape has been resized
        elif isinstance(meta, (list, tuple)):
            outs.append([TraceTensor(x, state.env) if isinstance(x, TensorMeta) else x for x in meta])
        else:
            outs.append(TraceTensor(meta, state.env) if isinstance(meta, TensorMeta) else _public(meta, state.env))
    return tuple(outs) if info.n_results > 1 else outs[0]


def _flat(targets: list) -> list:
    return [t for target in targets for t in (target if isinstance(target, (list, tuple)) else (target,))]


def _check_outputs(info: OpInfo, targets: list, values: list, args: tuple, kwargs: dict) -> None:
    """Raises where eager refuses an out= argument, or does something with it that a copy of the result is not. Eager
    resizes one of another shape. What is no operator of single elements may compute in the dtype of its output, or
    insist on one."""
    for target, value in zip(targets, values, strict=True):
        if not isinstance(target, torch.Tensor) or not isinstance(value, TensorMeta):
            raise NotImplementedError(f"{info.op} leaves out one of its out= arguments")
        meta = tensor_meta(target)
        _check_written(info.op, meta, value)
        if (
            meta.device != value.device
            or meta.dtype is not value.dtype
            and (
                torch.Tag.pointwise not in info.functional.tags
                or len(targets) > 1
                or refuses_output(info.op, info.functional, info.arg_names[info.writes[0]], args, kwargs, meta.dtype)
            )
        ):
            raise RuntimeError(
                f"{info.op}: expected out tensor to have dtype {value.dtype} on {value.device}, but got {meta.dtype} on"
                f" {meta.device} instead"
            )


def _reshaped_in_place(info: OpInfo, args: tuple, kwargs: dict) -> TraceTensor:
    """squeeze_, t_, ...: the tensor object becomes another view of its memory."""
    t = args[0]
    if info.rule is None or not isinstance(t, TraceTensor) or t._is_view() and torch._C.is_grad_enabled():
        raise NotImplementedError(f"{info.op} changes the tensor's own shape or memory, which is not traced")
    meta = info.rule(*map(_plain, args), **{name: _plain(value) for name, value in kwargs.items()})
    with torch._C._DisableTorchDispatch():
        info.op(*args, **kwargs)  # C++ changes the wrapper's own sizes and strides
    t.tt_meta = meta
    known_values.forget(t.tt_storage)
    return t


def _check_written(op: Any, target: TensorMeta, value: TensorMeta) -> None:
    if len(target.shape) != len(value.shape) or not all(map(same, target.shape, value.shape)):
        raise RuntimeError(
            f"{op}: output with shape {list(target.shape)} doesn't match the broadcast shape {list(value.shape)}"
        )
    if category(value.dtype) > category(target.dtype):
        raise RuntimeError(f"result type {value.dtype} can't be cast to the desired output type {target.dtype}")


# ---- making TraceTensors
def from_meta(meta: TensorMeta, env: ShapeEnv | None = None, storage: Storage | None = None) -> TraceTensor:
    """A TraceTensor with this metadata; `env` where sizes are symbolic."""
    return TraceTensor(meta, env, storage, meta.requires_grad)


def tensor_meta(tensor: torch.Tensor) -> TensorMeta:
    """TensorMeta of a TraceTensor or of a real (strided) tensor; sizes are ints or Exprs."""
    if tensor.__class__ is TraceTensor:
        meta, env = tensor.tt_meta, tensor.tt_env
        if env is not None and env.replacements:

            def now(xs: tuple) -> tuple:
                return tuple(x if isinstance(x, int) else maybe_int(env.replace(x)) for x in xs)

            meta = meta.replace(
                shape=now(meta.shape), stride=now(meta.stride), storage_offset=now((meta.storage_offset,))[0]
            )
        grad = tensor.requires_grad
        return meta if meta.requires_grad == grad else meta.replace(requires_grad=grad)
    return TensorMeta(
        tuple(map(maybe_int, tensor.shape)),
        tuple(map(maybe_int, tensor.stride())),
        tensor.dtype,
        tensor.device,
        maybe_int(tensor.storage_offset()),
        tensor.requires_grad,
    )


def _of_kind(tensor: torch.Tensor) -> AbstractContextManager[None]:
    """What is made here is a tensor of inference mode where `tensor` is one: inside of it, views of others are not."""
    return nullcontext() if tensor.is_inference() is torch.is_inference_mode_enabled() else torch.inference_mode(False)


def counted_with(v: torch.Tensor, tensor: torch.Tensor) -> bool:
    """Whether a write into `v` counts as a change of `tensor`: it does after detach(), and does not after `.data`."""
    if v is tensor or v.is_inference() or tensor.is_inference():
        return True
    own, before = v._version, tensor._version
    torch.autograd.graph.increment_version(v)
    shared = tensor._version != before
    torch._C._autograd._unsafe_set_version_counter((v,), (own,))
    return shared


def trace_tensor_like(
    real: torch.Tensor,
    env: ShapeEnv | None = None,
    dynamic_dims: "Iterable[int] | Mapping[int, Any]" = (),
    dynamic_strides: "Mapping[int, Any] | None" = None,
) -> TraceTensor:
    """A TraceTensor with the metadata of a real tensor.

    dynamic_dims names the dimensions whose size becomes a symbol of `env`; as a mapping it gives each one's Source (or
    a SymInt made before). Strides that follow from the sizes (any dense order) follow the symbols; others stay ints,
    apart from those that dynamic_strides gives a Source: where 2 or more, they become symbols.
    """
    shape: list[Any] = list(real.shape)
    stride: list[Any] = list(real.stride())
    if dynamic_dims or dynamic_strides:
        if env is None:
            raise ValueError("trace_tensor_like: dynamic_dims needs a ShapeEnv")
        sources = dynamic_dims if isinstance(dynamic_dims, Mapping) else dict.fromkeys(dynamic_dims)
        for d, source in sources.items():
            s = source if isinstance(source, (torch.SymInt, int)) else env.create_symbol(shape[d], source)
            shape[d] = maybe_int(env.to_expr(s))
        expected: Any = 1
        hint = 1
        for d in sorted(range(len(shape)), key=lambda d: (stride[d], -d)):
            is_one = real.shape[d] == 1 and isinstance(shape[d], int)  # nothing outside of it is laid out by its stride
            if stride[d] == hint:
                stride[d] = maybe_int(expected)
            elif dynamic_strides and d in dynamic_strides:
                own = stride[d]
                stride[d] = maybe_int(env.to_expr(env.create_symbol(own, dynamic_strides[d])))
                expected, hint = (expected, hint) if is_one else (stride[d], own)
            if not is_one:
                expected, hint = expected * shape[d], hint * real.shape[d]
    meta = TensorMeta(tuple(shape), tuple(stride), real.dtype, real.device, real.storage_offset(), real.requires_grad)
    with _of_kind(real):
        trace_tensor = TraceTensor(meta, env, None, real.requires_grad and real.is_leaf)
    if isinstance(real, torch.nn.Parameter):
        trace_tensor._is_param = True
    return trace_tensor


@contextmanager
def recording(recorder: Recorder | None) -> Iterator[None]:
    """Let `recorder` hear every aten operator that runs on TraceTensors in this thread."""
    outer = state.recorder
    state.recorder = recorder
    try:
        yield
    finally:
        state.recorder = outer


@contextmanager
def marked(**marks: Any) -> Iterator[None]:
    """Say of the nodes that are recorded what they are there for: partition and passes go by it."""
    recorder = state.recorder
    before = getattr(recorder, "where", None)
    if before is None:
        yield
        return
    recorder.where = {**before, **marks}
    try:
        yield
    finally:
        recorder.where = before

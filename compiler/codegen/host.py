"""The host plan as readable Python: `run(*inputs) -> tuple`, one line per step of the schedule.

Kernels and torch functions are globals of the text under their own names. Temporaries are deleted after their last use,
so that memory is free for the next allocation; a buffer that is made in another's memory shares its storage.
"""

from __future__ import annotations

from typing import Any

import torch

from ..errors import InternalError
from ..fusion.schedule import Alloc, Extern, Free, Launch, OutputSpec, Schedule, View
from ..lowering.ir import Buffer
from ..lowering.lowered import Param
from ..lowering.ref import all_same
from ..base.quoting import comment, identifier
from ..base import unseen_writes
from ..symbolic.expr import Expr, as_expr
from .generated import HostPlan
from .plan_functions import as_planned, changed, other_name, view_of

__all__ = ["host_plan", "is_whole"]


def host_plan(schedule: Schedule, kernel_names: dict[int, str], cuda: int | None = None) -> HostPlan:
    """Print the plan. `kernel_names`: id of a Launch -> global name of its kernel; `cuda`: index of the device where
    memory is made.
    """
    return _HostPrinter(schedule, kernel_names, cuda).run()


class _HostPrinter:
    def __init__(self, schedule: Schedule, kernel_names: dict[int, str], cuda: int | None = None):
        self.s, self.kernel_names = schedule, kernel_names
        self.device = torch.device("cuda", cuda) if cuda is not None else None
        self.names: dict[str, Any] = {"empty_strided": torch.empty_strided, "as_strided": torch.as_strided}
        self.text: list[str] = []
        self.of: dict[int, str] = {}  # id(Buffer) -> name in the text
        self.views: set[str] = set()  # names of tensors that are views to torch
        self.taken = {"run", *self.names, *kernel_names.values()}
        self.inputs: list[str] = []
        self.extern_calls = 0
        self.writing: int | None = None  # lines before the first whose doing lasts

    def run(self) -> HostPlan:
        schedule = self.s
        for i, given in enumerate(schedule.inputs):
            if isinstance(given, Buffer):
                name = self._name(given.name)
                self.of[id(given)] = name
            elif isinstance(given, Expr):
                alone = given.is_symbol and given.name not in self.inputs  # (two numbers that are known to be equal)
                name = given.name if alone else self._name(f"size{i}")
            else:
                name = self._name(given[1])
            self.inputs.append(name)
        for name, (i, kind, dim) in schedule.symbols.items():
            if kind == "value":
                if self.inputs[i] != name:
                    self._line(f"{name} = {self.inputs[i]}")
            else:
                self._line(f"{name} = {self.inputs[i]}.{'shape' if kind == 'size' else 'stride()'}[{dim}]")
        for name, tensor in schedule.constants.items():
            self.names[self._name(name)] = tensor
        self._steps()
        for n, (i, buffer) in enumerate(schedule.mutations):
            if n == 1 and self.writing is None:
                self.writing = len(self.text)
            target, source = self.inputs[i], self._buffer(buffer)
            if i in schedule.uncounted:
                self._line(f"{self._global('copy_unseen', unseen_writes.copy_unseen)}({target}, {source})")
            else:
                self._line(f"{target}.copy_({source})")
        if schedule.counted:
            self.names["increment_version"] = torch.autograd.graph.increment_version
            for i in schedule.counted:
                self._line(f"increment_version({self.inputs[i]})")
        if schedule.uncounted:
            self._line(f"{self._global('note_unseen', unseen_writes.note)}()")
        outputs = [self._output(output) for output in schedule.outputs]
        for key, n in schedule.changed_results().items():
            outputs[key] = f"{self._global('changed', changed)}({outputs[key]}, {n})"
        body = self.text
        if self.writing is not None:  # what fails from here on is not to be run again
            body = [
                *body[: self.writing],
                "try:",
                *(f"    {line}" for line in body[self.writing :]),
                "except Exception as error:",
                "    error._tcompile_final = True",
                "    raise",
            ]
        if self.extern_calls or schedule.mutations:
            self.names["grad_enabled"] = torch._C.is_grad_enabled
            self.names["set_grad_enabled"] = torch._C._set_grad_enabled
            body = [
                "grad = grad_enabled()",
                "set_grad_enabled(False)",
                "try:",
                *(f"    {line}" for line in body),
                "finally:",
                "    set_grad_enabled(grad)",
            ]
        # in the caller's mode: autograd refuses to record a write into a view that was made under no_grad
        body.append(f"return ({', '.join(outputs)}{',' if len(outputs) == 1 else ''})")
        head = f"def run({', '.join(self.inputs)}):"
        return HostPlan("\n".join([head, *(f"    {line}" for line in body), ""]), self.names, self.extern_calls)

    # ---- names
    def _name(self, wanted: str) -> str:
        name = identifier(wanted)
        base, n = name, 1
        while name in self.taken:
            n += 1
            name = f"{base}_{n}"
        self.taken.add(name)
        return name

    def _global(self, wanted: str, value: Any) -> str:
        for name, known in self.names.items():
            if known is value:
                return name
        name = self._name(wanted)
        self.names[name] = value
        return name

    def _line(self, text: str, why: str = "") -> None:
        self.text.append(f"{text:<60}  # {comment(why)}" if why else text)

    def _buffer(self, buffer: Buffer) -> str:
        name = self.of.get(id(buffer))
        if name is None:
            if buffer.name in self.s.constants:
                name = self.of[id(buffer)] = identifier(buffer.name)
            else:
                raise InternalError(f"host plan: buffer {buffer.name} is used before it is made")
        return name

    def _size(self, expr: Any) -> str:
        return as_expr(expr).py()

    def _tuple(self, xs: Any) -> str:
        items = [self._size(size) for size in xs]
        return f"({', '.join(items)}{',' if len(items) == 1 else ''})"

    # ---- steps
    def _steps(self) -> None:
        steps = self.s.steps
        reused_later: dict[int, int] = {}
        for step in steps:
            if isinstance(step, Alloc) and step.reuse is not None:
                reused_later[id(step.reuse)] = reused_later.get(id(step.reuse), 0) + 1
        returned, first_lasting = self._returned(), self.s.first_lasting()
        last_read = self._last_reads()
        # memory that a later buffer took over: its name goes after its last read
        handed_on: dict[int, tuple[Buffer, str]] = {}
        for at, step in enumerate(steps):
            if step is first_lasting:
                self.writing = len(self.text)
            if isinstance(step, Alloc):
                self._alloc(step)
                if step.reuse is not None:
                    reused_later[id(step.reuse)] -= 1
                    if not reused_later[id(step.reuse)] and id(step.reuse) not in returned:
                        handed_on[id(step.reuse)] = (step.reuse, self.of[id(step.buffer)])
            elif isinstance(step, Free):
                if not reused_later.get(id(step.buffer)) and id(step.buffer) not in returned:
                    self._delete(step.buffer, None)
            elif isinstance(step, Launch):
                args = (
                    [self._buffer(buffer) for buffer in (*step.inputs, *step.outputs)]
                    + [self._size(size) for size in step.sizes]
                    + [self._param(param) for param in step.params]
                )
                self._line(f"{self.kernel_names[id(step)]}({', '.join(args)})")
            elif isinstance(step, View):
                base = self._buffer(step.base)
                name = self.of[id(step.buffer)] = self._name(step.buffer.name)
                self.views.add(name)
                self._line(f"{name} = {self._view(base, step.buffer, step.offset)}")
            elif isinstance(step, Extern):
                self._extern(step)
            else:
                raise InternalError(f"host plan: unknown step {type(step).__name__}")
            for key in [k for k in handed_on if last_read.get(k, -1) <= at]:
                self._delete(*handed_on.pop(key))

    def _last_reads(self) -> dict[int, int]:
        """id of a buffer -> the last step that reads or writes it."""
        out: dict[int, int] = {}

        def look(value: Any, at: int) -> None:
            if isinstance(value, Buffer):
                out[id(value)] = at
            elif isinstance(value, (tuple, list)):
                for item in value:
                    look(item, at)

        for at, step in enumerate(self.s.steps):
            if isinstance(step, Launch):
                look((step.inputs, step.outputs), at)
            elif isinstance(step, View):
                look(step.base, at)
            elif isinstance(step, Extern):
                look((step.args, tuple(step.kwargs.values()), step.outputs), at)
        return out

    def _returned(self) -> set[int]:
        out = {id(buffer) for _, buffer in self.s.mutations}
        for output in self.s.outputs:
            value = output.value[0] if output.kind == "view" else output.value
            if isinstance(value, Buffer):
                out.add(id(value))
        return out

    def _delete(self, buffer: Buffer, keep: str | None) -> None:
        name = self.of.get(id(buffer))
        if name is not None and name != keep and name not in self.inputs and buffer.name not in self.s.constants:
            self._line(f"del {name}")

    def _offset(self, base: str, offset: Any) -> str:
        e = as_expr(offset)
        return f"{base}.storage_offset()" + ("" if e.is_const and e.value == 0 else f" + {e.py()}")

    def _alloc(self, step: Alloc) -> None:
        buffer, old = step.buffer, step.reuse
        name = self.of[id(buffer)] = self._name(buffer.name)
        dtype = self._global(str(buffer.dtype).removeprefix("torch."), buffer.dtype)
        if old is not None and id(old) in self.of:
            base = self._buffer(old)
            if (
                old.dtype == buffer.dtype
                and [as_expr(size) for size in (*old.shape, *old.stride)]
                == [as_expr(size) for size in (*buffer.shape, *buffer.stride)]
                and len(old.shape) == len(buffer.shape)
            ):
                self._line(f"{name} = {base}", "in its memory")
                if base in self.views:
                    self.views.add(name)
                return
            if old.dtype == buffer.dtype:
                self.views.add(name)
                self._line(f"{name} = {self._view(base, buffer, None)}", f"in the memory of {base}")
                return
            view = self._global("in_memory_of", _in_memory_of)
            self._line(f"{name} = {view}({base}, {self._tuple(buffer.shape)}, {self._tuple(buffer.stride)}, {dtype})")
            return
        dims = f"{self._tuple(buffer.shape)}, {self._tuple(buffer.stride)}"
        on = "" if self.device is None else f", device={self._global('device', self.device)}"
        self._line(f"{name} = empty_strided({dims}, dtype={dtype}{on})")

    def _view(self, base: str, buffer: Buffer, offset: Any) -> str:
        dims = f"{base}, {self._tuple(buffer.shape)}, {self._tuple(buffer.stride)}"
        return f"as_strided({dims})" if offset is None else f"as_strided({dims}, {self._offset(base, offset)})"

    def _param(self, name: Any) -> str:
        name = name.name if isinstance(name, Param) else name
        return next(n for n, x in zip(self.inputs, self.s.inputs) if isinstance(x, tuple) and x[1] == name)

    def _extern(self, extern: Extern) -> None:
        self.extern_calls += 1
        op = extern.out_variant if extern.out_variant is not None else extern.op
        function = self._global(_function_name(op), other_name(op) or op)
        args = [self._value(arg) for arg in extern.args] + [
            f"{key}={self._value(value)}" for key, value in extern.kwargs.items()
        ]
        why = f"torch's kernel: {extern.reason}" if extern.reason else "torch's kernel"
        if extern.out_variant is not None:
            outs = [self._buffer(buffer) for buffer in extern.outputs]
            args += [f"{k}={out}" for k, out in zip(extern.out_names or ("out",), outs)]
            self._line(f"{function}({', '.join(args)})", why)
            return
        names = []
        for output in extern.outputs:
            name = "_" if output is None else self._name(output.name)
            if output is not None:
                self.of[id(output)] = name
            names.append(name)
        single = len(extern.op._schema.returns) == 1 and not str(extern.op._schema.returns[0].type).startswith("List")
        target = f"{names[0]}" if single and names else "".join(f"{name}, " for name in names).rstrip()
        self._line(f"{target + ' = ' if names else ''}{function}({', '.join(args)})", why)
        # Kernels address memory by the strides that were planned. torch's kernels choose strides by their operands'
        # layout and may change their mind from version to version, so what came back is looked at, not believed.
        for output, name in zip(extern.outputs, names):
            if output is not None:
                function = self._global("as_planned", as_planned)
                self._line(f"{name} = {function}({name}, {self._tuple(output.shape)}, {self._tuple(output.stride)})")

    def _value(self, x: Any) -> str:
        if isinstance(x, Buffer):
            return self._buffer(x)
        if isinstance(x, Expr):
            return x.py()
        if isinstance(x, Param):
            return self._param(x)
        if isinstance(x, (list, tuple)):
            items = [self._value(item) for item in x]
            return (
                f"[{', '.join(items)}]"
                if isinstance(x, list)
                else f"({', '.join(items)}{',' if len(items) == 1 else ''})"
            )
        if isinstance(x, dict):
            return "{" + ", ".join(f"{key!r}: {self._value(value)}" for key, value in x.items()) + "}"
        if x is None or isinstance(x, (bool, int, str)):
            return repr(x)
        if isinstance(x, float):
            return repr(x) if x == x and abs(x) != float("inf") else f"float({str(x)!r})"
        if isinstance(x, complex):
            return repr(x)
        return self._global(str(x).removeprefix("torch.").replace(":", "_"), x)

    def _output(self, spec: OutputSpec) -> str:
        if spec.kind == "buffer":
            text = self._buffer(spec.value)
            # its memory is nobody else's: to autograd no view
            return f"{text}.detach()" if text in self.views else text
        if spec.kind == "input":
            return self.inputs[spec.value]
        if spec.kind == "view":
            base, shape, stride, offset = spec.value
            text = self.inputs[base] if isinstance(base, int) else self._buffer(base)
            if is_whole(self.s, spec) and text not in (*self.inputs, *self.views):
                return text
            dims = f"{self._tuple(shape)}, {self._tuple(stride)}"
            end = ".detach()" if spec.detached else ""
            if spec.dtype is None and isinstance(base, Buffer):
                return f"as_strided({text}, {dims}, {self._offset(text, offset)}){end}"
            dtype = (
                self._global(str(spec.dtype).removeprefix("torch."), spec.dtype) if spec.dtype is not None else "None"
            )
            return f"{self._global('view_of', view_of)}({text}, {dims}, {self._size(offset)}, {dtype}){end}"
        if spec.kind == "int":
            return self._size(spec.value)
        if spec.kind == "const":
            return self._value(spec.value)
        raise InternalError(f"host plan: unknown kind of output {spec.kind!r}")


def is_whole(schedule: Schedule, spec: OutputSpec) -> bool:
    """Whether an output that lies in a buffer of the plan, no view to autograd, is all that is returned of it."""
    base, shape, stride, offset = spec.value

    return (
        isinstance(base, Buffer)
        and spec.detached is not False
        and spec.dtype is None
        and base.name not in schedule.constants
        and as_expr(offset) is as_expr(0)
        and all_same(shape, base.shape)
        and all_same(stride, base.stride)
        and sum(1 for output in schedule.outputs if _base_of(output) is base) == 1
    )


def _base_of(spec: OutputSpec) -> Any:
    return spec.value[0] if spec.kind == "view" else spec.value


def _function_name(op: Any) -> str:
    """aten.addmm.default -> addmm; other overloads keep their name."""
    parts = str(op).split(".")
    if len(parts) >= 3 and parts[0] in ("aten", "prims"):
        return parts[1] if parts[2] == "default" else f"{parts[1]}_{parts[2]}"
    return identifier(getattr(op, "__name__", str(op)))


def _in_memory_of(base: torch.Tensor, shape: tuple, stride: tuple, dtype: torch.dtype) -> torch.Tensor:
    """A tensor of another dtype in the storage of `base`, which nothing else uses any more."""
    return torch.empty(0, dtype=dtype, device=base.device).set_(base.untyped_storage(), 0, shape, stride)

"""What an operator does to its arguments, read once from its schema: pure, a view, in place, or writing to out=."""

from __future__ import annotations

from typing import Any

import torch
import torch.fx

from . import meta

__all__ = ["OpInfo", "op_info", "run_rule"]

# Declared as if their results were fresh; the kernels give views.
_VIEWS_IN_FACT = frozenset(("unsafe_split", "unsafe_split_with_sizes", "unsafe_chunk"))
_IRREGULAR = {"normal_": "normal_functional"}


class OpInfo:
    """
    kind        "pure", "view" (a result shares memory with an argument), "inplace" (writes arguments and returns
                them), "out" (writes the out= arguments), "metadata" (changes shape, strides or memory of an argument)
    writes      schema positions of the arguments written to
    aliases     for each result: the position of the argument whose memory it is or shares, or None
    functional  the operator that computes the written values as fresh results; itself for "pure" and "view"; the view
                operator for
                "metadata" (squeeze for squeeze_); None where torch has none
    composite   the key under which C++ composes it of other operators, or None. What is composed for autograd, too,
                arrives whole under inference
                mode only. Operators on lists of tensors are composed tensor by tensor.
    passed_by   whether torch's kernel that makes a result a view leaves a composed operator to its parts
    fill        defaults of arguments that the functional form requires
    rule        metadata rule of `functional`, or None
    uncounted   whether nothing moves the versions of what it writes on the way from torch's dispatcher to here. Of an
                operator of the program's, its kernel does: operators in there, which see no kernel of autograd's
    """

    __slots__ = (
        "op",
        "name",
        "overload",
        "kind",
        "writes",
        "aliases",
        "functional",
        "rule",
        "arg_names",
        "list_result",
        "n_results",
        "random",
        "fill",
        "composite",
        "passed_by",
        "uncounted",
    )

    def __init__(self, op: torch._ops.OpOverload):
        schema = op._schema
        self.op = op
        ns, _, name = schema.name.partition("::")
        self.name = name if ns == "aten" else schema.name
        self.overload = op._overloadname
        self.arg_names = tuple(arg.name for arg in schema.arguments)
        self.writes = tuple(
            i for i, arg in enumerate(schema.arguments) if arg.alias_info is not None and arg.alias_info.is_write
        )
        returns = [r for r in schema.returns if str(r.type) != "NoneType"]  # "-> None" is a result to a schema
        self.aliases = tuple(self._alias(schema, r) for r in returns)
        self.n_results = len(returns)
        self.list_result = self.n_results == 1 and str(schema.returns[0].type).startswith("List[Tensor")
        self.composite = self._composed_under(op, name)
        self.passed_by = self.composite is not None and not _makes_views(op)
        if self.name in _VIEWS_IN_FACT:
            self.aliases = (0,)
        self.random = torch.Tag.nondeterministic_seeded in op.tags
        if torch.Tag.inplace_view in op.tags or name in ("set_", "resize_", "resize_as_"):
            self.kind = "metadata"
            self.aliases = (0,)
        elif self.writes:
            self.kind = (
                "out"
                if any(schema.arguments[write].kwarg_only or schema.arguments[write].is_out for write in self.writes)
                else "inplace"
            )
        elif any(alias is not None for alias in self.aliases):
            self.kind = "view"
        else:
            self.kind = "pure"
        self.uncounted = self.kind in ("inplace", "out") and self._is_uncounted(op, ns, name)
        self.functional = op if self.kind in ("pure", "view") else self._functional(op)
        self.fill = self._missing_defaults() if self.kind == "inplace" and self.functional is not None else {}
        self.rule = meta.lookup_for_calls(self.functional) if self.functional is not None else None

    @staticmethod
    def _composed_under(op: torch._ops.OpOverload, name: str) -> Any:
        if torch._C._dispatch_has_kernel_for_dispatch_key(op.name(), "CompositeImplicitAutograd"):
            return torch._C.DispatchKey.CompositeImplicitAutograd
        if name.startswith("_foreach_") and not (name.startswith("_foreach_addc") and op._overloadname == "Tensor"):
            # (it reads a tensor of numbers)
            return torch._C.DispatchKey.CompositeExplicitAutograd
        return None

    def _is_uncounted(self, op: torch._ops.OpOverload, ns: str, name: str) -> bool:
        if ns in ("aten", "prims"):
            return self.kind == "inplace" and name.startswith("_foreach_")
        if ns.startswith("tcompile") or self.composite is torch._C.DispatchKey.CompositeImplicitAutograd:
            return False
        return not _makes_views(op)

    def _missing_defaults(self) -> dict[str, Any]:
        """Arguments that have a default in the in-place form only."""
        required = {arg.name for arg in self.functional._schema.arguments if not arg.has_default_value()}
        return {
            arg.name: arg.default_value
            for arg in self.op._schema.arguments
            if arg.has_default_value() and arg.name in required
        }

    @staticmethod
    def _alias(schema: Any, ret: Any) -> int | None:
        if ret.alias_info is None:
            return None
        names = ret.alias_info.before_set
        for i, arg in enumerate(schema.arguments):
            if arg.alias_info is None:
                continue
            # a list of views has no names: torch's own declare Tensor(a -> *) self, others Tensor(a) self
            if arg.alias_info.before_set & names or (not names and not arg.alias_info.is_write):
                return i
        return None

    def _functional(self, op: torch._ops.OpOverload) -> torch._ops.OpOverload | None:
        ns, _, name = op._schema.name.partition("::")
        inputs = [
            (arg.name, str(arg.type))
            for i, arg in enumerate(op._schema.arguments)
            if self.kind != "out" or i not in self.writes
        ]
        candidates = (
            [name]
            if self.kind == "out"
            else [_IRREGULAR.get(name, name[:-1] if name.endswith("_") else name), f"{name}_functional"]
        )
        for candidate in candidates:
            packet = getattr(getattr(torch.ops, ns), candidate, None)
            if packet is None:
                continue
            for o in packet.overloads():
                f = getattr(packet, o)
                if any(
                    arg.alias_info is not None and (arg.alias_info.is_write or self.kind != "metadata")
                    for arg in f._schema.arguments
                ):
                    continue
                if [(arg.name, str(arg.type)) for arg in f._schema.arguments] == inputs:
                    return f
            f = getattr(packet, op._overloadname, None)
            if f is not None and not any(arg.alias_info is not None for arg in f._schema.arguments):
                return f
        return None


def _makes_views(op: torch._ops.OpOverload) -> bool:
    """Whether autograd has a kernel of its own that counts the operator's writes, and makes its results views."""
    return torch._C._dispatch_has_kernel_for_dispatch_key(op.name(), "ADInplaceOrView")


_infos: dict[Any, OpInfo] = {}


def op_info(op: torch._ops.OpOverload) -> OpInfo:
    """The OpInfo of an operator; made on first use."""
    info = _infos.get(op)
    if info is None:
        info = _infos[op] = OpInfo(op)
    return info


def run_rule(rule: Any, args: list, kwargs: dict) -> Any:
    """Run a rule of metadata on nodes' metadata."""

    def meta_of(value: Any) -> Any:
        if isinstance(value, torch.fx.Node):
            return value.meta["val"]
        return [meta_of(item) for item in value] if isinstance(value, list) else value

    return rule(*[meta_of(arg) for arg in args], **{name: meta_of(value) for name, value in kwargs.items()})

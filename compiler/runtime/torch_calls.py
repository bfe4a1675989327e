"""Operators that a plan calls by torch's C functions (aoti_torch_<device>_<operator>), which libtorch exports for code
that is compiled ahead of time: no Python function, no Python tensors around it.

An argument of the operator's schema is one word or two of the C function, the same way for every operator
(torchgen/gen_aoti_c_shim.py). A tensor, a number or a flag is one. A list is its address and its length; what may be
None is an address. Results come last, at addresses. An operator is called in this way where its schema has the form
that is known here: another version of torch may have changed both.

Only operators belong here whose results are fresh memory and that keep nothing of what they are handed.
"""

from __future__ import annotations

import platform
import struct
import sys
from dataclasses import dataclass
from typing import Any, Sequence

from ..lowering.ir import Buffer
from ..lowering.lowered import Extern
from ..native import native
from ..symbolic.expr import Expr, as_expr
from .plan_parts import c_function

__all__ = ["TorchCall", "torch_call", "numbers_of"]

# T: tensor, i: integer, b: flag, f: float, I and B: lists of integers and flags, ?: or None; the results behind the
# arrow
FORMS = {
    "convolution": "T T T? I I I b I i > T",
    "convolution_backward": "T T T I? I I I b I i B > T T T",
    "native_dropout": "T f b? > T T",
    "max_pool2d_with_indices": "T I I I I b > T T",
    "max_pool2d_with_indices_backward": "T T I I I I b T > T",
    "_scaled_dot_product_flash_attention": "T T T f b b f? > T T T T i i T T T",
    "_scaled_dot_product_flash_attention_backward": "T T T T T T T T i i f b T T f? > T T T",
    "_scaled_dot_product_flash_attention_for_cpu": "T T T f b T? f? > T T",
    "_scaled_dot_product_flash_attention_for_cpu_backward": "T T T T T T f b T? f? > T T T",
    "_scaled_dot_product_efficient_attention": "T T T T? b f b f? > T T T T",
    "_scaled_dot_product_efficient_attention_backward": "T T T T T T T T T f B b f? > T T T T",
    "_scaled_dot_product_cudnn_attention": "T T T T? b f b b f? > T T T T i i T T T",
    "_scaled_dot_product_cudnn_attention_backward": "T T T T T T T T T T T i i f b f? > T T T",
}
_KINDS = {"Tensor": "T", "int": "i", "bool": "b", "float": "f", "List[int]": "I", "List[bool]": "B"}


def form_of(schema: Any) -> str:
    """How an operator's C function is called, in the letters of FORMS."""

    def kind(t: Any) -> str:
        text = str(t)
        inner = text.removeprefix("Optional[")
        return _KINDS[text] if inner is text else _KINDS[inner[:-1]] + "?"

    try:
        return " ".join([*(kind(arg.type) for arg in schema.arguments), ">", *(kind(r.type) for r in schema.returns)])
    except KeyError:
        return ""


@dataclass(frozen=True)
class TorchCall:
    """The address of a C function, its arguments by their letter in FORMS, and the letters of its results."""

    address: int
    arguments: tuple[tuple[str, Any], ...]
    results: tuple[str, ...]


def torch_call(step: Extern, device: str) -> TorchCall | None:
    """How torch's C function is called for this step; None where Python is to call the operator."""
    name, schema = str(step.op).removeprefix("aten.").removesuffix(".default"), step.op._schema
    if (
        name not in FORMS
        or step.out_variant is not None
        or sys.platform != "linux"
        or platform.machine() not in ("x86_64", "aarch64")
        or FORMS[name] != form_of(schema)
    ):
        return None
    address = native.torch_function(c_function(step.op, device))
    kinds, _, results = (part.split() for part in FORMS[name].partition(">"))
    given = {arg.name: arg.default_value for arg in schema.arguments} | step.kwargs
    given.update(zip(given, step.args))
    arguments = tuple(zip(kinds, given.values(), strict=True))
    if (
        not address
        or not all(_known(*arg) for arg in arguments)
        or any(kind != "T" and output is not None for kind, output in zip(results, step.outputs, strict=True))
    ):
        return None
    return TorchCall(address, arguments, tuple(results))


def _known(kind: str, x: Any) -> bool:
    """Whether an argument is one that C can hand over. (None for a tensor is no tensor in any case.)"""
    if x is None:
        return kind[0] == "T" or kind[-1] == "?"
    if kind[0] in "IB":
        return isinstance(x, Sequence) and all(isinstance(n, (int, Expr) if kind[0] == "I" else int) for n in x)
    return isinstance(x, {"T": Buffer, "f": (int, float), "i": (int, Expr), "b": int}[kind[0]])


def numbers_of(kind: str, x: Any) -> tuple[Expr, ...]:
    """An argument that is no tensor as the 64-bit numbers that hold it, a list element by element."""
    if kind[0] == "f":
        return (as_expr(struct.unpack("q", struct.pack("d", x))[0]),)
    if kind[0] == "B":  # flags are of 32 bits, two to a number
        flags = [*map(int, x), 0]
        return tuple(as_expr(low | high << 32) for low, high in zip(flags[::2], flags[1::2]))
    return tuple(as_expr(int(n) if isinstance(n, bool) else n) for n in (x if kind[0] == "I" else (x,)))

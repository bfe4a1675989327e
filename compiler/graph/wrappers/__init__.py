"""Wrapper subclasses: tensors whose class says by `__torch_dispatch__` what operators do with the tensors inside.

In a graph such a tensor is a TraceTensor with the outer sizes, which autograd sees, and with an instance of the class
over TraceTensors (`tt_wrapper`). An operator that reaches it below autograd is handed to the class's
`__torch_dispatch__`, as torch would hand it on. What that does with the inner tensors is traced like anything else.

`Wrap` and `Unwrap` are the way in and out: graph inputs and results are inner tensors. Autograd passes both by taking
the gradient apart, or by making it of its parts, so that a way in and a way out undo each other.
"""

from __future__ import annotations

from .class_operators import written_inside
from .crossings import Call, Crossing, Inner, Unwrap, Wrap, form_of_gradient, gradients_cross
from .class_functions import LibraryFunction
from .jagged import (
    JaggedCall,
    Nested,
    is_jagged,
    jagged_parts,
    lengths_by,
    longest_by,
    longest_of,
    make_jagged,
    nested_class,
)
from .wrapping import Fixed, Wrapping, is_dtensor, is_wrapper, take_apart

__all__ = [
    "Wrapping",
    "Fixed",
    "Call",
    "Crossing",
    "JaggedCall",
    "Wrap",
    "Unwrap",
    "Inner",
    "Nested",
    "LibraryFunction",
    "is_dtensor",
    "is_jagged",
    "jagged_parts",
    "lengths_by",
    "longest_by",
    "longest_of",
    "make_jagged",
    "nested_class",
    "is_wrapper",
    "take_apart",
    "written_inside",
    "form_of_gradient",
    "gradients_cross",
]

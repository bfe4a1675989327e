"""One kernel of the loop IR as source for a GPU: which printer writes it, and by which layout."""

from __future__ import annotations

from ...lowering.ir import Kernel
from ...lowering.templates import ChainedProducts, DropoutAttention
from ..cuda.product import print_tiles
from .layout import Choices, GpuTarget, plan_layout
from .printer import Printer, TritonSource, with_stored_values, without_locals
from .product import find_product, product_layout
from .tiles.attention import AttentionPrinter
from .tiles.attention_tiles import plan_attention
from .tiles.attention_with_dropout import DropoutAttentionPrinter, plan_dropout_attention
from .tiles.chains import ChainPrinter, plan_chain

__all__ = ["print_kernel"]


def print_kernel(
    kernel: Kernel,
    target: GpuTarget,
    choices: Choices = Choices(),
    name: str | None = None,
    wide: bool | None = None,
    exact: bool = False,
) -> TritonSource:
    """Print one kernel. Raises InternalError for what the loop IR allows but Triton has no form for (complex numbers).
    wide: 64-bit indices; None: where the sizes at the hints need them. exact: no short forms of functions (cheap.py).
    """
    if isinstance(kernel.template, DropoutAttention):
        return DropoutAttentionPrinter(
            kernel, target, plan_dropout_attention(kernel, target, choices, wide), name or kernel.name
        ).run()
    if isinstance(kernel.template, ChainedProducts):
        return ChainPrinter(kernel, target, plan_chain(kernel, target, choices, wide), name or kernel.name, exact).run()
    if kernel.template is not None:
        return AttentionPrinter(
            kernel, target, plan_attention(kernel, target, choices, wide), name or kernel.name, exact
        ).run()
    if choices.kind == "tiles":
        return print_tiles(kernel, target, choices, name or kernel.name)
    k = without_locals(kernel)
    product = find_product(k) if choices.kind in (None, "product") else None
    layout = plan_layout(k, target, choices, wide, product and product_layout(k, product, target.processors))
    if layout.kind == "split":
        k = with_stored_values(k)
    return Printer(k, target, layout, name or kernel.name, exact, product).run()

"""One kernel of the loop IR as source for a GPU: which printer writes it, and by which layout."""

from __future__ import annotations

from ...lowering.ir import Kernel
from ...lowering.templates import Contraction, DropoutAttention
from ..cuda.product import print_tiles
from .layout import Choices, GpuTarget, Layout, plan_layout
from .printer import Found, Printer, TritonSource, with_stored_values, without_locals
from .product import find_product, product_layout
from .tiles.window_gradients import find_window_gradients, window_gradients_layout
from .tiles.windows import find_windows, windows_layout
from .tiles.attention_with_dropout import DropoutAttentionPrinter
from .tiles.contraction import ContractionPrinter
from .tiles.plans import plan_tiles
from .tiles.softmax import SoftmaxPrinter

__all__ = ["print_kernel"]


def print_kernel(
    kernel: Kernel,
    target: GpuTarget,
    choices: Choices = Choices(),
    name: str | None = None,
    wide: bool | None = None,
    exact: bool = False,
    open_numbers: bool = False,
) -> TritonSource:
    """Print one kernel. Raises InternalError for what the loop IR allows but Triton has no form for (complex numbers).
    wide: 64-bit indices; None: where the sizes at the hints need them. exact: no short forms of functions
    (fast_math.py). open_numbers: whether the text may leave numbers open, which the launch passes
    (`TritonSource.numbers`).
    """
    template = kernel.template
    if template is not None:
        lay = plan_tiles(kernel, target, choices, wide)
        if isinstance(template, DropoutAttention):
            return DropoutAttentionPrinter(kernel, target, lay, name or kernel.name).run()
        printer = (
            SoftmaxPrinter if isinstance(template, Contraction) and template.softmax is not None else ContractionPrinter
        )
        return printer(kernel, target, lay, name or kernel.name, exact).run()
    if choices.kind == "tiles":
        return print_tiles(kernel, target, choices, name or kernel.name)
    k = without_locals(kernel)
    found, tiles = _tiles(k, target, choices.kind)
    layout = plan_layout(k, target, choices, wide, tiles)
    if layout.kind == "split":
        k = with_stored_values(k)
    return Printer(k, target, layout, name or kernel.name, exact, found, open_numbers).run()


def _tiles(kernel: Kernel, target: GpuTarget, kind: str | None) -> tuple[Found | None, Layout | None]:
    """What a kernel is as a whole (a product, a sum over windows), and its layout by the rules; `kind`: this alone."""
    product = find_product(kernel) if kind in (None, "product") else None
    if product is not None:
        return product, product_layout(kernel, product, target.processors)
    windows = find_windows(kernel) if kind in (None, "windows") else None
    if windows is not None:
        return windows, windows_layout(kernel, windows, target.processors)
    gradients = find_window_gradients(kernel) if kind in (None, "window gradients") else None
    if gradients is not None:
        return gradients, window_gradients_layout(kernel, gradients)
    return None, None

"""Why a graph ends: the table of break kinds with the sentence and the remedy that users read."""
from __future__ import annotations

import linecache
from typing import Any

from .locations import Position
from .result import GraphBreak
from .signals import Break

__all__ = ["REASONS", "make_graph_break"]

# kind -> (reason, remedy)
REASONS: dict[str, tuple[str, str]] = {
    "data_dependent_branch": (
        "the branch depends on the value of a tensor, which is known only when the graph has run",
        "compute both sides and choose with torch.where(cond, a, b), or use torch.cond(cond, f, g, args)"),
    "long_loop": ("the loop has too many iterations for one graph", "no change is needed: its body is compiled and runs once per iteration"),
    "item": ("the value of a tensor is read into Python",
             "keep the value a 0-dim tensor (drop .item()/int()/float()); read it once after the compiled region"),
    "tolist": ("the values of a tensor are read into Python",
               "keep them in a tensor, or convert after the compiled region"),
    "numpy": ("a tensor is handed to numpy", "use the torch function of the same name, or convert outside"),
    "print": ("a tensor is printed", "print after the compiled region, or put the print into a function marked @tcompile.disable"),
    "data_dependent_shape": ("the shape of the result depends on the values of a tensor",
                             "use a result of fixed size: torch.where instead of a boolean index, or mask and reduce"),
    "data_dependent_loop": ("the number of iterations depends on the value of a tensor",
                            "iterate a fixed number of times and mask with torch.where, or move the loop out"),
    "c_call": ("a native function that capture knows nothing about is called",
               "move the call out of the compiled region, or register it as a torch.library custom operator"),
    "unknown_object": ("a native function is given an object that capture knows nothing about",
                       "move the call out of the compiled region, or pass plain Python values and tensors"),
    "disabled": ("the function is marked to stay uncompiled", "remove the disable mark to have it captured"),
    "backward": ("the backward pass starts here", "let the training step call backward() outside of the compiled region"),
    "optimizer": ("the optimizer runs as it is, outside of the graph", "no change is needed: the code before and after it is compiled"),
    "autograd_function": ("a custom torch.autograd.Function is applied", "write the forward with torch operators"),
    "random_python": ("Python's own random numbers are drawn", "draw with torch.rand/torch.randint, or before the compiled region"),
    "time": ("the clock is read", "measure around the compiled region"),
    "io": ("a file or stream is used", "move input and output out of the compiled region"),
    "generator": ("a generator leaves the function before it is finished", "make it a list"),
    "bytecode": ("capture does not support this bytecode instruction", "write it in another way, or mark the function @tcompile.disable"),
    "import": ("a module is imported for the first time", "import it at the top of the file"),
    "mutation": ("an object is changed in a way that cannot be put off until the graph has run",
                 "set a plain attribute, or change the object outside"),
    "module_construction": ("a module is constructed", "construct modules outside of the compiled region"),
    "tensor_attribute": ("a tensor's attribute is set in a way that a graph cannot express", "use torch functions instead"),
    "tensor_metadata": ("a property of a tensor that exists only at run time is read", "read it outside of the compiled region"),
    "exception": ("an exception leaves the function", ""),
    "class_definition": ("a class is defined in a way that capture does not follow", "define the class outside"),
    "higher_order": ("a function transform of torch is applied", "call it outside of the compiled region"),
    "rng_state": ("the state of the random number generator is read or set", "seed outside of the compiled region"),
    "recursion": ("calls nest deeper than capture follows", "use a loop, or mark the function @tcompile.disable"),
    "rebuild": ("an object made inside cannot be carried over a break", "keep it in plain containers"),
    "unsupported": ("capture does not support this operation", "write it in another way, or mark the function @tcompile.disable"),
    "async": ("a coroutine is awaited", "await outside of the compiled region"),
}


def make_graph_break(signal: Break, positions: list[Position]) -> GraphBreak:
    """The GraphBreak for a signal. `positions` lists the interpreted frames, outermost first; the break is shown at the
    innermost line that is the user's own."""
    reason, remedy = REASONS.get(signal.kind, REASONS["unsupported"])
    reason, remedy = signal.reason or reason, signal.remedy or remedy
    if reason and not reason.endswith("."):
        reason = reason[0].upper() + reason[1:] + "."
    shown: Any = next((p for p in reversed(positions) if not p.library), positions[0])
    return GraphBreak(
        kind=signal.kind, reason=reason, file=shown.file, line=shown.line, col=shown.col, end_line=shown.end_line,
        end_col=shown.end_col, code=linecache.getline(shown.file, shown.line).strip(), function=shown.function,
        call_chain=[(p.function, p.file, p.line) for p in positions], remedy=remedy)

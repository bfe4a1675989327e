"""Why a graph ends: the table of causes with the sentence and the remedy that users read."""

from __future__ import annotations

import ast
import re
from typing import Any, NamedTuple

from ...base.source_text import source_line
from . import fixes
from ..entry.locations import Position
from ..entry.result import GraphBreak
from ..machine.signals import Break

__all__ = ["CAUSES", "Cause", "ALLOWED_BY_FULLGRAPH", "make_graph_break"]

# Breaks that fullgraph allows: what only tensors outside of graphs have (a hook, a storage, a memory that is exchanged,
# being a parameter, being made in inference mode), a module that gets parameters, the address of an object made inside,
# which object Python chose by values of tensors, what an iterator from outside gives, a setting of torch, a first
# import, a collective that a cell's own lines reach, and an exception that leaves the function.
ALLOWED_BY_FULLGRAPH = frozenset(
    """tensor_hook storage tensor_data parameter inference_mode module_construction address choice iterator setting
    import collective exception""".split()
)


class Cause(NamedTuple):
    """One row. It holds for breaks of `kind` whose code (or reason) matches `where`; the first row that fits is taken.
    In the texts {code} stands for the source of the expression that breaks and {name} for the function that it
    calls."""

    kind: str
    where: str  # regular expression, "" for all
    reason: str
    remedy: str


_NOTHING = "no change is needed: "
_MOVE = "move it out of the compiled region"

# The causes seen most often, first match wins; below them, one row for each kind. fixes.py puts in the user's own names
# where the source shows how.
CAUSES: tuple[Cause, ...] = (
    # --- values of tensors that Python asks for
    Cause(
        "item",
        r"a packed sequence keeps",
        "a packed sequence keeps how many rows each step has in the values of a tensor",
        _NOTHING + "torch runs this call itself, and the code around it is compiled",
    ),
    Cause(
        "item",
        r"\.item\(",
        "the value of a tensor is read into Python",
        "keep the value a 0-dim tensor (drop .item()); read it once after the compiled region",
    ),
    Cause(
        "item",
        r"\b(int|float|complex)\(",
        "{name}() reads the value of a tensor into Python",
        "keep the value a tensor (drop {name}()); for an integer dtype write .int() or .long()",
    ),
    Cause("item", r"\bround\(", "round() reads the value of a tensor into Python", "write .round()"),
    Cause(
        "item",
        r"\brange\(",
        "range() reads the value of a tensor into Python",
        "iterate over a Python int, or over torch.arange with a mask",
    ),
    Cause(
        "item",
        r"repeat_interleave",
        "repeat_interleave with a tensor of counts: the shape of the result depends on its values",
        "pass output_size=, or repeat by an int",
    ),
    Cause(
        "item",
        r"bincount|histc",
        "{name}() gives a number of bins that depends on the values",
        "add ones up in a tensor of fixed size: torch.zeros(bins).index_add(0, x, torch.ones(len(x)))",
    ),
    Cause(
        "item",
        "",
        "the value of a tensor is read into Python",
        "keep the value a 0-dim tensor; read it once after the compiled region",
    ),
    Cause(
        "tolist",
        "",
        "the values of a tensor are read into Python",
        "keep them in a tensor, or convert after the compiled region",
    ),
    Cause(
        "data_dependent_branch",
        r"^\s*assert\b",
        "the assertion depends on the value of a tensor, which is known only when the graph has run",
        "write torch._assert_async(condition, message), which is checked when the graph runs",
    ),
    Cause(
        "data_dependent_branch",
        r"^\s*while\b",
        "whether the loop goes on depends on the value of a tensor",
        "iterate a fixed number of times and mask with torch.where, or use torch.while_loop(condition, body,"
        " (carried,))",
    ),
    Cause(
        "data_dependent_branch",
        r"torch\.(equal|allclose)\(|\.(equal|allclose)\(",
        "{name}() compares the values of tensors and gives a Python bool",
        "write (a == b).all() or torch.isclose(a, b).all() and choose with torch.where",
    ),
    Cause(
        "data_dependent_branch",
        r"(?<![.\w])(max|min)\(",
        "Python's {name}() compares the values of tensors",
        "write torch.maximum(a, b), torch.minimum(a, b) or torch.stack(xs).amax(0)",
    ),
    Cause(
        "data_dependent_branch",
        r"(?<![.\w])sorted\(|\.sort\(",
        "sorting Python objects compares the values of tensors",
        "write torch.sort(torch.stack(xs))",
    ),
    Cause(
        "data_dependent_branch",
        "",
        "the branch depends on the value of a tensor, which is known only when the graph has run",
        "compute both sides and choose with torch.where(cond, a, b), or use torch.cond(cond, f, g, args)",
    ),
    Cause(
        "unbacked_size",
        "",
        "the branch depends on a size that mark_unbacked keeps unknown",
        "write torch._check(condition) before it where one side is meant, or use mark_dynamic, which takes the side of"
        " this call",
    ),
    Cause(
        "data_dependent_loop",
        "",
        "the number of iterations depends on the value of a tensor",
        "iterate a fixed number of times and mask with torch.where, or move the loop out",
    ),
    Cause(
        "data_dependent_shape",
        r"nonzero|argwhere|torch\.where\(",
        "{name}() gives one element for each value that is not zero, so the shape depends on the values",
        "compute with the mask itself: torch.where(mask, x, 0), mask.sum() for their number, torch.topk for a fixed"
        " number",
    ),
    Cause(
        "data_dependent_shape",
        r"unique",
        "{name}() gives as many elements as there are different values",
        "sort and compare neighbours (x.sort().values.diff() != 0), or call it before the compiled region",
    ),
    Cause(
        "data_dependent_shape",
        r"repeat_interleave",
        "repeat_interleave with a tensor of counts: the shape of the result depends on its values",
        "pass output_size=, or repeat by an int",
    ),
    Cause(
        "data_dependent_shape",
        r"bincount|histc",
        "{name}() gives a number of bins that depends on the values",
        "add ones up in a tensor of fixed size: torch.zeros(bins).index_add(0, x, torch.ones(len(x)))",
    ),
    Cause(
        "data_dependent_shape",
        "",
        "the shape of the result depends on the values of a tensor",
        "use a result of fixed size: torch.where instead of a boolean index, or mask and reduce",
    ),
    # --- what Python does beside the tensors
    Cause(
        "triton_kernel",
        "",
        "a Triton kernel is launched in a way that a graph can't hold",
        "make an operator of the function that launches it: @torch.library.custom_op (or triton_op) with a fake"
        " function",
    ),
    Cause(
        "print",
        r"\blog|warn",
        "the text that is logged holds the values of a tensor",
        "log shapes and dtypes, or return the tensor and log it after the compiled region",
    ),
    Cause(
        "print",
        r"^(?!print\().*(format\(|\bf[\"']|%|\bstr\(|\brepr\()",
        "the values of a tensor are made into text",
        "make text of the shape or dtype, or return the tensor and format it after the compiled region",
    ),
    Cause(
        "print",
        r"print\(",
        "a tensor is printed",
        "print(x.shape, x.dtype) needs no break; return the tensor and print its values after the compiled region",
    ),
    Cause(
        "print",
        "",
        "the values of a tensor are made into text",
        "make text of the shape or dtype, or return the tensor and format it after the compiled region",
    ),
    Cause(
        "late_text",
        "",
        "native code reads a text that holds a varying number",
        "format the number after the compiled region, or pass the text",
    ),
    Cause(
        "unsupported", r"\binput\(", "input() waits for the user", "ask before the compiled region and pass the answer"
    ),
    Cause(
        "unsupported",
        r"has no fake kernel",
        "{name}() has no fake kernel: nothing tells the shape of what it gives",
        "register one with torch.library.register_fake",
    ),
    Cause(
        "unsupported",
        r"\bopen\(",
        "a file is opened",
        "read before the compiled region and pass what was read, write what it returns",
    ),
    Cause(
        "io",
        r"torch\.(save|load)\(",
        "{name}() reads or writes a file",
        "save and load outside of the compiled region, from the module or tensors that it returns",
    ),
    Cause(
        "io",
        r"\bopen\(|\.(read|write|readline|close)\(",
        "a file is used",
        "read before the compiled region and pass what was read, write what it returns",
    ),
    Cause("io", "", "a file, a process or a stream is used", "move input and output out of the compiled region"),
    Cause(
        "numpy",
        r"\.numpy\(|__array__|asarray|np\.array\(",
        "a tensor is handed to numpy",
        "stay in torch, or convert outside of the compiled region",
    ),
    Cause(
        "numpy",
        r"from_numpy",
        "a numpy array becomes a tensor",
        "convert before the compiled region and pass the tensor",
    ),
    Cause("numpy", r"random\.seed\(", "numpy's random number generator is seeded", "seed before the compiled region"),
    Cause(
        "numpy",
        r"\b(np|numpy)\.random\.|\brng\.",
        "numpy's random numbers are drawn",
        "draw before the compiled region and pass what was drawn, or draw tensors with torch.rand or torch.randn",
    ),
    Cause(
        "numpy",
        "",
        "numpy computes with a value of the compiled region",
        "use the torch function of the same name, or compute with numpy outside",
    ),
    Cause(
        "random_python",
        r"\b(np|numpy)\.random\.seed\(",
        "numpy's random number generator is seeded",
        "seed before the compiled region",
    ),
    Cause(
        "random_python", r"\bseed\(", "Python's random number generator is seeded", "seed before the compiled region"
    ),
    Cause(
        "random_python",
        r"\b(np|numpy)\.random\.|\brng\.",
        "numpy's random numbers are drawn",
        "draw before the compiled region and pass what was drawn, or draw tensors with torch.rand or torch.randn",
    ),
    Cause(
        "random_python",
        "",
        "Python's own random numbers are drawn",
        "draw with torch.rand or torch.randint, or draw before the compiled region and pass the number",
    ),
    Cause(
        "unknown_object",
        r"\b(np|numpy)\.random\.seed\(",
        "numpy's random number generator is seeded",
        "seed before the compiled region",
    ),
    Cause(
        "unknown_object",
        r"\brandom\.seed\(",
        "Python's random number generator is seeded",
        "seed before the compiled region",
    ),
    Cause(
        "unknown_object",
        r"\b(np|numpy)\.random\.|\brng\.",
        "numpy's random numbers are drawn",
        "draw before the compiled region and pass what was drawn, or draw tensors with torch.rand or torch.randn",
    ),
    Cause(
        "unknown_object",
        r"\brandom\.",
        "Python's own random numbers are drawn",
        "draw with torch.rand or torch.randint, or draw before the compiled region and pass the number",
    ),
    Cause(
        "rng_state", r"manual_seed|seed\(", "the random number generator is seeded", "seed before the compiled region"
    ),
    Cause(
        "rng_state",
        r"[gG]enerator",
        "a torch.Generator is given to an operator",
        "seed torch's default generator before the compiled region",
    ),
    Cause(
        "rng_state",
        "",
        "the state of the random number generator is read or set",
        "seed outside of the compiled region",
    ),
    Cause("time", r"\bsleep\(", "the program sleeps", _NOTHING + "the code before and after it is compiled"),
    Cause(
        "time",
        "",
        "the clock is read",
        "measure around the compiled region (the operators may not have run where the line stands)",
    ),
    Cause("import", "", "a module is imported for the first time", "import it at the top of the file"),
    Cause("disabled", "", "the function is marked to stay uncompiled", "remove the disable mark to have it captured"),
    Cause("async", "", "a coroutine is awaited", "await outside of the compiled region"),
    Cause(
        "library",
        "",
        "the code calls a library that is left to Python",
        _NOTHING + "the modules and functions of tensors that it calls are compiled by themselves",
    ),
    # --- training
    Cause("backward", r"inside a loop", "", _NOTHING + "each iteration is compiled as one graph"),
    Cause(
        "collective",
        "",
        "a collective waits for other processes, and an interrupt must not lose what the cell assigned so far",
        _NOTHING + "to have one graph, put the lines into a function",
    ),
    Cause("optimizer", r"inside a loop", "", _NOTHING + "each iteration is compiled as one graph"),
    Cause(
        "backward",
        "",
        "the backward pass starts here",
        "let the training step call backward() outside of the compiled region",
    ),
    Cause(
        "optimizer",
        r"zero_grad\(\) runs as it is",
        "the optimizer's gradients are reset as they are, outside of the graph",
        _NOTHING + "the code before and after it is compiled",
    ),
    Cause(
        "optimizer",
        "",
        "the optimizer runs as it is, outside of the graph",
        _NOTHING + "the code before and after it is compiled",
    ),
    Cause(
        "autograd_function",
        "",
        "a custom torch.autograd.Function is applied",
        "write the forward with torch operators, or register a torch.library.custom_op with register_autograd",
    ),
    Cause(
        "tensor_attribute",
        r"requires_grad",
        "requires_grad of a tensor is changed",
        "set it before the compiled region, or make a copy with x.detach().requires_grad_()",
    ),
    Cause("tensor_hook", r"remove", "a hook is removed", "remove it outside of the compiled region"),
    Cause("tensor_hook", "", "a hook is put on a tensor", "register it outside of the compiled region"),
    Cause(
        "tensor_data",
        "",
        "the memory of a tensor is replaced through .data",
        "write x.detach().copy_(value), which writes into the memory that the tensor has",
    ),
    Cause(
        "inference_mode",
        "",
        "inference mode is switched on or off, and one graph can't hold tensors of both kinds",
        _NOTHING + "the code before it, in it and after it is compiled; torch.no_grad() would leave it one graph",
    ),
    Cause("parameter", "", "a parameter is made", "make parameters outside of the compiled region, in __init__"),
    Cause(
        "tensor_attribute",
        r"\.grad\b",
        "the gradient of a tensor is set",
        "write x.grad.zero_() or x.grad.copy_(value), or set it outside of the compiled region",
    ),
    Cause(
        "tensor_attribute",
        r"resize_|set_\(|share_memory",
        "{name}() changes the memory of a tensor",
        "make a tensor of the right size and copy into it",
    ),
    Cause(
        "tensor_attribute",
        r"_\(",
        "{name}() changes the shape of a tensor in place",
        "write x = x.{plain}(...), which makes a view",
    ),
    Cause(
        "tensor_attribute",
        "",
        "a tensor's attribute is set in a way that a graph cannot express",
        "return the value, or keep it in an object of your own",
    ),
    Cause(
        "storage",
        "",
        "the code uses the storage of a tensor, which exists only at run time",
        "compare tensors by `is`; read and resize storages outside of the compiled region",
    ),
    Cause(
        "tensor_metadata",
        r"data_ptr|storage",
        "the code reads the address of a tensor's memory, which exists only at run time",
        "compare tensors by `is`; read addresses outside of the compiled region",
    ),
    Cause(
        "tensor_metadata",
        r"grad_fn",
        "the autograd graph of a tensor is read",
        "read requires_grad instead, or look at grad_fn outside of the compiled region",
    ),
    Cause(
        "tensor_metadata",
        "",
        "the code reads a property of a tensor that exists only at run time",
        "read it outside of the compiled region",
    ),
    Cause(
        "higher_order",
        "",
        "a function transform of torch is applied in a way that capture does not follow",
        "call it outside of the compiled region",
    ),
    Cause(
        "forward_ad",
        "",
        "a level of forward gradients is entered in a way that a graph cannot hold",
        "use torch.func.jvp, or enter the level outside of the compiled region",
    ),
    Cause(
        "module_construction",
        "",
        "a module is constructed",
        "construct modules outside of the compiled region, in __init__",
    ),
    # --- objects
    Cause(
        "c_call",
        r"threading|Thread|Lock\(|multiprocessing|concurrent|queue",
        "{name}() uses threads or locks",
        "start threads and take locks outside; compiled functions may be called from several threads",
    ),
    Cause("c_call", r"BytesIO|StringIO", "a stream in memory is made", "read and write outside of the compiled region"),
    Cause(
        "c_call",
        r"all_reduce|all_gather|barrier|broadcast|torch\.distributed|distributed_c10d",
        "{name}() communicates between processes",
        _NOTHING + "the code before and after it is compiled",
    ),
    Cause("c_call", r"instance of", "", "make the object outside of the compiled region and pass it"),
    Cause(
        "c_call",
        r"synchronize|memory_allocated|empty_cache|torch\.cuda",
        "{name}() waits for the device, or reads its state",
        "measure and synchronise outside of the compiled region",
    ),
    Cause("c_call", r"gc\.|sys\.|os\.|ctypes", "{name}() reads or changes the state of the process", _MOVE),
    Cause("setting", "", "{name}() changes a setting of torch", _NOTHING + "the code before and after it is compiled"),
    Cause(
        "c_call",
        "",
        "{name}() is native code that capture knows nothing about",
        'make it an operator: @torch.library.custom_op("mine::{plain}", mutates_args=()) on a function that calls it,'
        " and register_fake for its shape; or call it outside",
    ),
    Cause("unknown_object", r"iterat", "an iterator that came from outside is advanced", "pass a list: list(iterator)"),
    Cause(
        "unknown_object",
        r"weak reference",
        "a weak reference has a callback, or refers to an object made inside",
        "hold the object itself",
    ),
    Cause(
        "unknown_object",
        "",
        "native code is given an object that capture knows nothing about",
        "pass plain Python values and tensors, or move the call out of the compiled region",
    ),
    Cause(
        "unsupported",
        r"threading|Thread|Lock\(|multiprocessing|concurrent",
        "{name}() starts or joins threads",
        "start threads outside; compiled functions may be called from several threads",
    ),
    Cause(
        "unsupported",
        r"\b(locals|globals|vars|eval|exec|breakpoint)\(|currentframe|inspect\.",
        "{name}() looks at the frame, which is not there while a graph runs",
        "pass the values by name; debug with the function uncompiled (@tcompile.disable)",
    ),
    Cause(
        "unsupported",
        r"deepcopy|copy\.copy",
        "{name}() copies an object whose parts capture does not know",
        "copy tensors with clone(); copy objects and modules outside of the compiled region",
    ),
    Cause(
        "unsupported",
        r"\bto_sparse\w*\(|\bsparse_\w+_tensor\(|\bquantize_per_\w+\(",
        "{name}() gives a sparse or quantized tensor, which a graph can't hold",
        "keep the tensor dense, or mark the function that calls it @tcompile.disable",
    ),
    Cause(
        "unsupported",
        r"\bid\(|hash\(",
        "the address of an object is used",
        "compare by `is`, or key a dict by the object itself",
    ),
    Cause(
        "choice",
        "",
        "which object Python's max() or min() gave depends on the values of tensors",
        "write torch.maximum(a, b), torch.minimum(a, b) or torch.stack(xs).amax(0)",
    ),
    Cause(
        "address", r"\bid\(", "the address of an object is used", "compare by `is`, or key a dict by the object itself"
    ),
    Cause(
        "address",
        "",
        "the default text of an object holds its address",
        "give its class a __repr__, or name the object in another way",
    ),
    Cause(
        "mutation",
        r"register_(forward|backward|module|state_dict|load)",
        "a hook is registered on a module",
        "register hooks before the first call: compiled code runs those that are there",
    ),
    Cause("mutation", r"^\s*del\b", "an attribute of an object from outside is deleted", "set it to None"),
    Cause(
        "mutation",
        "",
        "an object from outside is changed in a way that cannot be put off until the graph has run",
        "set a plain attribute of the object, or change it outside of the compiled region",
    ),
    Cause(
        "lifetime",
        "",
        "the program notices when an object is freed, which a graph does not follow",
        "release what it holds in a with statement",
    ),
    Cause(
        "class_definition",
        "",
        "a class is defined in a way that capture does not follow",
        "define the class at the top of the file",
    ),
    Cause(
        "rebuild",
        "",
        "an object made inside cannot be carried over a break",
        "keep it in plain containers, or make it before the compiled region",
    ),
    Cause("generator", "", "a generator leaves the function before it is finished", "make it a list"),
    Cause(
        "recursion", "", "calls nest deeper than capture follows", "use a loop, or mark the function @tcompile.disable"
    ),
    Cause(
        "long_loop",
        "",
        "the loop has too many iterations for one graph",
        _NOTHING + "its body is compiled and runs once per iteration",
    ),
    Cause(
        "idle_loop",
        "",
        "the code computes for a long time without tensors",
        _NOTHING + "it runs as plain Python, and what follows is compiled",
    ),
    Cause(
        "small_loop",
        "",
        "the loop has many iterations with a few operators each: one graph of them all takes far longer to compile than"
        " to run",
        "no change is needed where it takes little time: the loop runs as plain Python. Operators on whole tensors in"
        " its place are quicker by far; in a function under @tcompile.compile loops are unrolled",
    ),
    Cause(
        "exception",
        "",
        "an exception leaves the function",
        _NOTHING + "eager raises the same error here, and the code before it is compiled",
    ),
    Cause(
        "bytecode",
        "",
        "a bytecode instruction is unknown",
        "write the line in another way, or mark the function @tcompile.disable",
    ),
    Cause(
        "unsupported",
        "",
        "capture does not follow `{code}`",
        "use torch operators or plain Python there, or move `{code}` out of the compiled region",
    ),
)

_ANY = CAUSES[-1]


def _cause(kind: str, texts: list[str]) -> Cause:
    for cause in CAUSES:
        if cause.kind == kind and (not cause.where or any(re.search(cause.where, text) for text in texts)):
            return cause
    return _ANY


def _calls(place: fixes.Place | None, line: str, reason: str) -> tuple[str, str]:
    """(source of the expression that breaks, name of what it calls)."""
    if place is None:
        called = re.search(r"\bfunction ([\w.]+) is called", reason)
        return line, re.split(r"[(=\s]", line)[0] or (called[1] if called else line)
    code = place.text(place.node)
    name = re.search(r"([\w.]+)\($", code.partition("(")[0] + "(")
    return code if len(code) <= 80 else code[:77] + "...", name.group(1) if name else code


def make_graph_break(signal: Break, positions: list[Position]) -> GraphBreak:
    """The GraphBreak for a signal. `positions` lists the interpreted frames, outermost first; the break is shown at the
    innermost line that is the user's own."""
    shown: Any = next((position for position in reversed(positions) if not position.library), positions[0])
    line = source_line(shown.file, shown.line).strip()
    place = fixes.find(shown)
    code, name = _calls(place, line, signal.reason)
    cause = _cause(signal.kind, [code, line, signal.reason])
    words = {
        "{code}": code,
        "{name}": name.rpartition(".")[2] if name.startswith("self.") else name,
        "{plain}": name.rpartition(".")[2].rstrip("_"),
    }
    reason = cause.reason if cause.where and cause.reason else signal.reason or cause.reason
    remedy = signal.remedy if signal.remedy and not cause.where else cause.remedy
    for word, text in words.items():
        reason, remedy = reason.replace(word, text), remedy.replace(word, text)
    suggestion = fixes.suggest(signal.kind, place) if place is not None else None
    if suggestion is not None:
        remedy = suggestion[0]
    if not re.match(rf"[\w.]+\(|`|\w+_|{re.escape(name)}\b", reason):  # a name of the program's stays as it is
        reason = reason[:1].upper() + reason[1:]
    reason = reason if reason.endswith(".") else reason + "."
    col, end_line, end_col = shown.col, shown.end_line, shown.end_col
    if place is not None and col is not None and isinstance(place.path[-2], (ast.If, ast.While, ast.Assert)):
        test: Any = place.node
        col, end_line, end_col = test.col_offset, test.end_lineno, test.end_col_offset
    return GraphBreak(
        kind=signal.kind,
        reason=reason,
        file=shown.file,
        line=shown.line,
        col=col,
        end_line=end_line,
        end_col=end_col,
        code=line,
        function=shown.function,
        call_chain=[(position.function, position.file, position.line) for position in positions],
        remedy=remedy,
        fix=suggestion[1] if suggestion is not None else None,
    )

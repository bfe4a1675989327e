"""What a thread was doing at a look at its stack: in compiled code, in an operator of torch's, loading data, waiting,
or in Python; with the user's line.

A look sees the position of each frame. Where the innermost stands at a call, or at an operator, what it called is C
code that gave up the interpreter's lock: the name of that call says which.
"""

from __future__ import annotations

import ast
import dis
import functools
import itertools
import linecache
import os
import sysconfig
import types
from types import CodeType
from typing import Any, Callable, Iterator, NamedTuple, TypeVar

import torch

from ..compiler import events
from ..compiler.capture.bytecode.memo import CodeMemo
from ..compiler.capture.entry.locations import is_library_file
from ..compiler.base.labels import frame_words, label
from ..compiler.report.conclusions.wall import IMPORTING, Seen
from .sampling import Sample, Samples

__all__ = ["looks"]

T = TypeVar("T")

_TORCH = os.path.join(os.path.dirname(os.path.abspath(torch.__file__)), "")
_MAGICS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "")
_CALLS_OPERATOR = os.path.join(_TORCH, "_ops.py")
_OWN = os.path.join(os.path.dirname(os.path.abspath(events.__file__)), "")
_FRONT = os.path.join(_OWN, "frontend", "")
_PACKAGE = os.path.join(os.path.dirname(os.path.dirname(_OWN)), "")  # with the notebook's part, which runs the cell
_PROGRESS = tuple(os.path.join(_PACKAGE, "kernel_magics", name) for name in ("progress.py", "display.py"))
_NO_USERS = ("<tcompile", "<eval_with", _PACKAGE)
_STANDARD = tuple({"<frozen", *(os.path.join(sysconfig.get_path(p), "") for p in ("stdlib", "platstdlib"))})
_DATA = (os.path.join(_TORCH, "utils", "data", ""), f"{os.sep}datasets{os.sep}")
_OUTPUT = (os.path.join("ipykernel", "iostream.py"), os.path.join(_TORCH, "_tensor_str.py"))
_CALLS = ("CALL", "PRECALL")
_SYMBOLS = {ast.MatMult: "@", ast.Mult: "*", ast.Add: "+", ast.Sub: "-", ast.Div: "/", ast.Pow: "**"}
_WITH_THREADS = ("compiled", "compiling")
_INNERMOST = 40  # frames of a stack that tell of loading data
_BUSY = 0.1  # of a stretch of time without a core: the machine is busy
_STARVED = Seen("starved", "waiting for a core: other programs were at work")
_AUTOGRAD = ("run_backward", "_engine_run_backward")
_NAMESPACES: tuple[Any, ...] = (torch.Tensor, torch, torch.nn.functional, torch.linalg, torch.fft, torch.special)
_NO_OPERATORS = frozenset(("get", "copy", "items", "keys", "values", "index", "count", "update", "apply", "map"))


def looks(samples: Samples) -> Iterator[tuple[float, float, float, Seen]]:
    """Of each stretch of time its end, its seconds, and what was seen with its share of them. A thread that has no core
    is told apart, and one that sleeps for most of what is left."""
    for row in samples.rows:
        starved = min(1.0, row.starved / row.seconds)
        yield row.end, row.seconds, starved, _STARVED
        seen = seen_at(row)
        if seen.kind != "data" and row.asleep > 0.5 * (row.seconds - row.starved):
            # nothing in compiled calls sleeps, and without a GPU no operator: they wait for other threads of a kernel,
            # which may have no core
            if seen.kind not in (_WITH_THREADS if torch.cuda.is_initialized() else (*_WITH_THREADS, "torch")):
                seen = Seen("waiting", seen.name, seen.file, seen.line)
            elif row.starved > _BUSY * row.seconds:
                seen = _STARVED
        yield row.end, row.seconds, 1.0 - starved, seen


class _File(NamedTuple):
    """What the name of a file says of the code in it. Stacks are deep, and their files are few."""

    entry: bool  # a compiled entry's
    ours: bool
    front: bool  # of the compiler's front end: it looks for what to compile, and has it compiled
    users: bool
    standard: bool
    importlib: bool
    progress: bool
    data: bool
    output: bool  # of what makes text of tensors, and takes a program's output to the notebook
    telling: bool  # whether one of those is true that tell something of a whole stack


@functools.lru_cache(maxsize=4096)
def _facts(file: str) -> _File:
    entry, front, progress = file.startswith("<tcompile"), file.startswith(_FRONT), file.startswith(_PROGRESS)
    users = not is_library_file(file) and not file.startswith(_NO_USERS)
    data = file.startswith(_DATA[0]) or _DATA[1] in file
    return _File(
        entry=entry,
        ours=file.startswith(("<tcompile", _OWN)),
        front=front,
        users=users,
        standard=file.startswith(_STANDARD) and "site-packages" not in file,
        importlib=file.startswith("<frozen importlib"),
        progress=progress,
        data=data,
        output=file.endswith(_OUTPUT),
        telling=entry or front or users or progress or data,
    )


def seen_at(row: Sample) -> Seen:
    """What the innermost frames of a stack say."""
    if not row.stack:
        return Seen("rest", "the rest")
    code, at = row.stack[0]
    files = [_facts(c.co_filename) for c, _ in row.stack]
    users, entry, front, data, progress = _along(files)
    file, line = _users(row.stack, users)
    if progress:
        return Seen("compiling", "showing how far it is")
    if row.stack[0][0].co_filename.startswith(_MAGICS):
        return Seen("compiling", "beginning and ending the run")
    if data:
        return Seen("data", "loading data", file, line)
    if front:
        return Seen("compiling", "looking for what to compile", file, line)
    if entry is not None and all(
        f.ours or c.co_filename == _CALLS_OPERATOR for f, (c, _) in zip(files[:entry], row.stack)
    ):
        return Seen("compiled", "compiled calls", file, line)
    importing, importer = _importer(files)
    first = importer or next((f for f in files if not f.standard), files[0])
    if first.ours:  # also while it imports a module, or lets go of something
        return Seen("compiled", "guards", file, line)
    if importing:
        return Seen("python", IMPORTING, file, line)
    if any(f.output for f in itertools.takewhile(lambda f: not f.users, files)):
        return Seen("python", "print", file, line)
    if code.co_filename == _CALLS_OPERATOR:  # (its name is an argument of the call)
        caller = next((f for f, (c, _) in zip(files, row.stack) if c.co_filename != _CALLS_OPERATOR), files[0])
        return (
            Seen("compiled", "compiled calls", file, line) if caller.ours else Seen("torch", "an operator", file, line)
        )
    name, operator = called_at(code, at)
    if any(n in name for n in _AUTOGRAD):
        return Seen("torch", "backward", file, line)
    if operator:
        return Seen("torch", name, file, line)
    if code.co_filename.startswith(_TORCH):
        return Seen("python", f"{code.co_qualname} (torch)", file, line)
    if is_library_file(code.co_filename):
        return Seen("python", f"{code.co_qualname} ({_package(code.co_filename)})", file, line)
    return Seen("python", name or frame_words(code.co_qualname), file, line)


def _along(files: list[_File]) -> tuple[int | None, int | None, bool, bool, bool]:
    """The places of the innermost code of the user's and of an entry; whether code of the front end stands within
    both, and whether data are loaded, or progress is shown."""
    users: int | None = None
    entry: int | None = None
    progress = data = front = False
    for i, f in enumerate(files):
        if not f.telling:
            continue
        progress = progress or f.progress
        data = data or f.data and i < _INNERMOST
        if users is None and f.users:
            users = i
        if entry is None and f.entry:
            entry = i
        if users is None and entry is None:
            front = front or f.front
    return users, entry, front, data, progress


def _importer(files: list[_File]) -> tuple[bool, _File | None]:
    """Whether modules are being imported, of libraries alone, and what imports them, where the stack goes so far."""
    importing, importer = False, None
    for f in files:
        if f.importlib:
            importing, importer = True, None
        elif importing and importer is None and not f.standard:
            importer = f
        if f.users:
            break
    return importing, importer


def _users(stack: tuple[tuple[CodeType, int], ...], at: int | None) -> tuple[str, int | None]:
    """The innermost line that a user can change, which stands at `at` of the stack."""
    return ("", None) if at is None else (label(stack[at][0].co_filename), _line_at(*stack[at]))


def _package(file: str) -> str:
    return label(file).replace("\\", "/").split("/")[0].removesuffix(".py")


def _remembered(of: Callable[[CodeType, int], T]) -> Callable[[CodeType, int], T]:
    """What is said of a place in code, remembered for as long as the code lives: the next run is seen at the same."""
    known: CodeMemo[dict[int, T]] = CodeMemo()

    @functools.wraps(of)
    def look(code: CodeType, at: int) -> T:
        said = known.get(code)
        if said is None:
            said = known[code] = {}
        if at not in said:
            said[at] = of(code, at)
        return said[at]

    return look


@_remembered
def _line_at(code: CodeType, at: int) -> int | None:
    return _position(code, at)[0]


def _position(code: CodeType, at: int) -> tuple[int | None, ...]:
    if at < 0:
        return code.co_firstlineno, None, None, None
    return next(itertools.islice(code.co_positions(), at // 2, None), (None, None, None, None))


@_remembered
def called_at(code: CodeType, at: int) -> tuple[str, bool]:
    """The name of what a frame has called, and whether it is an operator on tensors; empty where it calls nothing."""
    if not 0 <= at < len(code.co_code):
        return "", False
    operation, node = dis.opname[code.co_code[at]], _expression(code, at)
    if operation.startswith("BINARY_OP") and isinstance(node, (ast.BinOp, ast.AugAssign)):
        return _SYMBOLS.get(type(node.op), type(node.op).__name__.lower()), True
    if operation.startswith("BINARY_SUBSCR"):
        return "[...]", True
    if not operation.startswith(_CALLS):
        return "", False
    if not isinstance(node, ast.Call):
        return "", False
    text = ast.unparse(node.func)
    name = node.func.attr if isinstance(node.func, ast.Attribute) else text
    return (name, True) if _is_operator(code, node.func, name) else (text if len(text) <= 40 else name, False)


def _expression(code: CodeType, at: int) -> ast.AST | None:
    """The expression or statement that an instruction belongs to."""
    line, end_line, column, end_column = _position(code, at)
    if line is None or end_line is None or column is None or end_column is None:
        return None
    lines = [linecache.getline(code.co_filename, n).encode() for n in range(line, end_line + 1)]
    if not lines or not lines[0]:
        return None
    lines[-1] = lines[-1][:end_column]
    lines[0] = lines[0][column:]
    text = b"".join(lines).decode(errors="replace")
    try:
        return ast.parse(f"({text}\n)", mode="eval").body
    except SyntaxError:
        pass
    try:
        body = ast.parse(text.strip()).body
    except SyntaxError:
        return None
    return body[0] if len(body) == 1 else None


@functools.lru_cache(maxsize=4096)
def _may_hold_tensors(file: str) -> bool:
    """Whether code of this file may work on tensors: a library's file that never speaks of torch works on arrays of its
    own, whose methods have the same names (pandas)."""
    if not is_library_file(file) or file.startswith(_TORCH):
        return True
    return any("torch" in line for line in linecache.getlines(file))


def _is_operator(code: CodeType, func: ast.expr, name: str) -> bool:
    """Whether a call of this name, so written, is one of torch's: of a tensor's method, or of a function of torch."""
    root = func
    while isinstance(root, ast.Attribute):
        root = root.value
    if isinstance(root, ast.Name) and root.id in ("np", "numpy", "scipy", "pd", "math", "random", "os", "time", "plt"):
        return False
    if name in _NO_OPERATORS or name.startswith("__") or not _may_hold_tensors(code.co_filename):
        return False
    return any(
        isinstance(getattr(space, name, None), (types.BuiltinFunctionType, types.MethodDescriptorType))
        or callable(getattr(space, name, None))
        and space is not torch
        for space in _NAMESPACES
    ) or hasattr(torch._C._nn, name)

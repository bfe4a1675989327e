"""Running a cell as IPython runs one, with its code objects handed to an engine.

`prepare` does what IPython does before execution (transformers, AST transformers, future flags, the name under which
tracebacks find the source) and finds the expressions whose value is displayed; `execute` and `execute_async` run the
parts. Statements and the expression that ends them are one code object, so that a function which the cell defines and
calls is its own, however often it runs. The code runs once, in the user's namespace. Lines are those of the cell as
typed: the magic's own line counts as line 1.
"""

from __future__ import annotations

import ast
import inspect
import io
import re
import tokenize
from dataclasses import dataclass
from types import CodeType
from typing import Any, Callable

__all__ = ["Cell", "prepare", "execute", "execute_async", "needs_await", "RUNNERS", "VALUE"]

VALUE = "__tcompile_value__"  # the name under which a part leaves the value of its last expression, for a moment

Run = Callable[[CodeType, dict], Any]


@dataclass
class Cell:
    """A cell ready to run: its parts in order, each a code object and whether its value is shown."""

    text: str  # as typed, magic line included
    name: str  # the file name of its code
    parts: list[tuple[CodeType, bool]]  # shown: the code's value, or what it left under VALUE
    silenced: bool = False  # a semicolon ends it

    @property
    def is_async(self) -> bool:
        return any(code.co_flags & inspect.CO_COROUTINE for code, _ in self.parts)


def prepare(shell: Any, body: str, first_line: str | None) -> Cell:
    """Make the parts of a cell. `first_line` is the magic's line as typed, or None where the cell has none.
    Raises SyntaxError (also for what the shell's transformers reject)."""
    running = shell.displayhook.exec_result  # None where code calls the magic outside of a cell
    raw_cell = getattr(getattr(running, "info", None), "raw_cell", None)
    number = getattr(running, "execution_count", None) or shell.execution_count
    pad = "" if first_line is None else "\n"
    transformed = pad + _blank_lines(body) + shell.transform_cell(body)
    text = body if first_line is None else f"{first_line}\n{body}"
    # The name of the code is a hash of the cell as the shell got it: a debugger looks for that name.
    raw = raw_cell if raw_cell is not None and raw_cell.strip() == text.strip() else text
    name = shell.compile.cache(transformed, number, raw_code=raw)
    tree = shell.compile.ast_parse(transformed, filename=name)
    tree = shell.transform_ast(tree)
    flags = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT if shell.autoawait else 0
    parts: list[tuple[CodeType, bool]] = []
    with shell.compile.extra_flags(flags):
        for nodes, shown in _split(tree.body, shell.ast_node_interactivity):
            code = shell.compile(ast.Module(nodes[:-1] if shown else nodes, []), name, "exec")
            if not shown:
                parts.append((code, False))
            elif len(nodes) == 1 or code.co_flags & inspect.CO_COROUTINE:
                # what awaits runs as it is: the expression need not
                if len(nodes) > 1:
                    parts.append((code, False))
                parts.append((shell.compile(ast.Expression(nodes[-1].value), name, "eval"), True))
            else:
                kept = ast.Assign([ast.Name(VALUE, ast.Store())], nodes[-1].value)
                kept = ast.fix_missing_locations(ast.copy_location(kept, nodes[-1]))
                parts.append((shell.compile(ast.Module([*nodes[:-1], kept], []), name, "exec"), True))
    return Cell(text, name, parts, bool(parts) and parts[-1][1] and _ends_with_semicolon(transformed))


def _blank_lines(body: str) -> str:
    """The empty lines that a body begins with: the shell's transformers drop them, and all lines after would move."""
    return "\n" * body[: len(body) - len(body.lstrip())].count("\n") if body.strip() else ""


_IS_COMMENT = re.compile(r"\s*(#.*)?$").match


def _ends_with_semicolon(source: str) -> bool:
    """Not left to the magic's decorator `output_can_be_silenced`: that one reads the cell before its magics and `!`
    lines are transformed, and fails on what is not Python."""
    lines = source.splitlines()
    last = next((i for i in reversed(range(len(lines))) if not _IS_COMMENT(lines[i])), 0)
    if not any(";" in line for line in lines[last:]):
        return False
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    ignored = (tokenize.ENDMARKER, tokenize.NL, tokenize.NEWLINE, tokenize.COMMENT, tokenize.DEDENT)
    end = next((t for t in reversed(list(tokens)) if t.type not in ignored), None)
    return end is not None and end.type == tokenize.OP and end.string == ";"


def _split(nodes: list[ast.stmt], interactivity: str) -> list[tuple[list[Any], bool]]:
    """Runs of statements, each ended by the expression whose value is shown, by IPython's setting
    `ast_node_interactivity`.
    """
    nodes = list(nodes)
    if interactivity == "last_expr_or_assign" and nodes and not isinstance(nodes[-1], ast.Expr):
        last = nodes[-1]
        targets = (
            last.targets
            if isinstance(last, ast.Assign)
            else [last.target]
            if isinstance(last, (ast.AugAssign, ast.AnnAssign))
            else []
        )
        if len(targets) == 1 and isinstance(targets[0], ast.Name):
            nodes.append(
                ast.fix_missing_locations(ast.copy_location(ast.Expr(ast.Name(targets[0].id, ast.Load())), last))
            )
    out: list[tuple[list[Any], bool]] = []
    for i, n in enumerate(nodes):
        shown = isinstance(n, ast.Expr) and (interactivity == "all" or interactivity != "none" and i == len(nodes) - 1)
        if out and not out[-1][1]:
            out[-1][0].append(n)
            out[-1] = (out[-1][0], shown)
        else:
            out.append(([n], shown))
    return out


def execute(shell: Any, cell: Cell, run: Run, show: bool = True) -> Any:
    """Run the parts; the value of the last one, if it is an expression, is returned, and values before it are displayed
    (`show=False`: dropped)."""
    __tracebackhide__ = True
    value = None
    for i, (code, shown) in enumerate(cell.parts):
        result = run(code, shell.user_ns)
        value = _shown(shell, cell, i, shown and show, shell.user_ns.pop(VALUE, result))
    return value


async def execute_async(shell: Any, cell: Cell, run: Run) -> Any:
    """As `execute`, for a cell with top-level await."""
    __tracebackhide__ = True
    value = None
    for i, (code, shown) in enumerate(cell.parts):
        if code.co_flags & inspect.CO_COROUTINE:  # the engine compiles what it calls
            result = await eval(code, shell.user_ns)
        else:
            result = run(code, shell.user_ns)
        value = _shown(shell, cell, i, shown, shell.user_ns.pop(VALUE, result))
    return value


def _shown(shell: Any, cell: Cell, i: int, shown: bool, result: Any) -> Any:
    if not shown:
        return None
    if i + 1 < len(cell.parts):
        shell.displayhook(result)
        return None
    return result


def needs_await(shell: Any, body: str) -> bool:
    """Whether a cell's body has await, async for or async with at its top level."""
    if not shell.autoawait or not ("await" in body or "async" in body):
        return False
    try:
        code = compile(
            shell.transform_cell(body), "<cell>", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True
        )
    except (SyntaxError, ValueError):  # said when the cell runs
        return False
    return bool(code.co_flags & inspect.CO_COROUTINE)


RUNNERS = (execute.__code__, execute_async.__code__)  # in a traceback, the cell's own frames come after one of these

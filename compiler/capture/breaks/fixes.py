"""What to write instead, in the user's own names: the source around a break, and the change that removes it where that
is mechanical.

`find(position)` gives the syntax tree's node at a break and what encloses it; `suggest(kind, place)` gives words for
the remedy and, where lines can be exchanged as they stand, a `Fix`. A fix keeps what the code computes; where a name
then holds a tensor instead of a number, its note says so.
"""

from __future__ import annotations

import ast
import copy
import functools
import math
import re
from dataclasses import dataclass
from typing import Any, Callable

import torch

from ...base.source_text import source_lines
from ..entry.locations import Position
from ..entry.result import Fix

__all__ = ["Place", "find", "suggest"]

Node = ast.AST


@dataclass
class Place:
    """The node at a break; `path` leads to it from the module, itself last."""

    file: str
    lines: list[str]
    path: list[Node]

    @property
    def node(self) -> Node:
        return self.path[-1]

    def text(self, node: Any) -> str:
        """The source of a node, on one line."""
        if getattr(node, "lineno", 0) == getattr(node, "end_lineno", -1) and node.lineno <= len(self.lines):
            return self.lines[node.lineno - 1].encode()[node.col_offset : node.end_col_offset].decode()
        return ast.unparse(node)

    def parent(self, kinds: Any) -> Node | None:
        """The innermost enclosing node of these classes."""
        return next((n for n in reversed(self.path) if isinstance(n, kinds)), None)

    def statement(self) -> Any:
        return self.parent(ast.stmt)

    def exchange(self, node: Any, new: str, note: str = "") -> Fix:
        """`new` in place of an expression, or of whole statements."""
        first, last = node.lineno, node.end_lineno
        old = self.lines[first - 1 : last]
        head = old[0].encode()[: node.col_offset].decode()
        tail = old[-1].encode()[node.end_col_offset :].decode().rstrip("\n")
        return Fix(self.file, first, last, "".join(old).rstrip("\n"), head + new + tail, note)


@functools.lru_cache(maxsize=32)
def _tree(file: str, text: str) -> ast.Module | None:
    try:
        flags = ast.PyCF_ONLY_AST | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
        return compile(text, file, "exec", flags, dont_inherit=True)  # type: ignore[return-value]
    except (SyntaxError, ValueError):
        return None


def find(position: Position) -> Place | None:
    """The node that a break's position spans, or None where the source cannot be read."""
    lines = source_lines(position.file)
    tree = _tree(position.file, "".join(lines)) if lines else None
    if tree is None or position.line > len(lines):
        return None
    start = (position.line, position.col or 0)
    end = (
        position.end_line or position.line,
        position.end_col if position.end_col is not None else len(lines[position.line - 1]),
    )
    if position.col is None:  # 3.11 keeps no columns for some instructions: the statement that begins there
        start = end = (position.line, len(lines[position.line - 1]) - len(lines[position.line - 1].lstrip()))
    path: list[Node] = [tree]
    while True:
        for child in _children(path[-1]):
            if (child.lineno, child.col_offset) <= start and end <= (child.end_lineno, child.end_col_offset):
                path.append(child)
                break
        else:
            break
    if isinstance(path[-1], (ast.If, ast.While, ast.Assert)) and start != end:
        path.append(path[-1].test)  # a jump is sometimes given the span of the whole statement
    return Place(position.file, lines, path) if len(path) > 1 else None


def _children(node: Node) -> list[Any]:
    found = []
    for child in ast.iter_child_nodes(node):
        if hasattr(child, "lineno"):
            found.append(child)
        else:
            found += _children(child)  # comprehensions, arguments, match cases
    return found


# ---------------------------------------------------------------------------------------------- kinds of break
Suggestion = tuple[str, "Fix | None"]


def suggest(kind: str, place: Place) -> Suggestion | None:
    """(words for the remedy, Fix or None), or None where the source says no more than the table."""
    for kinds, maker in _MAKERS:
        if kind in kinds:
            got = maker(place)
            if got is not None:
                return got
    return None


def _extreme(place: Place) -> Suggestion | None:
    call = place.node
    if (
        isinstance(call, ast.Call)
        and isinstance(call.func, ast.Name)
        and call.func.id in ("max", "min")
        and len(call.args) == 2
        and not call.keywords
    ):
        new = f"torch.{call.func.id}imum({', '.join(map(place.text, call.args))})"
        return f"write {new}", place.exchange(call, new)
    return None


def _branch(place: Place) -> Suggestion | None:
    owner = next(
        (
            n
            for n in reversed(place.path)
            if isinstance(n, (ast.If, ast.IfExp, ast.While, ast.Assert)) and _within(n.test, place.node)
        ),
        None,
    )
    if owner is None:
        return None
    test = _plain_test(place, owner.test)
    if isinstance(owner, ast.Assert):
        words = (
            ast.literal_eval(owner.msg)
            if isinstance(owner.msg, ast.Constant) and isinstance(owner.msg.value, str)
            else "assertion failed"
        )
        new = f"torch._assert_async({test}, {words!r})"
        return f"write {new}, which is checked when the graph runs", place.exchange(
            owner, new, "fails with a RuntimeError instead of an AssertionError"
        )
    if isinstance(owner, ast.While):
        names = _carried(owner)
        return (
            f"iterate a fixed number of times and keep what is done with torch.where({test}, new, old), or use "
            f"torch.while_loop(lambda {names}: {test}, body, ({names},))"
            if names
            else f"iterate a fixed number of times and mask with torch.where({test}, new, old)"
        ), None
    if isinstance(owner, ast.IfExp):
        new = f"torch.where({test}, {place.text(owner.body)}, {place.text(owner.orelse)})"
        mechanical = not _mixes_python(owner.test)
        return f"write {new}", place.exchange(owner, new, "both sides are computed") if mechanical else None
    return _if_statement(place, owner, test)


def _if_statement(place: Place, owner: ast.If, test: str) -> Suggestion:
    if any(isinstance(s, ast.Break) for s in owner.body):  # nothing to choose from: what it costs is to be asked
        return (
            "ask less often, as in `if i % 100 == 0 and ...` (iterations between are whole graphs), or after the loop",
            None,
        )
    yes, no = _values(place, owner.body), _values(place, owner.orelse)
    returns = [
        s.value for s in (*owner.body[:1], *owner.orelse[:1]) if isinstance(s, ast.Return) and s.value is not None
    ]
    if len(returns) == 2 and len(owner.body) == len(owner.orelse) == 1:
        new = f"return torch.where({test}, {place.text(returns[0])}, {place.text(returns[1])})"
        return f"write {new}", (
            place.exchange(owner, new, "both sides are computed") if not _mixes_python(owner.test) else None
        )
    if len(returns) == 1 and len(owner.body) == 1 and not owner.orelse:
        following = _following(place, owner)
        if isinstance(following, ast.Return) and following.value is not None:
            new = f"return torch.where({test}, {place.text(returns[0])}, {place.text(following.value)})"
            both = ast.copy_location(ast.Pass(), owner)
            both.end_lineno, both.end_col_offset = following.end_lineno, following.end_col_offset
            return f"write {new}", (
                place.exchange(both, new, "both sides are computed") if not _mixes_python(owner.test) else None
            )
    told = _only_told(owner)
    if told is not None:  # neither torch.where nor torch.cond can do what the branch does
        return (
            f"return {told} beside the result and look at it outside of the compiled step, or not at every step: the"
            " branch computes nothing",
            None,
        )
    if yes is None or no is None or not yes or (no and set(no) != set(yes)):
        names = ", ".join(sorted(_read(owner)))
        return (
            (
                f"compute both sides and choose with torch.where({test}, a, b), or make them functions and call "
                f"torch.cond({test}, f, g, ({names}{',' if names else ''}))"
            ),
            None,
        )
    lines = [f"{name} = torch.where({test}, {value}, {no.get(name, name)})" for name, value in yes.items()]
    names = ", ".join(sorted(_read(owner) | set(yes)))
    first = next(iter(yes))
    words = f"write {'; '.join(lines)}"
    if len(yes) == 1:
        words += (
            f", or torch.cond({test}, lambda {names}: {yes[first]}, lambda {names}: {no.get(first, first)}, ({names},))"
            " to compute one side only"
        )
    independent = not any(
        name in _names(value) for name in yes for other, value in (*yes.items(), *no.items()) if other != name
    ) and (len(yes) == 1 or not set(yes) & _read_in(owner.test))
    indent = " " * owner.col_offset
    fix = (
        place.exchange(owner, f"\n{indent}".join(lines), "both sides are computed")
        if independent and not _mixes_python(owner.test)
        else None
    )
    return words, fix


_TELLS = ("print", "warn", "warning", "info", "debug", "error", "log")


def _only_told(owner: ast.If) -> str | None:
    """What the condition reads, where the branches only print, log or note something; None where they compute."""
    if not owner.body or not all(
        isinstance(s, ast.Expr)
        and isinstance(s.value, ast.Call)
        and _called(s.value)[1] in _TELLS
        or isinstance(s, ast.Pass)
        for s in (*owner.body, *owner.orelse)
    ):
        return None
    test = owner.test.left if isinstance(owner.test, ast.Compare) else owner.test
    return f"`{ast.unparse(_Tensors().visit(copy.deepcopy(test)))}`"


def _values(place: Place, body: list[ast.stmt]) -> dict[str, str] | None:
    """name -> expression of a branch that only sets names; None for other statements."""
    found: dict[str, str] = {}
    for s in body:
        if isinstance(s, ast.Assign) and len(s.targets) == 1 and isinstance(s.targets[0], ast.Name):
            name, value = s.targets[0].id, place.text(s.value)
        elif isinstance(s, ast.AugAssign) and isinstance(s.target, ast.Name):
            op = ast.unparse(ast.BinOp(ast.Name("a"), s.op, ast.Name("b")))[2:-2]
            right = place.text(s.value)
            if not isinstance(s.value, (ast.Name, ast.Constant, ast.Call, ast.Attribute)):
                right = f"({right})"
            name, value = s.target.id, f"{s.target.id} {op} {right}"
        elif isinstance(s, ast.Pass):
            continue
        else:
            return None
        if name in found:
            return None
        found[name] = value
    return found


def _following(place: Place, statement: Node) -> Node | None:
    """The statement after `statement` in its block."""
    owner = place.path[place.path.index(statement) - 1]
    for block in ("body", "orelse", "finalbody"):
        body = getattr(owner, block, None)
        if isinstance(body, list) and statement in body:
            at = body.index(statement) + 1
            return body[at] if at < len(body) else None
    return None


def _within(outer: Node, inner: Node) -> bool:
    return any(value is inner for value in ast.walk(outer))


class _Tensors(ast.NodeTransformer):
    """An expression with what reads tensors into Python taken out of it: its value is a tensor then."""

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        module, name = _called(node)
        if isinstance(node.func, ast.Name) and len(node.args) == 1 and not node.keywords:
            if name in ("bool", "float"):
                return node.args[0]
            if name == "int":
                return _method(node.args[0], "int")
        elif name == "item" and isinstance(node.func, ast.Attribute) and not node.args:
            return node.func.value
        elif name in ("equal", "allclose") and isinstance(node.func, ast.Attribute):
            pair = node.args[:2] if module == "torch" else [node.func.value, *node.args[:1]]
            if name == "equal":
                return _method(ast.Compare(pair[0], [ast.Eq()], pair[1:]), "all")
            close = ast.Attribute(ast.Name("torch", ast.Load()), "isclose", ast.Load())
            return _method(ast.Call(close, [*pair, *node.args[2 if module == "torch" else 1 :]], node.keywords), "all")
        return node


def _method(owner: ast.expr, name: str) -> ast.Call:
    return ast.Call(ast.Attribute(owner, name, ast.Load()), [], [])


def _plain_test(place: Place, test: Any) -> str:
    """The condition as a tensor: without bool(...), float(...), .item(), torch.equal(...) and their like."""
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        return f"~({_plain_test(place, test.operand)})"
    if isinstance(test, ast.BoolOp):
        return (" & " if isinstance(test.op, ast.And) else " | ").join(
            f"({_plain_test(place, value)})" for value in test.values
        )
    changed = _Tensors().visit(copy.deepcopy(test))
    return place.text(test) if ast.dump(changed) == ast.dump(test) else ast.unparse(changed)


def _mixes_python(test: Node) -> bool:
    """Whether the condition may be decided by Python values, too: `n > 1 and t.sum() > 0`."""
    return any(
        isinstance(value, (ast.BoolOp, ast.NamedExpr))
        or isinstance(value, ast.Compare)
        and (len(value.ops) > 1 or isinstance(value.ops[0], (ast.In, ast.NotIn, ast.Is, ast.IsNot)))
        for value in ast.walk(test)
    ) or (isinstance(test, ast.UnaryOp) and not isinstance(test.operand, ast.Compare))


def _names(text: str) -> set[str]:
    try:
        return {value.id for value in ast.walk(ast.parse(text, mode="eval")) if isinstance(value, ast.Name)}
    except SyntaxError:
        return set()


def _read_in(node: Node) -> set[str]:
    return {value.id for value in ast.walk(node) if isinstance(value, ast.Name) and isinstance(value.ctx, ast.Load)}


def _read(owner: ast.If) -> set[str]:
    """Variables that the branches read: lower-case names that are neither called nor modules by the look of it."""
    called = {
        value.func.id
        for s in (*owner.body, *owner.orelse)
        for value in ast.walk(s)
        if isinstance(value, ast.Call) and isinstance(value.func, ast.Name)
    }
    return (
        {name for s in (*owner.body, *owner.orelse) for name in _read_in(s)}
        - called
        - {"torch", "F", "nn", "np", "math"}
    )


def _carried(loop: ast.While) -> str:
    """Variables that an iteration hands to the next."""
    written = [
        value.id
        for s in loop.body
        for value in ast.walk(s)
        if isinstance(value, ast.Name) and isinstance(value.ctx, ast.Store)
    ]
    return ", ".join(dict.fromkeys(name for name in written))


def _item(place: Place) -> Suggestion | None:
    node = place.node
    if not isinstance(node, ast.Call):
        return None
    module, name = _called(node)
    if module == "math" and hasattr(torch, name) and name in vars(math):
        new = f"torch.{name}({', '.join(map(place.text, node.args))})"
        return f"write {new}", place.exchange(node, new, "gives a tensor")
    inner = None
    if isinstance(node.func, ast.Attribute) and node.func.attr == "item" and not node.args:
        inner = node.func.value
    elif (
        isinstance(node.func, ast.Name)
        and node.func.id in ("float", "int")
        and len(node.args) == 1
        and not node.keywords
    ):
        inner = node.args[0]
    if inner is None:
        return None
    branch = _branch(place)
    if branch is not None:
        return branch
    statement = place.statement()
    text = place.text(inner)
    if isinstance(inner, (ast.BinOp, ast.UnaryOp, ast.IfExp, ast.BoolOp, ast.Compare)):
        text = f"({text})"
    if isinstance(node.func, ast.Name) and node.func.id == "int":
        text += ".int()"
    between = place.path[place.path.index(statement) + 1 : -1]
    simple = isinstance(statement, (ast.Assign, ast.AugAssign, ast.AnnAssign, ast.Return)) and all(
        isinstance(n, (ast.BinOp, ast.UnaryOp, ast.Tuple)) for n in between
    )
    if not simple:
        return f"keep {text} a tensor, and read it once after the compiled region", None
    new = f"{text}.detach()" if isinstance(statement, ast.AugAssign) else text
    holder = (
        place.text(statement.targets[0])
        if isinstance(statement, ast.Assign)
        else place.text(statement.target)
        if hasattr(statement, "target")
        else "the result"
    )
    return (
        f"write {new}: a 0-dim tensor computes like a number; read it with .item() after the compiled region",
        place.exchange(node, new, f"{holder} is a 0-dim tensor then"),
    )


def _called(node: ast.Call) -> tuple[str, str]:
    """("numpy.random", "rand") for np.random.rand(...); the module as it is written."""
    if isinstance(node.func, ast.Attribute):
        return ast.unparse(node.func.value), node.func.attr
    return "", node.func.id if isinstance(node.func, ast.Name) else ""


_NUMPY_NAMES = {"concatenate": "cat", "absolute": "abs", "power": "pow", "amax": "amax", "amin": "amin", "random": ""}


_TO_TENSOR = (("torch", "from_numpy"), ("torch", "tensor"), ("torch", "as_tensor"))


def _numpy(place: Place) -> Suggestion | None:
    node = next((n for n in reversed(place.path) if isinstance(n, ast.Call) and _called(n)[0] in ("np", "numpy")), None)
    if isinstance(node, ast.Call):
        name = _called(node)[1]
        name = _NUMPY_NAMES.get(name, name)
        if name and callable(getattr(torch, name, None)):
            arguments = [
                re.sub(r"(\.detach\(\)|\.cpu\(\))*\.numpy\(\)", "", place.text(a)) for a in (*node.args, *node.keywords)
            ]
            new = f"torch.{name}({', '.join(arguments)})"
            outer = place.path[place.path.index(node) - 1]
            back = isinstance(outer, ast.Call) and _called(outer) in _TO_TENSOR
            return f"write {new}", place.exchange(outer if back else node, new, "" if back else "gives a tensor")
    return None


_RANDOM: dict[tuple[str, str], Callable[[list[str]], str]] = {
    ("random", "random"): lambda a: "torch.rand(())",
    ("random", "uniform"): lambda a: f"torch.empty(()).uniform_({a[0]}, {a[1]})",
    ("random", "randint"): lambda a: f"torch.randint({a[0]}, {a[1]} + 1, ())",
    ("random", "randrange"): lambda a: (
        f"torch.randint({', '.join(a)}, ())" if len(a) == 2 else f"torch.randint({a[0]}, ())"
    ),
    ("random", "gauss"): lambda a: f"(torch.randn(()) * {a[1]} + {a[0]})",
    ("random", "normalvariate"): lambda a: f"(torch.randn(()) * {a[1]} + {a[0]})",
    ("np.random", "rand"): lambda a: f"torch.rand({', '.join(a) or '()'})",
    ("np.random", "randn"): lambda a: f"torch.randn({', '.join(a) or '()'})",
    ("np.random", "uniform"): lambda a: f"torch.empty(()).uniform_({a[0]}, {a[1]})",
}


def _random(place: Place) -> Suggestion | None:
    statement = place.statement()
    if isinstance(statement, (ast.If, ast.While)):
        drawn = next(
            (value for value in ast.walk(statement.test) if isinstance(value, ast.Call) and _called(value) in _RANDOM),
            None,
        )
        if drawn is None:
            return None
        what = place.text(drawn)
        return f"draw {what} before the compiled region, for a loop all at once: a branch on a draw ends a graph", None
    node = place.parent(ast.Call)
    maker = _RANDOM.get(_called(node)) if isinstance(node, ast.Call) and not node.keywords else None
    if maker is None:
        return None
    changed, made = node, "a tensor, drawn by torch's generator"
    if _called(node)[0] == "np.random" and node.args:  # an array: what stands around it may be numpy's
        changed = place.path[place.path.index(node) - 1]
        if not isinstance(changed, ast.Call) or _called(changed) not in _TO_TENSOR:
            return None
        made = "drawn by torch's generator, in float32"
    try:
        new = maker([place.text(arg) for arg in node.args])
    except IndexError:
        return None
    return f"write {new}", place.exchange(changed, new, made)


def _masked(place: Place) -> Suggestion | None:
    """x[mask].sum() and the like: the same over all elements."""
    node: Any = place.node
    if isinstance(node, ast.Subscript):
        x, mask = place.text(node.value), place.text(node.slice)
    elif isinstance(node, ast.Call) and _called(node)[1] == "masked_select":
        parts = [place.text(arg) for arg in node.args]
        x, mask = parts if len(parts) == 2 else (_called(node)[0], parts[0]) if parts else ("", "")
    else:
        return None
    at = place.path.index(node)
    attribute, call = (place.path[at - 1], place.path[at - 2]) if at >= 2 else (None, None)
    if isinstance(attribute, ast.Attribute) and isinstance(call, ast.Call) and not call.args and not call.keywords:
        new = {
            "sum": f"torch.where({mask}, {x}, 0).sum()",
            "mean": f"(torch.where({mask}, {x}, 0).sum() / ({mask}).sum())",
            "numel": f"({mask}).sum()",
            "max": f"torch.where({mask}, {x}, -torch.inf).max()",
            "min": f"torch.where({mask}, {x}, torch.inf).min()",
        }.get(attribute.attr)
        if new:
            return f"write {new}", place.exchange(call, new, "the mask has the shape of the tensor")
    return f"keep the shape: torch.where({mask}, {x}, 0), and reduce with the mask", None


def _tensor_attribute(place: Place) -> Suggestion | None:
    statement = place.statement()
    if (
        isinstance(statement, ast.Assign)
        and len(statement.targets) == 1
        and isinstance(statement.targets[0], ast.Attribute)
        and statement.targets[0].attr == "data"
    ):
        new = f"{place.text(statement.targets[0].value)}.detach().copy_({place.text(statement.value)})"
        return f"write {new}", place.exchange(statement, new, "writes into the memory that the tensor has")
    call = place.node
    if (
        isinstance(call, ast.Call)
        and isinstance(call.func, ast.Attribute)
        and isinstance(statement, ast.Expr)
        and statement.value is call
    ):
        name, owner = call.func.attr, place.text(call.func.value)
        if name in ("t_", "transpose_", "swapaxes_", "squeeze_", "unsqueeze_", "detach_") and isinstance(
            call.func.value, ast.Name
        ):
            new = f"{owner} = {owner}.{name[:-1]}({', '.join(map(place.text, call.args))})"
            return f"write {new}", place.exchange(statement, new)
    return None


def _generator(place: Place) -> Suggestion | None:
    node = place.parent(ast.GeneratorExp)
    if node is None:
        return None
    inner = place.text(node)
    inner = inner[1:-1] if inner.startswith("(") else inner
    call = place.path[place.path.index(node) - 1]
    # f(x for x in y)
    shared = isinstance(call, ast.Call) and (node.lineno, node.col_offset) == (
        call.func.end_lineno,
        call.func.end_col_offset,
    )
    return f"write [{inner}]", place.exchange(node, f"([{inner}])" if shared else f"[{inner}]")


def _iterator(place: Place) -> Suggestion | None:
    loop = place.parent((ast.For, ast.AsyncFor))
    if loop is None or not (place.node is loop or _within(loop.iter, place.node)):
        return None
    return (
        "no change is needed: the loop runs as it is, and each of its turns is compiled (over a list, several turns may"
        " be one graph)",
        None,
    )


_MAKERS: tuple[tuple[frozenset, Callable[[Place], Suggestion | None]], ...] = (
    (frozenset(("item",)), _item),
    (frozenset(("choice", "data_dependent_branch")), _extreme),
    (frozenset(("data_dependent_branch", "item", "data_dependent_loop")), _branch),
    (frozenset(("numpy",)), _numpy),
    (frozenset(("random_python", "numpy", "rng_state", "c_call", "unknown_object")), _random),
    (frozenset(("data_dependent_shape",)), _masked),
    (frozenset(("tensor_attribute", "tensor_data")), _tensor_attribute),
    (frozenset(("generator",)), _generator),
    (frozenset(("iterator",)), _iterator),
)

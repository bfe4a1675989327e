# lab: 5
# name: graph_breaks
# minutes: 85
# stage: capture

# %% text: story

# %% given: tools
import ast
import inspect
import linecache
import textwrap

import torch

import tcompile
from tcompile.labs.plugs import Decline, explain_with, split_stage

torch.manual_seed(0)
x, y = torch.randn(64, 128), torch.randn(64, 128)


def body_of(function):
    """The statements of a function without control flow, as Python's own trees."""
    if function.__code__.co_freevars:
        raise Decline("a closure")
    body = ast.parse(textwrap.dedent(inspect.getsource(function))).body[0].body
    if isinstance(body[0], ast.Expr) and isinstance(body[0].value, ast.Constant):
        body = body[1:]  # the docstring
    if not all(isinstance(s, (ast.Assign, ast.AugAssign, ast.Expr, ast.Return)) for s in body):
        raise Decline("control flow")
    return body


def parameters_of(function):
    return list(inspect.signature(function).parameters)


def make(name, parameters, body, results, function):
    """A function of these statements, in the globals of `function`. `results`: the names that it gives as a tuple, or
    None where the statements return by themselves."""
    lines = [ast.unparse(s) for s in body]
    if results is not None:
        lines.append(f"return ({''.join(r + ', ' for r in results)})")
    text = f"def {name}({', '.join(parameters)}):\n" + textwrap.indent("\n".join(lines), "    ") + "\n"
    file = f"<{name} {abs(hash(text))}>"
    linecache.cache[file] = (len(text), None, text.splitlines(True), file)
    names = {}
    exec(compile(text, file, "exec"), function.__globals__, names)
    return names[name]


def report_loss(x, y):
    h = torch.sin(x) * y
    loss = h.pow(2).mean()
    print(f"loss {float(loss):.3f}")
    h = h / (loss + 1)
    return torch.relu(h)


# %% text: listing

# %% show: listing
for place, statement in enumerate(body_of(report_loss)):
    print(place, ast.unparse(statement))


# %% exercise: names_of
def names_of(statement):
    """(reads, writes): the sets of names that a statement reads and binds."""
    # BEGIN SOLUTION
    reads, writes = set(), set()
    for node in ast.walk(statement):
        if isinstance(node, ast.Name):
            (reads if isinstance(node.ctx, ast.Load) else writes).add(node.id)
    if isinstance(statement, ast.AugAssign) and isinstance(statement.target, ast.Name):
        reads.add(statement.target.id)
    return reads, writes
    # END SOLUTION


# %% exercise: live
def live(body, place, known):
    """The names of `known` that the statements from `place` on need: they read them before they bind them. Sorted."""
    # BEGIN SOLUTION
    needed, bound = set(), set()
    for statement in body[place:]:
        reads, writes = names_of(statement)
        needed |= reads - bound
        bound |= writes
    return sorted(needed & set(known))
    # END SOLUTION


# %% exercise: breaks
def breaks(statement):
    """Whether a statement needs a tensor's value in Python: it calls print, int, float or bool, or .item() or .tolist()."""
    # BEGIN SOLUTION
    for node in ast.walk(statement):
        if isinstance(node, ast.Call):
            function = node.func
            if isinstance(function, ast.Name) and function.id in ("print", "int", "float", "bool"):
                return True
            if isinstance(function, ast.Attribute) and function.attr in ("item", "tolist"):
                return True
    return False
    # END SOLUTION


# %% given: split
def split(function):
    return split_body(function, body_of(function))


# %% exercise: split_body
def split_body(function, body):
    """(before, native, after) around the first statements that break, or None where none does.

    before(*parameters) gives a tuple of what the rest needs, native(*that) a tuple of what `after` needs, and
    after(*that) the function's result. Statements that break and follow each other are one native part.
    """
    # BEGIN SOLUTION
    first = next((i for i, s in enumerate(body) if breaks(s)), None)
    if first is None:
        return None
    end = first
    while end < len(body) and breaks(body[end]) and not isinstance(body[end], ast.Return):
        end += 1
    if end == first:
        raise Decline("what is returned breaks")
    known = set(parameters_of(function)).union(*(names_of(s)[1] for s in body))
    into = live(body, first, known)
    out = live(body, end, known)
    before = make("before", parameters_of(function), body[:first], into, function)
    native = make("native", into, body[first:end], out, function)
    after = make("after", out, body[end:], None, function)
    return before, native, after
    # END SOLUTION


# %% text: plugged

# %% show: picture
report = explain_with("capture", split_stage(split), report_loss, x, y)
course.stages(report)

# %% show: kernels
course.kernels(report)

# %% text: challenge-story


# %% given: chatty
def chatty(x, y):
    a = torch.sin(x) * 2
    print(f"a {float(a.mean()):.3f}")
    b = torch.cos(y) + a
    print(f"b {float(b.mean()):.3f}")
    c = torch.relu(b - a)
    total = c.sum(-1)
    print("done")
    return total


# %% given: split_late
def split_late(function):
    return split_body(function, reorder(body_of(function)))


# %% exercise: reorder challenge
def reorder(body):
    """The same statements in an order with fewer breaks: what does not break goes first, where that changes nothing."""

    # BEGIN SOLUTION
    def changes_in_place(statement):
        if isinstance(statement, ast.AugAssign):
            return True
        for node in ast.walk(statement):
            if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store):
                return True
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                name = node.func.attr
                if name.endswith("_") and not name.endswith("__"):
                    return True
        return False

    def must_follow(later, earlier):
        """Whether a statement must stay behind one that stood before it."""
        if isinstance(later, ast.Return) or changes_in_place(later) or changes_in_place(earlier):
            return True
        if breaks(later) and breaks(earlier):
            return True
        reads, writes = names_of(later)
        read_before, written_before = names_of(earlier)
        return bool(reads & written_before or writes & read_before or writes & written_before)

    left, out = list(body), []
    while left:
        ready = [s for i, s in enumerate(left) if not any(must_follow(s, e) for e in left[:i])]
        chosen = next((s for s in ready if not breaks(s)), ready[0])
        left.remove(chosen)
        out.append(chosen)
    return out
    # STUDENT
    # return body
    # END SOLUTION


# %% show: late_picture
plain = explain_with("capture", split_stage(split), chatty, x, y)
late = explain_with("capture", split_stage(split_late), chatty, x, y)
course.bars(
    {
        "graphs": {"in order": len(plain.graphs), "reordered": len(late.graphs)},
        "kernels": {"in order": len(plain.kernels), "reordered": len(late.kernels)},
    }
)

# %% tests
import ast
import contextlib
import io

import torch

import tcompile
from tcompile.labs.plugs import explain_with, split_stage
from tcompile.labs.testing import at_most, holds, same, stage_ran, tensors_close


def statement(text):
    return ast.parse(text).body[0]


def body(*lines):
    return [
        statement(line) if not line.startswith("return") else ast.parse(f"def f():\n {line}").body[0].body[0]
        for line in lines
    ]


def names(lab, text, reads, writes):
    got = lab.names_of(body(text)[0])
    same(tuple(set(part) for part in got), (set(reads), set(writes)), what=f"names_of({text})", look="names")


def spoken(program, *args):
    with contextlib.redirect_stdout(io.StringIO()) as out:
        result = program(*args)
    return result, out.getvalue()


def compiled(lab, split, program, *args, times=2):
    """The report of `times` calls with a student's split in the pipeline; each call right, with its prints."""
    said = []
    with tcompile.stages.replace("capture", split_stage(split)), tcompile.config.patch(suppress_errors=False):
        fast = tcompile.compile(program)
        with tcompile.record() as record:
            for _ in range(times):
                said.append(spoken(fast, *[a.clone() for a in args]))
    for got, words in said:
        want, wanted = spoken(program, *[a.clone() for a in args])
        tensors_close(got, want, what=f"{program.__name__}(x, y)", look="split")
        same(words, wanted, what=f"what {program.__name__} prints", look="effects")
    report = record.report()
    stage_ran(report, "capture", split, look="plug")
    return report


def two_breaks(x, y):
    a = x * 2
    n = int(a.sum())
    b = a + n
    print("n", n)
    c = torch.tanh(b) * y
    return c - a


def unused(x, y):
    waste = torch.exp(x)
    h = x + y
    print("shape", tuple(h.shape), float(waste.max()) > 0)
    return h * 3


def order_of(lab, lines):
    before = body(*lines)
    after = lab.reorder(list(before))
    same(
        sorted(map(ast.unparse, after)),
        sorted(map(ast.unparse, before)),
        what="the statements of reorder(body)",
        look="order",
    )
    return [ast.unparse(s) for s in after]


def moves(lab):
    """Nothing is right by chance: statements move where they may."""
    same(order_of(lab, ["print(x)", "a = x + 1", "return a"])[0], "a = x + 1", what="reorder(body)[0]", look="order")


def three(parts, words):
    holds(isinstance(parts, tuple) and len(parts) == 3, what=f"{words} is (before, native, after)", look="split")
    return parts


def late(lab):
    x = torch.linspace(0.1, 1, 24).reshape(4, 6)
    report = compiled(lab, lab.split_late, lab.chatty, x, x + 1, times=1)
    return {"graphs": len(report.graphs), "kernels": len(report.kernels)}


# %% test: names_of points=2
def test_names_of_assignments(lab):
    names(lab, "h = torch.sin(x) * y", {"torch", "x", "y"}, {"h"})
    names(lab, "print(loss)", {"print", "loss"}, set())
    names(lab, "return a + b", {"a", "b"}, set())


# %% hidden: names_of points=1
def test_names_that_are_both(lab):
    names(lab, "x += y", {"x", "y"}, {"x"})
    names(lab, "a, b = b, a", {"a", "b"}, {"a", "b"})
    names(lab, "x[0] = y", {"x", "y"}, set())
    names(lab, "h.grad = y", {"h", "y"}, set())


# %% test: live points=3
def test_what_is_live(lab):
    lines = body("h = x * y", "loss = h.mean()", "h = h / loss", "return h")
    known = {"x", "y", "h", "loss"}
    same(lab.live(lines, 0, known), ["x", "y"], what="live(body, 0, known)", look="live")
    same(lab.live(lines, 2, known), ["h", "loss"], what="live(body, 2, known)", look="live")
    same(lab.live(lines, 3, known), ["h"], what="live(body, 3, known)", look="live")


# %% hidden: live points=2
def test_bound_before_read_is_not_live(lab):
    lines = body("h = x", "h = y + 1", "h += z", "return h")
    same(lab.live(lines, 1, {"x", "y", "z", "h"}), ["y", "z"], what="live of h = y + 1; h += z; return h", look="live")
    same(lab.live(lines, 2, {"x", "y", "z", "h"}), ["h", "z"], what="live of h += z; return h", look="live")
    same(lab.live(lines, 4, {"x", "y"}), [], what="live behind the end", look="live")


# %% test: breaks points=2
def test_what_breaks(lab):
    for text, want in (
        ("print(x)", True),
        ("n = int(x.sum())", True),
        ("n = x.max().item()", True),
        ("h = x * 2", False),
    ):
        same(lab.breaks(statement(text)), want, what=f"breaks({text})", look="breaks")


# %% hidden: breaks points=1
def test_deep_and_similar(lab):
    cases = (
        ("h = x * (1 + float(x.max()))", True),
        ("x = x.int()", False),
        ("h = printed(x)", False),
        ("v = x.tolist()", True),
    )
    for text, want in cases:
        same(lab.breaks(statement(text)), want, what=f"breaks({text})", look="breaks")


# %% test: split_body points=5
def test_the_parts_make_the_whole(lab):
    x, y = torch.linspace(-1, 1, 12), torch.ones(12)
    before, native, after = three(lab.split(lab.report_loss), "split(report_loss)")
    got, said = spoken(lambda: after(*native(*before(x, y))))
    want, wanted = spoken(lab.report_loss, x, y)
    tensors_close(got, want, what="after(*native(*before(x, y)))", look="split")
    same(said, wanted, what="what the parts print", look="effects")


def test_it_breaks_in_the_real_pipeline(lab):
    x = torch.linspace(-1, 1, 24).reshape(4, 6)
    report = compiled(lab, lab.split, lab.report_loss, x, x + 1)
    same(len(report.graphs), 2, what="graphs of report_loss", look="plug")


# %% hidden: split_body points=3
def test_the_rest_is_split_again(lab):
    x = torch.linspace(-1, 1, 24).reshape(4, 6)
    report = compiled(lab, lab.split, two_breaks, x, x + 1)
    same(len(report.graphs), 3, what="graphs of two_breaks", look="again")


def test_only_what_is_needed_is_handed_on(lab):
    before, native, after = three(lab.split(unused), "split(unused)")
    same(
        sorted(after.__code__.co_varnames[: after.__code__.co_argcount]),
        ["h"],
        what="parameters of after",
        look="handed",
    )
    x = torch.linspace(-1, 1, 24).reshape(4, 6)
    compiled(lab, lab.split, unused, x, x + 1)


def test_without_a_break_there_is_nothing_to_split(lab):
    def plain(x):
        return x + 1

    same(lab.split(plain), None, what="split(a function without a break)", look="plug")


def test_breaks_in_a_row_are_one(lab):
    code = body("h = x + 1", "print(h)", "n = float(h.sum())", "return h * n")
    before, native, after = three(lab.split_body(two_breaks, code), "split_body(two_breaks, body)")
    same(
        sorted(after.__code__.co_varnames[: after.__code__.co_argcount]),
        ["h", "n"],
        what="parameters of after",
        look="row",
    )


# %% test: reorder points=4
def test_the_order_is_better(lab):
    lines = ["a = x * 2", "print(a)", "b = y + 1", "c = a + b", "return c"]
    want = ["a = x * 2", "b = y + 1", "c = a + b", "print(a)", "return c"]
    same(order_of(lab, lines), want, what="reorder(body)", look="order")


def test_chatty_is_whole(lab):
    at_most(late(lab)["graphs"], 2, what="graphs of chatty, reordered", look="order")


# %% hidden: reorder points=3
def test_what_depends_stays_behind(lab):
    moves(lab)
    lines = ["n = int(x.sum())", "h = x * n", "print(h)", "h = h + 1", "return h"]
    same(order_of(lab, lines), lines, what="reorder(body)", look="depends")


def test_prints_stay_in_order(lab):
    lines = ["print(x)", "a = x + 1", "print(a)", "print(y)", "return a"]
    want = ["a = x + 1", "print(x)", "print(a)", "print(y)", "return a"]
    same(order_of(lab, lines), want, what="reorder(body)", look="depends")


def test_changes_in_place_are_not_crossed(lab):
    moves(lab)
    for change in ("v += 1", "v.add_(1)", "v[0] = 0"):
        lines = ["v = x[0]", "print(x)", change, "return x * 2"]
        same(order_of(lab, lines), lines, what=f"reorder(body with {change})", look="alias")


def test_chatty_is_one_graph(lab):
    at_most(late(lab)["graphs"], 1, what="graphs of chatty, reordered", look="order")


# %% score
def score(lab):
    return late(lab)

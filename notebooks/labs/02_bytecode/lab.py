# lab: 2
# name: bytecode
# minutes: 80
# stage: capture

# %% text: story

# %% given: machine
import builtins
import operator

import torch

from tcompile.labs.plugs import Decline, capture_stage, explain_with, instructions, tracing

torch.manual_seed(0)
x, y = torch.randn(64, 128), torch.randn(64, 128)
scale = 2.0


class Null:
    def __repr__(self):
        return "NULL"


NULL = Null()  # the empty slot of a call


class Frame:
    """A function that is being run: its stack, its locals, its globals."""

    def __init__(self, function, values):
        self.stack = []
        self.locals = dict(values)
        self.globals = function.__globals__

    def push(self, value):
        self.stack.append(value)

    def pop(self):
        return self.stack.pop()


def blend(x, y):
    h = torch.relu(x + y) * scale
    return h.sum(-1, keepdim=True)


# %% text: listing

# %% show: listing
for ins in instructions(blend):
    print(ins)


# %% exercise: do_data
def do_data(ins, frame):
    """LOAD_FAST, STORE_FAST, LOAD_CONST, POP_TOP. Gives True if it was one of these, else False."""
    # BEGIN SOLUTION
    if ins.op == "LOAD_FAST":
        frame.push(frame.locals[ins.arg])
    elif ins.op == "STORE_FAST":
        frame.locals[ins.arg] = frame.pop()
    elif ins.op == "LOAD_CONST":
        frame.push(ins.arg)
    elif ins.op == "POP_TOP":
        frame.pop()
    else:
        return False
    return True
    # END SOLUTION


# %% given: operators
BINARY = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": operator.truediv,
    "//": operator.floordiv,
    "%": operator.mod,
    "**": operator.pow,
    "@": operator.matmul,
}
COMPARE = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "==": operator.eq,
    "!=": operator.ne,
}


# %% exercise: do_operator
def do_operator(ins, frame):
    """BINARY_OP (ins.arg is "+", or "+=" for x += y), COMPARE_OP and UNARY_NEGATIVE."""
    # BEGIN SOLUTION
    if ins.op == "BINARY_OP":
        right, left = frame.pop(), frame.pop()
        sign = ins.arg
        if sign.endswith("=") and isinstance(left, (torch.Tensor, torch.fx.Proxy)):
            raise Decline("a tensor is changed in place")
        function = BINARY.get(sign.removesuffix("="))
        if function is None:
            raise Decline(f"the operator {sign}")
        frame.push(function(left, right))
    elif ins.op == "COMPARE_OP":
        right, left = frame.pop(), frame.pop()
        frame.push(COMPARE[ins.arg](left, right))
    elif ins.op == "UNARY_NEGATIVE":
        frame.push(-frame.pop())
    else:
        return False
    return True
    # END SOLUTION


# %% exercise: do_name
def do_name(ins, frame):
    """LOAD_GLOBAL, LOAD_ATTR, LOAD_METHOD and PUSH_NULL."""
    # BEGIN SOLUTION
    if ins.op == "LOAD_GLOBAL":
        name = ins.arg
        frame.push(frame.globals[name] if name in frame.globals else getattr(builtins, name))
    elif ins.op == "LOAD_ATTR":
        frame.push(getattr(frame.pop(), ins.arg))
    elif ins.op == "LOAD_METHOD":
        method = getattr(frame.pop(), ins.arg)
        frame.push(NULL)
        frame.push(method)
    elif ins.op == "PUSH_NULL":
        frame.push(NULL)
    else:
        return False
    return True
    # END SOLUTION


# %% exercise: do_call
def do_call(ins, frame):
    """CALL: ins.arg arguments lie on the stack, the last len(ins.kwnames) of them by name."""
    # BEGIN SOLUTION
    if ins.op != "CALL":
        return False
    args = [frame.pop() for _ in range(ins.arg)][::-1]
    first = len(args) - len(ins.kwnames)
    named = dict(zip(ins.kwnames, args[first:]))
    upper, lower = frame.pop(), frame.pop()
    function = upper if lower is NULL else lower
    if function is print:
        raise Decline("print has an effect")
    frame.push(function(*args[:first], **named))
    return True
    # END SOLUTION


# %% exercise: interpret
def interpret(function, values):
    """Run a function without jumps on `values` (arguments by name); give its result. Decline what you do not know."""
    # BEGIN SOLUTION
    frame = Frame(function, values)
    for ins in instructions(function):
        if ins.op == "RETURN_VALUE":
            return frame.pop()
        if not any(do(ins, frame) for do in (do_data, do_operator, do_name, do_call)):
            raise Decline(f"the instruction {ins.op}")
    # END SOLUTION


# %% text: plugged

# %% show: picture
report = explain_with("capture", capture_stage(tracing(interpret)), blend, x, y)
course.stages(report)

# %% show: kernels
course.kernels(report)

# %% text: challenge-story


# %% given: harder
def pair(x, k):
    a, b = x * k, -x
    return a, b


def choose(x, k):
    if k > 2:
        x = x.sin()
    return x + 1


def repeat(x, k):
    for i in range(k):
        x = x * 0.5 + i
    return x


def last(x, k):
    parts = torch.chunk(x, 2)
    return parts[-1] * k


HARDER = (pair, choose, repeat, last)


# %% exercise: interpret_more challenge
def interpret_more(function, values):
    """As `interpret`, with tuples, items, jumps and loops."""
    # BEGIN SOLUTION
    frame = Frame(function, values)
    code = instructions(function)
    place = 0
    while True:
        ins = code[place]
        place += 1
        if ins.op == "RETURN_VALUE":
            return frame.pop()
        if ins.op == "BUILD_TUPLE":
            items = [frame.pop() for _ in range(ins.arg)][::-1]
            frame.push(tuple(items))
        elif ins.op == "UNPACK_SEQUENCE":
            items = list(frame.pop())
            for item in reversed(items):
                frame.push(item)
        elif ins.op == "SWAP":
            frame.stack[-1], frame.stack[-ins.arg] = frame.stack[-ins.arg], frame.stack[-1]
        elif ins.op == "BINARY_SUBSCR":
            key, value = frame.pop(), frame.pop()
            frame.push(value[key])
        elif ins.op == "GET_ITER":
            frame.push(iter(frame.pop()))
        elif ins.op == "FOR_ITER":
            try:
                frame.push(next(frame.stack[-1]))
            except StopIteration:
                frame.pop()
                place = ins.target.index
        elif ins.op == "JUMP":
            place = ins.target.index
        elif ins.op in ("POP_JUMP_IF_FALSE", "POP_JUMP_IF_TRUE"):
            if bool(frame.pop()) == (ins.op == "POP_JUMP_IF_TRUE"):
                place = ins.target.index
        elif not any(do(ins, frame) for do in (do_data, do_operator, do_name, do_call)):
            raise Decline(f"the instruction {ins.op}")
    # STUDENT
    # return interpret(function, values)
    # END SOLUTION


# %% tests
import math

import torch

from tcompile.labs.plugs import capture_stage, explain_with, instructions, tracing
from tcompile.labs.testing import at_most, holds, raises, same, stage_ran, tensors_close


def step(lab, name, op, stack, locals_=None, globals_=None, **fields):
    """What one instruction makes of a stack: (done, stack, locals)."""

    def some():
        pass

    ins = instructions(some)[0].copy(op=op, **fields)
    frame = lab.Frame(some, locals_ or {})
    frame.globals = globals_ or {}
    frame.stack = list(stack)
    done = getattr(lab, name)(ins, frame)
    return done, frame.stack, frame.locals


def leaves(lab, name, op, **fields):
    """A handler leaves alone what is not its own."""
    got = step(lab, name, op, [1, 2], {"a": 7}, **fields)[:2]
    same(got, (False, [1, 2]), f"{name}({op}): (done, stack)", "own")


def called(stack):
    """The two slots of a call without the NULL, whichever it is."""
    return [v for v in stack if type(v).__name__ != "Null"]


def plugged(lab, name, program, *args):
    """The report of a call with the student's interpreter as capture."""
    function = getattr(lab, name)
    report = explain_with("capture", capture_stage(tracing(function)), program, *args)
    tensors = report.result if isinstance(report.result, tuple) else (report.result,)
    wanted = program(*args)
    wanted = wanted if isinstance(wanted, tuple) else (wanted,)
    same(len(tensors), len(wanted), what=f"len({program.__name__}(...))", look="plug")
    for got, want in zip(tensors, wanted):
        tensors_close(got, want, what=f"{program.__name__}(...)", look="plug")
    return report


def ran(lab, name, program, *args):
    report = plugged(lab, name, program, *args)
    stage_ran(report, "capture", getattr(lab, name), look="plug")
    same(len(report.graphs), 1, what="len(report.graphs)", look="plug")
    return report


def square(x):
    return x * x


def mixed(x, k):
    h = torch.clamp(x, min=-0.5, max=0.5) ** 2 / k
    h = h - x.mean(dim=-1, keepdim=True)
    return -h


def declined_of(lab):
    count = 0
    for program in lab.HARDER:
        report = plugged(lab, "interpret_more", program, torch.linspace(-1, 1, 24).reshape(4, 6), 3)
        count += sum(st.declined for st in report.stages if st.name == "capture")
    return count


# %% test: do_data points=2
def test_data_instructions(lab):
    same(step(lab, "do_data", "LOAD_FAST", [1], {"a": 7}, arg="a")[:2], (True, [1, 7]), "LOAD_FAST a", "stack")
    same(step(lab, "do_data", "LOAD_CONST", [], arg=3)[:2], (True, [3]), "LOAD_CONST 3", "stack")
    same(step(lab, "do_data", "STORE_FAST", [1, 2], arg="b"), (True, [1], {"b": 2}), "STORE_FAST b", "stack")
    same(step(lab, "do_data", "POP_TOP", [1, 2])[:2], (True, [1]), "POP_TOP", "stack")


def test_other_instructions_are_not_data(lab):
    same(step(lab, "do_data", "CALL", [1, 2], arg=0)[:2], (False, [1, 2]), "do_data(CALL)", "stack")


# %% hidden: do_data points=1
def test_constants_are_pushed_as_they_are(lab):
    for value in (None, False, 0, "", (1, 2)):
        same(
            step(lab, "do_data", "LOAD_CONST", [9], arg=value)[:2], (True, [9, value]), f"LOAD_CONST {value!r}", "stack"
        )
    same(step(lab, "do_data", "LOAD_FAST", [], {"a": None}, arg="a")[:2], (True, [None]), "LOAD_FAST a", "stack")


# %% test: do_operator points=3
def test_operators_take_left_and_right(lab):
    for sign, want in (("-", 5), ("/", 3.5), ("//", 3), ("%", 1), ("**", 49)):
        same(step(lab, "do_operator", "BINARY_OP", [0, 7, 2], arg=sign)[:2], (True, [0, want]), f"7 {sign} 2", "order")
    same(step(lab, "do_operator", "COMPARE_OP", [7, 2], arg="<")[:2], (True, [False]), "7 < 2", "order")
    same(step(lab, "do_operator", "UNARY_NEGATIVE", [7])[:2], (True, [-7]), "-7", "order")


# %% hidden: do_operator points=2
def test_in_place_operators_on_numbers(lab):
    leaves(lab, "do_operator", "LOAD_FAST", arg="a")
    same(step(lab, "do_operator", "BINARY_OP", [7, 2], arg="-=")[:2], (True, [5]), "7 -= 2", "in-place")


def test_in_place_on_a_tensor_is_not_lost(lab):
    def grow(x):
        x += 1
        return x * 2

    a, b = torch.ones(4), torch.ones(4)
    want = grow(b)
    function = lab.interpret
    report = explain_with("capture", capture_stage(tracing(function)), grow, a)
    tensors_close(report.result, want, "grow(x)", "in-place")
    tensors_close(a, b, "x after grow(x)", "in-place")


# %% test: do_name points=3
def test_names(lab):
    same(step(lab, "do_name", "LOAD_GLOBAL", [], None, {"k": 4}, arg="k")[:2], (True, [4]), "LOAD_GLOBAL k", "names")
    same(step(lab, "do_name", "LOAD_GLOBAL", [], arg="len")[:2], (True, [len]), "LOAD_GLOBAL len", "names")
    same(step(lab, "do_name", "LOAD_ATTR", [0, math], arg="pi")[:2], (True, [0, math.pi]), "LOAD_ATTR pi", "names")


def test_a_method_takes_two_slots(lab):
    done, stack, _ = step(lab, "do_name", "LOAD_METHOD", [5, "text"], arg="upper")
    same((done, len(stack)), (True, 3), "LOAD_METHOD upper: (done, len(stack))", "method")
    same(called(stack[1:])[0](), "TEXT", "the method that was pushed, called", "method")


# %% hidden: do_name points=1
def test_globals_before_builtins(lab):
    same(
        step(lab, "do_name", "LOAD_GLOBAL", [], None, {"len": 4}, arg="len")[:2],
        (True, [4]),
        "LOAD_GLOBAL len",
        "names",
    )
    same(step(lab, "do_name", "LOAD_GLOBAL", [], None, {"k": 0}, arg="k")[:2], (True, [0]), "LOAD_GLOBAL k", "names")
    leaves(lab, "do_name", "BINARY_OP", arg="+")


# %% test: do_call points=3
def test_a_call_with_names(lab):
    null = lab.NULL
    got = step(lab, "do_call", "CALL", ["below", null, dict, 1, 2], arg=2, kwnames=("a", "b"))[:2]
    same(got, (True, ["below", {"a": 1, "b": 2}]), "dict(a=1, b=2)", "call")
    same(step(lab, "do_call", "CALL", [null, pow, 2, 5], arg=2)[:2], (True, [32]), "pow(2, 5)", "call")


# %% hidden: do_call points=2
def test_the_empty_slot_on_either_side(lab):
    same(step(lab, "do_call", "CALL", [len, lab.NULL, "abc"], arg=1)[:2], (True, [3]), "len('abc')", "call")
    leaves(lab, "do_call", "STORE_FAST", arg="a")


def test_calls_with_both_kinds_of_arguments(lab):
    null = lab.NULL
    got = step(lab, "do_call", "CALL", [null, sorted, [3, 1, 2], True], arg=2, kwnames=("reverse",))[:2]
    same(got, (True, [[3, 2, 1]]), "sorted(list, reverse=True)", "call")
    same(step(lab, "do_call", "CALL", [null, list], arg=0)[:2], (True, [[]]), "list()", "call")


# %% test: interpret points=4
def test_it_runs_plain_python(lab):
    def plain(a, b):
        c = a * b
        return max(c, 3) - b

    same(lab.interpret(plain, {"a": 5, "b": 2}), 8, "interpret(plain, {'a': 5, 'b': 2})", "loop")


def test_it_captures_in_the_real_pipeline(lab):
    ran(lab, "interpret", lab.blend, torch.ones(4, 8), torch.ones(4, 8))


# %% hidden: interpret points=2
def test_it_captures_other_programs(lab):
    ran(lab, "interpret", square, torch.arange(6.0))
    ran(lab, "interpret", mixed, torch.linspace(-1, 1, 12, dtype=torch.float64).reshape(3, 4), 4)


def test_what_it_does_not_know_it_declines(lab):
    def branch(x):
        return x + 1 if x.sum() > 0 else x - 1

    raises(
        lab.Decline, lambda: lab.interpret(branch, {"x": torch.ones(3)}), "interpret(a function with a jump)", "decline"
    )
    plugged(lab, "interpret", branch, torch.ones(3))


def test_prints_are_not_swallowed(lab):
    def speaking(x):
        print("here")
        return x * 2

    report = plugged(lab, "interpret", speaking, torch.ones(3))
    holds(sum(st.declined for st in report.stages if st.name == "capture"), "interpret declines print", "effect")


# %% test: interpret_more points=3
def test_branches_and_tuples(lab):
    x = torch.linspace(-1, 1, 8)
    ran(lab, "interpret_more", lab.pair, x, 3)
    for k in (1, 5):
        ran(lab, "interpret_more", lab.choose, x, k)


# %% test: interpret_more points=2
def test_loops_and_items(lab):
    x = torch.linspace(-1, 1, 8)
    ran(lab, "interpret_more", lab.repeat, x, 3)
    ran(lab, "interpret_more", lab.last, x, 3)


# %% hidden: interpret_more points=2
def test_a_loop_that_never_runs(lab):
    plugged(lab, "interpret_more", lab.repeat, torch.ones(3), 0)
    ran(lab, "interpret_more", lab.repeat, torch.ones(3), 1)


def test_a_branch_on_a_tensor_is_declined_and_right(lab):
    def branch(x, k):
        if x.sum() > 0:
            return x + k
        return x - k

    for x in (torch.ones(3), -torch.ones(3)):
        plugged(lab, "interpret_more", branch, x, 2)


def test_nothing_of_the_harder_programs_is_declined(lab):
    at_most(declined_of(lab), 0, "declined programs of the harder four", "decline")


# %% score
def score(lab):
    return {"declined": declined_of(lab)}

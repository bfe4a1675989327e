# lab: 6
# name: dynamic_shapes
# minutes: 70
# stage: capture

# %% text: story

# %% given: programs
import operator

import torch

import tcompile
from tcompile.labs.plugs import explain_with, sizes_stage

OPERATORS = {"<": operator.lt, ">": operator.gt, "==": operator.eq}


def wave(x):
    return torch.sin(x) + 1


def moody(x):
    n = x.shape[0]
    if n > 16:
        x = x * 2
    if n % 2 == 1:
        x = x + 1
    return x / n


# %% show: two_ways
def compilations(program, shapes, dynamic=True):
    """Of each call, whether it compiled."""
    fast, entries = tcompile.compile(program, dynamic=dynamic), [0]
    with tcompile.record() as record:
        for shape in shapes:
            fast(torch.ones(shape))
            entries.append(len(record.report().entries))
    return [after > before for before, after in zip(entries, entries[1:])]


rows = (4, 5, 6, 7, 1, 9)
shapes = [(n, 8) for n in rows]
course.timeline(
    {"numbers": compilations(wave, shapes, dynamic=False), "symbols": compilations(wave, shapes, dynamic=True)}, rows
)


# %% exercise: pattern
def pattern(shape):
    """The shape as an entry sees it: sizes of 0 and 1 stay numbers, dimension d of any other size is "s<d>"."""
    # BEGIN SOLUTION
    return tuple(size if size < 2 else f"s{d}" for d, size in enumerate(shape))
    # END SOLUTION


# %% exercise: broadcast
def broadcast(a, b):
    """The pattern of x + y for patterns a and b. A symbol is 2 or more. What can't be told raises ValueError."""
    # BEGIN SOLUTION
    rank = max(len(a), len(b))
    a, b = (1,) * (rank - len(a)) + a, (1,) * (rank - len(b)) + b
    out = []
    for m, n in zip(a, b):
        if m != n and m != 1 and n != 1:
            raise ValueError(f"{m} and {n} may differ")
        out.append(n if m == 1 else m)
    return tuple(out)
    # END SOLUTION


# %% given: sizes
class Size:
    """A size while a program is traced: `value` is this call's; what the program asks is written to `guards`."""

    def __init__(self, value, guards, steps=()):
        self.value, self.guards, self.steps = value, guards, tuple(steps)

    def __mod__(self, other):
        return Size(self.value % other, self.guards, (*self.steps, other))

    def __gt__(self, other):
        return decide(self, ">", other)

    def __lt__(self, other):
        return decide(self, "<", other)

    def __eq__(self, other):
        return decide(self, "==", other)

    __hash__ = None


# %% exercise: decide
def decide(size, op, other):
    """Answer a question on a Size for this call; note (size.steps, op, other, answer) in size.guards, each one once."""
    # BEGIN SOLUTION
    answer = OPERATORS[op](size.value, other)
    guard = (size.steps, op, other, answer)
    if guard not in size.guards:
        size.guards.append(guard)
    return answer
    # END SOLUTION


def serves(guards, value):
    """Whether an entry with these guards is right for a size: each question has the answer that it had."""
    # BEGIN SOLUTION
    for steps, op, other, answer in guards:
        n = value
        for step in steps:
            n = n % step
        if OPERATORS[op](n, other) != answer:
            return False
    return True
    # END SOLUTION


# %% show: asked
def questions(n):
    return "large" if n > 16 else "odd" if n % 2 == 1 else "even"


guards = []
print(questions(Size(9, guards)), guards)


# %% exercise: entries_of
def entries_of(asks, values):
    """How many entries it takes: `asks(Size)` puts the program's questions; each call has the next of `values`."""
    # BEGIN SOLUTION
    made = []  # (pattern, guards)
    for value in values:
        kind = pattern((value,))
        if any(kind == other and serves(guards, value) for other, guards in made):
            continue
        guards = []
        asks(Size(value, guards))
        made.append((kind, guards))
    return len(made)
    # END SOLUTION


# %% exercise: choose
def choose(history):
    """{name: dimensions that are symbols} for the call history[-1]: of each tensor those of size 2 and more, except the
    last one, which is a fixed number of features."""
    # BEGIN SOLUTION
    return {name: {d for d, size in enumerate(shape[:-1]) if size > 1} for name, shape in history[-1].items()}
    # STUDENT
    # return {}
    # END SOLUTION


# %% show: in_the_pipeline
course.stages(explain_with("capture", sizes_stage(choose), wave, torch.ones(4, 8)))


# %% text: challenge-story


# %% given: restless
def restless(x):
    n = x.shape[0]
    total = x * 0
    for k in range(n // 8):
        total = total + x * k
    if n > 16:
        return total * 0.5
    return total * 2 + x


# %% exercise: steady challenge
def steady(x):
    """What `restless` gives, in fewer entries."""
    # BEGIN SOLUTION
    n = x.shape[0]
    k = n // 8
    total = x * (k * (k - 1) // 2)
    return torch.where(torch.tensor(n) > 16, total * 0.5, total * 2 + x)
    # END SOLUTION


# %% show: steady_picture
many = (4, 9, 16, 17, 24, 33, 40, 64)
vectors = [(n,) for n in many]
course.timeline({"restless": compilations(restless, vectors), "steady": compilations(steady, vectors)}, many)

# %% tests
import torch

import tcompile
from tcompile.labs.plugs import explain_with, sizes_stage
from tcompile.labs.testing import at_most, raises, same, stage_ran, tensors_close


def measured(program, shapes):
    """Entries of a program after these calls, each of them right."""
    fast = tcompile.compile(program, dynamic=True)
    with tcompile.record() as record:
        for shape in shapes:
            x = torch.linspace(-1, 1, max(1, torch.Size(shape).numel()))[: torch.Size(shape).numel()].reshape(shape)
            tensors_close(fast(x), program(x), what=f"{program.__name__} of shape {shape}, compiled", look="steady")
    return len(record.report().entries)


def patterns(lab, shapes):
    """As many patterns as the compiler makes entries."""
    made = {lab.pattern(shape) for shape in shapes}
    same(len(made), measured(lab.wave, shapes), what=f"patterns of {shapes}", look="pattern")


def ask_moody(n):
    n > 16  # noqa: B015
    n % 2 == 1  # noqa: B015


def chosen(lab, program, *calls):
    """Compilations with the student's symbols, each call right."""
    stage = sizes_stage(lab.choose)
    stage_ran(explain_with("capture", stage, program, *calls[0]), "capture", lab.choose, look="choose")
    with tcompile.stages.replace("capture", sizes_stage(lab.choose)), tcompile.config.patch(suppress_errors=False):
        fast = tcompile.compile(program)
        with tcompile.record() as record:
            for args in calls:
                tensors_close(fast(*args), program(*args), what=f"{program.__name__} compiled", look="choose")
    return len(record.report().entries)


# %% test: pattern points=2
def test_patterns_of_batches(lab):
    same(lab.pattern((4, 8)), ("s0", "s1"), what="pattern((4, 8))", look="pattern")
    same(lab.pattern((1, 8)), (1, "s1"), what="pattern((1, 8))", look="pattern")


# %% hidden: pattern points=2
def test_patterns_are_entries(lab):
    patterns(lab, [(4, 8), (5, 9), (1, 8), (4, 1), (1, 1), (6, 6)])
    patterns(lab, [(4, 8), (0, 8), (0, 7), (2, 2)])


# %% test: broadcast points=3
def test_broadcasts(lab):
    same(lab.broadcast(("s0", 4), (4,)), ("s0", 4), what='broadcast(("s0", 4), (4,))', look="broadcast")
    same(lab.broadcast(("s0", 1), (1, "s1")), ("s0", "s1"), what='broadcast(("s0", 1), (1, "s1"))', look="broadcast")


# %% hidden: broadcast points=3
def test_broadcasts_that_can_not_be_told(lab):
    for a, b in ((("s0",), ("s1",)), (("s0",), (4,)), ((3, 4), (4, 4)), (("s0",), (0,))):
        raises(ValueError, lambda a=a, b=b: lab.broadcast(a, b), what=f"broadcast({a}, {b})", look="broadcast")


def test_broadcasts_of_ends(lab):
    same(lab.broadcast((), ("s0", 0)), ("s0", 0), what='broadcast((), ("s0", 0))', look="broadcast")
    same(lab.broadcast((1, 0), (1, 1)), (1, 0), what="broadcast((1, 0), (1, 1))", look="broadcast")


# %% test: decide points=2
def test_answers_are_noted(lab):
    guards = []
    same(lab.decide(lab.Size(9, guards), ">", 16), False, what='decide(Size(9), ">", 16)', look="decide")
    same(guards, [((), ">", 16, False)], what="guards after it", look="decide")


# %% hidden: decide points=2
def test_answers_are_noted_once(lab):
    guards = []
    n = lab.Size(9, guards)
    for _ in range(3):
        lab.decide(n, "<", 10)
    lab.decide(n % 2, "==", 1)
    same(
        guards,
        [((), "<", 10, True), ((2,), "==", 1, True)],
        what="guards of n < 10 three times, n % 2 == 1",
        look="decide",
    )


# %% test: decide points=2
def test_serves_what_answers_alike(lab):
    guards = [((), ">", 16, False), ((2,), "==", 1, True)]
    for value, want in ((9, True), (3, True), (8, False), (17, False)):
        same(lab.serves(guards, value), want, what=f"serves(not n > 16, n % 2 == 1; {value})", look="serves")


# %% hidden: decide points=2
def test_serves_after_several_steps(lab):
    guards = [((12, 5), "<", 3, True)]
    for value, want in ((13, True), (15, False), (24, True), (4, False), (7, True)):
        same(lab.serves(guards, value), want, what=f"serves((n % 12) % 5 < 3; {value})", look="serves")
    same(lab.serves([], 7), True, what="serves(no guards; 7)", look="serves")


# %% test: entries_of points=3
def test_entries_of_moody(lab):
    sizes = [4, 5, 20, 21, 40, 41, 8]
    want = measured(lab.moody, [(n,) for n in sizes])
    same(lab.entries_of(ask_moody, sizes), want, what=f"entries_of(moody's questions, {sizes})", look="entries")


# %% hidden: entries_of points=3
def test_entries_of_no_question(lab):
    sizes = [7, 0, 1, 9, 1, 2]
    want = measured(lab.wave, [(n,) for n in sizes])
    same(lab.entries_of(lambda n: None, sizes), want, what=f"entries_of(no questions, {sizes})", look="trap")


def test_entries_of_moody_in_another_order(lab):
    sizes = [33, 2, 18, 2, 3]
    want = measured(lab.moody, [(n,) for n in sizes])
    same(lab.entries_of(ask_moody, sizes), want, what=f"entries_of(moody's questions, {sizes})", look="entries")


# %% test: choose points=3
def test_one_entry_serves_all_batches(lab):
    calls = [(torch.randn(n, 8),) for n in (4, 5, 9)]
    same(chosen(lab, lab.wave, *calls), 1, what="compilations of wave for batches 4, 5, 9", look="choose")


# %% hidden: choose points=3
def test_a_batch_of_one_is_a_program_of_its_own(lab):
    calls = [(torch.randn(n, 8),) for n in (4, 1, 5)]
    same(chosen(lab, lab.wave, *calls), 2, what="compilations of wave for batches 4, 1, 5", look="trap")


def test_features_stay_numbers(lab):
    history = [{"x": (4, 6, 8), "w": (8,), "b": (1, 8)}]
    same(lab.choose(history), {"x": {0, 1}, "w": set(), "b": set()}, what=f"choose({history})", look="choose")


# %% test: steady points=3
def test_steady_is_right(lab):
    for n in (1, 4, 9, 16, 17, 24, 40):
        x = torch.linspace(-1, 1, n)
        tensors_close(lab.steady(x), lab.restless(x), what=f"steady(x) of {n}", look="steady")


def test_steady_has_few_entries(lab):
    at_most(measured(lab.steady, [(n,) for n in (4, 9, 16, 17, 24, 33)]), 3, what="entries of steady", look="steady")


# %% hidden: steady points=3
def test_steady_has_one_entry(lab):
    sizes = [(n,) for n in (4, 9, 16, 17, 24, 33, 40, 64, 100)]
    at_most(measured(lab.steady, sizes), 1, what="entries of steady over nine sizes", look="once")


def test_steady_of_more_dimensions(lab):
    x = torch.linspace(-1, 1, 60).reshape(20, 3)
    tensors_close(lab.steady(x), lab.restless(x), what="steady(20 rows of 3)", look="steady")


# %% score
def score(lab):
    return {"entries": measured(lab.steady, [(n,) for n in (4, 9, 16, 17, 24, 33, 40, 64)])}

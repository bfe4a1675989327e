"""Warnings and log records say the program's own lines; what a call may look at is written before it; filters that
raise are heeded.
"""

import contextlib
import io
import logging
import subprocess
import sys
import threading
import types
import warnings

import pytest
import torch
import torch.nn.functional as F

import tcompile
from tcompile.compiler.capture.library.watched_warnings import Warned, unless_it_warns

X = torch.ones(2)
LOG = logging.getLogger("tcompile.tests.warnings_and_logs")


class Records(logging.Handler):
    def __init__(self):
        super().__init__()
        self.rows = []

    def emit(self, record):
        self.rows.append((record.getMessage(), record.levelname, record.funcName, record.lineno, record.filename))


@pytest.fixture
def records():
    handler = Records()
    LOG.addHandler(handler)
    LOG.setLevel(logging.INFO)
    yield handler.rows
    LOG.removeHandler(handler)
    LOG.setLevel(logging.NOTSET)


def helper(x):
    LOG.info("in the helper")
    LOG.warning("of the caller", stacklevel=2)
    warnings.warn("helped")
    warnings.warn("helped the caller", stacklevel=2)
    warnings.warn("helped its caller", DeprecationWarning, 3)
    return x + 1


def says(x):
    LOG.info("shape %s", tuple(x.shape))
    warnings.warn("plain")
    warnings.warn("caller", DeprecationWarning, stacklevel=2)
    y = helper(x)
    if LOG.isEnabledFor(logging.DEBUG):
        y = y * 10
    return y


def test_places(records):
    def heard(f):
        del records[:]
        with warnings.catch_warnings(record=True) as given:
            warnings.simplefilter("always")
            value = f(X)
        return value.tolist(), list(records), [(str(w.message), w.category, w.filename, w.lineno) for w in given]

    compiled = tcompile.compile(says, backend="eager", fullgraph=True)
    for level in (logging.INFO, logging.DEBUG, logging.ERROR):
        LOG.setLevel(level)
        for _ in range(2):
            want = heard(lambda x: says(x))
            assert heard(lambda x: compiled(x))[:2] == want[:2]
            got = heard(lambda x: compiled(x))[2]
            assert [w[:3] for w in got] == [w[:3] for w in want[2]]
            assert [w[3] for w in got if "caller" not in w[0]] == [w[3] for w in want[2] if "caller" not in w[0]]


def test_once_per_place():
    """Each place has its own registry entry, as in eager: the default filter shows a warning once."""

    def f(x):
        warnings.warn("first place")
        warnings.warn("second place")
        return x + 1

    space = {"warnings": warnings, "__name__": "a_module", "__builtins__": __builtins__}
    f = types.FunctionType(f.__code__, space)
    compiled = tcompile.compile(f, backend="eager", fullgraph=True)
    with warnings.catch_warnings(record=True) as given:
        warnings.simplefilter("default")
        for _ in range(3):
            compiled(X)
    assert [str(w.message) for w in given] == ["first place", "second place"]
    assert {key[2] for key in space["__warningregistry__"] if isinstance(key, tuple)} == {w.lineno for w in given}


def test_a_warning_that_raises_is_caught():
    def f(x):
        try:
            warnings.warn("bad")
        except UserWarning as e:
            return x - 1, str(e)
        return x + 1, ""

    compiled = tcompile.compile(f, backend="eager")
    for action in ("ignore", "error", "ignore", "error"):
        with warnings.catch_warnings():
            warnings.simplefilter(action)
            value, said = compiled(X)
            assert (value.tolist(), said) == (f(X)[0].tolist(), f(X)[1])


def test_the_exception_that_is_logged(records):
    seen = []

    class Formatted(logging.Handler):
        def emit(self, record):
            seen.append(record.exc_info[0])

    handler = Formatted()
    LOG.addHandler(handler)

    def f(x):
        try:
            raise KeyError("k")
        except KeyError:
            LOG.exception("it failed")
        return x + 1

    tcompile.compile(f, backend="eager")(X)
    LOG.removeHandler(handler)
    assert seen == [KeyError]


def test_print_goes_where_stdout_is_at_that_moment(capsys):
    text = io.StringIO()

    def f(x):
        with contextlib.redirect_stdout(text):
            print("inside")
        print("outside")
        return x + 1

    tcompile.compile(f, backend="eager")(X)
    assert text.getvalue() == "inside\n" and capsys.readouterr().out == "outside\n"


def test_a_call_sees_the_writes_before_it(records):
    state = types.SimpleNamespace(n=0)

    class Level(logging.Filter):
        def filter(self, record):
            record.msg = f"{record.msg} n={state.n}"
            return True

    level = Level()
    LOG.addFilter(level)

    def f(x):
        state.n = 1
        LOG.info("first")
        state.n = 2
        LOG.info("second")
        state.n = 0
        return x + 1

    compiled = tcompile.compile(f, backend="eager", fullgraph=True)
    compiled(X)
    compiled(X)
    LOG.removeFilter(level)
    assert [r[0] for r in records] == ["first n=1", "second n=2"] * 2 and state.n == 0


class Counted:
    def __init__(self):
        self.asked = []

    def __len__(self):
        self.asked.append("len")
        return 3

    def __getitem__(self, i):
        self.asked.append(i)
        if i >= 3:
            raise IndexError
        return i


@pytest.mark.parametrize(
    "use",
    (
        lambda s: sorted(s),
        lambda s: list(reversed(s)),
        lambda s: bytes(s),
        lambda s: bytearray(s),
        lambda s: [].__iadd__(s),
        lambda s: [*s],
        lambda s: tuple(s),
    ),
    ids=("sorted", "reversed", "bytes", "bytearray", "iadd", "star", "tuple"),
)
def test_sequences_are_asked_as_often_as_eager_asks(use):
    def f(x, s):
        for _ in s:
            break
        return x + 1, use(s)

    a, b = Counted(), Counted()
    assert f(X, a)[1] == tcompile.compile(f, backend="eager")(X, b)[1]
    assert a.asked == b.asked


def hidden_then_seen(x):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        warnings.warn("hidden")
        y = x + 1
    warnings.warn("seen")
    return y * 2


def filtered_by_text(x):
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="hid.*")
        warnings.warn("hidden")
        warnings.warn("shown")
        return x * 3


def none_recorded(x):
    with warnings.catch_warnings(record=True) as w:
        warnings.simplefilter("always")
        y = x + 1
    return y, len(w)


def one_recorded(x):
    with warnings.catch_warnings(record=True) as w:
        warnings.simplefilter("always")
        warnings.warn("one")
        y = x + 1
    return y, [str(i.message) for i in w]


def counted_after_an_operator(x):
    with warnings.catch_warnings(record=True) as w:
        warnings.simplefilter("always")
        warnings.warn("one")
        y = x[:1]
        warnings.warn("two", FutureWarning)
    return y, len(w)


def kinds_recorded(x):
    with warnings.catch_warnings(record=True) as w:
        warnings.simplefilter("always")
        warnings.warn("one")
        torch.std(x[:1])
        warnings.warn("two", FutureWarning)
        n = len(w)
        warnings.warn("three")
    return x * n, [i.category.__name__ for i in w]


def turned_into_an_error(x):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        try:
            warnings.warn("bad")
        except UserWarning:
            return x - 1
    return x


def of_an_operator(x):
    with warnings.catch_warnings(record=True) as w:
        warnings.simplefilter("always")
        y = x[:1].std(0)
    return torch.isnan(y), [str(i.message)[:30] for i in w]


def of_a_call(x):
    def inner(x):
        return torch.nn.functional.softmax(x) * 2

    with warnings.catch_warnings(record=True) as w:
        warnings.simplefilter("always")
        y = inner(x)
    return y, [i.category for i in w]


def an_operators_turned_into_an_error(x):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        try:
            y = x[:1].std(0)
        except UserWarning:
            return x - 1
    return y


@pytest.mark.parametrize(
    "fn, whole",
    [
        (hidden_then_seen, True),
        (filtered_by_text, True),
        (none_recorded, True),
        (counted_after_an_operator, False),
        (kinds_recorded, False),
        (one_recorded, False),
        (of_an_operator, False),
        (of_a_call, False),
        (turned_into_an_error, False),
        (an_operators_turned_into_an_error, False),
    ],
)
def test_filters_set_inside(fn, whole):
    def run(f):
        with warnings.catch_warnings(record=True) as w:
            warnings.simplefilter("always")
            before = list(warnings.filters)
            value = f(X)
            assert list(warnings.filters) == before
            return repr(value), [str(i.message) for i in w]

    c = tcompile.compile(fn, backend="eager", fullgraph=whole)
    for _ in range(2):
        assert run(c) == run(fn)


SQUARE = torch.ones(2, 2)
OF_TORCH = {  # torch's own code gives a warning, in Python, or for a copy of a tensor
    "softmax": lambda x: F.softmax(x) * 2,
    "log_softmax": lambda x: F.log_softmax(x) * 2,
    "mse_loss": lambda x: F.mse_loss(x, torch.ones(2, 1)),
    "smooth_l1_loss": lambda x: F.smooth_l1_loss(x, torch.ones(2, 1)),
    "kl_div": lambda x: F.kl_div(x, x),
    "an old argument": lambda x: F.mse_loss(x, x * 2, size_average=True),
    "dropout2d": lambda x: F.dropout2d(x.clone(), 0.0, inplace=True),
    "upsample": lambda x: F.upsample(x[None, None], scale_factor=2),
    "grid_sample": lambda x: F.grid_sample(x[None, None], torch.zeros(1, 1, 1, 2)),
    "of two places": lambda x: F.softmax(F.softmin(x)) + 1,
    "tensor": lambda x: torch.tensor(x) + 1,
    "tensor with a gradient": lambda x: torch.tensor(x, requires_grad=True, dtype=torch.float64),
    "new_tensor": lambda x: x.new_tensor(x.double()) + 1,
    "new_tensor by name": lambda x: x.new_tensor(data=x, dtype=torch.int32),
}


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("name", OF_TORCH)
def test_torchs_own_warnings_come_at_each_call(name, backend):
    """As the filters decide then: no more often at the first call, which compiles, and no more rarely later."""
    fn = OF_TORCH[name]
    compiled = tcompile.compile(fn, backend=backend, fullgraph=True)

    def heard(f, action):
        globals().pop("__warningregistry__", None)
        with warnings.catch_warnings(record=True) as given:
            warnings.simplefilter(action)
            values = [f(SQUARE), f(SQUARE)]
        return values, [(str(w.message), w.category, w.filename, w.lineno) for w in given]

    for action in ("always", "default", "ignore", "always"):
        got, want = heard(compiled, action), heard(fn, action)
        assert got[1] == want[1] and bool(want[1]) == (action != "ignore")
        for a, b in zip(got[0], want[0]):
            torch.testing.assert_close(a, b)
            assert a.requires_grad == b.requires_grad
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for f in (compiled, fn):
            with pytest.raises(UserWarning):
                f(SQUARE)


def test_a_module_without_a_dimension_warns_once_a_call():
    net = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Softmax())
    compiled = tcompile.compile(net, backend="eager", fullgraph=True)
    for _ in range(2):
        with warnings.catch_warnings(record=True) as given:
            warnings.simplefilter("always")
            assert torch.equal(compiled(SQUARE), net(SQUARE))
        assert len(given) == 2 and given[0].message.args == given[1].message.args


def test_warnings_of_other_threads_are_theirs_while_torchs_code_is_captured():
    other = threading.Thread(target=lambda: warnings.warn("of another thread", RuntimeWarning))

    def talks(*args):
        other.start()
        other.join()
        return args

    with warnings.catch_warnings(record=True) as given:
        warnings.simplefilter("always")
        before = warnings.warn
        assert unless_it_warns(talks, 1, 2) == (1, 2)
        with pytest.raises(Warned):
            unless_it_warns(lambda: warnings.warn("mine"))
    assert warnings.warn is before
    assert [(str(w.message), w.category, w.filename) for w in given] == [
        ("of another thread", RuntimeWarning, __file__)
    ]


def non_leaf(x):
    y = x * 2
    return y.grad is None, y


OF_OPERATORS = {
    "std": lambda x: x[:1].std(),
    "var of a dimension": lambda x: x[None].var(0),
    "unbiased": lambda x: torch.var(x[:0], unbiased=False),
    "correction": lambda x: x.std(correction=4) + 1,
    "std_mean": lambda x: torch.std_mean(x[:1]),
    "var_mean": lambda x: torch.var_mean(x[None], 0, True),
    "a gradient": non_leaf,
    "enough": lambda x: x.std() + x[:1].var(correction=0) + torch.var_mean(x)[0],
}


@pytest.mark.parametrize("backend", ["eager", "tcompile"])
@pytest.mark.parametrize("name", OF_OPERATORS)
def test_warnings_of_torchs_operators_come_at_each_call(name, backend):
    fn = OF_OPERATORS[name]
    compiled = tcompile.compile(fn, backend=backend, fullgraph=True)
    x = torch.tensor([1.0, 2.0, 3.0], requires_grad=True)

    def heard(f, action):
        with warnings.catch_warnings(record=True) as given:
            warnings.simplefilter(action)
            for _ in range(3):
                f(x)
        return [(str(w.message), w.category, w.filename, w.lineno) for w in given]

    got, want = heard(compiled, "always"), heard(fn, "always")
    assert len(got) == len(want) == (0 if name == "enough" else 3)
    assert got == want or backend == "eager"  # (where torch's kernel says it, the place is in the entry)
    assert heard(compiled, "ignore") == []
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for f in (compiled, fn):
            if name == "enough":
                f(x)
                continue
            with pytest.raises(UserWarning):
                f(x)


def test_warnings_that_come_once_in_a_process_name_the_programs_line():
    text = """if True:
        import sys, warnings
        import torch, tcompile

        def f(x):
            y = x.T
            return y + 1

        c = tcompile.compile(f, fullgraph=True)
        with warnings.catch_warnings(record=True) as given:
            warnings.simplefilter("default")
            for _ in range(3):
                c(torch.ones(2, 3, 4))
        print([(w.filename, w.lineno, w.category.__name__) for w in given])
        """
    out = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, timeout=120)
    assert out.stdout.strip() == "[('<string>', 6, 'UserWarning')]", out.stderr[-1000:]

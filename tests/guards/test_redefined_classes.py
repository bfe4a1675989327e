"""A cell that defines a class runs again: what was compiled serves the new class, if it is the same definition."""

from __future__ import annotations

import gc
import sys
import types

import pytest
import torch
import torch.nn as nn

from tcompile.compiler import events
from tcompile.compiler.frontend import hook
from tcompile.compiler.config import Options
from tcompile.compiler.runtime import frame_hook as runtime_hook

pytestmark = pytest.mark.skipif(not runtime_hook.available(), reason="the C extension is not built")

NET = """
class Base(nn.Module):
    gain = 2.0

    def scale(self, h, by=1.5):
        return h * by * self.gain

class Net(Base):
    def __init__(self):
        super().__init__()
        self.a = nn.Linear(4, 4)
        self.half = True

    @staticmethod
    def shift(h):
        return h + SHIFT

    def forward(self, x):
        return self.scale(self.shift(super().scale(self.a(x)))) if self.half else x
"""


class Notebook:
    def __init__(self):
        self.names = {
            "__name__": "__main__",
            "torch": torch,
            "nn": nn,
            "SHIFT": 0.5,
            "x": torch.linspace(-1, 1, 12).reshape(3, 4),
        }
        self.opts = Options.make(None, "eager", False, None, None)

    def run(self, text):
        """The frames that were captured."""
        captured = []
        with events.listen(lambda e: captured.append(e.result.code.co_qualname) if e.kind == "capture_end" else None):
            hook.run_code(compile(text, f"<cell {hash(text)}>", "exec"), self.names, self.opts)
        return captured

    def use(self):
        """The captured frames of a cell that calls the model, checked against eager."""
        captured = self.run("with torch.no_grad():\n    out = net(x)")
        with torch.no_grad():
            torch.testing.assert_close(self.names["out"], self.names["net"](self.names["x"]))
        return captured


@pytest.fixture
def notebook(monkeypatch):
    book = Notebook()
    main = types.ModuleType("__main__")
    main.__dict__.update(book.names)
    book.names = main.__dict__
    monkeypatch.setitem(sys.modules, "__main__", main)
    yield book
    hook.reset()


def test_the_same_definition_compiles_nothing(notebook):
    notebook.run(NET + "net = Net()")
    assert notebook.use()
    for _ in range(3):
        notebook.run(NET + "net = Net()")
        gc.collect()
        assert notebook.use() == []


@pytest.mark.parametrize(
    "old, new",
    [
        ("gain = 2.0", "gain = 3.0"),
        ("by=1.5", "by=2.5"),
        ("h + SHIFT", "h - SHIFT"),
        ("Net(Base)", "Net(Base, Mixed)"),
        ("self.half = True", "self.half = False"),
        ("class Net", "class Other(Base):\n    pass\nBase = Other\nclass Net"),
    ],
)
def test_another_definition_is_compiled_anew(notebook, old, new):
    notebook.run("class Mixed:\n    def scale(self, h, by=0.0):\n        return h * 0 + by\n")
    notebook.run(NET + "net = Net()")
    notebook.use()
    notebook.run(NET.replace(old, new) + "net = Net()")
    notebook.use()
    notebook.use()


def test_what_changes_after_the_second_definition_is_seen(notebook):
    notebook.run(NET + "net = Net()")
    notebook.use()
    notebook.run(NET + "net = Net()")
    assert notebook.use() == []
    notebook.names["Base"].gain = 7.0
    notebook.use()
    notebook.names["SHIFT"] = -1.0
    notebook.use()
    notebook.names["Net"].forward = lambda self, x: x * 3
    notebook.use()


def test_a_class_attribute_set_from_outside_counts(notebook):
    notebook.run(NET + "net = Net()")
    notebook.names["Net"].gain = 5.0
    notebook.use()
    notebook.run(NET + "net = Net()")
    notebook.use()


def test_old_and_new_are_told_apart_where_the_program_does(notebook):
    same = "def same(a, b, x):\n    return x + (1 if type(a) is type(b) else 2) + (10 if isinstance(a, Net) else 20)\n"
    call = "out = same(a, b, x)"
    notebook.run(NET + same + "a, b = Net(), Net()")

    def check():
        notebook.run(call)
        names = notebook.names
        torch.testing.assert_close(names["out"], names["same"](names["a"], names["b"], names["x"]))

    check()
    notebook.run(NET + "b = Net()")
    check()
    notebook.run(NET + "a = Net()")
    check()
    notebook.run(NET + "a, b = Net(), Net()")
    check()


def test_closures_that_hold_something_else_are_another_definition(notebook):
    text = "def make(k):\n    class Net(nn.Module):\n        def forward(self, x):\n            return x * k\n    return Net()\n"
    for k in (2.0, 2.0, 3.0):
        notebook.run(text + f"net = make({k})")
        notebook.use()
    torch.testing.assert_close(notebook.names["out"], notebook.names["x"] * 3)


def test_what_an_entry_makes_is_of_the_new_class(notebook):
    text = "class Pair:\n    def __init__(self, v):\n        self.v = v\n"
    notebook.run(text)
    notebook.run("def wrap(x):\n    return Pair(x * 2)\n")
    for _ in range(3):
        notebook.run(text)
        notebook.run("out = wrap(x)")
        assert type(notebook.names["out"]) is notebook.names["Pair"]


def test_classes_are_not_kept_for_long(notebook):
    import weakref

    notebook.run(NET + "net = Net()")
    notebook.use()
    gone = weakref.ref(notebook.names["Net"])
    for name in ("Net", "Base", "net", "out"):
        notebook.names.pop(name)
    for k in range(6):
        notebook.run(f"y = x + {k}")
    gc.collect()
    assert gone() is None


def test_an_abstract_class_is_another_one_each_time(notebook):
    """What was registered with the old class is not with the new one."""
    text = "import abc\nclass Shape(abc.ABC):\n    pass\nclass Square:\n    pass\n"
    notebook.run(
        text + "Shape.register(Square)\ndef f(x, s):\n    return x + (1 if isinstance(s, Shape) else 2)\ns = Square()"
    )
    notebook.run("out = f(x, s)")
    torch.testing.assert_close(notebook.names["out"], notebook.names["x"] + 1)
    notebook.run(text + "s = Square()")
    notebook.run("out = f(x, s)")
    torch.testing.assert_close(notebook.names["out"], notebook.names["x"] + 2)


DATA = """
import dataclasses

@dataclasses.dataclass
class Settings:
    name: str
    gain: float = 2.0
    sizes: list = dataclasses.field(default_factory=list)

settings = Settings("run")

def f(x):
    return x * settings.gain, settings
"""


def test_a_dataclass_of_the_same_text_compiles_nothing(notebook):
    notebook.run(DATA)
    assert notebook.run("y, s = f(x)")
    for _ in range(2):
        notebook.run(DATA)
        assert notebook.run("y, s = f(x)") == []
        torch.testing.assert_close(notebook.names["y"], notebook.names["x"] * 2)
        assert type(notebook.names["s"]) is notebook.names["Settings"]


@pytest.mark.parametrize(
    "old, new",
    [("gain: float = 2.0", "gain: float = 3.0"), ("@dataclasses.dataclass", "@dataclasses.dataclass(eq=False)")],
)
def test_another_dataclass_is_another_program(notebook, old, new):
    text = "same = Settings('run') == Settings('run')\ny = f(x)[0] * (2 if same else 3)"
    notebook.run(DATA)
    notebook.run(text)
    torch.testing.assert_close(notebook.names["y"], notebook.names["x"] * 4)
    notebook.run(DATA.replace(old, new))
    notebook.run(text)
    torch.testing.assert_close(notebook.names["y"], notebook.names["x"] * 6)


def test_a_closure_of_the_class_may_hold_lists_and_dicts():
    """Those of the new definition are others; equal contents do, and other contents don't."""
    text = """
def make(words):
    table = {"scale": [2.0, 3.0]}

    class Net(nn.Module):
        def forward(self, x):
            return x * len(words) + table["scale"][0]

    return Net()

net = make(WORDS)
"""
    cells = Notebook()
    for words, first in ((["a", "b"], True), (["a", "b"], False), (["a", "b", "c"], True), (["a", "b"], False)):
        cells.names["WORDS"] = list(words)
        cells.run(text)
        captured = cells.run("y = net(x)")
        assert bool(captured) is first, words
        torch.testing.assert_close(cells.names["y"], cells.names["x"] * len(words) + 2.0)
    cells.run(text.replace("[2.0, 3.0]", "[5.0, 3.0]"))
    cells.run("y = net(x)")
    torch.testing.assert_close(cells.names["y"], cells.names["x"] * 2 + 5.0)


def test_what_a_program_writes_into_a_list_of_the_class_goes_to_the_new_one():
    text = """
def default(h, seen=[]):
    seen.append(1)
    return h * len(seen)

class Net(nn.Module):
    log = []
    sizes = {"gain": [2.0]}

    def forward(self, x):
        self.log.append(len(self.log))
        return x * self.sizes["gain"][0] + len(self.log)

net = Net()
"""
    cells, plain = Notebook(), Notebook()
    for _ in range(3):
        cells.run(text)
        exec(text, plain.names)
        cells.run("y = net(x)\nz = default(x)")
        exec("y = net(x)\nz = default(x)", plain.names)
        for name in "yz":
            torch.testing.assert_close(cells.names[name], plain.names[name])
        assert cells.names["Net"].log == plain.names["Net"].log == [0]
        assert cells.names["default"].__defaults__ == ([1],)
        cells.names["Net"].sizes["gain"][0] = 7.0
        cells.run("y = net(x)")
        torch.testing.assert_close(cells.names["y"], cells.names["x"] * 7.0 + 2)
        cells.names["Net"].sizes["gain"][0] = 2.0


def test_a_function_that_a_cell_defines_beside_tensor_work_is_made_in_each_run():
    """With defaults and annotations of its own: what the last run put into a default is not there."""
    text = """
def count(h: int, seen=[], *, more: list = {}) -> float:
    seen.append(h)
    more[len(more)] = h
    return len(seen) + len(more)

z = x + 1
"""
    cells = Notebook()
    for _ in range(3):
        cells.run(text)
        count = cells.names["count"]
        assert count.__defaults__ == ([],) and count.__kwdefaults__ == {"more": {}}
        assert count.__annotations__ == {"h": "int", "more": "list", "return": "float"}
        assert count(1) == 2 and count(1) == 4


def test_functions_that_an_entry_makes_are_compiled_where_others_call_them():
    """The hook passed their code over, as it does with the code of a break: a closure stayed plain for ever."""
    notebook = Notebook()
    made = """
def make(by):
    def scale(x):
        return torch.relu(x * by).sum()
    return scale
def shift(x):
    return torch.relu(x + SHIFT).sum()
f = make(2.0)
exec('y = f(x), shift(x)')
"""
    assert {"make.<locals>.scale", "shift"} <= {*notebook.run(made)}
    x, f = notebook.names["x"], notebook.names["f"]
    assert notebook.names["y"] == (f(x), torch.relu(x + 0.5).sum())

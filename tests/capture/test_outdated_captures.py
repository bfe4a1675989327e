"""What a capture relied on may change while it compiles, or later: abstract classes, and which are their subclasses."""

import abc
import subprocess
import sys

import pytest
import torch

import tcompile


class Shape(abc.ABC):
    @abc.abstractmethod
    def area(self): ...


class Round(Shape):
    def area(self):
        return 3


def of_shapes(x, s):
    return (x * 2 if isinstance(s, Shape) else x * 3).sin().sum()


FIRST = """
import torch, tcompile
from tests.capture.test_outdated_captures import Round, of_shapes
x = torch.randn(3, requires_grad=True)
with tcompile.record() as record:
    compiled = tcompile.compile(of_shapes)
    compiled(x, Round()).backward()
    import xmlrpc.client, numbers, fractions
    numbers.Number.register(type("Mine", (), {}))
    compiled(x, Round())
report = record.report()
print(len(report.graphs), len(report.recompiles), len(report.fallbacks))
"""


def test_what_imports_register():
    """The first gradients of a process and its first use of sympy register classes with abstract ones."""
    done = subprocess.run([sys.executable, "-c", FIRST], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split("\n")[-2] == "2 0 0", done.stdout


@pytest.mark.parametrize("question", [isinstance, lambda s, cls: issubclass(type(s), cls)])
def test_registered_later(question):
    class Late:
        pass

    class Other(abc.ABC):  # noqa: B024
        pass

    def f(x, s):
        return x * 2 if question(s, (int, (Shape, Other))) else x * 3

    x = torch.randn(3)
    with tcompile.record() as record:
        compiled = tcompile.compile(f)
        for change in (None, lambda: Other.register(set), lambda: Shape.register(Late)):
            if change is not None:
                change()
            assert torch.equal(compiled(x, Late()), f(x, Late()))
    (again,) = record.report().recompiles
    assert again.expected == "issubclass(Late, Shape) was False" and again.got == "issubclass(Late, Shape) is True"


def test_an_object_that_says_its_class():
    class Late:
        pass

    class Proxy:
        @property
        def __class__(self):
            return Late

    class Open(abc.ABC):  # noqa: B024
        pass

    def f(x, s):
        return x * 2 if isinstance(s, Open) else x * 3

    compiled, x, s = tcompile.compile(f), torch.randn(3), Proxy()
    assert torch.equal(compiled(x, s), x * 3) and torch.equal(f(x, s), x * 3)
    Open.register(Late)
    assert torch.equal(f(x, s), x * 2) and torch.equal(compiled(x, s), x * 2)


def test_a_change_while_it_compiles():
    class Late:
        pass

    seen = []

    def backend(graph, inputs):
        seen.append(graph)
        if len(seen) == 1:
            Shape.register(Late)
        return graph.forward

    def f(x, s):
        return x * 2 if isinstance(s, Shape) else x * 3

    compiled, x = tcompile.compile(f, backend=backend), torch.randn(3)
    with tcompile.record() as record:
        assert torch.equal(compiled(x, Late()), x * 2)
    report = record.report()
    assert len(seen) == 2 and not report.fallbacks and len(report.recompiles) == 1
    assert torch.equal(compiled(x, Late()), x * 2) and len(seen) == 2


def test_gradients_import_no_algebra():
    """torch's algebra of sizes needs sympy, whose import takes longer than a small step's compilation."""
    program = (
        "import sys, torch, tcompile\n"
        "step = tcompile.compile(torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU()))\n"
        "for n in (3, 5, 6):\n"
        "    step(torch.randn(n, 4)).sum().backward()\n"
        "print('sympy' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=300)
    assert done.stdout == "False\n", done.stdout + done.stderr


def test_a_question_that_a_loop_asks_is_kept_once():
    from tcompile.compiler.guards.state import SubclassAnswers

    class Late:
        pass

    class Open(abc.ABC):  # noqa: B024
        pass

    answers = SubclassAnswers()
    for _ in range(3):
        answers.note(Round, Shape)
        answers.note(Late, Open)
    assert len(answers._answers) == 2 and answers.hold()
    Open.register(Late)
    answers.note(Late, Open)  # within one capture the first answer was relied on
    assert not answers.hold() and answers.changed() == (Late, Open, False)

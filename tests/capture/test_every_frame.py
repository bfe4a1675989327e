"""Frames without tensors, forced through capture: the language itself, as CPython's own tests found it wanting.

Each program runs eager and with every frame captured (`frames.every_frame`); result or exception, and what it printed
into `log`, must be the same, on the first call and on those that entries serve.
"""

from __future__ import annotations

import contextlib
import copy
import random
import sys
import threading
import traceback
import types

import pytest
import torch

import tcompile

from tcompile.compiler import config
from tcompile.compiler.frontend import frames, hook
from tcompile.compiler.runtime import frame_hook as runtime_hook

pytestmark = pytest.mark.skipif(not runtime_hook.available(), reason="the C extension is not built")


def outcome(fn, args, log):
    log.clear()
    try:
        return "returned", fn(*args), list(log)
    except Exception as e:
        return "raised", type(e), str(e), traceback.extract_tb(e.__traceback__)[-1].lineno, list(log)


def same(fn, *args, log=None, calls=3):
    log = [] if log is None else log
    want = outcome(fn, copy.deepcopy(args), log)
    for _ in range(calls):
        given = copy.deepcopy(args)
        with config.patch(recompile_limit=32), frames.every_frame(), hook.enable(backend="eager"):
            assert outcome(fn, given, log) == want
    return want


def test_native_exit_sees_a_traceback(tmp_path):
    path = tmp_path / "file"
    path.write_text("x")

    def f():
        try:
            with open(path) as file:
                file.read()
                1 / 0
        except ZeroDivisionError as e:
            return str(e), file.closed

    assert same(f)[1] == ("division by zero", True)


class Rude(type):
    def __subclasscheck__(cls, subclass):
        raise ValueError("asked")


class Never(Exception, metaclass=Rude):
    pass


def test_handlers_match_without_asking_the_metaclass():
    def f():
        try:
            raise KeyError(1)
        except Never:
            return "never"
        except (LookupError, OSError):
            return "lookup"

    assert same(f)[1] == "lookup"


def test_handlers_of_what_is_no_exception():
    def f(kind):
        try:
            raise KeyError(1)
        except kind:
            return "caught"

    assert same(f, KeyError)[1] == "caught"
    assert same(f, int)[1] is TypeError
    assert same(f, (OSError, 3))[1] is TypeError


def test_setters_of_a_class_run_once():
    log = []

    class Careful:
        def __setattr__(self, name, value):
            log.append((name, value))
            object.__setattr__(self, name, value + 1)

        def __delattr__(self, name):
            log.append(name)
            object.__delattr__(self, name)

    class Module(torch.nn.Module):
        def __setattr__(self, name, value):
            log.append(name)
            super().__setattr__(name, value)

    def f(x, module):
        x.a = 1
        x.b = x.a
        del x.a
        module.count = 5
        return x.b, hasattr(x, "a"), module.count

    want = same(lambda: f(Careful(), Module()), log=log)
    assert want[1] == (3, False, 5)
    x, module = Careful(), Module()
    for _ in range(2):
        with frames.every_frame(), hook.enable(backend="eager"):
            assert f(x, module) == (3, False, 5)


def test_names_that_are_keywords_or_builtins():
    def f(list, getattr, setattr, object):
        list.append(object)
        getattr.x = len(list)
        setattr.__dict__["class"] = 1
        return list, getattr.x

    assert same(f, [1], types.SimpleNamespace(), types.SimpleNamespace(), 2)[1] == ([1, 2], 2)

    def g(x):
        setattr(x, "class", 1)
        setattr(x, "a b", 2)
        return vars(x)

    assert same(g, types.SimpleNamespace())[1] == {"class": 1, "a b": 2}


def test_deep_recursion():
    def deep(n):
        return 0 if n == 0 else 1 + deep(n - 1)

    assert same(deep, 600)[1] == 600

    def inside(n):
        kept = []
        kept.append(kept)
        return repr(kept), deep(n)

    assert same(inside, 200)[1] == ("[[...]]", 200)


def test_text_of_a_string_that_says_something_else():
    class Text(str):
        def __str__(self):
            return "other"

        def __format__(self, spec):
            return "formatted"

    def f():
        x = Text("a")
        return str(x), f"{x}", "%s" % x, f"{x!s}", x == "a"

    assert same(f)[1] == ("other", "formatted", "other", "other", True)


def test_an_object_may_lie_about_its_class():
    class Proxy:
        @property
        def __class__(self):
            return int

    class Odd:
        __class__ = 413

    with config.patch(suppress_errors=True):
        assert same(lambda: (Proxy().__class__, isinstance(Proxy(), int), type(Proxy()).__name__))[1] == (
            int,
            True,
            "Proxy",
        )
        assert same(lambda: Odd().__class__)[1] == 413


def test_objects_of_native_classes_cannot_be_made_again():
    def lock():
        x = threading.Lock()
        print(end="")
        with x:
            return x.locked()

    def generator():
        r = random.Random(3)
        print(end="")
        return r.random()

    assert same(lock)[1] is True
    assert same(generator)[1] == random.Random(3).random()


def test_messages_of_wrong_calls():
    def f(a, b=1, *, k=2):
        return a

    def g(a):
        return a

    def said(call):
        try:
            call()
        except TypeError as e:
            return str(e)

    def every():
        return [
            said(call)
            for call in (
                lambda: f(1, 2, 3),
                lambda: f(1, 2, 3, k=4),
                lambda: g(),
                lambda: g(1, 2),
                lambda: g(1, c=2),
                lambda: f(1, a=2),
                lambda: f(),
                lambda: list(sequence=[1]),
                lambda: len(),
                lambda: len([], 1),
                lambda: getattr(1),
                lambda: map(),
                lambda: range(stop=3),
                lambda: isinstance(1),
                lambda: tuple(x=1),
                lambda: [].index(),
                lambda: [].__getitem__(),
                lambda: {}.get(),
            )
        ]

    with config.patch(suppress_errors=True):
        assert None not in same(every)[1]


@pytest.mark.parametrize("n", [2, 3, 5, 2**62, 2**63, 2**70, -(2**70)])
def test_integers_of_any_size(n):
    def f(n):
        return n * 2 + 1

    for value in (n, n + 1, n + 2):
        assert same(f, value)[1] == value * 2 + 1


def test_subclasses_of_containers_with_their_own_new():
    def made(base):
        class Own(base):
            def __new__(cls, content, extra=None):
                self = super().__new__(cls, content)
                self.extra = extra
                return self

        return Own

    kinds = made(list), made(set), made(dict), made(tuple), made(frozenset)

    def f():
        found = []
        for kind, content in zip(kinds, ([1, 2], [1, 2], {1: 2}, [1, 2], [1, 2])):
            x = kind(content)
            print(end="")
            found.append((list(x), x.extra))
        return found

    assert same(f)[1] == [([1, 2], None)] * 2 + [([1], None)] + [([1, 2], None)] * 2


def test_generators_are_closed_and_thrown_into():
    log = []

    @contextlib.contextmanager
    def manager():
        try:
            yield 1
        finally:
            log.append("left")

    def f(kind):
        try:
            with manager():
                raise kind("inside")
        except kind as e:
            return str(e)

    for kind in (GeneratorExit, KeyError, StopIteration):
        assert same(f, kind, log=log)[2] == ["left"]


def test_the_handled_exception_inside_and_outside_of_a_generator():
    def numbers():
        try:
            raise KeyError
        except KeyError:
            pass
        yield sys.exc_info()[0]
        try:
            raise KeyError
        except KeyError:
            yield sys.exc_info()[0]
        yield sys.exc_info()[0]

    def f():
        try:
            raise TypeError
        except TypeError:
            it = numbers()
            return [next(it), next(it), next(it), sys.exc_info()[0]]

    assert same(f)[1] == [TypeError, KeyError, TypeError, TypeError]


def test_texts_of_exceptions_from_outside_are_read_each_time():
    def said(call):
        try:
            call()
        except TypeError as e:
            return str(e), repr(e), f"{e}", "%s" % e, e.args

    def calls(k):
        return (lambda: len(), lambda: len([], 1), lambda: [].index(), lambda: tuple(x=1))[k]

    want = [said(calls(k)) for k in range(4)]
    with config.patch(recompile_limit=32), frames.every_frame(), hook.enable(backend="eager"):
        for _ in range(2):
            assert [said(calls(k)) for k in range(4)] == want


def test_texts_of_exceptions_beside_tensors():
    def f(x, k):
        y = x + 1
        try:
            [].pop() if k == 0 else {}[k]
        except (IndexError, KeyError) as e:
            return y * 2, str(e)

    compiled = tcompile.compile(f, backend="eager")
    for k in (0, 1, 2, 0, 3):
        assert compiled(torch.ones(2), k)[1] == f(torch.ones(2), k)[1]

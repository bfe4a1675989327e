"""The exception that is being handled: generators', of who resumes them, of who calls the frame. What close() gives."""

from __future__ import annotations

import sys
import types

import pytest
import torch

import tcompile


def reraised(x):
    def g():
        try:
            raise KeyError("k")
        except KeyError:
            yield x
            raise

    it = g()
    next(it)
    try:
        next(it)
    except KeyError as e:
        return x * 2, str(e)


def handled_where_it_is_resumed(x):
    def inner():
        for _ in range(3):
            yield repr(sys.exception())

    def outer():
        try:
            raise TypeError("t")
        except TypeError:
            yield from inner()
            yield repr(sys.exception())

    found = []
    try:
        raise ValueError("v")
    except ValueError:
        for said in outer():
            found.append((said, repr(sys.exception())))
    return x + 1, found, sys.exception()


def thrown_into_a_handler(x):
    def g():
        try:
            raise KeyError("a")
        except KeyError:
            yield x

    it = g()
    next(it)
    try:
        it.throw(ValueError("v"))
    except ValueError as e:
        return x * 2, repr(e.__context__)


def thrown_with_a_context(x):
    def g():
        try:
            yield x
        finally:
            x.abs()

    it = g()
    next(it)
    error = ValueError("v")
    error.__context__ = OSError("o")
    try:
        raise KeyError("k")
    except KeyError:
        try:
            it.throw(error)
        except ValueError as e:
            return x * 2, repr(e.__context__)


def resumed_in_another_handler(x):
    def g():
        try:
            raise KeyError("a")
        except KeyError:
            yield repr(sys.exception())
        yield repr(sys.exc_info()[1])

    try:
        raise OSError("o")
    except OSError:
        it = g()
        found = [next(it)]
    try:
        raise ValueError("v")
    except ValueError:
        found.append(next(it))
    return x, found


def nothing_to_raise_again(x):
    def g():
        yield x
        raise  # noqa: PLE0704

    try:
        raise OSError("outside")
    except OSError:
        it = g()
        next(it)
    try:
        next(it)
    except RuntimeError as e:
        return x + 1, str(e)


def closed(x):
    def g():
        try:
            yield x
        except GeneratorExit:
            return 5

    it = g()
    next(it)
    return x, it.close(), it.close(), g().close()


@pytest.mark.parametrize(
    "f",
    [
        reraised,
        handled_where_it_is_resumed,
        thrown_into_a_handler,
        thrown_with_a_context,
        resumed_in_another_handler,
        nothing_to_raise_again,
        closed,
    ],
    ids=lambda f: f.__name__,
)
def test_as_in_eager(f):
    x = torch.ones(2)
    got = tcompile.compile(f, backend="eager", fullgraph=True)(x)
    assert str(got) == str(f(x))


def test_a_generator_shows_what_generators_have():
    def attributes(x):
        g = (x * i for i in range(2))
        seen = [g.__class__, type(g), isinstance(g, types.GeneratorType)]
        seen += [hasattr(g, name) for name in ("machine", "frame", "started", "send", "gi_frame")]
        try:
            g.machine
        except AttributeError as e:
            seen += [str(e), e.name, e.obj is g]
        return seen, next(g), g.__next__()

    def names(x):
        g = (x * i for i in range(2))
        return g.gi_running, g.__name__, g.gi_code.co_name, next(g)

    for f in (attributes, names):
        compiled = tcompile.compile(f, backend="eager")
        for _ in range(2):
            assert str(compiled(torch.ones(2))) == str(f(torch.ones(2)))


errors = []


def asked_for(x):
    return x * 2, sys.exc_info()[1], sys.exception()


def context_of_a_caught_one(x):
    try:
        raise ValueError("v")
    except ValueError as e:
        return x + 1, e.__context__


def kept(x):
    try:
        try:
            raise ValueError("v")
        except ValueError:
            raise KeyError("k")
    except KeyError as e:
        errors.append(e)
    return x + 1, errors.pop().__context__


def raised_again(x):
    try:
        raise  # noqa: PLE0704
    except RuntimeError as e:
        return x + 2, e.args
    except OSError as e:
        return x * 2, e.args


@pytest.mark.parametrize("f", [asked_for, context_of_a_caught_one, kept, raised_again])
@pytest.mark.parametrize("first", [True, False])
def test_what_the_caller_handles(f, first):
    """A frame that was captured outside of handlers said there that nothing is handled, and the other way round."""
    compiled = tcompile.compile(f, backend="eager")

    def seen(g):
        result, *rest = g(torch.ones(1))
        chains = []
        for e in rest:
            chain = []
            while isinstance(e, BaseException):
                chain.append(repr(e))
                e = e.__context__
            chains.append((chain, e))
        return result.tolist(), chains

    for inside in (first, not first, first):
        try:
            if inside:
                raise OSError("of the caller")
            assert seen(compiled) == seen(f)
        except OSError:
            assert seen(compiled) == seen(f)


class TailCall(BaseException):
    """Not an Exception: what trampolines raise, so that nobody else catches it."""


def test_exceptions_that_generators_raise_need_not_be_of_class_exception():
    def steps(x):
        yield x + 1
        raise TailCall(x * 2)

    def program(x):
        it, total = steps(x), x
        try:
            while True:
                total = total + next(it)
        except TailCall as e:
            total = total - e.args[0]
        try:
            for step in steps(total):
                total = total * step
        except TailCall as e:
            return total, e.args[0], list(zip([1], steps(x)))

    expected = program(torch.ones(3))
    torch.testing.assert_close(tcompile.compile(program, backend="eager", fullgraph=True)(torch.ones(3)), expected)

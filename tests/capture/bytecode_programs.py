"""Small programs, in which every kind of instruction and of loop is broken at (test_bytecode_execution.py). `CASES` are the
calls; LOG is what they did.
"""

from __future__ import annotations

import sys

LOG: list = []


def say(*values):
    LOG.append(values)
    return len(LOG)


def boom(x):
    LOG.append(("boom", x))
    raise ValueError(x)


class Manager:
    def __init__(self, swallow=False):
        self.swallow = swallow

    def __enter__(self):
        LOG.append("enter")
        return self

    def __exit__(self, kind, value, tb):
        LOG.append(("exit", kind and kind.__name__, str(value)))
        return self.swallow


def branches(a, b):
    c = a + b
    if c > 3 and a:
        c = say(c) * 2
    else:
        c = -c
    return [c, a, b]


def for_else(n):
    t = 0
    for i in range(n):
        if i == 3:
            continue
        if i == 6:
            break
        t += i * say(i)
    else:
        t = -1
    return t, i if n else None


def nested_handlers(x):
    r = []
    try:
        r.append(say(1))
        boom(x)
        r.append(2)
    except ValueError as e:
        r.append(str(e))
        r.append(sys.exception() is e)
        try:
            boom(str(x) + "in")
        except ValueError:
            r.append(str(sys.exception()))
            r.append(str(sys.exception().__context__))
        r.append(str(sys.exception()))
    finally:
        r.append(sys.exception())
        say("fin")
    r.append(sys.exception())
    return r


def with_blocks(x):
    with Manager(True) as c, Manager() as d:
        y = say(x)
        if x > 2:
            boom(y)
        z = c.swallow, d.swallow
    try:
        return z
    except UnboundLocalError:
        return "unbound"


def closures(x):
    def g():
        return x + 1

    x = x * 2
    h = lambda k: (x, k, y)
    y = g()
    return [h(i) for i in range(3)], g()


def arguments(xs, k=3, *rest, m=4, **kw):
    a, *b = xs
    d = {"p": a, **kw}
    s = f"{a!r:>{k}}|{b}"
    q = [i * k for i in xs if i]
    w = {i: j for i, j in zip(xs, b)}
    del a
    return d, s, q, w, xs[1:2], rest, m, not b, max(*xs, key=lambda v: -v), dict(z=1, **kw)


def while_with_finally(x):
    while True:
        x -= 1
        try:
            if x < 0:
                return x
            if x == 2:
                continue
            if x == 1:
                boom(x)
        except ValueError:
            say("v")
        finally:
            say("f", x)


class A:
    def __init__(self):
        self.v = 1

    def m(self, x):
        return x + self.v


class B(A):
    def method(self, x):
        y = say(x)
        r = super().m(x) + y
        self.v += r
        return r, __class__.__name__, self.v

    def loop(self, xs):
        t = 0
        for x in xs:
            t += super().m(x)
            self.v += 1
        return t, self.v


def matching(x):
    match x:
        case [a, b]:
            return say(a + b)
        case {"k": v}:
            return v
        case A(v=z):
            return z
        case _:
            return "none"


def statements(x):
    global GLOBAL
    GLOBAL = x
    import math
    from os import path as p

    assert x, "msg"
    x.append(GLOBAL[0])
    x[0] += 1
    x[0:1] = [7]
    return (
        math.floor(2.5),
        p is not None,
        GLOBAL,
        (x is None or x),
        x if x[0] < 9 < 10 else None,
        x[-1] if None is x else +x[0],
    )


def raising(x):
    raise KeyError(x) from ValueError("c")


def captured_loop_variables(xs):
    out = []
    for x in xs:
        for y in xs:
            if y > x:
                continue
            out.append((lambda: x * y)())
        else:
            out.append("e")
    fs = [lambda: z for z in xs]
    return out, [g() for g in fs], sorted(locals())


def exception_groups(x):
    try:
        try:
            boom(x)
        finally:
            say("inner")
    except* ValueError as eg:
        r = len(eg.exceptions), say("s")
    return r


def raise_in_handler(x):
    try:
        boom(x)
    except TypeError:
        return 1
    except (KeyError, ValueError) as e:
        with Manager():
            raise RuntimeError("x") from e


def loop_sum(xs):
    t = 0
    for x in xs:
        if x == 2:
            continue
        y = say(x)
        if x > 5:
            break
        t += y
    else:
        t += 100
    return t, (y if xs else None)


def loops_in_loops(xs):
    for i, (a, b) in enumerate(xs):
        for j in range(a):
            if j == b:
                return i, j
            if j > b:
                break
            last = j
        say(i)
    try:
        return last
    except UnboundLocalError:
        return "u"


def loop_with_everything(xs):
    out = []
    k = 0
    fs = []
    for x in xs:
        k += 1
        try:
            with Manager(x == 1) as c:
                if x == 3:
                    continue
                if x == 1:
                    boom(x)
                if x == 7:
                    break
                out.append((x, c.swallow))
        except ValueError as e:
            out.append(str(e))
            if x == 5:
                raise
        finally:
            out.append(("f", x))
        fs.append(lambda: (x, k))
    return out, [f() for f in fs]


def while_else(n):
    while n > 0:
        n -= 1
        if n == 5:
            say("c")
            continue
        if n == 2:
            break
        z = n
    else:
        return "else", n
    try:
        return z, n
    except NameError as e:
        return str(e)


def endless(n):
    while True:
        try:
            n = n - say(n)
            if n < 0:
                boom(n)
        except ValueError as e:
            if n < -5:
                return str(e), sys.exception() is e
            continue


def deleted_in_loop(xs):
    try:
        for x in xs:
            if x:
                del x
            if say(1) == 3:
                boom("q")
    except ValueError:
        return "caught", "x" in repr(xs)
    return x


def read_while_unbound(xs):
    d = {}
    for x in xs:
        try:
            d[x] = prev  # noqa: F821
        except UnboundLocalError:
            d[x] = None
        prev = x
    for y in xs:
        while y:
            y -= 1
            if y == 1:
                return d
            for q in range(y):
                d[q, y] = [q * w for w in range(q)]
    return d


def sometimes_bound(xs):
    for x in xs:
        if x > 2:
            del xs[0]
            r = x
        elif x == 1:
            r = 0
            del r
    try:
        return r
    except UnboundLocalError as e:
        return str(e)


def nonlocal_in_loop(x):
    def inc():
        nonlocal c
        c += 1

    c = 0
    for i in range(x):
        inc()
        if c % 2:
            w = c
    return c, w, i


def loops_in_with(n):
    with Manager(True):
        for i in range(n):
            with Manager():
                for j in range(i):
                    if j == 2:
                        boom((i, j))
                    if j == 1 and i == 2:
                        return "ret", i, j
    return i, j


def handler_leaves_loop(xs):
    for x in xs:
        try:
            try:
                boom(x)
            except ValueError:
                if x == 2:
                    break
                if x == 3:
                    return sys.exception().args
                raise KeyError(x)
        except KeyError as k:
            say(str(k), str(k.__context__))
    return sys.exception()


def and_or_while(x, n):
    r = []
    while n:
        while x and n:
            n -= 1
            if n == 2:
                continue
            while x > 0:
                x -= 1
                if x == 3:
                    break
            r.append((x, n))
        n -= 1
    return r


CASES = [
    (branches, 1, 2),
    (branches, 3, 2),
    (for_else, 0),
    (for_else, 3),
    (for_else, 9),
    (nested_handlers, 5),
    (with_blocks, 1),
    (with_blocks, 5),
    (closures, 3),
    (arguments, [1, 2, 3], 2, 9),
    (while_with_finally, 4),
    (B.method, B(), 4),
    (matching, [1, 2]),
    (matching, {"k": 3}),
    (matching, A()),
    (matching, 3),
    (statements, [1, 2]),
    (statements, []),
    (raising, 1),
    (captured_loop_variables, [1, 2, 3]),
    (exception_groups, 2),
    (raise_in_handler, 2),
    (loop_sum, []),
    (loop_sum, [1, 2, 3]),
    (loop_sum, [1, 2, 7, 3]),
    (loops_in_loops, [(3, 5), (2, 5)]),
    (loops_in_loops, [(3, 1), (2, 5)]),
    (loops_in_loops, []),
    (loop_with_everything, [1, 2, 3, 4]),
    (loop_with_everything, [1, 7, 4]),
    (loop_with_everything, [2, 1, 5]),
    (while_else, 9),
    (while_else, 0),
    (while_else, 2),
    (while_else, 3),
    (endless, 4),
    (endless, 40),
    (deleted_in_loop, [0, 1]),
    (deleted_in_loop, [1, 0]),
    (deleted_in_loop, [1, 0, 0, 0]),
    (read_while_unbound, [1, 2]),
    (read_while_unbound, [3, 4]),
    (sometimes_bound, [1]),
    (sometimes_bound, [3, 1]),
    (sometimes_bound, [1, 3]),
    (sometimes_bound, [1, 3, 4, 5, 6]),
    (B.loop, B(), [1, 2]),
    (nonlocal_in_loop, 4),
    (loops_in_with, 5),
    (loops_in_with, 2),
    (loops_in_with, 1),
    (loops_in_with, 0),
    (handler_leaves_loop, [1, 1]),
    (handler_leaves_loop, [1, 2]),
    (handler_leaves_loop, [1, 3, 3]),
    (and_or_while, 9, 7),
]
IDS = [f"{case[0].__name__}-{at}" for at, case in enumerate(CASES)]

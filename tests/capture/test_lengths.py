"""Lists that grow: how long they are is a number that varies, and no result is of another length."""

from __future__ import annotations

import collections
import copy

import pytest
import torch

import tcompile


def logged(x, losses, lines):
    losses.append((x * 2).sum().item())
    if len(losses) % 4 == 0:
        lines.append(f"{len(losses)}: {losses[-1]:.3f}")
    return x + 1


def of_a_dict(x, history):
    history["loss"].append(x * 2)
    history["n"] = len(history["loss"])
    return x + len(history["loss"])


def by_place(x, xs):
    i = len(xs)
    xs.append(x * i)
    return xs[i] + xs[len(xs) - 1] + i


def before_the_first(x, xs):
    xs.append(x)
    return xs[len(xs) - 4] + xs[2] if len(xs) >= 4 else x * 3


def of_a_deque(x, window):
    window.append(x.sum().item())
    return x * 2 if len(window) == window.maxlen else x + len(window)


def of_a_set(x, seen):
    seen.add(len(seen) + 5)
    return x * len(seen)


def as_truth(x, xs):
    if not xs:
        xs.extend([x, x + 1])
        return x
    xs.append(x)
    return x * 2 if xs else x * 3


def stacked(x, xs):
    xs.append(x * 2)
    if len(xs) == 4:
        total = torch.stack(xs).sum(0)
        xs.clear()
        return total
    return x


def under_two_names(x, a, b):
    a.append(x)
    return x * len(b) + len(a), len(b)


def replaced(x, o):
    o["l"].append(x * 2)
    n = len(o["l"])
    if n >= 5:
        o["l"] = []
    return x * n, len(o["l"])


def looked_up(x, xs):
    n = len(xs)
    xs.append(n)
    return x, n in xs, 7 in xs, len(xs)


def as_sizes(x, xs):
    xs.append(x)
    return torch.zeros(len(xs), 2) + x[0], torch.arange(len(xs)), x / len(xs)


def as_numbers(x, xs):
    xs.append(2.0)
    n = len(xs)
    return x * n, 1 / n, divmod(n, 4), n**2, -n, max(n, 5), bool(n - 1), f"{n:03d}|{n!r}", str(n), "%d" % n


def compared(x, a, b):
    a.append(x)
    if len(a) % 3 == 0:
        b.append(x)
    return x + 1 if len(a) == len(b) else x - len(b), len(a) - len(b)


def from_both_ends(x, xs):
    xs.append(x)
    return xs[-len(xs)] + xs[len(xs) - 1], xs[len(xs) // 2]


def changed_after_it_was_added(x, xs):
    more = [x]
    xs.extend(more)
    more.append(x * 2)
    return x + 1, len(xs)


def of_a_dict_that_was_written_to(x, table):
    table["n"] = len(table)
    table[7] = x
    n = table["n"]
    return x * 2 if n < 3 else table[n + 2] + 1 if n + 2 in table else x


def added_by_letters(x, xs):
    xs.append(x)
    xs += "ab"
    return x + len(xs), xs[-1], xs[-2], xs[-3] * 2


def inside_another(x, xs):
    xs[0].append(x)
    xs.append([x])
    return x * len(xs[0]) + len(xs), len(xs[-1])


def popped(x, xs):
    xs.append(x)
    xs.append(x + 1)
    y = xs.pop()
    return y * len(xs), len(xs)


def deleted(x, xs):
    xs.append(x)
    xs.insert(0, x * 2)
    del xs[-1]
    return x * len(xs), len(xs), xs[0]


def sliced(x, xs):
    xs.append(x.sum().item())
    return sum(xs[-3:]) / min(3, len(xs)), len(xs[2:]), len(xs)


def averaged(x, xs):
    xs.append(x.sum().item())
    return x * (sum(xs[-5:]) / 5), len(xs)


def parts(x, xs):
    xs.append(x.sum().item())
    more = [1.0, 2.0]
    xs += more
    return x * 2, xs[-4:], xs[-4:-1], xs[:3], xs[1:2], xs[2:1], xs[-1:-3], xs[-1:], xs[-2:] is xs[-2:], xs[::2]


def gone_through(x, xs):
    xs.append(x.sum().item())
    total = 0.0
    for v in xs:
        total += v
    return x * total / len(xs), len(xs)


def the_middle(x, xs):
    xs.append(x.sum().item())
    return x * xs[len(xs) // 2], len(xs)


def the_middle_of_another(x, xs, ys):
    xs.append(x.sum().item())
    ys.append(x * 2)
    return ys[len(xs) - 1] + ys[(len(xs) - 1) // 2]


def keys_that_count(x, d, n):
    n.append(x)
    d[len(n)] = x * 2
    d[f"step {len(n)}"] = len(n)
    return x + 1


def keys_that_are_read(x, d, n):
    n.append(x)
    k = len(n)
    d[k] = x * 2
    return d[k] + 1, k - 1 in d


def a_key_over_another(x, d, n):
    n.append(x)
    k = len(n)
    d[1], d[k], d[2] = x, x + 1, x + 2
    return (d[1] + d[2], len(d)) if k < 3 else x


def keys_of_a_kind(x, d, n):
    n.append(x)
    k = len(n)
    d[k] = k
    d["n"] = k
    return x * 2, d["n"], list(d)[-1], d.get(k)


def gone_through_with_tensors(x, xs):
    y = x.tanh()
    for h in xs:
        y = y + 0.1 * h
    xs.append(y)
    return y


# program -> (what it is given, how often it may compile anew)
PROGRAMS = {
    logged: (([], []), 1),
    of_a_dict: (({"loss": []},), 0),
    by_place: (([],), 1),
    before_the_first: (([],), 2),
    of_a_deque: ((collections.deque(maxlen=6),), 2),
    of_a_set: ((set(),), 3),
    as_truth: (([],), 1),
    stacked: (([],), 1),
    under_two_names: (([], []), 0),
    replaced: (({"l": []},), 1),
    looked_up: (([],), 1),
    as_sizes: (([],), 1),
    as_numbers: (([],), 2),
    compared: (([], []), 2),
    changed_after_it_was_added: (([],), 0),
    of_a_dict_that_was_written_to: (({},), 1),
    added_by_letters: (([],), 4),
    popped: (([],), 6),
    sliced: (([],), 4),
    averaged: (([],), 4),
    parts: (([],), 4),
    # each length is one more of those that are compiled for, until no more are
    inside_another: (([[]],), 0),
    from_both_ends: (([],), 2),
    deleted: (([],), 9),
    gone_through: (([],), 8),
    the_middle: (([],), 2),
    the_middle_of_another: (([], []), 2),
    keys_that_count: (({}, []), 0),
    keys_that_are_read: (({}, []), 5),
    a_key_over_another: (({}, []), 3),
    keys_of_a_kind: (({}, []), 5),
    gone_through_with_tensors: (([],), 7),
}


def _same(got, want):
    if isinstance(want, (list, tuple, collections.deque)):
        assert type(got) is type(want) and len(got) == len(want)
        for a, b in zip(got, want):
            _same(a, b)
    elif isinstance(want, dict):
        assert list(got) == list(want)
        _same(list(got.values()), list(want.values()))
    elif isinstance(want, torch.Tensor):
        torch.testing.assert_close(got, want)
    else:
        assert type(got) is type(want)
        assert got == (pytest.approx(want, rel=1e-4) if isinstance(want, float) else want)


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda f: f.__name__)
def test_a_list_that_grows(program):
    given, most = PROGRAMS[program]
    compiled = tcompile.compile(program)
    with tcompile.record() as record:
        for calls in (9, 13, 3):  # each time with lists of its own
            ours, theirs = copy.deepcopy(given), copy.deepcopy(given)
            for _ in range(calls):
                x = torch.randn(3)
                _same(compiled(x, *ours), program(x, *theirs))
                _same(ours, theirs)
    assert len(record.report().recompiles) <= most


def test_two_names_of_one_list():
    """An entry for two lists does not serve one list under two names, however long it is."""
    compiled = tcompile.compile(under_two_names)
    for _ in range(2):
        for pair in (lambda: ([], []), lambda: [[]] * 2):
            ours, theirs = pair(), pair()
            for _ in range(4):
                x = torch.randn(3)
                _same(compiled(x, *ours), under_two_names(x, *theirs))
                _same(list(ours), list(theirs))


def test_a_list_of_a_class():
    """A length that the program's class says is asked of it; another kind of object in its place is noticed."""

    class Own(list):
        def __len__(self):
            return super().__len__() + 10

    class Plain(list):
        pass

    def program(x, xs):
        xs.append(x)
        return x * len(xs), len(xs)

    compiled = tcompile.compile(program)
    for kind in (list, Own, Plain, collections.deque, list, Plain, Own):
        ours, theirs = kind(), kind()
        for _ in range(3):
            x = torch.randn(2)
            _same(compiled(x, ours), program(x, theirs))


def test_a_list_that_only_others_change():
    """Its length is learned as an int argument is."""

    def program(x, xs):
        return x * len(xs), len(xs)

    compiled, xs = tcompile.compile(program), [0]
    with tcompile.record() as record:
        for n in (1, 2, 3, 7, 0, 5, 1):
            xs[:] = range(n)
            x = torch.randn(2)
            _same(compiled(x, xs), program(x, xs))
    assert len(record.report().recompiles) <= 2
    with pytest.raises(TypeError):
        compiled(x, None)

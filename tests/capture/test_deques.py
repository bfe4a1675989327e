"""deques from outside: read, written and guarded as lists are; a history that only grows asks for no guard on its
length.
"""

import collections

import pytest
import torch

import tcompile

X = torch.arange(6.0).reshape(2, 3)


def everything(x, q):
    q.append(4.0)
    first = q.popleft()
    q.rotate(1)
    q.appendleft(9.0)
    q.extend([first, first])
    q.extendleft([5.0, 6.0])
    q[0] = 7.0
    del q[1]
    last = q.pop()
    q.insert(1, 0.5)
    q.reverse()
    q += [8.0]
    return (
        x * first + last,
        len(q),
        q[0],
        q[-1],
        list(q),
        8.0 in q,
        q.index(8.0),
        q.count(0.5),
        bool(q),
        [v for v in q],
        q.maxlen,
        max(q),
        q.copy(),
        q == collections.deque(q),
        list(reversed(q)),
    )


def test_methods():
    compiled = tcompile.compile(everything, backend="eager", fullgraph=True)
    a, b = collections.deque([1.0, 2.0, 3.0]), collections.deque([1.0, 2.0, 3.0])
    for _ in range(3):
        got, want = compiled(X, a), everything(X, b)
        assert torch.equal(got[0], want[0]) and got[1:] == want[1:] and a == b


def test_a_history_that_grows():
    graphs = []

    def backend(gm, examples):
        graphs.append(gm)
        return gm.forward

    @tcompile.compile(backend=backend, fullgraph=True)
    def f(x, q):
        q.append(x)
        return x + 1

    q = collections.deque(maxlen=2)
    for i in range(4):
        assert torch.equal(f(X + i, q), X + i + 1)
    assert len(q) == 2 and torch.equal(q[1], X + 3) and len(graphs) == 1


def mean(x, q):
    q.append(x.sum())
    for t in q:
        x = x + t
    return x, torch.stack(list(q)), sum(q) / len(q)


@pytest.mark.parametrize("room", [None, 2])
def test_tensors(room):
    compiled = tcompile.compile(mean, backend="eager", fullgraph=True)
    a, b = collections.deque(maxlen=room), collections.deque(maxlen=room)
    for i in range(4):
        for got, want in zip(compiled(X + i, a), mean(X + i, b)):
            assert torch.equal(got, want)
        assert all(map(torch.equal, a, b)) and len(a) == len(b)


def test_what_is_relied_on():
    def f(x, q):
        q.append(2)
        return x + len(q) + q[0]

    compiled = tcompile.compile(f, backend="eager")
    for content, room in (([1], 1), ([1], 3), ([1], None), ([5], None), ([], None), ([1, 2], 2)):
        a, b = collections.deque(content, room), collections.deque(content, room)
        assert torch.equal(compiled(X, a), f(X, b)) and a == b
    q, other = collections.deque([1]), collections.deque([1])

    def two(x, q, p):
        q.append(1)
        return x + len(p)

    compiled = tcompile.compile(two, backend="eager")
    assert torch.equal(compiled(X, q, other), X + 1) and torch.equal(compiled(X, q, q), X + 3)


def test_errors():
    def f(x, q):
        said = []
        for use in (
            lambda: q.remove(99),
            lambda: q[50],
            lambda: collections.deque().pop(),
            lambda: q[0:1],
            lambda: q.index(7),
        ):
            try:
                use()
            except (ValueError, IndexError, TypeError) as e:
                said.append((type(e), str(e)))
        q.clear()
        return x + len(q), said

    assert tcompile.compile(f, backend="eager")(X, collections.deque([1.0]))[1] == f(X, collections.deque([1.0]))[1]


class Twice(collections.deque):
    def append(self, value):
        super().append(value)
        super().append(value)


def test_subclasses():
    def f(x, q):
        q.append(x.sum())
        return x + len(q)

    compiled = tcompile.compile(f, backend="eager")
    a, b = Twice(), Twice()
    for _ in range(2):
        assert torch.equal(compiled(X, a), f(X, b)) and len(a) == len(b)


def test_results_of_torch_s_own_kinds():
    def f(x):
        r = torch.return_types.max((x, x + 1))
        return r, r.indices, tuple(torch.return_types.sort((2 * x, x - 1)))

    got, want = tcompile.compile(f, backend="eager", fullgraph=True)(X), f(X)
    assert type(got[0]) is type(want[0]) and torch.equal(got[1], want[1]) and all(map(torch.equal, got[2], want[2]))

"""What clears the counters of products in a CUDA graph, moved to its beginning: on a model of a graph's nodes."""

from collections import defaultdict

import pytest

from tcompile.compiler.runtime.gpu.counters import SLOT, clear_first

BASE = 1 << 20


class Model:
    """Nodes are numbers from 1 on; `what[node]`: a name, or (address, value, bytes) of what it clears."""

    def __init__(self, *chain):
        self.what, self.edges, self.special = {}, set(), set()
        for w in chain:
            self.add(w)
            if len(self.what) > 1:
                self.edges.add((len(self.what) - 1, len(self.what)))

    def add(self, what):
        self.what[len(self.what) + 1] = what
        return len(self.what)

    def memsets(self):
        return [n for n, w in self.what.items() if isinstance(w, tuple)]

    def memset(self, node):
        return self.what[node]

    def before(self, node):
        return None if node in self.special else [a for a, b in self.edges if b == node]

    def behind(self, node):
        return [b for a, b in self.edges if a == node]

    def roots(self):
        return [n for n in self.what if not any(b == n for _, b in self.edges)]

    def connect(self, a, b):
        assert (a, b) not in self.edges, "the driver refuses an edge twice"
        self.edges.add((a, b))

    def destroy(self, node):
        del self.what[node]
        self.edges = {e for e in self.edges if node not in e}

    def clear(self, address, n):
        node = max(self.what) + 1
        self.what[node] = (address, 0, n)
        return node

    def order(self):
        """The nodes in the one order that the edges allow."""
        behind = defaultdict(list)
        for a, b in self.edges:
            behind[a].append(b)
        (at,) = self.roots()
        found = [self.what[at]]
        while behind[at]:
            (at,) = behind[at]
            found.append(self.what[at])
        assert len(found) == len(self.what)
        return found


def counter(slot, value=0, n=4, at=0):
    return BASE + slot * SLOT + at, value, n


def test_one_node_at_the_beginning_clears_all():
    g = Model("a", counter(0), "product 0", "b", counter(1), "product 1", "c", counter(2), "product 2")
    assert clear_first(g, BASE, 3) == 3
    assert g.order() == [(BASE, 0, 3 * SLOT), "a", "product 0", "b", "product 1", "c", "product 2"]


def test_counters_that_follow_on_each_other_or_begin_the_graph():
    g = Model(counter(0), counter(1), "products", counter(2), "product")
    assert clear_first(g, BASE, 3) == 3
    assert g.order() == [(BASE, 0, 3 * SLOT), "products", "product"]


@pytest.mark.parametrize(
    "other",
    [
        (BASE - SLOT, 0, 4),
        (BASE + 9 * SLOT, 0, 4),  # memory of others, a slot that was not taken
        counter(2, value=1),
        counter(2, n=8, at=SLOT - 4),
    ],
)  # another value, beyond the slot
def test_what_clears_something_else_stays(other):
    g = Model(counter(0), "product 0", other, "b", counter(1), "product 1")
    assert clear_first(g, BASE, 3) == 2
    assert g.order() == [(BASE, 0, 3 * SLOT), "product 0", other, "b", "product 1"]


def test_a_workspace_that_is_cleared_twice_stays():
    twice = counter(2), "part", counter(2, at=8), "rest"
    g = Model(counter(0), "product 0", *twice, counter(1), "product 1")
    assert clear_first(g, BASE, 3) == 2
    assert g.order() == [(BASE, 0, 3 * SLOT), "product 0", *twice, "product 1"]


def test_a_single_one_stays():
    g = Model("a", counter(0), "product 0")
    assert clear_first(g, BASE, 1) == 0
    assert g.order() == ["a", counter(0), "product 0"]


def test_an_edge_that_says_more_than_the_order_stays():
    g = Model("a", counter(0), "product 0", counter(1), "product 1", counter(2), "product 2")
    g.special.add(4)
    assert clear_first(g, BASE, 3) == 2
    assert g.order() == [(BASE, 0, 3 * SLOT), "a", "product 0", counter(1), "product 1", "product 2"]


def test_branches_keep_their_order():
    """Two chains that meet: each counter's neighbours are connected, and no edge is made twice."""
    g = Model("a", counter(0), "left")
    cleared, right, end = g.add(counter(1)), g.add("right"), g.add("end")
    g.edges |= {(1, cleared), (cleared, right), (1, right), (3, end), (right, end)}
    assert clear_first(g, BASE, 2) == 2
    (first,) = g.roots()
    assert g.what[first] == (BASE, 0, 2 * SLOT)
    assert g.edges == {(first, 1), (1, 3), (1, right), (3, end), (right, end)}

"""The minimum node cut against brute force on small random graphs."""

from itertools import combinations

from hypothesis import given, settings
from hypothesis import strategies as st

from tcompile.compiler.autograd.mincut import min_node_cut


def connected(nodes, edges, sources, sinks, removed):
    seen = {s for s in sources if s not in removed}
    todo = list(seen)
    while todo:
        u = todo.pop()
        for a, b in edges:
            if a == u and b not in removed and b not in seen:
                seen.add(b)
                todo.append(b)
    return any(t in seen for t in sinks)


@settings(deadline=None)
@given(
    st.integers(2, 6).flatmap(
        lambda n: st.tuples(
            st.lists(st.integers(0, 9), min_size=n, max_size=n),
            st.sets(st.tuples(st.integers(0, n - 1), st.integers(0, n - 1)).filter(lambda e: e[0] < e[1]), max_size=10),
            st.sets(st.integers(0, n - 1), min_size=1, max_size=2),
            st.sets(st.integers(0, n - 1), min_size=1, max_size=2),
        )
    )
)
def test_against_brute_force(graph):
    weights, edges, sources, sinks = graph
    nodes = range(len(weights))
    cut = min_node_cut(dict(enumerate(weights)), edges, sources, sinks)
    assert not connected(nodes, edges, sources, sinks, cut)
    best = min(
        sum(weights[i] for i in c)
        for k in range(len(weights) + 1)
        for c in combinations(nodes, k)
        if not connected(nodes, edges, sources, sinks, set(c))
    )
    assert sum(weights[i] for i in cut) == best


def test_a_long_chain_is_quick_and_cuts_the_narrowest_value():
    n = 5000
    weights = {i: 100 + (i * 7919) % 1000 for i in range(n)}
    weights[3210] = 1
    assert min_node_cut(weights, [(i, i + 1) for i in range(n - 1)], [0], [n - 1]) == {3210}

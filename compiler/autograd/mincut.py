"""Minimum cut over nodes: which forward values to keep for backward, in bytes (min-cut rematerialization, as in
PyTorch's AOTAutograd partitioner and in Chen et al. 2016's spirit of recomputation).

in: nodes with a weight (bytes to keep) and edges producer -> consumer; out: the cheapest set of nodes such that
everything that backward reads can be recomputed from the set.
"""

from __future__ import annotations

from collections import deque
from typing import Hashable, Iterable, Mapping

__all__ = ["min_node_cut"]

INF = 1 << 60


def min_node_cut(
    weights: Mapping[Hashable, int],
    edges: Iterable[tuple[Hashable, Hashable]],
    sources: Iterable[Hashable],
    sinks: Iterable[Hashable],
) -> set[Hashable]:
    """The nodes of least total weight whose removal parts every path from a source to a sink. Sources and sinks may be
    cut themselves. Dinic's algorithm on the split graph (each node an edge in -> out with its weight); O(V^2 E), in
    practice near-linear on computation graphs."""
    ids = {weight: i for i, weight in enumerate(weights)}
    n = len(ids)
    s, t = 2 * n, 2 * n + 1
    head: list[list[int]] = [[] for _ in range(2 * n + 2)]  # node -> edge numbers
    to: list[int] = []
    cap: list[int] = []

    def edge(u: int, v: int, c: int) -> None:
        head[u].append(len(to))
        to.append(v)
        cap.append(c)
        head[v].append(len(to))
        to.append(u)
        cap.append(0)

    for node, value in ids.items():
        edge(2 * value, 2 * value + 1, max(0, min(int(weights[node]), INF)))
    for u, v in edges:
        edge(2 * ids[u] + 1, 2 * ids[v], INF)
    for u in sources:
        edge(s, 2 * ids[u], INF)
    for v in sinks:
        edge(2 * ids[v] + 1, t, INF)

    while True:
        level = _levels(head, to, cap, s)
        if level[t] < 0:
            break
        nxt = [0] * len(head)
        while _augment(head, to, cap, level, nxt, s, t):
            continue
    reachable = {i for i, d in enumerate(_levels(head, to, cap, s)) if d >= 0}
    return {node for node, item in ids.items() if 2 * item in reachable and 2 * item + 1 not in reachable}


def _levels(head: list[list[int]], to: list[int], cap: list[int], s: int) -> list[int]:
    level = [-1] * len(head)
    level[s] = 0
    queue = deque([s])
    while queue:
        u = queue.popleft()
        for e in head[u]:
            v = to[e]
            if cap[e] > 0 and level[v] < 0:
                level[v] = level[u] + 1
                queue.append(v)
    return level


def _augment(
    head: list[list[int]], to: list[int], cap: list[int], level: list[int], nxt: list[int], s: int, t: int
) -> int:
    """One augmenting path in the level graph, by depth-first search without recursion; 0 when there is none left."""
    path: list[int] = []
    u = s
    while u != t:
        while nxt[u] < len(head[u]):
            e = head[u][nxt[u]]
            if cap[e] > 0 and level[to[e]] == level[u] + 1:
                break
            nxt[u] += 1
        if nxt[u] == len(head[u]):
            if u == s:
                return 0
            level[u] = -1
            u = to[path.pop() ^ 1]
            continue
        path.append(head[u][nxt[u]])
        u = to[path[-1]]
    flow = min(cap[e] for e in path)
    for e in path:
        cap[e] -= flow
        cap[e ^ 1] += flow
    return flow

"""Lab 7, answered by another than its author: hidden tests must ask for no more than the lab says."""

# ruff: noqa: F821


# %% gradient
def gradient(steps, x, tangent):
    with torch.no_grad():

        def go(steps, x):
            if not steps:
                return tangent
            s = steps[0]
            f, d = {
                "sin": (torch.sin, torch.cos),
                "exp": (torch.exp, torch.exp),
                "tanh": (torch.tanh, lambda v: 1 - v.tanh() ** 2),
                "square": (torch.square, lambda v: v + v),
            }[s]
            return go(steps[1:], f(x)) * d(x)

        return go(list(steps), x)


# %% saved
def saved(values, kept):
    total = 0
    for v in values:
        if v.name in set(kept) and v.kind != "input":
            total += v.bytes
    return total


# %% again
def again(values, kept):
    by = {v.name: v for v in values}
    kept = set(kept)
    need = set()

    def visit(name):
        v = by[name]
        if name in kept or v.kind == "input" or name in need:
            return True
        if v.kind == "dear":
            return False
        need.add(name)
        return all(visit(r) for r in v.reads)

    for v in values:
        if v.wanted and not visit(v.name):
            return None
    return [v.name for v in values if v.name in need and v.kind == "cheap"]


# %% keep_wanted
def keep_wanted(values):
    return [v.name for v in values if v.wanted and v.kind not in ("input", "view")]


# %% cheapest
def cheapest(values):
    """Max-flow (Edmonds-Karp) on nodes split in two: capacity of a value is its bytes."""
    from collections import deque

    INF = 10**12
    cap = {}

    def edge(a, b, c):
        cap.setdefault(a, {})
        cap.setdefault(b, {})
        cap[a][b] = cap[a].get(b, 0) + c
        cap[b].setdefault(a, 0)

    for v in values:
        if v.kind == "input":
            continue
        edge((v.name, 0), (v.name, 1), INF if v.kind == "view" else v.bytes)
        if v.kind == "dear":
            edge("S", (v.name, 0), INF)
        for r in v.reads:
            if v.kind != "dear":
                edge((r, 1), (v.name, 0), INF)
        if v.wanted:
            edge((v.name, 1), "T", INF)
    cap.setdefault("S", {})
    cap.setdefault("T", {})
    while True:
        back = {"S": None}
        q = deque(["S"])
        while q and "T" not in back:
            a = q.popleft()
            for b, c in cap[a].items():
                if c > 0 and b not in back:
                    back[b] = a
                    q.append(b)
        if "T" not in back:
            break
        path = []
        b = "T"
        while back[b] is not None:
            path.append((back[b], b))
            b = back[b]
        f = min(cap[a][b] for a, b in path)
        for a, b in path:
            cap[a][b] -= f
            cap[b][a] += f
    return [v.name for v in values if (v.name, 0) in back and (v.name, 1) not in back]


# %% within
def within(values, budget):
    names = [v.name for v in values if v.kind in ("cheap", "dear")]
    best = None
    for mask in range(1 << len(names)):
        kept = [n for i, n in enumerate(names) if mask >> i & 1]
        if saved(values, kept) <= budget:
            a = again(values, kept)
            if a is not None and (best is None or len(a) < best[0]):
                best = (len(a), kept)
    return best and best[1]

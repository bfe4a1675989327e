"""Lab 8, answered by another than its author: hidden tests must ask for no more than the lab says."""

# ruff: noqa: F821


# %% kept
def kept(op):
    return tuple(n for i, n in enumerate(op.over) if i not in op.reduced)


# %% traffic
def traffic(ops, groups):
    by = {op.name: op for op in ops}
    total = 0
    for g in groups:
        inside = set(g)
        reads = {r for n in g for r in by[n].reads} - inside
        out = [n for n in inside if by[n].result or any(n in o.reads for o in ops if o.name not in inside)]
        total += sum(by[n].bytes for n in reads) + sum(by[n].bytes for n in out)
    return total


# %% legal
def legal(members):
    names = {m.name for m in members}
    reds = [m for m in members if m.kind == "reduction"]
    pts = [m for m in members if m.kind == "pointwise"]
    if any(set(m.crossed) & names for m in members):
        return False
    if not reds:
        return len({m.over for m in pts}) <= 1
    if any((r.over, r.reduced) != (reds[0].over, reds[0].reduced) for r in reds):
        return False
    return all(p.over in (reds[0].over, kept(reds[0])) for p in pts)


# %% in_order
def in_order(ops, groups):
    from graphlib import TopologicalSorter, CycleError

    home = {n: i for i, g in enumerate(groups) for n in g}
    by = {op.name: op for op in ops}
    deps = {i: {home[r] for n in g for r in by[n].reads if r in home and home[r] != i} for i, g in enumerate(groups)}
    try:
        return [groups[i] for i in TopologicalSorter(deps).static_order()]
    except CycleError:
        return None


# %% chains
def chains(ops):
    out, prev = [], None
    for op in ops:
        if op.kind == "input":
            continue
        if (
            prev is not None
            and prev.kind == op.kind == "pointwise"
            and prev.name in op.reads
            and legal([o for o in ops if o.name in out[-1]] + [op])
        ):
            out[-1].append(op.name)
        else:
            out.append([op.name])
        prev = op
    return out


# %% my_fusion
def my_fusion(ops):
    """Merge pairs of groups as long as it saves bytes or a kernel that shares something, is legal and has an order."""
    by = {op.name: op for op in ops}
    groups = [[op.name] for op in ops if op.kind != "input"]

    def related(a, b):
        ra = {r for n in a for r in by[n].reads}
        rb = {r for n in b for r in by[n].reads}
        return ra & rb or ra & set(b) or rb & set(a)

    again = True
    while again:
        again, best = False, None
        now = traffic(ops, groups)
        for i in range(len(groups)):
            for j in range(i + 1, len(groups)):
                if not related(groups[i], groups[j]):
                    continue
                both = sorted(groups[i] + groups[j], key=[o.name for o in ops].index)
                if not legal([by[n] for n in both]):
                    continue
                new = [g for k, g in enumerate(groups) if k not in (i, j)] + [both]
                if in_order(ops, new) is None:
                    continue
                t = traffic(ops, new)
                if t <= now and (best is None or t < best[0]):
                    best = (t, new)
        if best:
            groups, again = best[1], True
    return in_order(ops, groups)

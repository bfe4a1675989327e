"""Lab 5, answered by another than its author: hidden tests must ask for no more than the lab says."""

# ruff: noqa: F821


# %% names_of
def names_of(statement):
    reads, writes = set(), set()

    class V(ast.NodeVisitor):
        def visit_Name(self, node):
            (reads if isinstance(node.ctx, ast.Load) else writes).add(node.id)

        def visit_AugAssign(self, node):
            if isinstance(node.target, ast.Name):
                reads.add(node.target.id)
            self.generic_visit(node)

    V().visit(statement)
    return reads, writes


# %% live
def live(body, place, known):
    need = set()
    for s in reversed(body[place:]):
        r, w = names_of(s)
        need = (need - w) | r
    return sorted(need & set(known))


# %% breaks
def breaks(statement):
    def one(node):
        if not isinstance(node, ast.Call):
            return False
        f = node.func
        return getattr(f, "id", None) in {"print", "int", "float", "bool"} or getattr(f, "attr", None) in {
            "item",
            "tolist",
        }

    return any(map(one, ast.walk(statement)))


# %% split_body
def split_body(function, body):
    flags = [breaks(s) for s in body]
    if True not in flags:
        return None
    i = flags.index(True)
    j = i
    while j < len(body) and flags[j]:
        if isinstance(body[j], ast.Return):
            raise Decline("a return that breaks")
        j += 1
    params = parameters_of(function)
    known = set(params).union(*(names_of(s)[1] for s in body))
    a, b = live(body, i, known), live(body, j, known)
    return (
        make("before", params, body[:i], a, function),
        make("native", a, body[i:j], b, function),
        make("after", b, body[j:], None, function),
    )


# %% reorder
def reorder(body):
    def in_place(s):
        if isinstance(s, ast.AugAssign):
            return True
        for n in ast.walk(s):
            if isinstance(n, (ast.Subscript, ast.Attribute)) and isinstance(n.ctx, ast.Store):
                return True
            if (
                isinstance(n, ast.Call)
                and isinstance(n.func, ast.Attribute)
                and n.func.attr.endswith("_")
                and not n.func.attr.endswith("__")
            ):
                return True
        return False

    n = len(body)
    facts = [(names_of(s), breaks(s), in_place(s), isinstance(s, ast.Return)) for s in body]
    after = {k: set() for k in range(n)}
    for k in range(n):
        for e in range(k):
            (rk, wk), bk, ik, tk = facts[k]
            (re, we), be, ie, te = facts[e]
            if rk & we or wk & re or wk & we or (bk and be) or ik or ie or tk or te:
                after[k].add(e)
    out, done = [], set()
    while len(out) < n:
        ready = [k for k in range(n) if k not in done and after[k] <= done]
        k = next((k for k in ready if not facts[k][1]), ready[0])
        out.append(body[k])
        done.add(k)
    return out

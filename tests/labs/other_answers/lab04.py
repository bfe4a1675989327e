"""Lab 4, answered by another than its author: hidden tests must ask for no more than the lab says."""

# ruff: noqa: F821


# %% value_test
def value_test(value):
    if value is None:
        return "v is None"
    kind = type(value).__name__
    if isinstance(value, float):
        if math.isnan(value):
            return "isinstance(v, float) and type(v) is float and math.isnan(v)"
        return f"type(v) is float and v.hex() == {value.hex()!r}"
    return f"(type(v), v) == ({kind}, {value!r})"


# %% tensor_test
def tensor_test(t):
    facts = {
        "type(v)": "torch.nn.Parameter" if type(t) is torch.nn.Parameter else "torch.Tensor",
        "v.dtype": str(t.dtype),
        "str(v.device)": repr(str(t.device)),
        "list(v.shape)": list(t.shape),
        "v.stride()": t.stride(),
        "v.requires_grad": t.requires_grad,
    }
    return " and ".join(f"({a} == {b})" for a, b in facts.items())


# %% check_of
def check_of(read):
    v = read.value
    match read.use:
        case "tensor":
            test = tensor_test(v)
        case "value":
            test = value_test(v)
        case "length":
            test = f"len(v) == {len(v)}"
        case "keys":
            test = f"list(v) == {list(v)!r}"
        case "absent":
            test = f"not ({read.detail!r} in v)"
        case "identity":
            test = f"v is {v!r}"
        case "type":
            test = f"type(v).__name__ == {type(v).__name__!r}"
    return Check(read.name, test)


# %% guards
def guards(reads):
    out = []
    for r in reads:
        c = check_of(r)
        if c not in out:
            out.append(c)
    return out


# %% first_failure
def first_failure(checks, values):
    for c in checks:
        try:
            ok = eval(c.test, dict(torch=torch, math=math, v=values[c.name]))
        except KeyError:
            ok = False
        if not ok:
            return c


# %% symbols
def symbols(history):
    now = history[-1]
    out = {}
    for name, shape in now.items():
        out[name] = set()
        for other in history:
            if name in other and len(other[name]) == len(shape):
                out[name] |= {i for i, (a, b) in enumerate(zip(shape, other[name])) if a != b}
        past = [h[name] for h in history if name in h and len(h[name]) == len(shape)]
        out[name] |= {i for i in range(len(shape)) if len({p[i] for p in past}) > 1}
    return out

"""Lab 2, answered by another than its author: hidden tests must ask for no more than the lab says."""

# ruff: noqa: F821


# %% do_data
def do_data(ins, frame):
    def load():
        frame.push(frame.locals[ins.arg])

    def store():
        frame.locals[ins.arg] = frame.pop()

    table = {"LOAD_FAST": load, "STORE_FAST": store, "LOAD_CONST": lambda: frame.push(ins.arg), "POP_TOP": frame.pop}
    if ins.op not in table:
        return False
    table[ins.op]()
    return True


# %% do_operator
def do_operator(ins, frame):
    if ins.op == "UNARY_NEGATIVE":
        frame.stack[-1] = -frame.stack[-1]
    elif ins.op == "COMPARE_OP":
        b = frame.stack.pop()
        a = frame.stack.pop()
        frame.stack.append(COMPARE[ins.arg](a, b))
    elif ins.op == "BINARY_OP":
        *frame.stack, a, b = frame.stack
        op = ins.arg
        if op[-1] == "=":
            if not isinstance(a, (int, float, str, tuple)):
                raise Decline("changes in place")
            op = op[:-1]
        frame.stack.append(BINARY[op](a, b))
    else:
        return False
    return True


# %% do_name
def do_name(ins, frame):
    if ins.op == "PUSH_NULL":
        frame.push(NULL)
        return True
    if ins.op == "LOAD_GLOBAL":
        missing = object()
        v = frame.globals.get(ins.arg, missing)
        frame.push(getattr(builtins, ins.arg) if v is missing else v)
        return True
    if ins.op in ("LOAD_ATTR", "LOAD_METHOD"):
        value = getattr(frame.pop(), ins.arg)
        if ins.op == "LOAD_METHOD":
            frame.push(NULL)
        frame.push(value)
        return True
    return False


# %% do_call
def do_call(ins, frame):
    if ins.op != "CALL":
        return False
    n, k = ins.arg, len(ins.kwnames)
    all_args = frame.stack[len(frame.stack) - n :] if n else []
    del frame.stack[len(frame.stack) - n :]
    one, two = frame.stack[-2:]
    del frame.stack[-2:]
    f = one if two is NULL else two
    if f is print:
        raise Decline("print")
    frame.push(f(*all_args[: n - k], **dict(zip(ins.kwnames, all_args[n - k :]))))
    return True


# %% interpret
def interpret(function, values):
    frame = Frame(function, values)
    for ins in instructions(function):
        if ins.op == "RETURN_VALUE":
            return frame.pop()
        for do in (do_data, do_operator, do_name, do_call):
            if do(ins, frame):
                break
        else:
            raise Decline(ins.op)


# %% interpret_more
def interpret_more(function, values):
    frame, code = Frame(function, values), instructions(function)
    ins = code[0]
    while ins.op != "RETURN_VALUE":
        following = code[ins.index + 1]
        if ins.op == "BUILD_TUPLE":
            items = tuple(frame.pop() for _ in range(ins.arg))
            frame.push(items[::-1])
        elif ins.op == "UNPACK_SEQUENCE":
            for v in reversed(list(frame.pop())):
                frame.push(v)
        elif ins.op == "BINARY_SUBSCR":
            i = frame.pop()
            frame.push(frame.pop()[i])
        elif ins.op == "GET_ITER":
            frame.push(iter(frame.pop()))
        elif ins.op == "FOR_ITER":
            end = object()
            v = next(frame.stack[-1], end)
            if v is end:
                frame.pop()
                following = ins.target
            else:
                frame.push(v)
        elif ins.op == "JUMP":
            following = ins.target
        elif ins.op.startswith("POP_JUMP_IF_"):
            if bool(frame.pop()) == ins.op.endswith("TRUE"):
                following = ins.target
        elif not any([do_data(ins, frame) or do_operator(ins, frame) or do_name(ins, frame) or do_call(ins, frame)]):
            raise Decline(ins.op)
        ins = following
    return frame.pop()

"""Size expressions against Python ints: every rewriting keeps the value."""

from __future__ import annotations

import copy
import pickle
import subprocess
import sys
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tcompile.compiler.symbolic import expr as E
from tcompile.compiler.symbolic.simplify import bounds

NAMES = ("s0", "s1", "i", "j")
leaves = st.one_of(st.integers(-20, 20).map(E.integer), st.sampled_from(NAMES).map(E.symbol))


def _combine(children: st.SearchStrategy) -> st.SearchStrategy:
    def make(t: tuple) -> tuple:
        op, a, b = t
        return op, a, b

    return st.tuples(st.sampled_from("+ - * // % min max & <<".split()), children, children).map(make)


# programs as nested tuples, so that the same one is run with Exprs and with ints
programs = st.recursive(st.one_of(st.integers(-20, 20), st.sampled_from(NAMES)), _combine, max_leaves=12)
values = st.fixed_dictionaries({n: st.integers(0, 40) for n in NAMES})


def run(p, env):
    if isinstance(p, int):
        return E.integer(p) if env is None else p
    if isinstance(p, str):
        return E.symbol(p) if env is None else env[p]
    op, a, b = p[0], run(p[1], env), run(p[2], env)
    if op in ("min", "max"):
        sym = {"min": E.minimum, "max": E.maximum}[op]
        return sym(a, b) if env is None else {"min": min, "max": max}[op](a, b)
    if op == "&":
        return E.bitand(a, b) if env is None else a & b
    if op == "<<":  # by 0 to 3
        return E.lshift(a, b % 4) if env is None else a << b % 4
    return {"+": lambda: a + b, "-": lambda: a - b, "*": lambda: a * b, "//": lambda: a // b, "%": lambda: a % b}[op]()


@settings(max_examples=400, deadline=None)
@given(programs, values)
def test_arithmetic_equals_python(p, env):
    try:
        want = run(p, env)
    except ZeroDivisionError:
        return
    try:
        e = run(p, None)
    except ZeroDivisionError:  # a constant 0 divisor shows before the values do
        return
    try:
        got = e.eval(env)
    except ZeroDivisionError:
        pytest.fail(f"{p}: {e} divides by zero, Python does not")
    assert got == want, f"{p} -> {e}"
    assert eval(e.py(), {}, env) == want  # noqa: S307
    some = {"s0": env["s0"], "j": E.symbol("k") + 1}
    try:
        sub = e.subs(some)
        assert sub.eval({**env, "k": env["j"] - 1}) == want
    except ZeroDivisionError:
        pass


ranged = st.fixed_dictionaries({"s0": st.integers(2, 9), "s1": st.integers(2, 9)})


@settings(max_examples=400, deadline=None)
@given(programs, ranged, st.data())
def test_simplify_keeps_values_in_range(p, sizes, data):
    try:
        e = run(p, None)
    except ZeroDivisionError:
        return
    r = {"s0": (2, None), "s1": (2, None), "i": (0, E.symbol("s0")), "j": (0, 7)}
    env = {**sizes, "i": data.draw(st.integers(0, sizes["s0"] - 1)), "j": data.draw(st.integers(0, 6))}
    try:
        want = e.eval(env)
    except ZeroDivisionError:
        return
    s = E.simplify(e, r)
    assert s.eval(env) == want, f"{e} -> {s}"
    lo, hi = bounds(e, r)
    assert (lo is None or lo <= want) and (hi is None or want <= hi), f"{e} in [{lo}, {hi}], is {want}"
    for name, f in (("eq", E.eq), ("ne", E.ne), ("lt", E.lt), ("le", E.le), ("gt", E.gt), ("ge", E.ge)):
        q = f(e, E.symbol("s1"))
        truth = getattr(want, f"__{name}__")(env["s1"])
        assert q.eval(env) == truth
        assert E.not_(q).eval(env) != truth
        assert E.simplify(q, r).eval(env) == truth
        assert eval(q.py(), {}, env) == truth  # noqa: S307


@settings(max_examples=200, deadline=None)
@given(programs)
def test_equal_values_are_one_object(p):
    try:
        a, b = run(p, None), run(p, None)
    except ZeroDivisionError:
        return
    assert a is b
    assert pickle.loads(pickle.dumps(a)) is a and copy.deepcopy(a) is a
    assert (a - b).is_const and (a - b).value == 0
    assert a + 0 is a and a * 1 is a
    assert E.eq(a, b) is E.TRUE and E.le(a, b) is E.TRUE and E.lt(a, b) is E.FALSE


def test_canonical_forms():
    s0, s1, i, j = map(E.symbol, ("s0", "s1", "i", "j"))
    assert (s0 + s1) * (s0 - s1) is s0 * s0 - s1 * s1
    assert (4 * s0 + 6) // 8 is (s0 + 1) // 2
    assert (s0 // 4) // 3 is s0 // 12
    assert (s0 * s1 * 4) // s1 is 4 * s0
    assert ((s0 + s1) * 12) // (s0 + s1) is E.integer(12)
    assert (s0 * s1 + i) % s1 is i % s1
    assert ((i % 12) + 3) % 4 is (i + 3) % 4
    assert E.maximum(s0, s0 + 3, 1, 2) is E.maximum(2, s0 + 3)
    assert E.eq(2 * s0, 3) is E.FALSE
    assert E.lt(2 * s0, 7) is E.le(s0, 3)
    assert E.eq(s0, s1) is E.eq(s1, s0)
    assert E.and_(E.TRUE, E.le(s0, 4)) is E.le(s0, 4)
    assert E.or_(E.le(s0, 4), E.gt(s0, 4)) is E.TRUE


def test_ranges_remove_division():
    s0, s1, i, j, k = map(E.symbol, ("s0", "s1", "i", "j", "k"))
    r = {"i": (0, s0), "j": (0, s1), "s0": (2, None), "s1": (2, None), "k": (0, 8)}
    assert E.simplify((i * s1 + j) // s1, r) is i
    assert E.simplify((i * s1 + j) % s1, r) is j
    assert E.simplify((16 * i + k) // 32, r) is i // 2
    assert E.simplify((i // 7) * 7 * s1 + (i % 7) * s1, r) is i * s1
    assert E.simplify(E.minimum(i, s0), r) is i
    assert E.simplify(E.lt(i * s1 + j, s0 * s1), r) is E.TRUE
    assert E.simplify(E.eq(s0, 1), r) is E.FALSE


def test_coeff_and_terms():
    s0, s1, i = map(E.symbol, ("s0", "s1", "i"))
    e = 3 * s0 * i + s1 * i + 5
    assert e.coeff("i") is 3 * s0 + s1
    assert e.coeff("nothing") is E.ZERO
    assert (i * i).coeff("i") is None and (i // 2 + i).coeff("i") is None
    assert e.terms() == [(3, (i, s0)), (1, (i, s1)), (5, ())] and e.const_term == 5
    assert e.symbol_names() == {"s0", "s1", "i"}


def test_mistakes_are_refused():
    s0 = E.symbol("s0")
    with pytest.raises(TypeError, match="not known"):
        bool(E.le(s0, 4))
    with pytest.raises(TypeError, match="not a constant"):
        int(s0)
    with pytest.raises(ZeroDivisionError):
        s0 // 0
    with pytest.raises(TypeError, match="expected int, Expr or SymInt"):
        E.as_expr("s0")
    with pytest.raises(TypeError):
        E.le(s0, 4) + 1


C_CASES = ["s0 - 3", "(s0 - 9) // 4", "(s0 - 9) % 4", "s0 // s1", "(s0 + 1) % 7", "-s0 // 3", "5 - s0 * 2"]


def test_c_text_has_python_semantics(tmp_path):
    env = {"s0": E.symbol("s0"), "s1": E.symbol("s1")}
    exprs = [eval(c, {}, env) for c in C_CASES]  # noqa: S307
    exprs += [
        E.minimum(env["s0"], env["s1"] - 9, 4),
        E.maximum(env["s0"] - 20, -3),
        E.integer(2**40) * env["s0"],
        E.ite(E.le(env["s0"], 5), env["s1"], env["s0"] - 50),
        E.lshift(env["s0"] - 20, env["s1"]) // 3,
        E.bitand(env["s0"] - 9, env["s1"]),
        -E.bitand(env["s0"], -6),
    ]
    body = "\n".join(f'    printf("%lld\\n", (long long)({e.c()}));' for e in exprs)
    preds = [E.lt(env["s0"], env["s1"]), E.or_(E.eq(env["s0"], 7), E.gt(env["s1"], 30))]
    body += "\n" + "\n".join(f'    printf("%d\\n", (int)({p.c()}));' for p in preds)
    src = tmp_path / "t.cpp"
    src.write_text(
        f"#include <cstdio>\n{E.C_HELPERS}\nint main() {{ for (long long s0 = 2; s0 < 30; s0 += 5) "
        f"for (long long s1 = 2; s1 < 40; s1 += 11) {{\n{body}\n}} }}\n"
    )
    exe = tmp_path / "t"
    subprocess.run(["g++", "-O1", "-o", exe, src], check=True)
    out = iter(subprocess.run([exe], check=True, capture_output=True, text=True).stdout.split())
    for s0 in range(2, 30, 5):
        for s1 in range(2, 40, 11):
            for e in (*exprs, *preds):
                assert int(next(out)) == int(e.eval({"s0": s0, "s1": s1})), (e, e.c(), s0, s1)


def test_text_does_not_depend_on_history():
    """Generated code is cached by its text: two processes that met symbols in another order print the same."""
    code = (
        "from tcompile.compiler.symbolic.expr import symbol as s\n"
        "{}\nprint((s('b')*3 + s('a')*s('c') + s('a')//2 + 7).c(), s('c')*s('a'))"
    )
    outs = {
        subprocess.run([sys.executable, "-c", code.format(pre)], check=True, capture_output=True, text=True).stdout
        for pre in ("", "s('z'); s('c'); s('b')*s('c')")
    }
    assert len(outs) == 1


def test_long_sums_are_fast():
    xs = [E.symbol(f"x{k}") for k in range(2000)]
    t = time.process_time()
    total = E.add_all(x * (k + 1) for k, x in enumerate(xs))
    assert len(total.terms()) == 2000
    assert total.eval({f"x{k}": 1 for k in range(2000)}) == 2000 * 2001 // 2
    assert len(total.py()) > 10000
    assert total.subs({"x0": 5}).const_term == 5
    assert time.process_time() - t < 2.0


def test_a_sum_that_begins_with_a_helper_is_put_in_parentheses():
    """`tc_mod(i - 3, n) * m + j` divided by something: the text begins with a call, and is not one."""
    i, j, n, m = map(E.symbol, "ijnm")
    flat = ((i - 3) % n) * m + j
    assert (flat // (n * m)).c() in [f"(tc_mod(i - 3, n) * m + j) / ({p})" for p in ("n * m", "m * n")]
    assert (((i - 3) % n) // m).c() == "tc_mod(i - 3, n) / m"


def test_what_is_known_of_a_part_is_known_under_its_ranges_alone():
    """simplify() remembers what it found: other ranges, also in the same dictionary, are asked anew."""
    i = E.symbol("i")
    part = i // 8 + i % 8
    ranges = {"i": (0, 8)}
    assert E.simplify(part, ranges) is i
    ranges["i"] = (0, 80)
    assert E.simplify(part, ranges) is part
    assert E.simplify(part * 2 + i // 8, {"i": (0, 8)}) is i * 2
    assert E.simplify(part, ranges) is part

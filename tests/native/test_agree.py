"""The C evaluator and the Python one on random values: they agree, also where threads share one program."""

from __future__ import annotations

import sys
import threading

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tcompile.compiler.guards import Guard, TensorSpec, compile_guards, source_values
from tcompile.compiler.guards import source as S
from tcompile.compiler.guards.probe import prepare
from tcompile.compiler.native import native

pytestmark = pytest.mark.skipif(native is None, reason="the C extension is not built")
X = S.local(0, "x")

atoms = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 3),
    st.integers(),
    st.floats(),
    st.sampled_from([0.0, -0.0, float("nan"), 1.0]),
    st.text(max_size=3),
    st.binary(max_size=3),
    st.complex_numbers(max_magnitude=2),
    st.sampled_from([torch.float32, torch.device("cpu"), torch.device("meta"), torch.strided, int, len, Ellipsis]),
)
constants = st.recursive(
    atoms,
    lambda c: st.one_of(
        st.lists(c, max_size=3).map(tuple),
        st.frozensets(atoms, max_size=3),
        st.builds(slice, c, c, c),
        st.lists(st.integers(0, 4), max_size=3).map(torch.Size),
        st.builds(range, st.integers(0, 3), st.integers(0, 3), st.integers(1, 2)),
    ),
    max_leaves=6,
)
containers = st.recursive(
    constants,
    lambda c: st.one_of(
        st.lists(c, max_size=3), st.dictionaries(st.one_of(st.text(max_size=1), st.integers(0, 2)), c, max_size=3)
    ),
    max_leaves=8,
)


def func(x):
    return x


@settings(max_examples=300, deadline=None)
@given(containers, containers)
def test_constants(a, b):
    prepare()
    for x, y in ((a, b), (a, a), (b, a)):
        assert native.const_equal(x, y) == source_values.const_equal(x, y)
    assert native.const_equal(a, a)


@settings(max_examples=300, deadline=None)
@given(containers, containers, st.lists(st.one_of(st.integers(-2, 2), st.text(max_size=1)), max_size=3))
def test_paths(value, other, path):
    source = X
    for key in path:
        source = S.item(source, key)
    guards = [Guard(source, "TYPE", type(other)), Guard(source, "LEN", 1), Guard(S.attr(source, "real"), "EQUALS", 1)]
    if source_values.is_constant(other):
        guards.append(Guard(source, "EQUALS", other))
    if isinstance(other, dict):
        guards.append(Guard(source, "DICT_KEYS", tuple(other)))
    for g in guards:
        fast, slow = compile_guards([g], 1), compile_guards([g], 1, force_python=True)
        for v in (value, other, [other], {"": other}):
            assert fast.check(func, (v,)) == slow.check(func, (v,)), (g, v)


def test_threads_share_a_program_that_asks_python():
    """Guards that ask Python let other threads in, in the middle of a run of the same program."""

    class Holder:
        pass

    h = Holder()
    h.items, h.flag = [1, 2], True
    sparse = torch.eye(3).to_sparse()
    spec = TensorSpec(torch.Tensor, sparse.dtype, sparse.device, False, (3, 3), (), layout=torch.sparse_coo)
    y = S.local(1, "y")
    guards = [
        Guard(X, "ID", h),
        Guard(S.attr(X, "flag"), "EQUALS", True),
        Guard(S.item(S.attr(X, "items"), 1), "EQUALS", 2),
        Guard(S.attr(S.attr(X, "method"), "__func__"), "ID", None),
        Guard(y, "TENSOR", spec),
        Guard(S.item(S.attr(X, "items"), 0), "TENSOR", spec),
    ]
    Holder.method = func
    guards[3] = Guard(S.attr(S.attr(X, "method"), "__func__"), "ID", func)
    h.items[0] = sparse
    p = compile_guards(guards, 2)
    assert p.check(func, (h, sparse)) == -1
    dense = torch.eye(3)
    wrong = []

    def work(k):
        for i in range(400):
            if i % 7 == k:
                h.flag = True  # the same value: watched words move, nothing changes
                h.other = i
            if p.check(func, (h, sparse)) != -1 or p.check(func, (h, dense)) != 4 or p.check(func, (None, sparse)) != 0:
                wrong.append((k, i))

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
    finally:
        sys.setswitchinterval(interval)
    assert not wrong

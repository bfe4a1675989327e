"""The engine that reads patterns over values: names, order of operands, and every way being tried."""

import torch

from tcompile.compiler.lowering.ir import Buffer, const, load, prim
from tcompile.compiler.lowering.patterns import About, Either, Leaf, Same, match, op
from tcompile.compiler.symbolic.expr import symbol

F32 = torch.float32
A, B = (load(Buffer(name, F32, (4,), (1,)), symbol("i")) for name in "ab")
X, Y = Same("x"), Same("y")


def number(x):
    return const(x, F32)


def test_names_stand_for_the_same_value_wherever_they_stand():
    square = op("mul", X, X)
    assert match(square, prim("mul", A, A)) == {"x": A}
    assert match(square, prim("mul", A, B)) is None
    assert match(op("sub", X, Y), prim("sub", A, B), {"x": B}) is None
    assert match(op("sub", X, Y), prim("sub", A, B), {"x": A}) == {"x": A, "y": B}


def test_operands_of_sums_and_products_stand_in_either_order_and_others_in_theirs():
    quotient = op("div", X, op("add", op("exp", Y), 1))
    for total in (prim("add", prim("exp", B), number(1)), prim("add", number(1), prim("exp", B))):
        assert match(quotient, prim("div", A, total)) == {"x": A, "y": B}
        assert match(quotient, prim("div", total, A)) is None
    assert match(quotient, prim("div", A, prim("add", prim("exp", B), number(2)))) is None


def test_what_is_bound_first_is_bound_anew_where_the_rest_does_not_fit():
    twice = op("sub", op("mul", X, Y), X)
    assert match(twice, prim("sub", prim("mul", A, B), B)) == {"x": B, "y": A}
    assert match(twice, prim("sub", prim("mul", A, B), prim("exp", B))) is None


def test_leaves_rounded_constants_and_choices():
    assert match(op("mul", X, About(0.70710678)), prim("mul", A, number(0.5**0.5))) == {"x": A}
    assert match(op("mul", X, About(0.7071)), prim("mul", A, number(0.5**0.5))) is None
    either = Same("f", Either((op("erf", X), op("tanh", X))))
    assert match(either, prim("tanh", A)) == {"f": prim("tanh", A), "x": A}
    assert match(either, prim("exp", A)) is None
    assert match(Leaf("load", A.attr), A) == {} and match(Leaf("load", A.attr), B) is None
    assert match(op("exp"), prim("exp", A)) == {}  # of any operand

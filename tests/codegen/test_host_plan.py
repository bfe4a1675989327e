"""The text of a graph's host plan."""

from __future__ import annotations

from tcompile.compiler.codegen.host import host_plan
from tcompile.compiler.fusion.schedule import OutputSpec, Schedule
from tcompile.compiler.symbolic.expr import symbol


def test_numbers_that_are_known_to_be_equal_are_inputs_of_their_own() -> None:
    """Two of a program's numbers that are one symbol: a cache's length, and what counts it."""
    n = symbol("s0")
    s = Schedule(
        steps=[], inputs=[n, n], outputs=[OutputSpec("int", n * 2)], symbols={"s0": (0, "value", 0)}, hints={"s0": 7}
    )
    plan = host_plan(s, {})
    namespace = dict(plan.names)
    exec(plan.source, namespace)
    assert namespace["run"](7, 7) == (14,)

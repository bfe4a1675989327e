"""The harness of stock's suites (`make stock-suite`), on a small module written in the manner of stock's tests."""

from __future__ import annotations

import textwrap

import pytest

from tcompile.compiler.runtime import frame_hook

from .stock.causes import CAUSES, Cause, cause_of
from .stock.suite import FAILED, OTHER, PASSED, Outcome, Suite, judge, last_line, run, table
from .stock.untold import Internal, Untold, UntoldText, enter_assertion, has_untold, leave_assertion, unpacked

MODULE = """
    import os, signal
    import torch
    import torch._dynamo.testing
    import torch._dynamo.gone_since as gone
    from torch._inductor import metrics
    from torch._inductor.utils import run_and_get_code, a_decorator_that_is_gone
    from torch._inductor.compile_fx import compile_fx
    from torch.testing import FileCheck
    from torch._dynamo.test_case import TestCase

    class Mini(TestCase):
        @a_decorator_that_is_gone
        def test_a_values_stay_counts_go(self):
            counter = torch._dynamo.testing.CompileCounterWithBackend("inductor")
            compiled = torch._dynamo.optimize(counter, nopython=True)(lambda x: x.sin() + 1)
            x = torch.randn(5)
            self.assertEqual(compiled(x), x.sin() + 1)
            self.assertEqual(counter.frame_count, 17)
            assert len(counter.graphs) == 17 and "sin" not in counter.graphs[0].code
            result, (code,) = run_and_get_code(compiled, x)
            FileCheck().check("no such text").run(code)
            self.assertTrue(metrics.generated_kernel_count < -1)
            self.assertEqual(result, x.sin() + 1)

        def test_b_a_wrong_value_fails(self):
            compiled = torch.compile(lambda x: x + 1)
            self.assertEqual(compiled(torch.ones(3)), torch.ones(3))

        def test_c_crash(self):
            torch.compile(lambda x: x + 1)(torch.ones(3))
            os.kill(os.getpid(), signal.SIGSEGV)

        def test_d_a_backend_of_the_test_hands_over(self):
            called = 0
            def backend(gm, inputs):
                nonlocal called
                called += 1
                return compile_fx(gm, inputs)
            x = torch.randn(4, requires_grad=True)
            torch._dynamo.optimize(backend)(lambda x: (x * 2).exp())(x).sum().backward()
            self.assertEqual(x.grad, 2 * (x * 2).exp())
            assert called == 1

        def test_e_errors(self):
            with self.assertRaises(torch._dynamo.exc.Unsupported):
                torch.compile(lambda x: x + 1, fullgraph=True)(torch.ones(3))
            with self.assertRaisesRegex(ValueError, "mine"):
                def f(x):
                    raise ValueError("mine")
                torch.compile(f)(torch.ones(3))

        def test_f_nothing_compiled(self):
            self.assertEqual(1, 1)

        def test_g_export(self):
            torch._dynamo.export(lambda x: x)(torch.ones(3))

        def test_h_hangs(self):
            while True:
                pass
"""


@pytest.mark.skipif(not frame_hook.available(), reason="the C extension is not built")
def test_a_module(tmp_path):
    folder = tmp_path / "test" / "inductor"
    folder.mkdir(parents=True)
    (folder / "__init__.py").write_text("")
    (folder / "test_mini.py").write_text(textwrap.dedent(MODULE))
    ours = run(tmp_path, "inductor.test_mini", limit=20.0)
    verdicts = {v.test.rpartition(".")[2][5]: v for v in judge(ours)}
    assert {k: v.verdict for k, v in verdicts.items()} == {
        "a": PASSED,
        "b": FAILED,
        "c": FAILED,
        "d": PASSED,
        "e": PASSED,
        "f": OTHER,
        "g": OTHER,
        "h": FAILED,
    }, verdicts
    assert [verdicts[k].reason for k in "bch"] == ["fail", "crash", "too long"]
    assert "not close" in verdicts["b"].words and "status -11" in verdicts["c"].words
    assert "export" in verdicts["g"].reason
    assert sorted(ours.missing) == ["torch._dynamo.gone_since", "torch._inductor.utils.a_decorator_that_is_gone"]
    assert not list(tmp_path.rglob("__pycache__"))


def test_what_fails_with_stock_itself_does_not_apply():
    ours = Suite({n: Outcome("fail", "AssertionError: no") for n in "ab"})
    assert [v.verdict for v in judge(ours, Suite({"a": Outcome("ok"), "b": Outcome("error", "TypeError: gone")}))] == [
        FAILED,
        OTHER,
    ]
    assert [v.verdict for v in judge(ours, Suite({"a": Outcome("too long")}))] == [FAILED, FAILED]
    page = table({"suite": judge(ours)})
    assert "| suite | 2 | 0 | 2 | 0 |" in page and "- a: fail: AssertionError: no" in page


def test_untold():
    value = Untold()
    assert (
        value.graphs[0].code == "x"
        and value + 1 is value
        and (value.count < 0)
        and list(value) == []
        and "x" in UntoldText()
    )
    assert has_untold((1, [value])) and not has_untold((1, "x"))
    a, (b, c) = unpacked((1, value), (None, (None, None)))
    assert a == 1 and b is value and c is value
    assert unpacked((1, 2, 3), (None, None)) == (1, 2, 3)  # the error is the test's own
    enter_assertion()
    try:
        for ask in (lambda: bool(value), lambda: len(value), lambda: "x" in UntoldText(), lambda: value == 1):
            with pytest.raises(Internal):
                ask()
    finally:
        leave_assertion()


def test_every_cause_is_declared_well():
    assert all(isinstance(c, Cause) and c.where in ("name", "words") and c.reason for c in CAUSES)
    assert cause_of("m.T.test_aoti_eager_x", "") and cause_of("m.T.test_add", "AssertionError") is None
    assert last_line("Traceback\n  File x\nValueError: what\n\nTo execute this test") == "ValueError: what"

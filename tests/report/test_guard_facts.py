"""Guards in the report: their measured cost, and calls that go back and forth between entries."""

import torch

import tcompile


def test_cost_is_measured_for_each_guard_and_the_whole():
    m = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.ReLU())
    r = tcompile.explain(m, backend="eager")(torch.randn(2, 3))
    entry = r.entries[0]
    assert entry.guard_seconds is not None and 2e-8 < entry.guard_seconds < 1e-3
    by_kind = {g.kind: g for g in r.guards}
    assert by_kind["TENSOR"].cls == "checked" and by_kind["TENSOR"].ns > 0
    assert by_kind["STATE"].cls == "checked" and by_kind["STATE"].ns > 0
    watched = [g for g in r.guards if g.cls == "watched"]
    assert watched and all(g.ns is not None and g.ns >= 0 for g in watched)
    assert sum(g.ns for g in r.guards) < 20 * entry.guard_seconds * 1e9
    assert "µs a call" in r.text() if hasattr(r, "text") else "µs a call" in str(r)


def test_ping_pong_is_a_finding():
    m = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Dropout(0.0))
    x = torch.randn(2, 3)
    with tcompile.record() as builder:
        c = tcompile.compile(m, backend="eager")
        for i in range(40):
            m.train(i % 2 == 0)
            c(x)
    r = builder.report()
    assert len(r.entries) == 2 and sum(e.switches for e in r.entries) == 38
    assert any("switched 38 times between its 2 entries" in f.text and "training" in f.text for f in r.findings)
    with tcompile.record() as builder:
        c = tcompile.compile(m, backend="eager")
        for i in range(40):
            m.train(i < 20)
            c(x)
    assert not any("switched" in f.text for f in builder.report().findings)


def test_names_of_the_compiler_s_own_are_not_shown():
    def f(x):
        scale = int(x.abs().max())
        print(end="")
        return x / scale

    def g(x):
        return x * (x.sum().item() + 1)

    with tcompile.record() as builder:
        for h in (f, g):
            compiled = tcompile.compile(h)
            for n in (3, 4, 5):
                compiled(torch.full((n,), float(n)))
    r = builder.report()
    assert r.recompiles and "__stack_" not in str(r) and "__value" not in str(r)
    assert not any("__stack_" in " ".join((c.source, c.expected, c.got, c.suggestion)) for c in r.recompiles)


def test_what_has_no_name_is_told_in_words_that_keep_their_marks():
    with tcompile.record() as builder:
        text = builder._users_words(None, "`__stack_0_.__mro__` is x, `__stack_1_[0]` is 2, `__stack_0_` is 3")
    assert text == (
        "`__mro__` of an intermediate value is x, `[0]` of an intermediate value is 2, an intermediate value is 3"
    )


def test_an_operator_by_torch_s_kernel_is_no_function_that_runs_eager():
    import linecache

    text = "import torch\ndef f(x):\n    return torch.linalg.svdvals(x * 2) + 1\n"
    linecache.cache["In[1]"] = (len(text), None, text.splitlines(True), "In[1]")
    names: dict = {}
    exec(compile(text, "In[1]", "exec"), names)
    r = tcompile.explain(names["f"])(torch.randn(4, 4))
    assert not [m for m in r.marks if m.kind == "eager"]


def test_what_a_function_and_a_class_were_is_said_in_a_few_words():
    from tcompile.compiler.guards.guard import FunctionSpec, Guard
    from tcompile.compiler.report.words import expected_text

    module = {f"name_{i}": "x" * 1000 for i in range(1000)}  # of which a repr would be pages long
    assert (
        expected_text(Guard(None, "FUNCTION", FunctionSpec(test_ping_pong_is_a_finding.__code__, module)))
        == "the code of test_ping_pong_is_a_finding"
    )
    looked_up = tuple((name, None) for name in "abcdefgh")
    assert (
        expected_text(Guard(None, "CLASS", looked_up[:1])) == "a as found"
        and expected_text(Guard(None, "CLASS", looked_up)) == "a, b, c, d, e, f and 2 more as found"
    )
    assert not expected_text(Guard(None, "FLOAT", ())), "a float of any value"
    assert expected_text(Guard(None, "DICT_KEYS", ())) == "()", "no keys"


def test_a_frame_that_is_left_alone_names_no_place_on_the_stack():
    """What follows the break gets a sparse tensor, which lay on the stack and has no name."""

    def f(x):
        return torch.sparse.mm(x.to_sparse(), x) + len(str(x.sum().item()))

    report = tcompile.explain(f)(torch.randn(3, 3))
    reasons = [fallback.reason for fallback in report.fallbacks]
    assert any("an intermediate value is not a dense" in reason for reason in reasons), reasons
    assert "__stack_" not in str(report)

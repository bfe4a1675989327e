"""A failure in each stage of the compiler, forward and backward: eager's result, one count, a line of the report, and
a file that shows the graph.
"""

import pytest
import torch

import tcompile
from tcompile.compiler import stages

ERRORS = {
    "a bug": RuntimeError("PassManager::run failed"),
    "no memory": MemoryError("no room"),
    "no memory on the GPU": torch.OutOfMemoryError("CUDA out of memory"),
    "a full disk": OSError(28, "No space left on device"),
}


def program(x):
    return (torch.sin(x) * 3 + x).exp() - torch.cumsum(x, 0)


@pytest.fixture
def fails(monkeypatch):
    """`fails(stage, error)`: that stage raises the error whenever it runs."""

    def inject(stage, error):
        stages.load()
        path = next(s.function for s in stages.STAGES if s.name == stage)

        def raising(*args, **kwargs):
            raise error

        monkeypatch.setitem(stages._functions, path, raising)

    tcompile.reset()
    return inject


def called(compiled, gradients):
    """The call's result or gradient beside eager's."""
    x, y = (torch.linspace(-1, 1, 37, requires_grad=gradients) for _ in range(2))
    got, want = compiled(x), program(y)
    if gradients:
        got.sum().backward()
        want.sum().backward()
        torch.testing.assert_close(x.grad, y.grad)
    torch.testing.assert_close(got, want)


@pytest.mark.parametrize("error", ERRORS)
@pytest.mark.parametrize("stage", [s.name for s in stages.STAGES])
def test_a_stage_that_fails(stage, error, fails):
    gradients = stage == "autograd"
    fails(stage, ERRORS[error])
    compiled = tcompile.compile(program, options={"suppress_errors": True})
    with tcompile.record() as recording:
        for _ in range(2):
            called(compiled, gradients)
    report = recording.report()
    assert len(report.fallbacks) == 1, report.fallbacks
    said = report.fallbacks[0]
    assert str(ERRORS[error].args[-1]) in said.reason and said.count == 1
    assert said.reason in str(report)


@pytest.mark.parametrize("error", [MemoryError("no room"), torch.OutOfMemoryError("CUDA out of memory")])
def test_what_the_machine_lacks_is_no_error_of_fullgraph(error, fails):
    fails("fusion", error)
    called(tcompile.compile(program, fullgraph=True, options={"suppress_errors": True}), False)


def test_a_bug_is_heard_under_fullgraph(fails):
    fails("fusion", ERRORS["a bug"])
    with pytest.raises(tcompile.InternalError, match="PassManager::run failed"):
        tcompile.compile(program, fullgraph=True, options={"suppress_errors": True})(torch.ones(3))


@pytest.mark.parametrize("stage", ["graph", "lowering", "fusion", "codegen", "runtime"])
def test_the_graph_that_failed_can_be_written_as_a_file(stage, fails, tmp_path):
    fails(stage, ERRORS["a bug"])
    compiled = tcompile.compile(program, options={"suppress_errors": True})
    with tcompile.record() as recording:
        called(compiled, False)
    path = recording.report().reproducer("graphs/0").save(tmp_path / "bug.py")
    text = open(path).read()
    compile(text, path, "exec")
    assert "sin" in text and "cumsum" in text

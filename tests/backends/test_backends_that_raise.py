"""What a backend of the program's raises is heard, with its name and its cause; so are internal errors under
fullgraph.
"""

import pytest
import torch
import tcompile
from tcompile.compiler import config


class Strange(ValueError):
    pass


def angry(gm, example_inputs):
    raise Strange("not today")


def double(x):
    return x * 2 + x.shape[0]


@pytest.mark.parametrize("fullgraph", [False, True])
@pytest.mark.parametrize("dynamic", [None, True])
def test_a_backend_that_raises(fullgraph, dynamic):
    f = tcompile.compile(double, backend=angry, fullgraph=fullgraph, dynamic=dynamic)
    with config.patch(suppress_errors=True):
        for _ in range(2):
            with pytest.raises(tcompile.BackendError, match="backend 'angry' raised Strange: not today") as raised:
                f(torch.ones(3))
    assert raised.value.backend == "angry" and type(raised.value.__cause__) is Strange


def test_by_every_way_of_asking():
    tcompile.register_backend(angry, name="angry by name")
    x = torch.ones(3)
    with config.patch(suppress_errors=True):
        with pytest.raises(tcompile.BackendError, match="angry"):
            tcompile.compile(double, backend="angry by name")(x)
        with pytest.raises(tcompile.BackendError, match="angry"):
            tcompile.compile(torch.nn.Linear(3, 3), backend=angry)(x)
        with pytest.raises(tcompile.BackendError, match="angry"), tcompile.enable(backend=angry):
            double(x)


def test_a_break_is_no_place_to_lose_it():
    said = []

    def broken(x):
        y = x + 1
        try:
            torch._dynamo.graph_break()
            return y * 2
        finally:
            said.append("finally")

    def second(gm, example_inputs):
        second.asked += 1
        if second.asked == 2:
            raise Strange("the second graph")
        return gm.forward

    second.asked = 0
    with config.patch(suppress_errors=True), pytest.raises(tcompile.BackendError, match="the second graph"):
        tcompile.compile(broken, backend=second)(torch.ones(2))
    assert said == ["finally"]


def test_asked_again_for_other_sizes():
    def fixed(gm, example_inputs):
        if int(example_inputs[1]) > 5:  # a guard of torch's ShapeEnv: the backend is asked for each size
            raise Strange("too large")
        return gm.forward

    f = tcompile.compile(double, backend=fixed, dynamic=True)
    with config.patch(suppress_errors=True):
        torch.testing.assert_close(f(torch.ones(3)), double(torch.ones(3)))
        with pytest.raises(tcompile.BackendError, match="too large"):
            f(torch.ones(7))
        torch.testing.assert_close(f(torch.ones(3)), double(torch.ones(3)))


def test_what_a_backend_made_raises():
    def late(gm, example_inputs):
        def run(*inputs):
            raise Strange("late")

        return run

    with (
        config.patch(suppress_errors=True),
        pytest.raises(
            tcompile.BackendError, match="backend 'late' made code of double that raised Strange: late"
        ) as raised,
    ):
        tcompile.compile(double, backend=late)(torch.ones(3))
    assert type(raised.value.__cause__) is Strange


def test_the_error_of_the_program_stays_the_programs():
    def pick(x, i):
        return x[i] * 2

    def careful(x, i):
        try:
            return x[i] * 2
        except IndexError:
            return x * 0

    forward = lambda gm, example_inputs: gm.forward  # noqa: E731
    x, i = torch.arange(3.0), torch.tensor([5])
    with config.patch(suppress_errors=True):
        with pytest.raises(IndexError):
            tcompile.compile(pick, backend=forward)(x, i)
        torch.testing.assert_close(tcompile.compile(careful, backend=forward)(x, i), x * 0)


def test_a_graph_that_a_backend_of_torch_declines():
    from torch._dynamo.exc import SkipFrame

    def picky(gm, example_inputs):
        raise SkipFrame("not this one")

    with config.patch(suppress_errors=True), tcompile.record() as r:
        torch.testing.assert_close(tcompile.compile(double, backend=picky)(torch.ones(3)), double(torch.ones(3)))
    assert any("declines" in f.reason for f in r.report().fallbacks)


@pytest.mark.parametrize("stage", ["capture", "graph", "lowering"])
def test_internal_errors_under_fullgraph(stage):
    def wrong(*args, opts, **more):
        raise KeyError("a bug")

    x = torch.ones(3)
    with config.patch(suppress_errors=True), tcompile.stages.replace(stage, wrong):
        torch.testing.assert_close(tcompile.compile(double)(x), double(x))
        f = tcompile.compile(double, fullgraph=True)
        for _ in range(2):
            with pytest.raises(tcompile.TCompileError, match="a bug") as raised:
                f(x)
        assert isinstance(raised.value.__cause__, KeyError)


def test_too_deep_for_capture_under_fullgraph():
    def down(x, n):
        return x + 1 if n == 0 else down(x, n - 1) * 2

    with config.patch(suppress_errors=True), pytest.raises(tcompile.FullGraphError):
        tcompile.compile(down, fullgraph=True)(torch.ones(2), 300)


def test_a_machine_that_is_to_blame_is_no_internal_error():
    def full(*args, opts, **more):
        raise OSError(28, "No space left on device")

    x = torch.ones(3)
    with config.patch(suppress_errors=True), tcompile.stages.replace("runtime", full):
        torch.testing.assert_close(tcompile.compile(double, fullgraph=True)(x), double(x))

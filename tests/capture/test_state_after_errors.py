"""Whatever goes wrong while compiling or calling, torch's global state is as it was: modes, defaults, mode stacks,
flags, random numbers.
"""

from __future__ import annotations

import contextlib
import sys

import pytest
import torch
import torch.nn.functional as F
from torch.fx import _symbolic_trace

import tcompile
from tcompile.compiler.errors import TCompileError
from tcompile.compiler.graph.torch_modes import TorchModes


def state():
    return {
        **vars(TorchModes()),
        "dtype": torch.get_default_dtype(),
        "device": torch.get_default_device(),
        "functions": torch._C._len_torch_function_stack(),
        "dispatch": torch._C._len_torch_dispatch_stack(),
        "fx": _symbolic_trace.is_fx_symbolic_tracing(),
        "inference": torch.is_inference_mode_enabled(),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "precision": torch.get_float32_matmul_precision(),
        "threads": torch.get_num_threads(),
        "functorch": torch._C._functorch.peek_interpreter_stack() is None,
        "compiling": torch.compiler.is_compiling(),
        "anomaly": torch.is_anomaly_enabled(),
        "hooks": torch._C._autograd._saved_tensors_hooks_is_enabled(),
        "random": torch.get_rng_state().tolist(),
    }


def failing_backend(gm, examples):
    raise ValueError("no code")


def failing_code(gm, examples):
    def run(*args):
        gm.forward(*args)
        raise ValueError("no result")

    return run


def interrupted_backend(gm, examples):
    raise KeyboardInterrupt


def modes(x):
    with (
        torch.no_grad(),
        torch.autocast("cpu", dtype=torch.bfloat16),
        torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH),
    ):
        y = x @ x
        return F.embedding(torch.tensor([7]), y)


def transforms(x):
    return torch.func.grad(lambda v: (v * F.embedding(torch.tensor([7]), x)).sum())(x)


def branches(x):
    with torch.no_grad():
        if x.sum() > 0:
            return x * 2
    return x


def raises(x):
    with torch.enable_grad(), torch.autocast("cpu"):
        y = x * 2
        raise LookupError(y.shape)


def defaults(x):
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        return torch.ones(2) + x[5]
    finally:
        torch.set_default_dtype(before)


@pytest.mark.parametrize(
    "backend",
    ["eager", "tcompile", failing_backend, failing_code, interrupted_backend],
    ids=["eager", "tcompile", "fails", "code fails", "interrupted"],
)
@pytest.mark.parametrize("fullgraph", [False, True], ids=["", "fullgraph"])
@pytest.mark.parametrize("f", [modes, transforms, branches, raises, defaults])
def test_state_is_as_before(f, backend, fullgraph):
    if f is defaults and backend in (failing_backend, interrupted_backend):
        pytest.skip(
            "compiling what follows a break fails between the program's own set and its try statement, as an interrupt there would"
        )
    before = state()
    c = tcompile.compile(f, backend=backend, fullgraph=fullgraph)
    for grad in (False, True):
        try:
            c(torch.ones(3, 3, requires_grad=grad))
        except (TCompileError, LookupError, ValueError, KeyboardInterrupt, RuntimeError):
            pass
        assert state() == before


@pytest.mark.skipif(
    not hasattr(_symbolic_trace, "_is_fx_tracing_flag"), reason="from torch 2.14 on each thread has its own"
)
def test_a_trace_that_torch_believes_in_though_it_ended():
    """torch.fx keeps one flag for all threads: traces that overlap in two threads leave it set."""
    pytest.importorskip("torch._dynamo")
    from tcompile.compiler.backends import stock

    _symbolic_trace._is_fx_tracing_flag = True
    try:
        assert stock.explain(lambda x: x * 2)(torch.ones(2)).graphs
        assert not _symbolic_trace._is_fx_tracing_flag
    finally:
        _symbolic_trace._is_fx_tracing_flag = False


@tcompile.disable
def number(t):
    """A break."""
    return float(t)


class Held:
    def __init__(self, log):
        self.log = log

    def __enter__(self):
        self.log.append("enter")

    def __exit__(self, kind, error, trace):
        self.log.append(kind and kind.__name__)


def within_statements(x, log):
    with Held(log):
        y = x + 1
        try:
            try:
                log.append(number(y[0]))
                y = y * 2
            finally:
                log.append("inner")
        except LookupError:
            log.append("not this one")
        finally:
            log.append("finally")
        return y


def within_a_handler(x, log):
    try:
        raise KeyError("k")
    except KeyError as e:
        try:
            return x * number(x[0])
        finally:
            log.append(repr(e.args))


def swallowed(x, log):
    y = x + 1
    with contextlib.suppress(BaseException):
        return y * number(y[0])
    log.append("after")
    return x


@pytest.mark.parametrize("backend", [failing_backend, interrupted_backend], ids=["fails", "interrupted"])
@pytest.mark.parametrize(
    "f, says",
    [
        (within_statements, ["enter", "inner", "finally", "TYPE"]),
        (within_a_handler, ["('k',)"]),
        (swallowed, ["after"]),
    ],
)
def test_what_follows_a_break_fails_to_compile(f, says, backend):
    """The error comes out where the program is: its finally clauses run and its contexts are left."""
    log, calls = [], []

    def later(gm, example_inputs):
        calls.append(gm)
        return gm.forward if len(calls) == 1 else backend(gm, example_inputs)

    compiled = tcompile.compile(f, backend=later)
    try:
        compiled(torch.ones(2), log)
        raised = None
    except (TCompileError, KeyboardInterrupt, RuntimeError, ValueError) as e:
        raised = type(e).__name__
    assert (raised is None) == (f is swallowed)
    assert log == [raised if s == "TYPE" else s for s in says]
    assert sys.exception() is None


def test_what_failed_after_a_break_compiles_later():
    def f(x):
        y = x + 1
        torch._dynamo.graph_break()
        return y.sin() * 2

    x = torch.ones(2)

    def broken(gm, example_inputs):
        if any(node.name == "sin" for node in gm.graph.nodes):
            raise KeyboardInterrupt
        return gm.forward

    with pytest.raises(KeyboardInterrupt):
        tcompile.compile(f, backend=broken)(x)
    for _ in range(2):
        torch.testing.assert_close(tcompile.compile(f, backend="eager")(x), f(x))


@pytest.mark.parametrize(
    "context",
    [
        lambda: torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH),
        lambda: torch.autograd.profiler.record_function("part"),
        lambda: torch.inference_mode(),
        lambda: torch.autocast("cpu"),
    ],
)
@pytest.mark.parametrize("breaks", [False, True])
def test_contexts_made_inside_as_decorators(context, breaks):
    def fn(x):
        @context()
        def inner(x):
            if breaks:
                torch._dynamo.graph_break()
            return x @ x, torch.backends.cuda.flash_sdp_enabled(), torch.is_inference_mode_enabled()

        return inner(x), torch.backends.cuda.flash_sdp_enabled()

    compiled, x = tcompile.compile(fn, backend="eager", fullgraph=not breaks), torch.ones(3, 3)
    for _ in range(2):
        (product, *inside), after = compiled(x)
        (wanted, *expected), afterwards = fn(x)
        assert inside == expected and after is afterwards and product.dtype is wanted.dtype
        torch.testing.assert_close(product, wanted)

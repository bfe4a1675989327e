"""Which of the library's algorithms products run by, with made-up times; tests/gpu has the library itself."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from tcompile.compiler import events
from tcompile.compiler.config import Options
from tcompile.compiler.fusion.schedule import Extern, Schedule
from tcompile.compiler.lowering.ir import Buffer
from tcompile.compiler.native import native
from tcompile.compiler.runtime.gpu import algorithms
from tcompile.compiler.runtime.cpu_kernels import native_ready
from tcompile.compiler.runtime.native_program import gemm_of, one_product, operands_of

from ..codegen.triton import wide_products  # noqa: F401

pytestmark = [
    pytest.mark.skipif(native is None, reason="the C extension is not built"),
    pytest.mark.usefixtures("own_cache"),  # choices are kept on disk
]
aten, bf16 = torch.ops.aten, torch.bfloat16


def matrix(name, rows, columns, dtype=bf16):
    return Buffer(name, dtype, (rows, columns), (columns, 1))


def product(m, k, n, bias=False, dtype=bf16):
    a, b, out = matrix("a", m, k, dtype), matrix("b", k, n, dtype), matrix("out", m, n, dtype)
    if bias:
        return Extern(aten.addmm.default, (Buffer("c", dtype, (n,), (1,)), a, b), {}, [out], aten.addmm.out, ("out",))
    return Extern(aten.mm.default, (a, b), {}, [out], aten.mm.out, ("out",))


@pytest.fixture
def device(monkeypatch, tmp_path):
    """A device whose library has three algorithms that take the microseconds of `times`."""
    d = SimpleNamespace(times=[], timed=[], version=130000)

    def time(calls, replayed=False):
        d.timed.append(len(calls))
        return d.times[: len(calls)]

    rows = tuple((bytes([i]) * 64, i << 20, i + 1) for i in range(3))

    class Quiet:
        __init__ = lambda self, *a, **k: None
        __enter__ = lambda self: self
        __exit__ = lambda self, *a: None

    monkeypatch.setattr(
        algorithms,
        "native",
        SimpleNamespace(gemm_library=lambda: d.version, gemm_algorithms=lambda index, gemm, most: rows),
    )
    monkeypatch.setattr(algorithms, "one_product", lambda step, index, algorithm: lambda *a: ())
    monkeypatch.setattr(algorithms, "_operands", lambda step, index: [[]])
    monkeypatch.setattr(algorithms, "time_from_graphs", time)
    monkeypatch.setattr(algorithms.tune, "time_in_turn", lambda calls, rounds: time(calls))
    monkeypatch.setattr(torch.cuda, "device", Quiet)
    monkeypatch.setattr(torch.random, "fork_rng", Quiet)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda index: "a device")
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    monkeypatch.setenv("TCOMPILE_CACHE_DIR", str(tmp_path))
    return d


AUTOTUNE = Options.make(mode="max-autotune")


def test_another_than_the_first_is_kept_where_it_is_clearly_faster(device):
    step, again = product(64, 128, 96), product(64, 128, 96)
    s = Schedule([step, again, product(64, 128, 97, dtype=torch.float32)], [], [])
    device.times = [10.0, 8.0, 9.0]
    heard = []
    with events.listen(heard.append):
        assert algorithms.choose_algorithms(s.steps, AUTOTUNE, 0) == {gemm_of(step): (b"\x01" * 64, 1 << 20)}
    trials = next(e for e in heard if e.kind == "autotune")
    assert trials.kernel == "mm 64x96x128" and [t["kept"] for t in trials.trials] == [False, True, False]
    assert trials.trials[1]["choices"] == {"algorithm": 1, "parts": 2, "workspace": 1 << 20}
    assert device.timed == [3], "like products are timed once, and float32 has a choice for TF32 of its own"
    device.times = [1.0, 5.0, 5.0]
    assert algorithms.choose_algorithms(s.steps, AUTOTUNE, 0) == {
        gemm_of(step): (b"\x01" * 64, 1 << 20)
    } and device.timed == [3], "the disk cache has the answer"
    device.version += 1
    assert algorithms.choose_algorithms(s.steps, AUTOTUNE, 0) == {} and device.timed == [3, 3], (
        "not for another version of the library"
    )


def test_the_guess_stands_where_nothing_is_clearly_better_or_nothing_can_be_measured(device, monkeypatch):
    device.times = [10.0, 9.8, 9.9]
    assert algorithms.choose_algorithms([product(8, 8, 8)], AUTOTUNE, 0) == {}
    assert algorithms.choose_algorithms([product(8, 8, 16)], Options.make(), 0) == {} and device.timed == [3]

    def out_of_memory(step, index):
        raise torch.OutOfMemoryError("no memory")

    monkeypatch.setattr(algorithms, "_operands", out_of_memory)
    heard = []
    with events.listen(heard.append):
        assert algorithms.choose_algorithms([product(8, 8, 24)], AUTOTUNE, 0) == {}
    assert any(e.kind == "fallback" and "no memory" in e.reason for e in heard)
    monkeypatch.setattr(algorithms, "MOST_S", 0.0)
    heard = []
    with events.listen(heard.append):
        assert algorithms.choose_algorithms([product(8, 8, 32)], AUTOTUNE, 0) == {}
    assert any(e.kind == "progress" and "budget" in e.text for e in heard)


def test_large_products_are_timed_in_every_mode(device):
    device.times = [100.0, 90.0, 95.0]
    s = Schedule([product(8192, 1024, 4096, bias=True), product(64, 64, 64)], [], [])
    assert list(algorithms.choose_algorithms(s.steps, Options.make(), 0)) == [gemm_of(s.steps[0])] and device.timed == [
        3
    ]
    assert len(
        algorithms.choose_algorithms(s.steps, Options.make(mode="max-autotune-no-cudagraphs"), 0)
    ) == 2 and device.timed == [3, 3]
    assert len(algorithms.choose_algorithms(s.steps, AUTOTUNE, 0)) == 2 and device.timed == [3] * 4, (
        "replays are measured as such"
    )


@pytest.mark.parametrize("bias", [False, True])
def test_a_program_of_one_product(bias):
    assert native_ready()
    step = product(5, 6, 7, bias, torch.float32)
    a, b, c, out = torch.randn(5, 6), torch.randn(6, 7), torch.randn(7), torch.empty(5, 7)
    assert one_product(step, -1)(out, *([c] if bias else []), a, b) == ()
    torch.testing.assert_close(out, a @ b + c if bias else a @ b)
    assert gemm_of(step) == (0, int(bias), 0, 0, 5, 7, 6, 6, 7, 7, 0)


def test_a_program_of_a_product_that_is_written_in_float32():
    assert native_ready()
    step, mm = product(5, 6, 7), aten.mm
    step = replace(
        step,
        op=mm.dtype,
        args=(*step.args, torch.float32),
        outputs=[matrix("out", 5, 7, torch.float32)],
        out_variant=mm.dtype_out,
    )
    a, b, out = torch.randn(5, 6).to(bf16), torch.randn(6, 7).to(bf16), torch.empty(5, 7)
    for _ in range(2):
        assert one_product(step, -1)(out.zero_(), a, b) == ()
        torch.testing.assert_close(out, a.float() @ b.float())
    assert gemm_of(step) == (14, 0, 0, 0, 5, 7, 6, 6, 7, 7, 0) and operands_of(step) == step.args[:-1]

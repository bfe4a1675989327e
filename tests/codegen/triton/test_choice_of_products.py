"""Which products max-autotune makes kernels of, with made-up times."""

from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F

import tcompile

pytest.importorskip("triton")

from tcompile.compiler import events  # noqa: E402
from tcompile.compiler.codegen.triton.layout import GpuTarget  # noqa: E402
from tcompile.compiler.config import Options  # noqa: E402
from tcompile.compiler.errors import InternalError  # noqa: E402
from tcompile.compiler.runtime.gpu import tuned_products, tune  # noqa: E402

from .as_gpu import CUDA, turn  # noqa: E402
from .interpreter import SMALL  # noqa: E402

bf16 = torch.bfloat16


class _Done(Exception):
    pass


def graph_of(fn, *inputs, dynamic=False):
    kept = []

    def lowering(aten, opts):
        turn(aten)
        kept.append((aten, opts))
        raise _Done

    with tcompile.stages.replace("lowering", lowering), torch.no_grad(), pytest.raises(InternalError):
        tcompile.compile(fn, dynamic=dynamic)(*inputs)
    return kept[0]


def few(x, w, v):
    return torch.relu(F.linear(F.gelu(F.linear(x, w)), v)) + torch.relu(F.linear(F.gelu(F.linear(x, w + 1)), v))


SHAPES = torch.empty(32, 256, dtype=bf16), torch.empty(512, 256, dtype=bf16), torch.empty(256, 512, dtype=bf16)


def test_like_products_are_compared_once_and_with_the_kernels_behind_them():
    aten, opts = graph_of(few, *SHAPES)
    found = tuned_products.find_candidates(aten, opts, SMALL, 4e12)
    assert [(len(c.nodes), len(c.superfluous)) for c in found] == [(2, 1), (1, 1)], (
        "the two that go through gelu are alike; the sum of the relus is one kernel"
    )
    assert "erf" in found[0].superfluous[0].kernel.name and "erf" in found[0].kernel.kernel.name


def test_sizes_that_vary():
    """What one size measured would serve all: such products stay the library's, without a word of a failure."""
    x = torch.empty(96, 256, dtype=bf16)
    assert tuned_products.find_candidates(
        *graph_of(lambda x, w, v: few(x, w, v), x, *SHAPES[1:], dynamic=None), SMALL, 4e12
    )
    tcompile.mark_dynamic(x, 0)
    assert (
        tuned_products.find_candidates(
            *graph_of(lambda x, w, v: few(x, w, v), x, *SHAPES[1:], dynamic=None), SMALL, 4e12
        )
        == []
    )


def test_large_products_without_much_behind_them_are_not_tried():
    aten, opts = graph_of(
        lambda x, w: torch.relu(x @ w), torch.empty(4096, 4096, dtype=bf16), torch.empty(4096, 4096, dtype=bf16)
    )
    assert tuned_products.find_candidates(aten, opts, GpuTarget("cuda", 80, 32, 8), 4e12) == []
    # in CUDA C++, for the Hopper generation
    assert [c.nodes for c in tuned_products.find_candidates(aten, opts, SMALL, 4e12)] == [["mm"]]


def test_a_product_in_float32_is_compared_with_the_librarys():
    """The library casts, too: no kernel stands behind its product."""
    aten, opts = graph_of(
        lambda x, y: (x.t() @ y).float(), torch.empty(8192, 4096, dtype=bf16), torch.empty(8192, 1024, dtype=bf16)
    )
    (c,) = tuned_products.find_candidates(aten, opts, SMALL, 4e12)
    assert (
        c.nodes == ["mm"]
        and c.superfluous == []
        and c.extern.outputs[0].dtype == torch.float32
        and "aten.mm.dtype" in c.key
    )


def test_what_a_dropout_draws_is_part_of_what_is_behind_a_product():
    """The step that takes numbers from the generator has the dropout's name, too; the mask, which reads nothing of the
    product, is made in its kernel.
    """
    given = torch.empty(8192, 1024, dtype=bf16), torch.empty(4096, 1024, dtype=bf16), torch.empty(4096, dtype=bf16)
    aten, opts = graph_of(
        lambda x, v, b: (lambda h: (h, *torch.native_dropout(F.gelu(h), 0.1, True)))(F.linear(x, v, b)), *given
    )
    (c,) = tuned_products.find_candidates(aten, opts, SMALL, 4e12)
    assert len(c.superfluous) == 1 and len(c.kernel.kernel.outputs) == 3 and not c.left


def backward(g, w, h, mask):
    d = torch.ops.aten.gelu_backward(torch.ops.aten.native_dropout_backward(g @ w, mask, 1 / 0.9), h)
    return d, d.sum(0)


def test_what_is_left_of_the_kernels_behind_a_product_counts_on_its_side(device):
    """The library's product has one kernel behind it, which sums columns, too; the generated one leaves the sum."""
    given = (
        torch.empty(8192, 1024, dtype=bf16),
        torch.empty(1024, 4096, dtype=bf16),
        torch.empty(8192, 4096, dtype=bf16),
        torch.empty(8192, 4096, dtype=torch.bool),
    )
    aten, opts = graph_of(backward, *given)
    (c,) = tuned_products.find_candidates(aten, opts, SMALL, 4e12)
    assert len(c.superfluous) == len(c.left) == 1 and "sum" in c.left[0].name and "without" in c.key
    assert len(c.superfluous[0].kernel.outputs) == 2 and len(c.kernel.kernel.outputs) == 1
    device.times = lambda n: [10.0] + [8.0] * (n - 1)
    assert wins(c, float("inf"))


@pytest.fixture
def device(monkeypatch, tmp_path):
    """A device on which products take the microseconds that `times` says, the library's first."""
    monkeypatch.setitem(tcompile.config._values, "cache_dir", str(tmp_path))
    d = SimpleNamespace(times=lambda n: [10.0] * n, heard=[], raced=0, failing=False)

    def timed(calls):
        d.raced += 1
        return d.times(len(calls))

    def arguments(kernel, index):
        if d.failing:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB")
        return []

    monkeypatch.setattr(tuned_products, "time_from_graphs", timed)
    monkeypatch.setattr(tuned_products, "make_kernel", lambda *a: lambda *b: None)
    monkeypatch.setattr(tuned_products, "_library", lambda *a: lambda: None)
    monkeypatch.setattr(tune, "compile_all", lambda jobs, opts: [SimpleNamespace(parts=()) for _ in jobs])
    monkeypatch.setattr(tune, "arguments", arguments)
    monkeypatch.setattr(tuned_products, "fits", lambda binary, index: True)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda i: "a device")
    listener = events.subscribe(lambda e: d.heard.append((e.kind, e.facts)))
    yield d
    events.unsubscribe(listener)


def candidate():
    aten, opts = graph_of(lambda x, w: F.gelu(F.linear(x, w)), *SHAPES[:2])
    return tuned_products.find_candidates(aten, opts, SMALL, 4e12)[0]


def wins(c, until):
    return tuned_products._wins(c, SMALL, 0, Options(), until, tuned_products._compile([c], SMALL, Options()))


def test_the_fastest_is_kept_on_disk_with_its_tiles(device):
    c = candidate()
    device.times = lambda n: [10.0, 9.0, 6.0, *[8.0] * (n - 3)]
    assert wins(c, float("inf"))
    assert wins(c, float("inf")) and device.raced == 1, "the second time it is known"
    note = tune.open_cache(Options()).get_note(tune.note_key(c.kernel, SMALL, 0))
    assert '"us": 6.0' in note and '"library"' not in note, "the search of tiles finds them"


@pytest.mark.parametrize("ours", [11.0, 9.9])
def test_what_is_not_clearly_faster_stays_the_librarys(device, ours):
    device.times = lambda n: [10.0] + [ours] * (n - 1)
    assert not wins(candidate(), float("inf"))
    (facts,) = (f for kind, f in device.heard if kind == "autotune")
    assert facts["trials"][0] == {"choices": {"library": True}, "us": 10.0, "kept": True}


def test_a_search_without_time_or_memory_leaves_the_library(device):
    assert not wins(candidate(), 0.0) and not device.raced
    device.failing = True
    assert not wins(candidate(), float("inf"))
    assert any(
        kind == "fallback" and "is left to the library: CUDA out of memory" in f["reason"] for kind, f in device.heard
    )


def test_nothing_is_compared_without_max_autotune():
    aten, _ = graph_of(few, *SHAPES)
    assert all(n.meta["val"].device == CUDA for n in aten.graph.nodes if str(n.target) in tuned_products.PRODUCTS)
    assert tuned_products.choose(aten, Options()) is aten
    for options in ({"gpu_products": "library"}, {"emulate_precision": True}):
        assert tuned_products.choose(aten, Options.make(options={"max_autotune": True, **options})) is aten


def test_each_kind_of_product_runs_its_own_kernels(device, monkeypatch):
    """Kinds without kernels behind them have the same words for what they are compared with."""
    aten, opts = graph_of(
        lambda x, w, v: (x @ w) @ v,
        torch.empty(4096, 4096, dtype=bf16),
        torch.empty(4096, 8192, dtype=bf16),
        torch.empty(8192, 2048, dtype=bf16),
    )
    candidates = tuned_products.find_candidates(aten, opts, SMALL, 4e12)
    assert len(candidates) == 2
    raced = []
    monkeypatch.setattr(
        tuned_products,
        "_race",
        lambda c, found, *rest: (
            raced.append((c.kernel.kernel, [v.kernel for _, v in found.variants])) or ([{"kept": True}], None)
        ),
    )
    compiled = tuned_products._compile(candidates, SMALL, Options())
    for c in candidates:
        tuned_products._wins(c, SMALL, 0, Options(), float("inf"), compiled)
    assert all(v is kernel for kernel, variants in raced for v in variants) and len(raced) == 2


def test_random_numbers_behind_a_large_product_are_tried_in_cuda_alone():
    hopper = GpuTarget("cuda", 90, 32, 132)

    def ways(fn):
        aten, opts = graph_of(fn, torch.empty(4096, 1024, dtype=bf16), torch.empty(4096, 1024, dtype=bf16))
        return [
            x.kind
            for c in tuned_products.find_candidates(aten, opts, hopper, 4e12)
            for x in tuned_products._ways(c, hopper)
        ]

    assert ways(lambda x, w: torch.native_dropout(F.gelu(F.linear(x, w)), 0.1, True)) == ["tiles"]
    assert ways(lambda x, w: F.gelu(F.linear(x, w))) == [None, "tiles"]


def gated(x, w, v, u, offs):
    return torch._grouped_mm(
        F.silu(torch._grouped_mm(x, w, offs=offs)) * torch._grouped_mm(x, v, offs=offs), u, offs=offs
    )


def test_products_of_groups_are_compared_with_what_follows_them():
    hopper = GpuTarget("cuda", 90, 32, 132)

    def candidates(rows, inner, columns):
        given = (
            *(
                torch.empty(s, dtype=bf16)
                for s in ((rows, inner), (8, inner, columns), (8, inner, columns), (8, columns, inner))
            ),
            torch.empty(8, dtype=torch.int32),
        )
        return tuned_products.find_candidates(*graph_of(gated, *given), hopper, 4e12)

    found = candidates(128, 256, 512)
    assert any(len(c.superfluous) == 1 and "mul" in c.kernel.kernel.name for c in found), (
        "the gate is computed on the product's tiles"
    )
    assert all(str(c.extern.op) == tuned_products.GROUPED and c.kernel.source.choices["groups"] == 8 for c in found)
    assert [x.kind for x in tuned_products._ways(found[0], hopper)] == [None] * 5
    assert not candidates(4096, 2048, 1408), "of many rows the library's"


def test_groups_to_measure_with_are_alike(monkeypatch):
    """Of zeros, which numbers of other meanings are made of, none would have a row."""
    given = torch.empty(100, 64, dtype=bf16), torch.empty(8, 64, 32, dtype=bf16), torch.empty(8, dtype=torch.int32)
    aten, opts = graph_of(lambda x, w, offs: torch.relu(torch._grouped_mm(x, w, offs=offs)), *given)
    (c,) = tuned_products.find_candidates(aten, opts, SMALL, 4e12)
    like = [12, 25, 37, 50, 62, 75, 87, 100]
    empty = torch.empty
    monkeypatch.setattr(torch, "empty", lambda *a, device=None, **k: empty(*a, **k))
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda i: (1 << 30, 1 << 30))
    assert [t.tolist() for t in tune.arguments(c.kernel.kernel, 0) if t.dtype == torch.int32] == [like]
    called = []
    c.extern.op = lambda *a: called.append(a)
    monkeypatch.setattr(tuned_products, "GROUPED", str(c.extern.op))
    tuned_products._library(c, 0, opts)()
    assert called[0][2].tolist() == like and [t.shape for t in called[0][:2]] == [(100, 64), (8, 64, 32)]

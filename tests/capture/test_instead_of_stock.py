"""Library code that calls torch.compile itself: in a cell what it compiles is ours (frontend/instead_of_stock.py)."""

from __future__ import annotations

import pytest
import torch
import torch._dynamo
from torch._dynamo.utils import counters

import tcompile
from tcompile.compiler import events
from tcompile.compiler.config import Options
from tcompile.compiler.frontend import hook
from tcompile.compiler.report.builder import ReportBuilder
from tcompile.compiler.runtime import frame_hook

from .test_library_policy import installed

pytestmark = pytest.mark.skipif(not frame_hook.available(), reason="the C extension is not built")

SELF_COMPILING = """
def decode(model, x, steps=4):
    if getattr(model, "_compiled_call", None) is None:
        model._compiled_call = torch.compile(model.__call__, backend="eager")
    for i in range(steps):
        x = model._compiled_call(x)
        if float(x.abs().max()) > 1e6:
            break
    return x


def apply(f, x):
    time.sleep(0)
    return f(x)
"""


@pytest.fixture
def library():
    for module in installed():
        exec(compile(SELF_COMPILING, module.drive.__code__.co_filename, "exec"), module.__dict__)
        torch._dynamo.reset()
        counters.clear()
        yield module
        torch._dynamo.reset()


class Cells:
    def __init__(self, **names):
        self.names, self.opts = {"torch": torch, **names}, Options.make(None, "tcompile", False, None, None)

    def run(self, text):
        captured, taken, builder = [], [], ReportBuilder("cell", {}, None)

        def note(e):
            if e.kind == "capture_end":
                captured.append((e.result.code.co_qualname, len(e.result.breaks)))
            elif e.kind == "library" and e.decision == "taken over":
                taken.append((e.frame, e.reason))

        with events.listen(note), events.listen(builder), torch.no_grad():
            hook.run_code(compile(text, "<cell 1>", "exec"), self.names, self.opts)
        return captured, taken, builder.report()


def test_what_a_library_compiles_itself_is_ours(library):
    model, x = library.build(), torch.randn(4, 8)
    cells = Cells(lib=library, model=model, x=x)
    with torch.no_grad():
        want = x
        for _ in range(4):
            want = model(want)
    captured, taken, report = cells.run("out = lib.decode(model, x)")
    torch.testing.assert_close(cells.names["out"], want)
    assert ("Net.forward", 0) in captured and not counters["frames"]
    assert taken == [
        ("Net.__call__", "some_library called torch.compile for it: in this cell tcompile compiles it instead")
    ]
    assert any(d.decision == "taken over" for d in report.decisions)
    captured, taken, _ = cells.run("out = lib.decode(model, x)")  # said in each run, compiled once
    assert not captured and len(taken) == 1 and not counters["frames"]
    torch.testing.assert_close(cells.names["out"], want)
    with torch.no_grad():  # outside of a cell it is stock's
        torch.testing.assert_close(library.decode(model, x), want)
    assert counters["frames"]["total"] > 0
    before = counters["frames"]["total"]
    assert cells.run("out = lib.decode(model, x)")[1] and counters["frames"]["total"] == before  # and ours again in one


def test_another_engine_that_meets_stocks_function_leaves_its_code_to_cells(library):
    """All functions that torch.compile makes share one code object: giving it up for one of them gives up all."""
    x = torch.randn(4, 8)
    g = torch.compile(lambda x: x.sin() * 2, backend="eager")
    compiled = tcompile.compile(lambda x: g(x + 1) * 3, backend="eager")
    for _ in range(2):
        torch.testing.assert_close(compiled(x), (x + 1).sin() * 6)
    assert not frame_hook.is_skipped(g.__code__)
    cells = Cells(lib=library, model=library.build(), x=x)
    assert [name for name, _ in cells.run("out = lib.decode(model, x)")[1]] == ["Net.__call__"]


def test_what_the_program_gives_to_torch_compile_stays_stock_s(library):
    x = torch.randn(4, 8)
    g = torch.compile(lambda x: x.sin() * 2, backend="eager")
    cells = Cells(lib=library, x=x, g=g)
    _, taken, _ = cells.run("out = [lib.apply(g, x + i) for i in range(3)]\nown = g(x)")
    assert not taken and counters["frames"]["total"] > 0
    torch.testing.assert_close(cells.names["out"], [(x + i).sin() * 2 for i in range(3)])
    torch.testing.assert_close(cells.names["own"], x.sin() * 2)


@pytest.mark.slow
def test_what_stocks_compiler_has_written_is_not_captured():
    x = torch.randn(8, 8)
    cells = Cells(x=x, f=torch.compile(lambda x: torch.softmax(x * 2 + 1, -1).sum(0)))
    captured, _, report = cells.run("out = [f(x) for _ in range(3)]")
    torch.testing.assert_close(cells.names["out"], [torch.softmax(x * 2 + 1, -1).sum(0)] * 3)
    assert not [name for name, _ in captured if name.startswith(("Runner", "call"))], captured
    assert not report.fallbacks


@pytest.mark.slow
def test_generate_with_a_static_cache():
    transformers = pytest.importorskip("transformers")
    config = transformers.AutoConfig.for_model(
        "llama",
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        intermediate_size=64,
        vocab_size=64,
        max_position_embeddings=64,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
    )
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    everywhere = transformers.CompileConfig()
    everywhere._compile_all_devices = True  # by itself transformers calls torch.compile on a GPU alone
    ids, counted = torch.randint(3, 64, (2, 5)), dict(max_new_tokens=12, min_new_tokens=12, do_sample=False)
    with torch.no_grad():
        want = model.generate(ids, **counted)
    cells = Cells(model=model, ids=ids, counted=counted, everywhere=everywhere)
    text = "out = model.generate(ids, cache_implementation='static', compile_config=everywhere, **counted)"
    torch._dynamo.reset()
    counters.clear()
    captured, taken, report = cells.run(text)
    assert torch.equal(cells.names["out"], want)
    assert [name for name, _ in taken] == ["LlamaForCausalLM.__call__"] and "transformers" in taken[0][1]
    forward = [row for row in captured if "wrapper" in row[0] or "forward" in row[0]]
    assert len(forward) == 1 and forward[0][1] == 0, captured  # the model's forward, in one graph
    assert not counters["frames"] and not report.fallbacks
    engine = hook.engine_for(cells.opts)
    before = {id(e): e.hits for cache in engine.all_caches() for e in cache.entries}
    captured, taken, _ = cells.run(text)
    assert torch.equal(cells.names["out"], want) and not captured and len(taken) == 1
    served = [e.hits - before[id(e)] for cache in engine.all_caches() for e in cache.entries]
    assert max(served) == 11, served  # a token is one guarded call; the prompt runs plain
    hook.reset()
    torch._dynamo.reset()

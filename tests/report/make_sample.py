"""Writes sample_report.json: a rich, realistic report for work on the views. Run with `python -m
tests.report.make_sample` or directly.
"""

from __future__ import annotations

import os
import random

from tcompile.compiler.report.conclusions.answers import answers_of
from tcompile.compiler.report.conclusions.decisions import decisions_of
from tcompile.compiler.report import schema as s
from tcompile.compiler.report.payload import encode
from tcompile.compiler.report.profiles import encode_spans
from tcompile.compiler.report.report import CompileReport

CELL = """%%tcompile compare=eager,torch
def forward(x, w):
    h = x
    for layer in layers:
        h = torch.tanh(h @ layer.weight + layer.bias)
    s = (h * w).sum()
    if s.item() > threshold:
        h = h * 2
    return torch.softmax(h, dim=-1)

for batch in (8, 16, 24):
    y = forward(torch.randn(batch, 64), w)
y.shape
"""

SOURCE = """// kernel0: softmax over the last axis of (s0, 64), fused with mul   <script>alert("escaped?")</script>
#include <stdint.h>
typedef float v8f __attribute__((vector_size(32)));

extern "C" void kernel0(const float* __restrict in0, const float* __restrict in1, float* __restrict out0, int64_t s0) {
    #pragma omp parallel for
    for (int64_t i0 = 0; i0 < s0; ++i0) {
        float acc0 = -__builtin_inff();
        for (int64_t r0 = 0; r0 < 64; ++r0)
            acc0 = max_nan(acc0, in0[64 * i0 + r0] * in1[r0]);
        float acc1 = 0;
        for (int64_t r0 = 0; r0 < 64; ++r0)
            acc1 += exp_f32(in0[64 * i0 + r0] * in1[r0] - acc0);
        for (int64_t r0 = 0; r0 < 64; ++r0)
            out0[64 * i0 + r0] = exp_f32(in0[64 * i0 + r0] * in1[r0] - acc0) / acc1;
    }
}
"""


def graph_nodes(layers: int, kernel: int) -> list[s.Node]:
    nodes: list[s.Node] = []

    def add(name, op, inputs=(), args=None, shape=None, line=None, module="", kernel=None, dtype="float32"):
        i = len(nodes)
        args = ", ".join(f"%{k}" for k in range(len(inputs))) if args is None else args
        nodes.append(s.Node(i, name, op, list(inputs), args, shape, dtype, "In[4]", line, module, kernel))
        return i

    x = add("x", "input", shape=["s0", 64])
    w = add("w", "input", shape=[64])
    weights = [
        (add(f"layers_{k}_weight", "parameter", shape=[64, 64]), add(f"layers_{k}_bias", "parameter", shape=[64]))
        for k in range(layers)
    ]
    h = x
    for k in range(layers):
        m = f"layers.{k}"
        mm = add(
            "mm" if k == 0 else f"mm_{k}", "aten.mm.default", [h, weights[k][0]], shape=["s0", 64], line=5, module=m
        )
        a = add(
            "add" if k == 0 else f"add_{k}",
            "aten.add.Tensor",
            [mm, weights[k][1]],
            shape=["s0", 64],
            line=5,
            module=m,
            kernel=kernel,
        )
        h = add(
            "tanh" if k == 0 else f"tanh_{k}",
            "aten.tanh.default",
            [a],
            shape=["s0", 64],
            line=5,
            module=m,
            kernel=kernel,
        )
    mul = add("mul", "aten.mul.Tensor", [h, w], shape=["s0", 64], line=6, kernel=kernel + 1)
    total = add("sum_1", "aten.sum.default", [mul], shape=[], line=6, kernel=kernel + 1)
    add("output", "output", [total, h])
    return nodes


def backward_nodes() -> list[s.Node]:
    """Gradients of the last layer: what forward kept comes in as `saved_...`, the gradient of its result as
    `tangent_0`.
    """
    size = ["s0", 64]
    return [
        s.Node(0, "saved_tanh_1", "input", [], "", size, "float32"),
        s.Node(1, "saved_tanh_2", "input", [], "", size, "float32"),
        s.Node(2, "layers_2_weight", "parameter", [], "", [64, 64], "float32"),
        s.Node(3, "tangent_0", "input", [], "", size, "float32"),
        s.Node(4, "square", "aten.mul.Tensor", [1], "%0, %0", size, "float32", "In[4]", 5, "layers.2"),
        s.Node(5, "rsub", "aten.rsub.Scalar", [4], "%0, 1", size, "float32", "In[4]", 5, "layers.2"),
        s.Node(6, "grad_tanh", "aten.mul.Tensor", [3, 5], "%0, %1", size, "float32", "In[4]", 5, "layers.2"),
        s.Node(7, "grad_h", "aten.mm.default", [6, 2], "%0, %1", size, "float32", "In[4]", 5, "layers.2"),
        s.Node(8, "grad_w", "aten.mm.default", [0, 6], "%0, %1", [64, 64], "float32", "In[4]", 5, "layers.2"),
        s.Node(9, "output", "output", [7, 8], "%0, %1"),
    ]


def tail_nodes(kernel: int) -> list[s.Node]:
    rows = [
        ("h", "input", [], "", 8),
        ("mul", "aten.mul.Tensor", [0], "%0, 2", 8),
        ("amax", "aten.amax.default", [1], "%0, [-1], True", 9),
        ("sub", "aten.sub.Tensor", [1, 2], "%0, %1", 9),
        ("exp", "aten.exp.default", [3], "%0", 9),
        ("sum_1", "aten.sum.dim_IntList", [4], "%0, [-1], True", 9),
        ("div", "aten.div.Tensor", [4, 5], "%0, %1", 9),
        ("output", "output", [6], "%0", None),
    ]
    return [
        s.Node(
            i,
            n,
            op,
            ins,
            args,
            ["s0", 1] if n in ("amax", "sum_1") else ["s0", 64],
            "float32",
            "In[4]",
            line,
            "",
            kernel if 0 < i < 7 else None,
        )
        for i, (n, op, ins, args, line) in enumerate(rows)
    ]


def engine(name: str, median: float, spread: float, cold: float, rng: random.Random, n: int = 40) -> s.EngineTime:
    samples = [median * (1 + spread * rng.gauss(0, 1)) for _ in range(n)]
    return s.EngineTime(
        name,
        median=median,
        lo=median * (1 - spread / 3),
        hi=median * (1 + spread / 3),
        n=n,
        inner=20,
        cold=cold,
        warm=median * 1.6,
        samples=samples,
    )


FIXED = {"TENSOR": "shape or dtype", "LEN": "length", "EQUALS": "value"}  # by kind of a guard on what a call is given


def sample() -> CompileReport:
    rng = random.Random(0)
    r = CompileReport(
        title="forward",
        created="2026-11-21T06:20:00Z",
        id="9f3c1a2b",
        options={"mode": "default", "compare": ["eager", "torch"]},
    )
    r.environment = {
        "tcompile": "0.1.0",
        "torch": "2.13.0+cpu",
        "python": "3.11.7",
        "device": "cpu",
        "cpu": "Example CPU 2.4 GHz",
        "cores": 2,
        "threads": 2,
        "compiler": "g++ 12.2.0",
        "simd": "AVX2",
        "os": "Linux",
    }
    r.source = s.CellSource(CELL, "In[4]", 1, 4)
    r.frames = [
        s.Frame("forward", "In[4]", 2, "partly", "", [0, 1], 2, 0.41),
        s.Frame("resume in forward", "In[4]", 7, "compiled", "", [2], 1, 0.14),
        s.Frame("<cell loop>", "In[4]", 11, "compiled", "", [3], 1, 0.02),
        s.Frame("load_weights", "In[2]", 3, "skipped", "generator functions run as plain Python", [], 1, 0.001),
    ]
    entry_text = (
        "def entry(__fn, x, w):\n    s0 = x.shape[0]\n    s, h = graph_0(x, w, *params)\n"
        "    return break_0(s, h, w)   # line 7: s.item()\n"
    )
    r.entries = [
        s.Entry(0, 0, 9, [0], [], entry_text.replace("s0 = x.shape[0]\n    ", ""), 1, 0.21, ["Linear.forward"], 3.1e-7),
        s.Entry(0, 0, 10, [0], [], entry_text, 2, 0.20, ["Linear.forward"], 3.3e-7),
        s.Entry(
            1,
            1,
            3,
            [],
            ["global counter"],
            "def entry(__fn, s, h, w):\n    return graph_1(h)[0]\n",
            2,
            0.14,
            [],
            1.2e-7,
        ),
        s.Entry(2, None, 2, [], [], "", 3, 0.02, [], 0.9e-7),
    ]
    kernel_of = dict(language="cpp", graph=0)
    r.kernels = [
        s.Kernel(
            "kernel_add_tanh_0",
            source=SOURCE.replace("softmax", "tanh"),
            ir="for i0 < s0: for i1 < 64:\n  %3 = tanh(add(load(mm, 64*i0+i1), load(bias, i1)))\n  store(tanh, 64*i0+i1, %3)",
            bytes=98_560,
            flops=245_760,
            launches=3,
            seconds=4.2e-6,
            compile_seconds=0.09,
            origins=["add", "tanh"],
            lines=[["In[4]", 5]],
            fused_because=["tanh reads add at the same index"],
            choices={"vector": 8, "parallel": "i0", "unroll": 2},
            **kernel_of,
            trials=[
                s.Trial({"vector": 8, "unroll": 1, "tile": 64}, 5.1e-6),
                s.Trial({"vector": 8, "unroll": 2, "tile": 64}, 4.2e-6, True),
                s.Trial({"vector": 16, "unroll": 2, "tile": 64}, 4.6e-6),
                s.Trial({"vector": 8, "unroll": 8, "tile": 256}, 7.9e-6),
                s.Trial({"vector": 64, "unroll": 1, "tile": 16}, None, False, "does not compile: vector of 64 floats"),
            ],
        ),
        s.Kernel(
            "kernel_mul_sum_1",
            source=SOURCE.replace("kernel0", "kernel1"),
            ir="for i0: acc sum(mul(load(tanh_2), load(w)))",
            bytes=12_544,
            flops=6_144,
            seconds=1.9e-6,
            compile_seconds=0.08,
            origins=["mul", "sum_1"],
            lines=[["In[4]", 6]],
            fused_because=["sum reads mul once"],
            choices={"vector": 8},
            **kernel_of,
        ),
        s.Kernel(
            "kernel_softmax_2",
            source=SOURCE,
            ir="for i0: max; sum(exp); store",
            graph=1,
            bytes=12_288,
            flops=41_000,
            seconds=3.3e-6,
            compile_seconds=0.11,
            origins=["mul", "amax", "sub", "exp", "sum_1", "div"],
            lines=[["In[4]", 8], ["In[4]", 9]],
            fused_because=["amax, sum and div share the row", "mul is cheap to compute again"],
            choices={"vector": 8, "parallel": "i0"},
        ),
    ]
    nodes = graph_nodes(3, 0)
    captured = [
        s.Node(
            n.index,
            n.name,
            n.op.replace("aten.", "torch.").split(".default")[0].replace(".Tensor", ""),
            n.inputs,
            n.args,
            n.shape,
            n.dtype,
            n.file,
            n.line,
            n.module,
            n.kernel,
        )
        for n in nodes
    ]
    tail = tail_nodes(2)
    torch_tail = [
        s.Node(0, "h", "input", [], "", ["s0", 64], "float32", "In[4]", 8, "", None),
        s.Node(1, "mul", "torch.mul", [0], "%0, 2", ["s0", 64], "float32", "In[4]", 8, "", 2),
        s.Node(2, "softmax", "torch.softmax", [1], "%0, dim=-1", ["s0", 64], "float32", "In[4]", 9, "", 2),
        s.Node(3, "output", "output", [2], "%0"),
    ]
    symbol = s.Symbol("s0", 16, 2, None, "x.shape[0]", "changed from 8 to 16", "In[4]", 12)
    r.graphs = [
        s.Graph(
            "graph_0",
            0,
            1,
            ["x", "w"],
            2,
            11,
            encode(captured),
            encode(nodes),
            [symbol],
            [
                ["mm_1", "add_1", "mm is a library call"],
                ["tanh_2", "mul", "tanh_2 is also an output; sum reads another order"],
            ],
            [0, 1],
        ),
        s.Graph("graph_1", 1, 2, ["h"], 1, 6, encode(torch_tail), encode(tail), [symbol], [], [2]),
        s.Graph("graph_0_backward", 0, 1, [], 2, 5, lowered=encode(backward_nodes())),
    ]
    r.partitions = [
        s.Partition(
            0,
            [2],
            8_192,
            24_576,
            20_480,
            1.0,
            [
                s.PartitionValue(
                    "tanh_1", "aten.tanh.default", "activation", ["s0", 64], "float32", 4096, "layers.1", "In[4]", 5
                ),
                s.PartitionValue(
                    "tanh_2", "aten.tanh.default", "result", ["s0", 64], "float32", 4096, "layers.2", "In[4]", 5
                ),
            ],
            [s.PartitionValue("mul", "aten.mul.Tensor", "activation", ["s0", 64], "float32", 4096, "", "In[4]", 6)],
            ["x", "w", "layers_1_weight", "layers_2_weight"],
        )
    ]
    r.graph_breaks = [
        s.Break(
            "item",
            "s.item() needs the value of a tensor while the graph is being built",
            "In[4]",
            7,
            7,
            7,
            15,
            "    if s.item() > threshold:",
            "forward",
            "keep the choice in the graph: h = torch.where(s > threshold, h * 2, h)",
            0,
            1,
            2,
            [s.FrameRef("<cell>", "In[4]", 12), s.FrameRef("forward", "In[4]", 7)],
            seconds=9e-6,
            share=0.15,
        )
    ]
    rows = [
        (
            "x",
            "TENSOR",
            "`x` is a float32 tensor on cpu, 2-D, first size any from 2 up, second 64",
            "float32[s0, 64] cpu",
            5,
            "matrix product",
            "checked",
        ),
        ("w", "TENSOR", "`w` is a float32 tensor on cpu of shape (64)", "float32[64] cpu", 6, "multiplied", "checked"),
        ("layers", "LEN", "`layers` has 3 items", "3", 4, "loop over layers", "checked"),
        ("layers[0]", "TYPE", "`layers[0]` is exactly a Linear", "Linear", 5, "attribute read", "watched"),
        ("threshold", "EQUALS", "`threshold` is 0.5", "0.5", 7, "compared with", "watched"),
        ("torch", "ID", "`torch` is the module torch", "module torch", 5, "attribute read", "watched"),
        (None, "STATE", "gradients are on", "grad_mode=True", None, "", "checked"),
        ("x.shape[0]", "PREDICATE", "s0 >= 2", "s0 >= 2", 12, "sizes 0 and 1 are compiled apart", "checked"),
    ]
    for e in (0, 1):
        r.guards += [
            s.GuardRow(
                e,
                src or "",
                k,
                t if e else t.replace("first size any from 2 up, second 64", "shape (8, 64)"),
                x if e else x.replace("s0, 64", "8, 64"),
                "In[4]",
                line,
                why,
                cls,
                1 if e == 0 and src == "x" else 0,
                fixed=("second size or dtype" if e and src == "x" else FIXED.get(k, "")),
            )
            for src, k, t, x, line, why, cls in rows[: 7 + e]
        ]
    r.guards += [
        s.GuardRow(
            2,
            "h",
            "TENSOR",
            "`h` is a float32 tensor on cpu, 2-D, second size 64",
            "float32[s0, 64] cpu",
            "In[4]",
            8,
            "multiplied",
        ),
        s.GuardRow(
            2,
            "torch.nn parameters",
            "TENSOR",
            "6 parameters keep dtype, shape and storage",
            "6 parameters",
            "In[4]",
            5,
            "parameters",
            "watched",
            0,
            6,
        ),
    ]
    r.recompiles = [
        s.Recompile(
            0,
            "forward",
            "x",
            "TENSOR",
            "shape[0]",
            "8",
            "16",
            "In[4]",
            12,
            "    y = forward(torch.randn(batch, 64), w)",
            "nothing to change: the size is a symbol from now on; `dynamic=True` avoids this one recompile",
            "matrix product",
            0,
            0.31,
        )
    ]
    r.externs = [s.Extern("aten.mm.default", 3, "matrix product: torch's own kernel", 0, [["In[4]", 5]])]
    r.autotune = [s.AutotuneRun("kernel_add_tanh_0", r.kernels[0].trials)]
    r.memory = [
        s.Memory(
            0,
            16_384,
            28_672,
            36_864,
            9,
            [
                s.MemoryBuffer("mm", 4096, 0, 2),
                s.MemoryBuffer("tanh", 4096, 1, 4),
                s.MemoryBuffer("mm_1", 4096, 3, 5, "mm"),
                s.MemoryBuffer("tanh_1", 4096, 4, 7, "tanh"),
                s.MemoryBuffer("tanh_2", 4096, 6, 9, "mm", "output"),
                s.MemoryBuffer("sum_1", 4, 8, 9, "", "output"),
            ],
            [4096, 8192, 8192, 8192, 12_288, 8192, 8192, 8192, 8196],
            [4096, 8192, 12_288, 8192, 12_288, 16_384, 20_480, 24_576, 36_864, 24_580, 16_388],
        ),
        s.Memory(1, 4096, 12_288, 16_384, 2, [s.MemoryBuffer("div", 4096, 0, 2, "", "output")]),
    ]
    r.stages = [
        s.Stage(n, t, t, c)
        for n, t, c in (
            ("capture", 0.021, 4),
            ("guards", 0.004, 4),
            ("graph", 0.034, 3),
            ("lowering", 0.012, 3),
            ("fusion", 0.009, 3),
            ("codegen", 0.015, 3),
            ("compile_c", 0.291, 3),
            ("load", 0.003, 3),
        )
    ]
    r.cache = [
        s.CacheLookup("kernel", "c0ffee12", False, "first time on this machine"),
        s.CacheLookup("kernel", "77ab0031", True, "same source as in forward, entry 0", 2),
    ]
    r.fallbacks = [s.Fallback("load_weights", "generator functions run as plain Python", 1, 3)]
    eager, ours, stock = (
        engine("eager", 5.8e-5, 0.05, 6.1e-4, rng),
        engine("tcompile", 2.0e-5, 0.04, 0.41, rng),
        engine("torch", 2.8e-5, 0.06, 9.2, rng),
    )
    call = s.CallTiming(
        "forward",
        12,
        True,
        "",
        "call",
        [eager, ours, stock],
        [
            s.Speedup("tcompile", "eager", 2.9, 2.8, 3.0),
            s.Speedup("tcompile", "torch", 1.4, 1.3, 1.4),
            s.Speedup("torch", "eager", 2.07, 1.98, 2.15),
        ],
        0.41,
        10_800,
        "",
    )
    unsafe = s.CallTiming(
        "train_step",
        11,
        False,
        "it changes `counter`; its graphs were timed alone",
        "graphs",
        [
            engine("eager", 1.1e-4, 0.08, 2e-3, rng, 20),
            engine("tcompile", 7.0e-5, 0.05, 0.2, rng, 20),
            s.EngineTime("torch", "stopped", "interrupted after 3.0 s of compiling"),
        ],
        [s.Speedup("tcompile", "eager", 1.57, 1.45, 1.7)],
        0.2,
        5000,
        "",
    )
    r.speedups = s.Speedups(
        "partial",
        "train_step under torch.compile was stopped",
        1.0,
        0.93,
        ["eager", "tcompile", "torch"],
        [call, unsafe],
        [s.Speedup("tcompile", "eager", 2.9, 2.8, 3.0), s.Speedup("tcompile", "torch", 1.4, 1.3, 1.4)],
    )
    r.speedups.of = "`forward`"
    r.speedups.share = 0.71
    r.wall = s.Wall(
        0.92,
        "sampled",
        164,
        [
            s.WallPart("compiling", "compiling", 0.41),
            s.WallPart("kernels", "fused_gelu", 0.14, 1900, "In[4]", 5, "kernels/0"),
            s.WallPart("library", "aten.addmm.default", 0.12, 3800, "In[4]", 6, "speed"),
            s.WallPart("torch", "sort", 0.09, None, "In[4]", 12),
            s.WallPart("python", "train_step", 0.08, None, "In[4]", 11),
            s.WallPart("data", "loading data", 0.05, None, "In[4]", 13),
            s.WallPart("waiting", "time.sleep", 0.03, None, "In[4]", 14),
        ],
    )
    r.decided = {
        ("GenerationMixin.prepare", "not followed"): s.Decision(
            "GenerationMixin.prepare",
            "not followed",
            "the graph breaks in it",
            file="transformers/generation.py",
            line=40,
        ),
        ("PreTrainedModel.__init__", "left alone"): s.Decision(
            "PreTrainedModel.__init__", "left alone", "its graph has 1 operator: too few to be worth compiling"
        ),
    }
    r.tried = {
        "autocast=bfloat16": {"settings": {"autocast": "bfloat16"}, "ratio": [1.62, 1.55, 1.68], "error": 3.1e-3},
        "mode=max-autotune": {"settings": {"mode": "max-autotune"}, "ratio": [1.31, 1.27, 1.35]},
    }
    r.timeline = [
        s.TimelineEvent(0.002, "capture", 0, None, "forward", 0.02),
        s.TimelineEvent(0.21, "entry", 0, 0, "forward, entry 0 (8, 64)", 0.19),
        s.TimelineEvent(0.212, "break", 0, 0, "line 7: .item()"),
        s.TimelineEvent(0.31, "recompile", 0, 1, "x.shape[0]: 8 -> 16"),
        s.TimelineEvent(0.49, "entry", 0, 1, "forward, entry 1 (s0, 64)", 0.18),
        s.TimelineEvent(0.55, "skip", 3, None, "load_weights"),
    ]
    r.marks = [s.Mark(n, "captured", "compiled into graph_0", "In[4]", 4, None, "graphs/0") for n in (3, 4, 5, 6)]
    r.marks += [
        s.Mark(7, "break", r.graph_breaks[0].reason + "; " + r.graph_breaks[0].remedy, "In[4]", 4, 7, "breaks/0"),
        s.Mark(8, "captured", "compiled into graph_1", "In[4]", 4, None, "graphs/1"),
        s.Mark(9, "captured", "compiled into graph_1", "In[4]", 4, None, "graphs/1"),
        s.Mark(
            12,
            "guard",
            "a new batch size compiled forward again: x.shape[0] was 8, got 16",
            "In[4]",
            4,
            None,
            "recompiles/0",
        ),
        s.Mark(3, "eager", "generator functions run as plain Python", "In[2]", 2, None, "fallbacks/0"),
    ]
    r.findings = [
        s.Finding(
            "warning",
            "s.item() ends the graph at line 7",
            "h = torch.where(s > threshold, h * 2, h)",
            "breaks/0",
            7,
            1.1e-5,
        ),
        s.Finding(
            "info",
            "forward was compiled twice: x.shape[0] changed from 8 to 16",
            "%%tcompile dynamic=True",
            "recompiles/0",
            12,
            0.2,
        ),
    ]
    line = (
        "▲ partly   2 graphs · 1 break (line 7: .item()) · 3 kernels · recompiled 1× (x.shape[0])   2.9× [2.8–3.0] faster than eager   "
        "1.4× [1.3–1.4] faster than torch.compile   0.41 s to compile · pays off after 10 800 calls"
    )
    r.summary = s.Summary("partly", "▲", 2, 1, 3, 3, 1, 0.41, "", line)
    r.decisions, r.answers = decisions_of(r), answers_of(r)
    r.profiles = [one_call()]
    return r


def one_call() -> s.CallProfile:
    """`forward` with a clock around each step: three layers, a break, and what follows it."""
    spans = [s.ProfileSpan("call", "forward", -1, 0.0, 61e-6)]

    def put(kind: str, name: str, parent: int, begin: float, length: float, **facts) -> int:
        spans.append(s.ProfileSpan(kind, name, parent, begin * 1e-6, length * 1e-6, **facts))
        return len(spans) - 1

    put("guards", "guards of forward", 0, 0.4, 1.1, file="In[4]", line=2)
    entry = put("entry", "forward", 0, 1.5, 58, file="In[4]", line=2)
    graph = put("graph", "graph_0", entry, 2.5, 38, graph=0)
    at = 3.0
    for layer, (end, add) in enumerate((("", ""), ("_1", "_1"), ("_2", "_2"))):
        here = {"graph": 0, "file": "In[4]", "line": 5, "module": f"layers.{layer}", "part": "forward"}
        put("library", "mm", graph, at, 7.2, node=f"mm{end}", **here)
        put("kernel", "kernel_add_tanh_0", graph, at + 7.3, 4.2, kernel=0, node=f"tanh{add}", **here)
        at += 11.6
    put(
        "kernel",
        "kernel_mul_sum_1",
        graph,
        at,
        1.9,
        graph=0,
        kernel=1,
        node="sum_1",
        file="In[4]",
        line=6,
        part="forward",
    )
    put("python", "Python between", entry, 41, 9)
    rest = put("graph", "graph_1", entry, 50, 5, graph=1)
    put(
        "kernel",
        "kernel_softmax_2",
        rest,
        50.5,
        3.3,
        graph=1,
        kernel=2,
        node="div",
        file="In[4]",
        line=9,
        part="forward",
    )
    profile = s.CallProfile("forward", "In[4]", 2, "call", "cpu", 61e-6, 59e-6)
    encode_spans(profile, spans)
    return profile


if __name__ == "__main__":
    import json

    path = os.path.join(os.path.dirname(os.path.abspath(__file__)), "sample_report.json")
    with open(path, "w", encoding="utf-8") as f:
        json.dump(sample().to_dict(), f, ensure_ascii=False, indent=1)
        f.write("\n")

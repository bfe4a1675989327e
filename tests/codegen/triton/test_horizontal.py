"""Several short kernels that read inputs alone as one launch, interpreted, against eager."""

import pytest
import torch

pytest.importorskip("triton")

from tcompile.compiler.codegen.generate import generate_triton  # noqa: E402
from tcompile.compiler.codegen.triton.layout import Choices, GpuTarget  # noqa: E402
from tcompile.compiler.codegen.triton.print_kernel import print_kernel  # noqa: E402
from tcompile.compiler.config import Options  # noqa: E402
from tcompile.compiler.fusion import shared_launches  # noqa: E402
from tcompile.compiler.fusion.fuse import schedule  # noqa: E402
from ...oracles.loop_interpreter import run_schedule  # noqa: E402
from tcompile.compiler.fusion.memory.memory_plan import same_index  # noqa: E402
from tcompile.compiler.fusion.schedule import Launch  # noqa: E402
from tcompile.compiler.graph.aten import AtenGraph, GraphOutput  # noqa: E402
from tcompile.compiler.graph.captured import GraphInput  # noqa: E402
from tcompile.compiler.graph.meta.core import TensorMeta  # noqa: E402
from tcompile.compiler.rewrite.pass_nodes import call_like  # noqa: E402
from tcompile.compiler.ops.keep_bits import KEEP_BITS, keep_fraction, keep_words  # noqa: E402
from tcompile.compiler.lowering.lower import lower  # noqa: E402
from tcompile.compiler.runtime.gpu.compile import Job, compile_all  # noqa: E402
from tcompile.compiler.runtime.gpu.tune import candidates  # noqa: E402

from .as_gpu import as_gpu, check_as_gpu  # noqa: E402
from .interpreter import SMALL, run  # noqa: E402
from .test_philox import OFFSET, SEED  # noqa: E402
from .test_philox import run as draw_and_run  # noqa: E402


def shapes_of(g):
    return [g.of(s).source.choices["shape"] for s in g.schedule.steps if isinstance(s, Launch)]


def stages(g):
    return [len(g.of(s).kernel.stages) for s in g.schedule.steps if isinstance(s, Launch)]


def layer(x, w, b, v, c):
    """As under autocast: each product's operands are converted before it."""
    h = torch.relu(torch.nn.functional.linear(x.bfloat16(), w.bfloat16(), b.bfloat16()))
    return torch.nn.functional.linear(h, v.bfloat16(), c.bfloat16())


def test_a_layer_s_weights_are_converted_in_one_launch():
    x, w, b, v, c = torch.randn(16, 40), torch.randn(72, 40), torch.randn(72), torch.randn(56, 72), torch.randn(56)
    g = check_as_gpu(layer, x, w, b, v, c, rtol=0.02, atol=0.05)
    assert shapes_of(g) == ["horizontal", "pointwise"] and stages(g)[0] == 5, "and what they are multiplied with"
    k = g.kernels[0]
    assert k.source.functions[0].name == k.name and k.bytes == sum(6 * t.numel() for t in (x, w, b, v, c))
    assert k.kernel.fused_because[-1].startswith("5 kernels")


def mixed(a, b, c, d, e):
    return a.bfloat16(), torch.sigmoid(b).half() * 2, c + e, d > 3, (a * 2).sum(), b[1:] - 1


def test_any_element_wise_kernels_are_joined():
    a, b, c, d, e = (
        torch.randn(33, 64),
        torch.randn(1000),
        torch.randn(7, 5),
        torch.randint(0, 9, (300,)),
        torch.tensor(2.5),
    )
    g = check_as_gpu(mixed, a, b, c, d, e, rtol=1e-3, atol=1e-3)
    assert "horizontal" in shapes_of(g) and max(stages(g)) >= 4
    k = next(k for k in g.kernels if k.source.choices["shape"] == "horizontal")
    for choices in (Choices(xblock=128, warps=1), Choices(xblock=2048)):
        k.source = print_kernel(k.kernel, g.target, choices, name=k.name, wide=choices.xblock == 128)
        for got, want in zip(
            run(g, [dict(a=a, b=b, c=c, d=d, e=e)[x.name] for x in g.schedule.inputs]),
            mixed(a, b, c, d, e),
            strict=True,
        ):
            torch.testing.assert_close(got, want, rtol=1e-3, atol=1e-3)
    assert Choices(xblock=2048, warps=8) in candidates(k, g.target)


def test_what_is_computed_or_lies_across_or_may_fail_stays_apart():
    def f(x, y, z, i):
        s = torch.cumsum(x, 0)
        return s, s * 2, y.t().contiguous(), z[i] + 1, x.bfloat16(), y.half()

    g = check_as_gpu(f, torch.randn(300), torch.randn(40, 50), torch.randn(20), torch.randint(0, 20, (70,)))
    assert [n for n, shape in zip(stages(g), shapes_of(g)) if shape == "horizontal"] == [2]


def test_launches_are_bounded(monkeypatch):
    ws = [torch.randn(n) for n in (1000, 2000, 3000, 400, 500)]

    def f(a, b, c, d, e):
        return a.bfloat16(), b.bfloat16(), c.bfloat16(), d.bfloat16(), e.bfloat16()

    assert stages(check_as_gpu(f, *ws)) == [5]
    monkeypatch.setattr(shared_launches, "MOST", 2)
    assert stages(check_as_gpu(f, *ws)) == [2, 2, 1]
    monkeypatch.setattr(shared_launches, "MOST", 16)
    monkeypatch.setattr(shared_launches, "MOST_BYTES", 2 * 3500)
    assert stages(check_as_gpu(f, *ws)) == [2, 2, 1], "1000 + 2000, 3000 + 400"
    monkeypatch.setattr(shared_launches, "MOST_BYTES", 1 << 20)
    monkeypatch.setattr(shared_launches, "MOST_BUFFERS", 6)
    assert stages(check_as_gpu(f, *ws)) == [3, 2]
    monkeypatch.setattr(shared_launches, "MOST_BUFFERS", 64)
    assert stages(check_as_gpu(f, *ws, options={"max_fusion_size": 3})) == [3, 2]
    assert stages(check_as_gpu(f, *ws, options={"disable_fusion": True})) == [1] * 5
    assert sorted(stages(check_as_gpu(f, *ws, options={"force_split": "to_copy:to_copy_1"}))) == [1, 4]


def test_sizes_that_vary_stay_apart():
    g = as_gpu(lambda x, y: (x.bfloat16(), y.half()), torch.randn(40), torch.randn(30), dynamic=True)
    assert stages(g) == [1, 1]


def test_inputs_that_are_written():
    def f(x, y, z):
        a = x.bfloat16()
        y.mul_(2)
        b = y.half()
        x.add_(z)
        return a, b, x.double(), z.bfloat16()

    inputs = torch.randn(50), torch.randn(60), torch.randn(50)
    g = as_gpu(f, *(t.clone() for t in inputs))
    names = [b.name for b in g.schedule.inputs]
    for execute in (lambda ts: run(g, ts), lambda ts: run_schedule(g.schedule, ts)):
        given, want = [t.clone() for t in inputs], [t.clone() for t in inputs]
        by_name = dict(zip("xyz", given))
        got = execute([by_name[n] for n in names])
        for a, b in zip((*got, *given), (*f(*want), *want), strict=True):
            torch.testing.assert_close(a, b)


def test_no_result_lies_in_the_memory_of_what_another_loop_reads():
    """The loops have no order among each other."""
    g = as_gpu(lambda x, y: (x * 2, y + 1, (x + 1).half()), torch.randn(64), torch.randn(64, 3))
    k = next(k.kernel for k in g.kernels if k.source.choices["shape"] == "horizontal")
    read_by = {
        b.name: {
            n for n, st in enumerate(k.stages) for v in st.roots() for a in v.args if a.op == "load" and a.attr[0] is b
        }
        for b in k.inputs
    }
    for n, st in enumerate(k.stages):
        for s in st.stores:
            for i, b in enumerate(k.inputs):
                assert not same_index(k, i, k.outputs.index(s.buffer), True) or read_by[b.name] <= {n}


def test_whole_words_are_moved():
    target = GpuTarget("cuda", 90, 32, 132, True)
    g = as_gpu(
        lambda a, b, c: (a.bfloat16(), b.bfloat16(), c.bfloat16()),
        torch.empty(1024, 512),
        torch.empty(3072),
        torch.empty(1024, 1024),
        target=target,
    )
    (k,) = g.kernels
    text = compile_all([Job(k.source, target)], Options())[0].parts[0].assembly()
    assert (
        text.count("v4.b32") >= 6
        and "griddepcontrol.wait" in text
        and ".b16" not in "".join(x for x in text.splitlines() if "st.global" in x)
    )


def test_draws_come_between_copies():
    """Bits that dropout draws share a launch with conversions: all programs run, whatever their order; a draw behind
    one of torch's has a state of its own.
    """
    graph, cuda = torch.fx.Graph(), torch.device("cuda", 0)
    given = [torch.randn(9000), torch.randn(70, 40), torch.randn(300)]
    nodes = []
    for k, x in enumerate(given):
        place = graph.placeholder(f"x{k}")
        place.meta["val"] = TensorMeta(x.shape, x.stride(), x.dtype, cuda)
        nodes.append(call_like(graph, place, torch.ops.aten._to_copy.default, place, dtype=torch.bfloat16))
        nodes.append(call_like(graph, place, KEEP_BITS, 500 * (k + 1), 0.25, device=cuda))
    graph.output(tuple(nodes))
    inputs = [GraphInput(f"x{k}", None, "tensor") for k in range(3)]
    aten = AtenGraph(
        graph, inputs, [GraphOutput("buffer", k, n.meta["val"]) for k, n in enumerate(nodes)], [], None, {}, [], "words"
    )
    g = generate_triton(schedule(lower(aten, Options()), Options()), Options(), None, SMALL)
    assert stages(g) == [6] and "drawn = " in g.kernels[0].source.text
    for choices in (Choices(), Choices(xblock=64), Choices(xblock=1024)):
        g.kernels[0].source = print_kernel(g.kernels[0].kernel, g.target, choices, name=g.kernels[0].name)
        out, offset = draw_and_run(g, *given)
        assert offset == OFFSET + 48
        for k, x in enumerate(given):
            words = keep_words(
                torch.tensor(SEED - (1 << 64)),
                torch.tensor(OFFSET // 4 + 4 * k),
                torch.arange(500 * (k + 1)),
                torch.tensor(keep_fraction(0.25)),
            )
            assert torch.equal(out[2 * k], x.bfloat16()) and torch.equal(out[2 * k + 1], words.int())

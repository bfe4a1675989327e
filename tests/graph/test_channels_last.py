"""Layouts of convolutions: for a GPU on graphs of TensorMetas (none is needed), on the CPU beside eager."""

import operator
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from torch.utils import _pytree as pytree

import tcompile

from tcompile.compiler.graph.aten import AtenGraph
from tcompile.compiler.graph.meta.core import TensorMeta, channels_last_strides, contiguous_strides
from tcompile.compiler.rewrite.channels_last import channels_last

aten = torch.ops.aten
CUDA = torch.device("cuda", 0)


def meta(*shape):
    return TensorMeta(shape, tuple(contiguous_strides(shape)), torch.float32, CUDA)


def is_turned(n):
    return tuple(n.meta["val"].stride) == tuple(channels_last_strides(n.meta["val"].shape))


def graph(taps):
    g = torch.fx.Graph()
    x, w, t = (g.placeholder(n) for n in ("x", "w", "tangent_0"))
    x.meta["val"], w.meta["val"], t.meta["val"] = meta(4, 32, 8, 8), meta(32, 32, taps, taps), meta(4, 32, 8, 8)
    rest = ([1, 1], [taps // 2] * 2, [1, 1], False, [0, 0], 1)
    y = g.call_function(aten.convolution.default, (x, w, None, *rest))
    y.meta["val"] = meta(4, 32, 8, 8)
    z = g.call_function(aten.relu.default, (y,))
    z.meta["val"] = meta(4, 32, 8, 8)
    b = g.call_function(aten.convolution_backward.default, (t, x, w, None, *rest, [True, True, False]))
    b.meta["val"] = (meta(4, 32, 8, 8), meta(32, 32, taps, taps), None)
    out = []
    for k in (0, 1):
        i = g.call_function(operator.getitem, (b, k))
        i.meta["val"] = b.meta["val"][k]
        out.append(i)
    g.output((z, *out))
    return AtenGraph(g, [], [], env=SimpleNamespace(hints={}))


def test_a_weight_of_many_taps_is_turned_once_and_its_gradient_turned_back():
    a = graph(3)
    channels_last(a)
    convs = [n for n in a.graph.nodes if n.target in (aten.convolution.default, aten.convolution_backward.default)]
    weights = {convs[0].args[1], convs[1].args[2]}
    assert len(weights) == 1 and next(iter(weights)).target is aten.clone.default and is_turned(next(iter(weights)))
    gradient = a.results[2]
    assert gradient.target is aten.clone.default and not is_turned(gradient) and is_turned(gradient.args[0])
    # results keep eager's strides
    assert is_turned(convs[0]) and not is_turned(a.results[0]) and not is_turned(a.results[1])
    a.graph.lint()


def test_one_tap_is_the_same_in_both_orders():
    a = graph(1)
    channels_last(a)
    assert not any(n.target is aten.clone.default for n in a.graph.nodes)
    assert a.results[2].target is operator.getitem


# ---- on a CPU: compiled, beside eager
def convolution(f, *shape, memory_format=torch.contiguous_format):
    m = torch.nn.Sequential(
        torch.nn.Conv2d(shape[1], 8, 3, padding=1),
        torch.nn.BatchNorm2d(8),
        torch.nn.Conv2d(8, 8, 3, groups=8),
        torch.nn.Conv2d(8, 16, 1),
    ).eval()
    x = torch.randn(shape).to(memory_format=memory_format)
    with torch.no_grad():
        want = f(m(x))
        got = tcompile.compile(lambda x: f(m(x)), fullgraph=True)(x)
    for a, b in zip(pytree.tree_leaves(got), pytree.tree_leaves(want)):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)
        assert a.stride() == b.stride()


def test_a_weight_that_is_large_beside_its_images_is_not_turned_on_a_cpu():
    g, at = torch.fx.Graph(), torch.device("cpu")

    def node(made, *shape):
        made.meta["val"] = TensorMeta(shape, tuple(contiguous_strides(shape)), torch.float32, at)
        return made

    def convolution(x, w, channels):
        rest = (None, [1, 1], [1, 1], [1, 1], False, [0, 0], 1)
        return node(g.call_function(aten.convolution.default, (x, w, *rest)), 1, channels, 6, 6)

    x, small, large = node(g.placeholder("x"), 1, 3, 6, 6), g.placeholder("small"), g.placeholder("large")
    y = convolution(x, node(small, 64, 3, 3, 3), 64)
    z = convolution(y, node(large, 256, 64, 3, 3), 256)
    g.output((node(g.call_function(aten.relu.default, (z,)), 1, 256, 6, 6),))
    channels_last(AtenGraph(g, [], [], env=SimpleNamespace(hints={})))
    assert is_turned(y) and y.args[1].target is aten.clone.default
    assert not is_turned(z) and z.args[1] is large
    assert z.args[0].target is aten.clone.default and z.args[0].args == (y,) and not is_turned(z.args[0])


READERS = {
    "the result itself": lambda y: y,
    "element by element": lambda y: (y.relu() + 1, y * y),
    "a view of the flat memory": lambda y: y.relu().flatten(1) + 1,
    "strides": lambda y: torch.as_strided(y.relu(), (y.numel(),), (1,)) * torch.arange(y.numel()),
    "bits": lambda y: y.relu().view(torch.int32) + 1,
    "rows": lambda y: y.relu().softmax(-1),
    "a join": lambda y: torch.cat([y.relu(), y.exp()], 1).sin(),
    "a join along rows": lambda y: torch.cat([y.relu(), y.exp()], 3).sin(),
    "resampling": lambda y: torch.nn.functional.interpolate(y, scale_factor=2, mode="bilinear").tanh(),
    "nearest": lambda y: torch.nn.functional.interpolate(y, scale_factor=2).tanh() + 1,
    "pools": lambda y: (
        torch.nn.functional.max_pool2d(y, 2).tanh(),
        torch.nn.functional.adaptive_avg_pool2d(y, 1).flatten(1),
        torch.nn.functional.avg_pool2d(y, 3, 2, 1),
    ),
    "group norm": lambda y: torch.nn.functional.group_norm(y, 4).relu(),
    "pixels": lambda y: torch.nn.functional.pixel_shuffle(y, 2).relu(),
    "a matrix": lambda y: y.flatten(2).transpose(1, 2) @ torch.ones(16, 3),
    "positions": lambda y: y.relu()[:, :, torch.tensor([1, 0]), torch.tensor([2, 3])],
    "a sort": lambda y: y.relu().sort(1)[0] + 1,
    "another convolution": lambda y: torch.nn.functional.conv_transpose2d(
        y.relu(), torch.ones(16, 4, 2, 2), stride=2
    ).relu(),
}


@pytest.mark.parametrize("reads", READERS)
def test_what_reads_a_convolution_on_a_cpu_sees_eager_s_tensor(reads):
    convolution(READERS[reads], 2, 3, 10, 11)


@pytest.mark.parametrize(
    "shape, memory_format",
    [
        ((1, 3, 9, 9), torch.contiguous_format),
        ((2, 4, 3, 3), torch.contiguous_format),
        ((2, 3, 8, 10), torch.channels_last),
        ((0, 3, 8, 8), torch.contiguous_format),
    ],
)
def test_images_of_one_pixel_of_none_and_in_either_layout(shape, memory_format):
    convolution(lambda y: y.relu() + y, *shape, memory_format=memory_format)


def test_writes_through_a_view_of_a_convolution():
    conv = torch.nn.Conv2d(4, 8, 3)

    def f(x):
        y = conv(x)
        y.view(-1)[::3] = 0
        y[:, 2].add_(1)
        return y * 2

    x = torch.randn(2, 4, 6, 6)
    with torch.no_grad():
        torch.testing.assert_close(tcompile.compile(f, fullgraph=True)(x), f(x))


@pytest.mark.parametrize("groups, transposed", [(1, False), (4, False), (1, True)])
def test_training_and_other_sizes_on_a_cpu(groups, transposed):
    make = torch.nn.ConvTranspose2d if transposed else torch.nn.Conv2d
    m = torch.nn.Sequential(
        make(4, 8, 3, padding=1, groups=groups),
        torch.nn.BatchNorm2d(8),
        torch.nn.ReLU(),
        torch.nn.MaxPool2d(2),
        torch.nn.Conv2d(8, 8, 1),
        torch.nn.Conv2d(8, 6, 3),
    )
    c = tcompile.compile(m, dynamic=None)
    for size in (12, 15, 16):
        x = torch.randn(2, 4, size, size, requires_grad=True)
        grads = []
        for call in (m, c):
            m.zero_grad()
            x.grad = None
            y = call(x)
            y.square().sum().backward()
            grads.append((y.detach(), x.grad, *(p.grad for p in m.parameters())))
        for a, b in zip(*grads):
            torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-3)
            assert [s for s, n in zip(a.stride(), a.shape) if n > 1] == [
                s for s, n in zip(b.stride(), b.shape) if n > 1
            ]


LAID_OUT = {
    "roll": lambda x: x.roll(1, 0),
    "roll by nothing": lambda x: x.roll(4, 0),
    "roll twice": lambda x: x.roll((1, 2), (2, 3)),
    "roll flat": lambda x: x.roll(3),
    "stack": lambda x: torch.stack([x, x]),
    "stack in between": lambda x: torch.stack([x, x], 1),
    "stack behind": lambda x: torch.stack([x, x], -1),
    "stack of two layouts": lambda x: torch.stack([x, x.contiguous()]),
    "channel_shuffle": lambda x: F.channel_shuffle(x, 2),
    "rrelu": lambda x: F.rrelu(x, training=False),
}


@pytest.mark.parametrize("dims", [(0, 1, 2, 3), (3, 1, 0, 2)], ids=["rows", "permuted"])
@pytest.mark.parametrize("name", LAID_OUT)
def test_results_lie_as_eagers(name, dims):
    fn = LAID_OUT[name]
    for x in (torch.randn(4, 8, 6, 6).permute(dims), torch.randn(4, 8, 6, 6).to(memory_format=torch.channels_last)):
        got, want = tcompile.compile(fn)(x), fn(x)
        assert got.stride() == want.stride()
        assert torch.equal(got, want)


@pytest.mark.parametrize(
    "name", ["avg_pool3d", "adaptive_avg_pool3d", "adaptive_max_pool3d", "max_pool3d", "interpolate", "instance_norm"]
)
def test_strides_of_three_dimensions(name):
    x = torch.randn(2, 4, 8, 8, 8).to(memory_format=torch.channels_last_3d).requires_grad_()
    more = {"interpolate": {"scale_factor": 2}, "instance_norm": {}}.get(name)
    function = getattr(torch.nn.functional, name)
    strides = []
    for f in (function, tcompile.compile(function)):
        y = f(x, **more) if more is not None else f(x, 2)
        strides.append((y.stride(), torch.autograd.grad(y, x, torch.ones_like(y))[0].stride(), y.detach()))
    assert strides[0][:2] == strides[1][:2]
    torch.testing.assert_close(strides[0][2], strides[1][2])

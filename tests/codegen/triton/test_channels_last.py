"""What lies channels last stays so on a GPU: group norms, what is made contiguous for eager's kernels alone, products.
Interpreted, against eager.
"""

import pytest
import torch
import torch.nn as nn
import torch.nn.functional as F

pytest.importorskip("triton")

from tcompile.compiler.fusion.schedule import Extern  # noqa: E402

from .as_gpu import as_gpu, check_as_gpu, train_as_gpu  # noqa: E402


def image(*shape, shift=0.0):
    return (torch.randn(shape) + shift).to(memory_format=torch.channels_last)


@pytest.mark.parametrize("shift", [0.0, 300.0])
def test_group_norm_reads_whole_lines(shift):
    w, b = torch.randn(48), torch.randn(48)
    g = check_as_gpu(
        lambda x, w, b: F.silu(F.group_norm(x.contiguous(), 4, w, b)),
        image(2, 48, 9, 7, shift=shift),
        w,
        b,
        rtol=1e-3,
        atol=1e-3,
    )
    assert not [s for s in g.schedule.steps if hasattr(s, "op")]


def test_statistics_of_groups_are_made_of_those_of_columns():
    g = check_as_gpu(
        lambda x: torch.var_mean(x.view(2, 4, 12, 80, 6), (2, 3, 4), correction=0),
        image(2, 48, 80, 6),
        rtol=1e-3,
        atol=1e-4,
    )
    assert len(g.kernels) == 2


def test_a_block_of_a_diffusion_network():
    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm, self.conv, self.last = nn.GroupNorm(4, 32), nn.Conv2d(32, 32, 3, padding=1), nn.Conv2d(32, 32, 1)

        def forward(self, x):
            return self.last(F.silu(self.norm(self.conv(x).contiguous())))

    m, x = Block().to(memory_format=torch.channels_last).eval(), image(2, 32, 8, 8)
    for p in m.parameters():
        p.requires_grad_(False)
    g = as_gpu(m, x)
    assert [k.source.choices["shape"] for k in g.kernels].count("tiled") == 0  # (nothing is turned)


def test_products_read_pixels_where_they_lie():
    g = check_as_gpu(
        lambda x, w: torch.bmm((x * 2).contiguous().flatten(2).transpose(1, 2), w),
        image(2, 32, 4, 4),
        torch.randn(2, 32, 8),
        rtol=1e-4,
        atol=1e-4,
    )
    assert len(g.kernels) == 1


def externs(g, name):
    return [s for s in g.schedule.steps if name in str(getattr(s, "op", ""))]


@pytest.mark.parametrize("groups", [4, 32], ids=["in groups", "depthwise"])
def test_convolutions_in_groups_stay_in_the_order_of_their_images(groups):
    """The library gives their results in it: another plan would have each of them copied."""

    def f(x, w, v, u):
        y = F.relu(F.conv2d(x, w, padding=1))
        y = F.relu(F.conv2d(y, v, padding=1, groups=groups))
        return F.conv2d(torch.cat([y, y * 2], 1), u).mean((2, 3))

    inputs = torch.randn(2, 16, 6, 5), torch.randn(32, 16, 3, 3), torch.randn(32, 32 // groups, 3, 3)
    g = check_as_gpu(f, *inputs, torch.randn(16, 64, 1, 1), rtol=1e-4, atol=1e-4)
    made = [b for s in externs(g, "convolution") for b in s.outputs]
    assert len(made) == 3 and all(b.stride[1] == 1 for b in made)


def last(b):
    return b.stride[1] == 1


@pytest.mark.parametrize("channels, taps", [(1, 3), (16, 1)], ids=["one channel", "one tap"])
def test_what_the_library_computes_in_eagers_order_is_planned_so(channels, taps):
    """It goes by the order of image and weight, which are the same in both here. The kernel behind turns the result."""

    def f(x, w, b, v):
        return F.max_pool2d(F.conv2d(F.relu(F.conv2d(x, w, b)), v), 2).relu()

    inputs = torch.randn(2, channels, 9, 9), torch.randn(32, channels, taps, taps), torch.randn(32)
    g = check_as_gpu(f, *inputs, torch.randn(16, 32, 3, 3), rtol=1e-4, atol=1e-4)
    first, second = externs(g, "convolution")
    assert not last(first.outputs[0]) and last(second.outputs[0]) and last(second.args[0])
    between = [k for k in g.kernels if any(b.shape == first.outputs[0].shape for b in k.kernel.inputs)]
    assert len(between) == 1 and last(between[0].kernel.outputs[0])  # (bias, relu and the other order in one kernel)


def test_gradients_of_an_image_of_one_channel_are_turned_back_once():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv, self.deep = nn.Conv2d(1, 32, 3), nn.Conv2d(32, 16, 3)

        def forward(self, x):
            return F.relu(self.deep(F.relu(self.conv(x)))).sum()

    m = Net()
    _, forward, backward = train_as_gpu(lambda x: m(x), torch.randn(2, 1, 9, 9))
    assert [last(s.outputs[0]) for s in externs(forward, "aten.convolution")] == [False, True]
    deep, conv = externs(backward, "convolution_backward")
    assert all(map(last, (deep.args[0], deep.args[1], deep.args[2]))) and not last(conv.args[0])


def test_a_bias_is_added_by_what_follows():
    f = lambda x, w, b: F.relu(F.conv2d(x, w, b, padding=1))
    g = check_as_gpu(f, torch.randn(2, 16, 6, 5), torch.randn(32, 16, 3, 3), torch.randn(32), rtol=1e-4, atol=1e-4)
    (call,) = externs(g, "convolution")
    assert call.args[2] is None
    made = call.outputs[0]
    assert any(getattr(step, "reuse", None) is made for step in g.schedule.steps)  # (and in its memory)


def test_a_bias_gradient_is_summed_by_what_makes_the_gradient():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv, self.deep = nn.Conv2d(16, 32, 3), nn.Conv2d(32, 32, 3, groups=16)

        def forward(self, x):
            return F.silu(self.deep(F.silu(self.conv(x)))).sum()

    m = Net()
    _, forward, backward = train_as_gpu(lambda x: m(x), torch.randn(2, 16, 9, 9))
    calls = externs(backward, "convolution_backward")
    assert len(calls) == 2 and not any(s.args[-1][2] for s in calls)
    assert all(s.args[2] is None for s in externs(forward, "aten.convolution"))
    made = [b for s in calls for b in s.outputs if b is not None and len(b.shape) == 4 and b.shape[1] == 32]
    assert made and all(b.stride[1] == 1 for b in made)


def test_what_a_convolution_leaves_out_has_no_memory_to_take():
    """A gate behind a pool: the bias gradient that is summed elsewhere was given as memory to another kernel."""
    m = nn.Sequential(nn.Conv2d(64, 64, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU()).train()
    gate, end = nn.Conv2d(64, 64, 1), nn.Conv2d(64, 64, 3, bias=False)

    def f(x):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            y = m(x)
            return end(y * gate(y.mean((2, 3), keepdim=True)).sigmoid()).float().sum()

    _, _, backward = train_as_gpu(f, torch.randn(2, 64, 9, 9))
    calls = externs(backward, "convolution_backward")
    assert len(calls) == 3
    for call in calls:
        assert [b is None for b in call.outputs] == [not wanted for wanted in call.args[-1]]
    taken = {step.reuse for step in backward.schedule.steps if getattr(step, "reuse", None) is not None}
    assert taken & {b for call in calls for b in call.outputs}  # (other results of theirs are taken)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_a_norm_over_channels_between_convolutions(dtype) -> None:
    """permute, layer norm, permute: what lies between two convolutions lies as the first gave it."""
    dim = 32

    def f(x, first, weight, bias, each):
        y = F.layer_norm(F.conv2d(x, first, stride=2).permute(0, 2, 3, 1), (dim,), weight, bias).permute(0, 3, 1, 2)
        return F.conv2d(y, each, padding=1, groups=dim).permute(0, 2, 3, 1).flatten(1, 2) * 2

    shapes = ((2, 16, 12, 12), (dim, 16, 2, 2), (dim,), (dim,), (dim, 1, 3, 3))
    close = 2e-2 if dtype is torch.float16 else 1e-4
    g = check_as_gpu(f, *(torch.randn(s, dtype=dtype) for s in shapes), rtol=close, atol=close)
    images = [
        s.args[0]
        for s in g.schedule.steps
        if isinstance(s, Extern) and s.op is torch.ops.aten.convolution.default and s.args[-1] == dim
    ]
    images += [k.kernel.inputs[0] for k in g.kernels if k.source.choices["shape"] == "windows"]
    assert [i.stride[i.shape.index(dim)] for i in images] == [1]

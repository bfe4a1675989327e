"""Strides, offsets and sizes are arguments of kernels, which layers that differ in them alone share."""

import pytest
import torch

pytest.importorskip("triton")

from tcompile.compiler.codegen.triton.layout import GpuTarget  # noqa: E402
from tcompile.compiler.codegen.triton.open_numbers import ARGUMENTS  # noqa: E402
from tcompile.compiler.fusion.schedule import Launch  # noqa: E402
from tcompile.compiler.runtime.gpu.compile import Job  # noqa: E402

from .as_gpu import as_gpu, check_as_gpu  # noqa: E402


def requests(generated):
    return [Job(k.source, GpuTarget()).request() for k in generated.kernels]


def passed(generated):
    return [[int(n.value) for n in s.sizes] for s in generated.schedule.steps if isinstance(s, Launch)]


def columns(x):
    return torch.cat([x[:, :16] * 2, x[:, -16:]], 1)


def test_strides_and_offsets():
    some, more = (check_as_gpu(columns, torch.randn(64, width)) for width in (64, 112))
    assert requests(some) == requests(more)
    assert passed(some) == [[64, 48, 32, 16]] and passed(more) == [[112, 96, 32, 16]]
    odd = check_as_gpu(columns, torch.randn(64, 50))
    assert requests(odd) != requests(some), "where rows do not begin at multiples of 16 is in the text"


def test_kernels_of_several_launches():
    def f(x):
        y = x - x.mean(0)
        return y / (y * y).mean(0).sqrt()

    some, more = (check_as_gpu(f, torch.randn(2048, width), rtol=1e-4, atol=1e-4) for width in (192, 224))
    assert [k.source.choices["shape"] for k in some.kernels] == ["split"]
    assert requests(some) == requests(more)
    assert passed(some) == [[192, 2048]] and passed(more) == [[224, 2048]]


def test_what_is_divided_by_stays_a_number():
    (k,) = check_as_gpu(lambda x: x[:, :48] * 2, torch.randn(64, 112)).kernels
    assert "index // (48)" in k.source.text and k.source.numbers == (112, 48)


def test_sizes_that_vary_leave_nothing_open():
    g = as_gpu(lambda x: torch.relu(x) * 3, torch.randn(64, 48), dynamic=True)
    assert not any(k.source.numbers for k in g.kernels)


def test_a_launch_carries_so_many():
    def f(x):
        return torch.cat([x[:, i * 16 : i * 16 + 16] * 2 for i in range(0, 200, 2)], 1)

    numbers = [len(k.source.numbers) for k in check_as_gpu(f, torch.randn(3, 3200)).kernels]
    assert max(numbers) <= ARGUMENTS, numbers

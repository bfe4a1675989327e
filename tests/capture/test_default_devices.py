"""`with torch.device(...)` inside and around compiled functions: where tensors are made that are told no device."""

import pytest
import torch

import tcompile

stop = tcompile.disable(lambda: None)  # every call of it is a break
META = torch.device("meta")


def devices(result):
    return [str(getattr(r, "device", r)) for r in result]


def made(x):
    return (
        torch.zeros(3),
        x * 2,
        torch.tensor([1.0]),
        torch.arange(2),
        torch.randn(2),
        torch.full((), 1.0),
        torch.zeros_like(x),
        torch.as_tensor(1),
        torch.get_default_device(),
    )


def region(x):
    with torch.device("meta"):
        inside = made(x)
    return (*inside, *made(x))


def nested_regions(x):
    with META as d:
        with torch.device("cpu"):
            a = torch.zeros(2)
        return a, torch.ones(3), torch.ones(1, device="cpu"), x + 1, d


def in_a_call(x):
    with META:
        y = torch.nn.Linear(2, 2).weight
    return y, torch.zeros(1), x + 1


def left_by_an_exception(x):
    try:
        with META:
            y = torch.zeros(1)
            raise KeyError
    except KeyError:
        return y, torch.zeros(1), x + 1


@pytest.mark.parametrize("backend", ["eager", "tcompile"])
@pytest.mark.parametrize("fn", [region, nested_regions, left_by_an_exception])
def test_regions_inside(fn, backend):
    x = torch.ones(2)
    compiled = tcompile.compile(fn, fullgraph=True, backend=backend)
    for _ in range(2):
        assert devices(compiled(x)) == devices(fn(x))
    assert torch._C._len_torch_function_stack() == 0


def breaks_inside(x):
    with META:
        a = torch.zeros(3)
        stop()
        b = torch.zeros(2), torch.get_default_device()
    return a, *b, torch.zeros(1), x * 2, torch.get_default_device()


def breaks_in_a_call(x):
    def within():
        with torch.device("cpu"):
            stop()
            return torch.zeros(1), *made(x)

    with META:
        y = within()
        z = torch.zeros(2)
    return *y, z, torch.zeros(1), x + 1


def breaks_in_a_loop(x):
    out = []
    with META:
        for _ in range(2):
            out.append(torch.zeros(1))
            stop()
            with torch.device("cpu"):
                out.append(torch.zeros(1) + x)
    return *out, torch.zeros(1)


@pytest.mark.parametrize("backend", ["eager", "tcompile"])
@pytest.mark.parametrize("fn", [breaks_inside, breaks_in_a_call, breaks_in_a_loop, in_a_call])
def test_breaks_inside_of_regions(fn, backend):
    x = torch.ones(2)
    compiled = tcompile.compile(fn, backend=backend)
    for _ in range(3):
        assert devices(compiled(x)) == devices(fn(x))
        assert torch._C._len_torch_function_stack() == 0


def test_a_region_that_stays_open():
    def fn(x):
        META.__enter__()
        return torch.zeros(1), x + 1

    compiled = tcompile.compile(fn)
    for call in (fn, compiled, compiled):
        assert devices(call(torch.ones(2, device="cpu"))) == ["meta", "cpu"]
        assert torch._C._len_torch_function_stack() == 1 and torch.get_default_device() == META
        META.__exit__(None, None, None)


def test_regions_around_the_call():
    compiled = tcompile.compile(made)
    x = torch.ones(2)
    for where in ("meta", "cpu", None, "meta", "cpu"):
        if where is None:
            assert devices(compiled(x)) == devices(made(x))
            continue
        with torch.device(where):
            assert devices(compiled(x)) == devices(made(x))


def test_the_default_device_around_the_call():
    compiled = tcompile.compile(lambda x: (*made(x), *region(x)))
    x = torch.ones(2)
    try:
        for where in (None, "meta", "cpu", None, "meta"):
            torch.set_default_device(where)
            assert devices(compiled(x)) == devices((*made(x), *region(x)))
    finally:
        torch.set_default_device(None)

"""Tensor classes by `__torch_dispatch__`, as users write them, and what their tests ask of them."""

from __future__ import annotations

import torch
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import return_and_correct_aliasing

import tcompile

aten = torch.ops.aten


class TwoTensor(torch.Tensor):
    """Two tensors, to both of which each operator is applied; as in torch's own tests."""

    @staticmethod
    def __new__(cls, a, b, outer_size=None, outer_stride=None):
        return torch.Tensor._make_wrapper_subclass(
            cls,
            a.size() if outer_size is None else outer_size,
            strides=a.stride() if outer_stride is None else outer_stride,
            dtype=a.dtype,
            device=a.device,
            requires_grad=a.requires_grad,
        )

    def __init__(self, a, b, outer_size=None, outer_stride=None):
        self.a, self.b = a, b

    def __repr__(self):
        return f"TwoTensor({self.a!r}, {self.b!r})"

    def __tensor_flatten__(self):
        return ["a", "b"], None

    @classmethod
    def __tensor_unflatten__(cls, inner, context, outer_size, outer_stride):
        return cls(inner["a"], inner["b"], outer_size, outer_stride)

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}

        def half(name):
            a, k = pytree.tree_map_only(cls, lambda t: getattr(t, name), (args, kwargs))
            return func(*a, **k)

        out = pytree.tree_map(lambda a, b: cls(a, b) if isinstance(a, torch.Tensor) else a, half("a"), half("b"))
        return return_and_correct_aliasing(func, args, kwargs, out)


class Int8(torch.Tensor):
    """A weight of eight bits with a scale per row: operators get it in full. The way of weight-only quantisation."""

    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, bits, scale, turned=False):
        return torch.Tensor._make_wrapper_subclass(
            cls,
            bits.shape[::-1] if turned else bits.shape,
            strides=(1, bits.shape[1]) if turned else (bits.shape[1], 1),
            dtype=scale.dtype,
            device=bits.device,
        )

    def __init__(self, bits, scale, turned=False):
        self.bits, self.scale, self.turned = bits, scale, turned

    def __repr__(self):
        return f"Int8({tuple(self.shape)})"

    @classmethod
    def of(cls, w):
        scale = w.abs().amax(1, keepdim=True) / 127
        return cls((w / scale).round().to(torch.int8), scale)

    def full(self):
        w = self.bits.to(self.scale.dtype) * self.scale
        return w.t() if self.turned else w

    def __tensor_flatten__(self):
        return ["bits", "scale"], {"turned": self.turned}

    @classmethod
    def __tensor_unflatten__(cls, inner, context, outer_size, outer_stride):
        return cls(inner["bits"], inner["scale"], context["turned"])

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if func in (aten.detach.default, aten.t.default):
            w = args[0]
            out = cls(w.bits, w.scale, w.turned is not (func is aten.t.default))
            return return_and_correct_aliasing(func, args, kwargs, out)
        args, kwargs = pytree.tree_map_only(cls, Int8.full, (args, kwargs))
        return func(*args, **kwargs)


class Scaled(torch.Tensor):
    """A tensor with a number that its operators multiply by: the number is the flatten context."""

    @staticmethod
    def __new__(cls, x, scale):
        return torch.Tensor._make_wrapper_subclass(cls, x.shape, strides=x.stride(), dtype=x.dtype, device=x.device)

    def __init__(self, x, scale):
        self.x, self.scale = x, scale

    def __tensor_flatten__(self):
        return ["x"], self.scale

    @classmethod
    def __tensor_unflatten__(cls, inner, context, outer_size, outer_stride):
        return cls(inner["x"], context)

    def __repr__(self):
        return f"Scaled({self.x!r}, {self.scale!r})"

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        scale = next(a.scale for a in pytree.tree_leaves(args) if isinstance(a, cls))
        factor = getattr(scale, "factor", scale)
        args = pytree.tree_map_only(cls, lambda t: t.x, args)
        out = func(*args, **(kwargs or {}))
        if func is aten.detach.default:
            return cls(out, scale)
        return cls(out * factor, scale) if isinstance(out, torch.Tensor) else out


def two(*shape, **kw):
    return TwoTensor(torch.randn(*shape, **kw), torch.randn(*shape, **kw))


def same(got, want):
    """Equal down to the inner tensors, classes included."""
    assert type(got) is type(want)
    if isinstance(want, (list, tuple)):
        assert len(got) == len(want)
        for g, w in zip(got, want):
            same(g, w)
        return
    if not isinstance(want, torch.Tensor):
        assert got == want
        return
    assert (got.shape, got.dtype, got.requires_grad) == (want.shape, want.dtype, want.requires_grad)
    if hasattr(want, "__tensor_flatten__"):
        (names, context), (wanted, of_want) = got.__tensor_flatten__(), want.__tensor_flatten__()
        assert (names, context) == (wanted, of_want) and got.stride() == want.stride()
        for name in names:
            same(getattr(got, name), getattr(want, name))
        return
    torch.testing.assert_close(got, want)


def whole(fn, *calls):
    """fn is one graph, and gives what eager gives for each of the calls; the report."""
    compiled = tcompile.compile(fn, fullgraph=True)
    for args in calls:
        same(compiled(*args), fn(*args))
    return compiled


def report_of(fn, *args):
    report = tcompile.explain(fn)(*args)
    assert not report.graph_breaks and not report.fallbacks
    return report


def compilations(compiled, *args):
    """How many entries are made for a call."""
    with tcompile.record() as recorded:
        compiled(*args)
    return len(recorded.report().entries)


def gradients(f, *args):
    leaves = [a.detach().requires_grad_() for a in args]
    out = f(*leaves)
    out.sum().backward()
    return [out.detach(), *[t.grad for t in leaves]]

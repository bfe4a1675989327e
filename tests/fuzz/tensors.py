"""Fuzzer 3: straight programs of tensor operators, for what is behind capture: shapes, layouts, lowering, fusion,
generated code.

`write(rolled)` gives the source of `inputs()` and `f(...)`. The writer runs every line in eager as it goes and keeps
those that work, so that any text may be proposed: each of PROPOSALS gives one expression for the operand at hand.
`check_tensors` compares compiled with eager: values, dtypes, strides that can be seen, gradients, and where eager
fails, that compiled fails as well.
"""

from __future__ import annotations

import linecache
import random
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

import tcompile

__all__ = ["check_tensors", "write", "namespace"]

Proposal = Callable[[random.Random, str, torch.Tensor, str], str]
SIZES = (1, 2, 3, 4, 5, 7, 8, 10, 16, 17, 33)
DTYPES = ("float32",) * 6 + ("float64", "bfloat16", "float16", "int64", "int32", "int16", "int8", "uint8", "bool")
MOST_ELEMENTS = 20_000


def namespace() -> dict[str, Any]:
    return {"torch": torch, "F": F}


# ---- what a line may be: r rolls, n names the operand, v is its value, m names another operand, d is a dimension of v
def _dim(r: random.Random, v: torch.Tensor) -> int:
    return r.randrange(-v.ndim, v.ndim) if v.ndim else 0


def _pointwise(r: random.Random, n: str, v: torch.Tensor, m: str) -> str:
    return r.choice(
        (
            f"{n} + {m}",
            f"{n} * {m}",
            f"{n} - {m}",
            f"{n} / ({m} + 3)",
            f"torch.maximum({n}, {m})",
            f"torch.where({n} > {m}, {n}, {m})",
            f"{n} * {r.choice((2, 0.5, -1))} + 1",
            f"torch.minimum({n}, {m}).clamp(-1, 1)",
            f"{n} == {m}",
            f"torch.lerp({n}, {m}, 0.25)",
            f"torch.addcmul({n}, {m}, {n})",
            f"{n}.masked_fill({n} > 0.3, 0.25)",
            f"F.gelu({n}) * {m}",
            f"torch.atan2({n}, {m})",
        )
    )


def _unary(r: random.Random, n: str, v: torch.Tensor, m: str) -> str:
    return n + r.choice(
        (
            ".sin()",
            ".cos()",
            ".tanh()",
            ".sigmoid()",
            ".exp()",
            ".abs()",
            ".neg()",
            ".relu()",
            ".sign()",
            ".square()",
            ".erf()",
            ".log1p()",
            ".floor()",
            ".isnan()",
            ".reciprocal()",
            ".logical_not()",
            ".sqrt()",
            ".expm1()",
            ".round()",
            ".frac()",
            ".bitwise_not()",
        )
    )


def _cast(r: random.Random, n: str, v: torch.Tensor, m: str) -> str:
    return f"{n}.{r.choice(('float', 'double', 'bfloat16', 'half', 'long', 'int', 'bool', 'float', 'contiguous', 'clone', 'detach'))}()"


def _reduce(r: random.Random, n: str, v: torch.Tensor, m: str) -> str:
    d = (
        r.choice((f"{_dim(r, v)}", f"({', '.join(map(str, r.sample(range(v.ndim), r.randint(1, v.ndim))))},)"))
        if v.ndim
        else "0"
    )
    one, keep = _dim(r, v), r.choice(("", ", keepdim=True"))
    return r.choice(
        (
            f"{n}.sum({d}{keep})",
            f"{n}.amax({d}{keep})",
            f"{n}.amin({d}{keep})",
            f"{n}.float().mean({d}{keep})",
            f"{n}.sum()",
            f"{n}.mean()",
            f"{n}.float().var({d}, unbiased=False{keep})",
            f"{n}.argmax({one}{keep})",
            f"{n}.argmin({one})",
            f"{n}.{'amax' if v.dtype is torch.float16 else 'prod'}({one}{keep})",
            f"{n}.any({one}{keep})",
            f"{n}.all({one})",
            f"{n}.max({one})[0]",
            f"{n}.float().logsumexp({d}{keep})",
            f"{n}.float().norm(dim={d}{keep})",
            f"{n}.count_nonzero({one})",
            f"torch.std_mean({n}.float(), {one})[1]",
            f"{n}.sum({d}, dtype=torch.float64)",
        )
    )


def _normalise(r: random.Random, n: str, v: torch.Tensor, m: str) -> str:
    d = _dim(r, v)
    last = v.shape[-1] if v.ndim else 1
    return r.choice(
        (
            f"F.softmax({n}.float(), {d})",
            f"F.log_softmax({n}.float(), {d})",
            f"F.layer_norm({n}.float(), ({last},))",
            f"{n}.cumsum({d})",
            f"F.normalize({n}.float(), dim={d})",
            f"{n} - {n}.amax({d}, keepdim=True)",
            f"{n}.float() / {n}.float().exp().sum({d}, keepdim=True)",
            f"F.rms_norm({n}.float(), ({last},))",
            f"{n}.cummax({d})[0]",
            f"{n}.float().cumprod({d})",
            f"{n}.diff(dim={d})",
            f"{n}.sort({d})[0]",
        )
    )


def _view(r: random.Random, n: str, v: torch.Tensor, m: str) -> str:
    d, e, size = _dim(r, v), _dim(r, v), v.shape[_dim(r, v)] if v.ndim else 1
    a = r.randint(0, max(size - 1, 0))
    b = r.randint(a, size)
    order = ", ".join(map(str, r.sample(range(v.ndim), v.ndim)))
    cut = ", ".join(
        [":"] * (d % max(v.ndim, 1)) + [r.choice((f"{a}:{b}", f"{a}::{r.randint(1, 3)}", f"{a}:", f":-{a}"))]
    )
    half = v.shape[d] // 2 if v.ndim and v.shape[d] % 2 == 0 else 1
    return r.choice(
        (
            f"{n}[{cut}]",
            f"{n}[{cut}]",
            f"{n}.select({d}, {a})",
            f"{n}.transpose({d}, {e})",
            f"{n}.permute({order})",
            f"{n}.flatten()",
            f"{n}.view(-1)",
            f"{n}.reshape({v.shape[0] if v.ndim else 1}, -1)",
            f"{n}.unsqueeze({d})",
            f"{n}.squeeze({d})",
            f"{n}[None]",
            f"{n}.narrow({d}, {a}, {b - a})",
            f"{n}.expand(2, *{tuple(v.shape)})",
            f"{n}.unflatten({d}, (2, {half}))",
            f"{n}.unfold({d}, {min(2, size)}, 1)",
            f"{n}.diagonal(0, -2, -1)",
            f"{n}.unbind({d})[{a}]",
            f"{n}.chunk(2, {d})[0]",
            f"{n}.mT.contiguous()",
            f"{n}.movedim({d}, {e})",
            f"{n}.flatten({min(d, e)}, {max(d, e)})",
        )
    )


def _move(r: random.Random, n: str, v: torch.Tensor, m: str) -> str:
    d, size = _dim(r, v), max(v.shape[_dim(r, v)] if v.ndim else 1, 1)
    rows = [r.randrange(size) for _ in range(r.randint(1, 4))]
    return r.choice(
        (
            f"torch.cat([{n}, {n}], {d})",
            f"torch.cat([{n}, {m}], {d})",
            f"torch.cat([{n}, {n} * 2, {n}], {d})",
            f"torch.stack([{n}, {m}], {d})",
            f"{n}.flip({d})",
            f"{n}.roll({r.randint(-5, 5)}, {d})",
            f"{n}.repeat_interleave(2, {d})",
            f"{n}.repeat(2, *{(1,) * v.ndim})",
            f"{n}.tril({r.randint(-1, 1)})",
            f"{n}.triu()",
            f"F.pad({n}.float(), ({r.randint(-1, 2)}, {r.randint(0, 2)}), value=0.5)",
            f"F.pad({n}.float()[None], (1, 1), mode='reflect')",
            f"{n}.index_select({d}, torch.tensor({rows}))",
            f"{n}[torch.tensor({rows})]",
            f"{n}.gather({d}, {n}.long().abs() % {size})",
            f"torch.take_along_dim({n}, {n}.argmax({d}, keepdim=True), {d})",
            f"{n}[..., torch.tensor({rows})]",
            f"{n}.rot90()",
            f"torch.zeros_like({n}).scatter({d}, {n}.argsort({d}), {n})",
            f"torch.zeros_like({n}).scatter_add({d}, {n}.long().abs() % {size}, {n})",
            f"torch.zeros({size}).index_add(0, torch.arange({n}.numel()) % {size}, {n}.float().flatten())",
            f"torch.arange(50)[{n}.long().abs() % 40]",
            f"F.embedding({n}.long().abs() % 5, torch.arange(15.0).view(5, 3))",
            f"F.one_hot({n}.argmax(-1), {v.shape[-1] if v.ndim else 1})",
        )
    )


def _products(r: random.Random, n: str, v: torch.Tensor, m: str) -> str:
    # (not at a jump: layer norms of whole numbers are whole but for rounding)
    whole = f"({n} + 0.37)" if v.is_floating_point() else n
    return r.choice(
        (
            f"{n}.float() @ {n}.float().mT",
            f"{n}.float() @ {m}.float()",
            f"torch.einsum('...i,...j->...ij', {n}.float(), {n}.float())",
            f"F.linear({n}.float(), {m}.float())",
            f"{whole} // 3",
            f"{whole} % 3",
            f"{n} << 1",
            f"{n} ^ {n} // 2",
            f"torch.outer({n}.flatten()[:7], {m}.flatten()[:5])",
            f"torch.cdist({n}.float()[None], {n}.float()[None])",
        )
    )


def _write_in_place(r: random.Random, n: str, v: torch.Tensor, m: str) -> str:
    d, size = _dim(r, v), max(v.shape[_dim(r, v)] if v.ndim else 1, 1)
    return f"{n}.clone()" + r.choice(
        (
            ".mul_(2)",
            f".copy_({m})",
            f".index_fill_({d}, torch.tensor([{r.randrange(size)}]), 3)",
            f".add_({m})",
            ".fill_diagonal_(1)",
            ".zero_()",
            f".masked_fill_({n} > 0, 1)",
            f".index_copy_(0, torch.tensor([0]), {n}[:1])",
            ".clamp_(min=0.1)",
            f".transpose_({d}, 0)",
        )
    )


def _special(r: random.Random, n: str, v: torch.Tensor, m: str) -> str:
    return r.choice(
        (
            f"torch.erfc({n}.float())",
            f"torch.lgamma({n}.float())",
            f"torch.hypot({n}.float(), {m}.float())",
            f"torch.nextafter({n}.float(), {m}.float())",
            f"torch.asin({n}.float() / 4)",
            f"torch.acos({n}.float().clamp(-1, 1))",
            f"torch.logaddexp({n}.float(), {m}.float())",
            f"torch.xlogy({n}.float().abs(), {m}.float().abs())",
            f"torch.copysign({n}.float(), {m}.float())",
            f"torch.fmod({n} + 0.37, 2)",
            f"torch.remainder({n}.float() + 0.37, {m}.float().abs() + 1.1)",
            f"torch.digamma({n}.float().abs() + 1)",
            f"{n}.long() << {m}.long().abs() % 40",
            f"{n}.int() >> {m}.int().abs() % 20",
            f"{n}.int() & {m}.int()",
            f"torch.gcd({n}.long(), {m}.long())",
            f"torch.special.i0({n}.float())",
            f"torch.sinh({n}.float().clamp(-4, 4))",
            f"torch.atanh({n}.float() / 50)",
            f"torch.pow({n}.float().abs() + 0.1, {m}.float().clamp(-3, 3))",
            f"{n} ** 2",
            f"{n}.float() ** -0.5",
            f"torch.sin({n}.float() * 30000)",
            f"torch.nan_to_num(1 / {n}.float())",
            f"{n}.clamp({m}, {m} + 1)",
            f"F.softplus({n}.float())",
            f"torch.isclose({n}, {m})",
            f"torch.heaviside({n}.float(), {m}.float())",
            f"torch.signbit({n})",
            f"torch.logical_xor({n}, {m})",
            f"torch.float_power({n}.abs(), 1.5)",
        )
    )


def _images(r: random.Random, n: str, v: torch.Tensor, m: str) -> str:
    """Windows, resampling and norms over the last dimensions, in either memory format."""
    image = f"{n}.float()" + {
        0: "[None, None, None, None]",
        1: "[None, None, None]",
        2: "[None, None]",
        3: "[None]",
    }.get(v.ndim, "")
    if r.random() < 0.3:
        image += ".contiguous(memory_format=torch.channels_last)"
    k, p, size = r.randint(1, 3), r.randint(0, 1), (r.randint(1, 9), r.randint(1, 9))
    return r.choice(
        (
            f"F.max_pool2d({image}, {k}, {r.randint(1, 2)}, {min(p, k // 2)})",
            f"F.avg_pool2d({image}, {k}, {r.randint(1, 2)}, {min(p, k // 2)})",
            f"F.adaptive_avg_pool2d({image}, {size})",
            f"F.adaptive_max_pool2d({image}, {size})",
            f"F.interpolate({image}, size={size})",
            f"F.interpolate({image}, size={size}, mode='bilinear')",
            f"F.interpolate({image}, scale_factor=2, mode='{r.choice(('nearest', 'bilinear', 'bicubic', 'area', 'nearest-exact'))}')",
            f"F.interpolate({image}, size={size}, mode='bicubic', align_corners=True)",
            f"F.unfold({image}, {k}, padding={p})",
            f"F.fold(F.unfold({image}, 2), {image}.shape[-2:], 2)",
            f"F.pad({image}, (1, 2, {p}, 1), mode='{r.choice(('replicate', 'circular', 'reflect'))}')",
            f"F.conv2d({image}, {image}[:1, :, :{k}, :{k}])",
            f"F.batch_norm({image}, None, None, training=True)",
            f"F.instance_norm({image})",
            f"F.group_norm({image}, 1)",
            f"F.max_pool1d({image}[0], {k})",
            f"F.pixel_unshuffle({image}, 2)",
            f"F.lp_pool2d({image}.abs() + 0.1, 2, {k})",
            f"{image}.sum((0, 2, 3))",
            f"F.local_response_norm({image}, 3)",
            f"F.grid_sample({image}, torch.linspace(-1.2, 1.2, 18).view(1, 3, 3, 2).expand({image}.shape[0], -1, -1, -1), align_corners=False)",
        )
    )


def _scattered(r: random.Random, n: str, v: torch.Tensor, m: str) -> str:
    d, size = _dim(r, v), max(v.shape[_dim(r, v)] if v.ndim else 1, 1)
    rows = [r.randrange(-size, size) for _ in range(r.randint(1, 4))]
    reduce = r.choice(("sum", "prod", "mean", "amax", "amin"))
    return r.choice(
        (
            f"{n}.scatter_reduce({d}, {n}.long().abs() % {size}, {n}, '{reduce}', include_self={r.random() < 0.5})",
            f"{n}.index_put((torch.tensor({rows}),), {n}[:1], accumulate=True)",
            f"{n}.masked_scatter({n} > 0, {n}.flip(-1).contiguous())",
            f"{n}.index_reduce({d}, torch.arange({size}), {n}, 'amax')",
            f"{n}.logcumsumexp({d})",
            f"{n}.cummin({d})[1]",
            f"{n}.cumprod({d})",
            f"{n}.topk(1, {d})[0]",
            f"{n}.median({d})[0]",
            f"{n}.kthvalue(1, {d})[0]",
            f"torch.bucketize({n}, torch.tensor([-1, 0, 2]))",
            f"torch.searchsorted(torch.arange(-3.0, 4), {n}.float())",
            f"{n}.index_select({d}, torch.tensor({[k % size for k in rows]})).cumsum({d})",
            f"F.embedding_bag({n}.long().abs().flatten()[None] % 5, torch.arange(15.0).view(5, 3))",
            f"{n}.argsort({d}, stable=True)",
            f"torch.histc({n}.float(), 5, -3, 3)",
            f"{n}.slice_scatter({n}[:1] * 2, 0, 0, 1)",
            f"{n}.select_scatter({n}.select({d}, 0) + 1, {d}, -1)",
            f"{n}.diagonal_scatter({n}.diagonal() * 2)",
            f"{n}[{n} > 100].sum()",
            f"torch.where({n} > 0, {n}, {n}.flip({d}))",
            f"{n}.index_fill({d}, torch.tensor([0]), 2)",
            f"{n}.put(torch.tensor([0]), {n}.flatten()[:1])",
            f"{n}.take(torch.tensor([0, -1]))",
        )
    )


def _complex(r: random.Random, n: str, v: torch.Tensor, m: str) -> str:
    z = n if v.is_complex() else f"torch.complex({n}.float(), {m}.float())"
    return r.choice(
        (
            f"({z} * {z}).real",
            f"({z} + 1j).abs()",
            f"{z}",
            f"torch.view_as_real({z} * {z}.conj())",
            f"torch.view_as_real({z}).flip(-1)",
            f"torch.view_as_complex(torch.view_as_real({z}) * 2)",
            f"{z}.imag * 2",
            f"{z}.conj() - {z}",
            f"torch.polar({z}.abs(), {z}.real)",
            f"{z}.sum()",
            f"{z}.angle()",
            f"{z} / ({z} + 3)",
            f"{z}.exp().real",
            f"{z}.mean(-1).imag",
            f"{z}.reshape(-1)[:3].real",
            f"torch.view_as_real({z}.transpose(0, -1))",
            f"{z} * {m}.float()",
            f"(-{z}).imag",
            f"{z}.real.add(1)",
            f"{z}.isfinite()",
            f"{z} == {z}.conj()",
            f"torch.stack([{z}, {z}]).real",
        )
    )


PROPOSALS: tuple[Proposal, ...] = (
    _pointwise,
    _pointwise,
    _unary,
    _cast,
    _reduce,
    _reduce,
    _normalise,
    _view,
    _view,
    _view,
    _move,
    _move,
    _products,
    _write_in_place,
    _special,
    _images,
    _scattered,
    _complex,
)


# ---- programs
def _input(r: random.Random, base: list[int]) -> str:
    shape = [1 if r.random() < 0.15 else 0 if r.random() < 0.02 else s for s in base]
    shape = shape[r.randrange(len(shape)) :] if shape and r.random() < 0.3 else shape
    dtype = r.choice(DTYPES)
    if dtype == "bool":
        text = f"torch.rand({shape}) > 0.5"
    elif dtype.startswith(("float", "bfloat")):
        text = f"torch.randn({shape}).to(torch.{dtype})"
    else:
        text = f"torch.randint({0 if dtype == 'uint8' else -5}, 6, {shape}).to(torch.{dtype})"
    layout = r.random()
    if layout < 0.15 and len(shape) > 1:
        return f"({text}).mT.contiguous().mT"
    return f"torch.cat([{text}] * 2, -1)[..., ::2]" if layout < 0.25 and shape else text


def write(r: random.Random) -> str:
    """A program that eager runs: `def inputs()` and `def f(...)`."""
    base = [r.choice(SIZES) for _ in range(r.randint(0, 4))]
    texts = [_input(r, base) for _ in range(r.randint(1, 3))]
    seed = r.randrange(1000)
    head = f"def inputs():\n    torch.manual_seed({seed})\n    return [{', '.join(texts)}]\n\n\n"
    space = namespace()
    exec(head, space)
    known: dict[str, torch.Tensor] = {f"x{k}": t for k, t in enumerate(space["inputs"]())}
    lines: list[str] = []
    for _ in range(r.randint(6, 40)):
        n = r.choice(list(known)[-4:] if r.random() < 0.75 else list(known))
        text = r.choice(PROPOSALS)(r, n, known[n], r.choice(list(known)))
        try:
            value = eval(text, space, dict(known))
        except (RuntimeError, IndexError, ValueError, TypeError, AttributeError, NotImplementedError):
            continue  # eager does not take it: another line
        if isinstance(value, torch.Tensor) and value.numel() <= MOST_ELEMENTS:
            known[f"v{len(lines)}"] = value
            lines.append(f"    v{len(lines)} = {text}")
    results = sorted({list(known)[-1], *(r.choice(list(known)) for _ in range(r.randint(0, 2)))})
    return f"{head}def f({', '.join(f'x{k}' for k in range(len(texts)))}):\n" + "\n".join(
        [*lines, f"    return ({', '.join(results)},)", ""]
    )


# ---- the oracle
def _unit(source: str, values: list[torch.Tensor]) -> float:
    """The rounding unit of the coarsest floating-point type in play."""
    types = {v.dtype for v in values if v.is_floating_point()} | {torch.bfloat16 for w in ("bfloat16",) if w in source}
    types |= {torch.float16 for w in ("half()", "float16") if w in source}
    return max([torch.finfo(t).eps for t in types] + [torch.finfo(torch.float32).eps])


def _differs(a: torch.Tensor, b: torch.Tensor, unit: float, laid_out: bool = True) -> str:
    if (a.shape, a.dtype) != (b.shape, b.dtype):
        return f"eager gives {a.dtype} {tuple(a.shape)}, compiled {b.dtype} {tuple(b.shape)}"
    if laid_out and a.numel() and any(x != y for n, x, y in zip(a.shape, a.stride(), b.stride()) if n > 1):
        return f"eager's strides are {a.stride()}, compiled's {b.stride()} (shape {tuple(a.shape)})"
    if a.is_complex():
        return _differs(torch.view_as_real(a.resolve_conj()), torch.view_as_real(b.resolve_conj()), unit, False)
    if not a.dtype.is_floating_point:
        wrong = a != b
        return (
            f"{int(wrong.sum())} of {a.numel()} differ: {a[wrong][:3].tolist()}, compiled {b[wrong][:3].tolist()}"
            if wrong.any()
            else ""
        )
    x, y = a.detach().double(), b.detach().double()
    finite = x[x.isfinite()].abs()
    scale = float(finite.max()) if finite.numel() else 1.0
    tolerance = max(2e-3, 16 * unit)
    right = (
        torch.isclose(x, y, rtol=tolerance, atol=tolerance * 0.1 * max(1.0, scale), equal_nan=True)
        | ~x.isfinite() & ~y.isfinite()
    )
    return (
        ""
        if right.all()
        else f"{int((~right).sum())} of {a.numel()} differ: {x[~right][:3].tolist()}, compiled {y[~right][:3].tolist()}"
    )


def _weights(t: torch.Tensor) -> torch.Tensor:
    """One for each element, by its place: a tangent that lies in another order than it should is seen."""
    return (
        (torch.arange(t.numel(), dtype=torch.float64) % 7 + 1)
        .reshape(t.shape)
        .div(4)[(..., None) if t.is_complex() else ...]
    )


def _observe(f: Callable, inputs: list[torch.Tensor], grad: bool) -> list[torch.Tensor] | Exception:
    if grad:
        inputs = [t.detach().requires_grad_() if t.dtype in (torch.float32, torch.float64) else t for t in inputs]
    try:
        results = list(f(*inputs))
        if grad:
            roots = [t for t in inputs if t.requires_grad]
            total = sum(
                (
                    (torch.view_as_real(t.resolve_conj()) if t.is_complex() else t)
                    .double()
                    .clamp(-9, 9)
                    .mul(_weights(t))
                    .sum()
                    for t in results
                    if t.requires_grad
                ),
                torch.zeros((), dtype=torch.float64),
            )
            if total.requires_grad:
                results += [g for g in torch.autograd.grad(total, roots, allow_unused=True) if g is not None]
        return results
    except Exception as e:  # noqa: BLE001 -- what it is, is compared
        return e


def _jumps(f: Callable, inputs: list[torch.Tensor], grad: bool, k: int, want: torch.Tensor, unit: float) -> bool:
    """Whether rounding decides about result k (a sum that is nearly zero, and its sign): eager itself gives another one
    for inputs next to these.
    """
    for seed in range(6):
        g = torch.Generator().manual_seed(seed)
        near = [
            t * (1 + unit * (torch.rand(t.shape, generator=g, dtype=torch.float64) - 0.5) * 2 * (seed + 1)).to(t.dtype)
            if t.is_floating_point()
            else t
            for t in inputs
        ]
        other = _observe(f, near, grad)
        if isinstance(other, Exception) or _differs(want, other[k], unit, False):
            return True
    return False


def check_tensors(source: str, backend: str = "tcompile", dynamic: bool | None = None, grad: bool = False) -> None:
    """One call eager and compiled. Raises AssertionError with the program and what differs."""
    space = namespace()
    name = f"<tensors {abs(hash(source))}>"
    linecache.cache[name] = (len(source), None, source.splitlines(True), name)
    exec(compile(source, name, "exec"), space)
    want = _observe(space["f"], space["inputs"](), grad)
    got = _observe(tcompile.compile(space["f"], backend=backend, dynamic=dynamic), space["inputs"](), grad)
    if isinstance(want, Exception) or isinstance(got, Exception):
        assert type(want) is type(got), f"eager gives {want!r:.200}, compiled {got!r:.500}\n{source}"
        return
    assert len(want) == len(got), f"eager gives {len(want)} tensors, compiled {len(got)}\n{source}"
    unit = _unit(source, want)
    results = len(space["f"](*space["inputs"]()))
    for k, (a, b) in enumerate(zip(want, got)):
        found = _differs(a, b, unit, laid_out=k < results)  # (gradients are laid out as whoever takes them likes)
        assert not found or _jumps(space["f"], space["inputs"](), grad, k, a, unit), f"tensor {k}: {found}\n{source}"

"""The op_db oracle: any way of compiling a function, against eager, on torch's own sample inputs.

`check(info, dtype, compile)` runs every sample of an OpInfo: `compile(fn, tensors)` gives a callable of the tensors
that must return what `fn` returns: values, dtypes, shapes, strides, aliasing of inputs, and the same effect on its
inputs.
"""

from __future__ import annotations

import functools
import itertools
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils import _pytree as pytree

__all__ = ["COMMON", "op_infos", "Sample", "samples", "check", "Outcome", "compare"]

# The operators that most programs are made of; test files add to them as they grow.
COMMON = """
    add sub mul div.no_rounding_mode pow neg abs exp log sqrt rsqrt sin cos tanh sigmoid erf maximum minimum where
    clamp eq lt logical_and sum mean var std amax amin argmax prod cumsum softmax log_softmax nn.functional.relu
    nn.functional.gelu nn.functional.silu nn.functional.layer_norm nn.functional.group_norm nn.functional.batch_norm
    nn.functional.linear nn.functional.embedding nn.functional.cross_entropy nn.functional.mse_loss
    nn.functional.pad.constant matmul mm bmm addmm cat stack view reshape permute transpose expand squeeze unsqueeze
    split chunk gather index_select masked_fill tril flip roll topk""".split()


SEED = 42
# values mean nothing
UNDEFINED = frozenset("empty empty_like empty_strided empty_permuted new_empty new_empty_strided".split())


@functools.cache
def op_infos() -> dict[str, Any]:
    """name or name.variant -> OpInfo. Random operators come without op_db's wrapper that saves and restores the state
    of the generator around them, which is no operator: `check` seeds before each call."""
    from torch.testing._internal import common_methods_invocations as module
    from torch.testing._internal.common_methods_invocations import op_db

    module.wrapper_set_seed = lambda op, *args, **kwargs: op(*args, **kwargs)
    return {i.name + (f".{i.variant_test_name}" if i.variant_test_name else ""): i for i in op_db}


@dataclass
class Sample:
    """One call: `fn(*tensors)` is the operator on the sample's tensors, everything else being fixed."""

    fn: Callable[..., Any]
    tensors: list[torch.Tensor]
    text: str


def samples(
    info: Any, dtype: torch.dtype, device: str = "cpu", limit: int | None = None, spread: bool = False
) -> Iterator[Sample]:
    """The first `limit` samples; spread: the first one and others taken from all of them, always the same ones."""
    every = info.sample_inputs(device, dtype, requires_grad=False)
    for s in _spread(every, limit) if spread else itertools.islice(every, limit):
        leaves, spec = pytree.tree_flatten((s.input, s.args, s.kwargs))
        where = [i for i, x in enumerate(leaves) if isinstance(x, torch.Tensor)]

        def fn(*ts: torch.Tensor, leaves: list = leaves, spec: Any = spec, where: list = where) -> Any:
            full = list(leaves)
            for i, t in zip(where, ts):
                full[i] = t
            x, args, kwargs = pytree.tree_unflatten(full, spec)
            return info.op(x, *args, **kwargs)

        shapes = [tuple(leaves[i].shape) for i in where]
        others = [x for i, x in enumerate(leaves) if i not in where]
        yield Sample(fn, [leaves[i] for i in where], f"{shapes} {others}")


def _spread(every: Iterator[Any], limit: int | None) -> list[Any]:
    torch.manual_seed(SEED)  # sample inputs hold random numbers
    found = list(every)
    rest = found[1:]
    random.Random(SEED).shuffle(rest)
    return [*found[:1], *rest][:limit]


@dataclass
class Outcome:
    """What came of one OpInfo: numbers of samples that agreed, were refused (NotImplementedError, DataDependentError),
    failed. `crashed` are those of `failed` that raised where eager does not."""

    agreed: int = 0
    refused: list[str] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    crashed: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        return not self.failed


def check(
    info: Any,
    dtype: torch.dtype,
    compile: Callable[[Callable, list], Callable],
    *,
    refusals: tuple = (NotImplementedError,),
    limit: int | None = None,
    strides: bool = True,
    tolerance: dict | None = None,
    spread: bool = False,
    change: Callable[[torch.Tensor], torch.Tensor] | None = None,
) -> Outcome:
    """Every sample of `info` in `dtype` through `compile`, against eager. Eager errors must come back as errors.
    `change` makes other tensors of the sample's own (strided ones, ones with NaN)."""
    out = Outcome()
    for s in samples(info, dtype, limit=limit, spread=spread):
        if change is not None:
            s.tensors = [change(t) if _dense(t) else t for t in s.tensors]
        eager_in, ours_in = [_copy(t) for t in s.tensors], [_copy(t) for t in s.tensors]
        try:
            torch.manual_seed(SEED)
            with torch.no_grad():
                want = s.fn(*eager_in)
        except Exception as e:  # noqa: BLE001 - whatever eager raises, we must raise too
            want = e
        try:
            with torch.no_grad():
                compiled = compile(s.fn, ours_in)
                torch.manual_seed(SEED)
                got = compiled(*ours_in)
        except refusals as e:
            breaks = getattr(e, "breaks", ())
            out.refused.append(f"{s.text}: {type(e).__name__}: {breaks[0].reason if breaks else e}")
            continue
        except Exception as e:  # noqa: BLE001
            if isinstance(want, Exception):
                out.agreed += 1
            else:
                out.failed.append(f"{s.text}: {type(e).__name__}: {e}")
                out.crashed.append(out.failed[-1])
            continue
        if isinstance(want, Exception):
            out.failed.append(f"{s.text}: eager raises {type(want).__name__}: {want}; no error here")
            continue
        problem = compare(
            want, got, eager_in, ours_in, strides=strides, tolerance=tolerance, values=info.name not in UNDEFINED
        )
        if problem and "not close" in problem and _as_exact(s.fn, s.tensors, want, got):
            problem = ""
        if problem:
            out.failed.append(f"{s.text}: {problem}")
        else:
            out.agreed += 1
    return out


def _as_exact(fn: Callable, tensors: list, want: Any, got: Any) -> bool:
    """Whether our error against float64 is no worse than twice eager's (root mean square), result by result."""
    torch.manual_seed(SEED)
    try:
        with torch.no_grad():
            ref = _flat(fn(*[t.double() if t.is_floating_point() else t.clone() for t in tensors]))
    except RuntimeError:
        return False
    for r, w, g in zip(ref, _flat(want), _flat(got)):
        if not isinstance(r, torch.Tensor) or not w.is_floating_point():
            continue
        if not torch.equal(w.isnan(), g.isnan()) or r.shape != w.shape:
            return False
        rms = [float((x.double() - r).nan_to_num(0, 0, 0).square().mean().sqrt()) for x in (w, g)]
        if rms[1] > 2 * rms[0] + torch.finfo(w.dtype).eps * 1e-2:
            return False
    return True


def _copy(t: torch.Tensor) -> torch.Tensor:
    """The same values in memory laid out the same way."""
    if not _dense(t):
        return t.detach().clone()
    if t.is_contiguous() or not t.numel() or t.is_conj() or t.is_neg():
        return t.detach().clone(memory_format=torch.preserve_format)
    memory = t.untyped_storage().clone()
    return torch.empty(0, dtype=t.dtype, device=t.device).set_(memory, t.storage_offset(), t.shape, t.stride())


def _dense(t: torch.Tensor) -> bool:
    return t.layout is torch.strided


def _flat(x: Any) -> list:
    return [y for z in x for y in _flat(z)] if isinstance(x, (tuple, list)) else [x]


def compare(
    want: Any,
    got: Any,
    eager_in: list,
    ours_in: list,
    *,
    strides: bool = True,
    tolerance: dict | None = None,
    values: bool = True,
) -> str:
    """What differs, in words; empty where all agrees."""
    ws, gs = _flat(want), _flat(got)
    if len(ws) != len(gs):
        return f"{len(gs)} results, eager gives {len(ws)}"
    for i, (w, g) in enumerate([*zip(ws, gs), *zip(eager_in, ours_in)]):
        what = f"result {i}" if i < len(ws) else f"input {i - len(ws)} afterwards"
        if not isinstance(w, torch.Tensor):
            if w != g and not (w != w and g != g):
                return f"{what}: {g!r}, eager gives {w!r}"
            continue
        if not isinstance(g, torch.Tensor):
            return f"{what}: {type(g).__name__}, eager gives a tensor"
        if w.dtype != g.dtype or w.shape != g.shape:
            return f"{what}: {g.dtype} {tuple(g.shape)}, eager gives {w.dtype} {tuple(w.shape)}"
        if strides and i < len(ws) and w.layout is torch.strided and w.numel() and _strides_differ(w, g):
            return f"{what}: strides {g.stride()}, eager gives {w.stride()} for shape {tuple(w.shape)}"
        if i < len(ws):
            for k, (a, b) in enumerate(zip(eager_in, ours_in)):
                if _shares(w, a) != _shares(g, b):
                    return f"{what}: {'shares' if _shares(g, b) else 'does not share'} memory with input {k}, eager is other"
        if not values:
            continue
        try:
            torch.testing.assert_close(g, w, equal_nan=True, **(tolerance or {}))
        except AssertionError as e:
            return f"{what}: {str(e).strip().splitlines()[0]} {str(e)[-300:]}".replace("\n", " ")
    return ""


def _strides_differ(w: torch.Tensor, g: torch.Tensor) -> bool:
    return any(a != b for n, a, b in zip(w.shape, w.stride(), g.stride()) if n > 1)


def _shares(a: torch.Tensor, b: torch.Tensor) -> bool:
    if a.layout is not torch.strided or b.layout is not torch.strided or not a.numel() or not b.numel():
        return False
    return a.untyped_storage().data_ptr() == b.untyped_storage().data_ptr()

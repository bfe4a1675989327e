"""Where torch keeps a tensor's metadata and its thread-local state, found by experiment.

The C guard program reads tensors straight from memory (5 ns instead of 40-75 ns for each attribute). It uses no torch
header: the offsets are looked for here, in tensors whose metadata is known, and what they give is then compared with
torch's own answers for a set of other tensors. Where anything does not fit (another torch, another build), the C
program gets no layout, and TENSOR guards are evaluated by `tensors.py`, as correct and slower.
"""

from __future__ import annotations

import ctypes
import os
import struct
from contextlib import ExitStack
from typing import Any, Callable, Iterable, TypeVar

import torch
import torch.autograd.forward_ad as forward_ad

from .. import events
from ..native import native
from .source_values import TUPLE_GETTER
from .tensors import below_autograd
from .weak import Weak

__all__ = ["prepare", "tensor_layout_known", "thread_state", "ThreadState"]

_WORD = 8
_SEARCHES = 5
_IMPL_WORDS = 26  # a TensorImpl is 22-26 words; the words behind it belong to the same heap


T = TypeVar("T")


class _NotFound(Exception):
    """An experiment did not give one clear answer."""


def _u64(address: int) -> int:
    return ctypes.c_uint64.from_address(address).value


def _words(address: int, n: int) -> list[int]:
    return list((ctypes.c_uint64 * n).from_address(address))


def _one(what: str, candidates: Iterable[T]) -> T:
    found = list(candidates)
    if not found:
        raise _NotFound(f"no place for {what}")
    return found[0]


def _keys(tensor: torch.Tensor) -> int:
    return torch._C._dispatch_keys(tensor).raw_repr()


def _examples() -> list[torch.Tensor]:
    base = torch.empty(7, 11, 13)
    return [
        torch.empty(5, 9),
        torch.empty(3, 4, 5, 6, 7, 8),
        torch.nn.Parameter(torch.empty(17, 3)),
        torch.empty(()),
        torch.empty(6, 8, dtype=torch.bfloat16).t()[1:, 2:],
        base[1:, ::2].transpose(0, 2),
        torch.empty(0, 4),
        torch.empty(9, dtype=torch.int64).expand(4, 9),
        torch.empty(19, dtype=torch.bool),
        torch.empty(4, 5, dtype=torch.complex64, requires_grad=True),
        torch.empty(2, 3, device="meta"),
        torch.nn.Parameter(torch.empty(3)) * 2,
        torch.empty(2, 2, 2, 2, 2, 2, 2).permute(6, 5, 4, 3, 2, 1, 0),
    ]


def _find_layout() -> tuple[int, ...]:
    tensors = _examples()
    plain = [sample for sample in tensors if sample.device.type == "cpu"]
    size = torch._C.TensorBase.__basicsize__
    impl = _one(
        "the TensorImpl",
        (
            at_byte
            for at_byte in range(16, size, _WORD)
            if all(_u64(id(sample) + at_byte) == sample._cdata for sample in tensors)
        ),
    )
    words = {id(sample): _words(sample._cdata, _IMPL_WORDS) for sample in tensors}

    def where(what: str, fits: Callable[[torch.Tensor, int], bool], among: list[torch.Tensor] = tensors) -> int:
        return _WORD * _one(
            what, (i for i in range(1, _IMPL_WORDS) if all(fits(sample, words[id(sample)][i]) for sample in among))
        )

    storage = where("the storage", lambda sample, word: word == sample.untyped_storage()._cdata)
    keys = where("the dispatch keys", lambda sample, word: word == _keys(sample))
    signed = [
        {i: struct.unpack("q", struct.pack("Q", word))[0] for i, word in enumerate(words[id(sample)])}
        for sample in tensors
    ]

    def run_of(i: int, sample: torch.Tensor, words_of: dict[int, int], inline: int) -> bool:
        if words_of.get(i) != sample.dim():
            return False
        if sample.dim() <= inline:
            return all(
                words_of.get(i + 1 + dim) == sample.shape[dim]
                and words_of.get(i + 1 + inline + dim) == sample.stride(dim)
                for dim in range(sample.dim())
            )
        return True

    sizes, inline = _one(
        "sizes and strides",
        (
            (i, places)
            for i in range(1, _IMPL_WORDS - 3)
            for places in (5, 4, 6, 8)
            if all(run_of(i, sample, words_of, places) for sample, words_of in zip(tensors, signed))
        ),
    )
    for tensor in tensors:
        if tensor.dim() > inline:
            if _words(words[id(tensor)][sizes + 1], 2 * tensor.dim()) != [*tensor.shape, *tensor.stride()]:
                raise _NotFound("no place for the sizes of tensors with many dimensions")
    past = sizes + 1 + 2 * inline
    offset = _WORD * _one(
        "the storage offset",
        (
            i
            for i in range(past, _IMPL_WORDS)
            if all(words_of[i] == sample.storage_offset() for sample, words_of in zip(tensors, signed))
        ),
    )
    numel = _WORD * _one(
        "numel",
        (
            i
            for i in range(past, _IMPL_WORDS)
            if all(words_of[i] == sample.numel() for sample, words_of in zip(tensors, signed))
        ),
    )
    dtype = _find_dtype(words, tensors, past)
    autograd, *inside = _find_autograd(storage)
    data = _WORD * _one(
        "the data pointer",
        (
            i
            for i in range(2, 8)
            if all(
                _u64(sample.untyped_storage()._cdata + _WORD * i) == sample.untyped_storage().data_ptr()
                for sample in plain
            )
        ),
    )
    return (impl, storage, autograd, sizes * _WORD, inline, offset, numel, dtype, keys, *inside, data)


def _find_dtype(words: dict[int, list[int]], tensors: list[torch.Tensor], past: int) -> int:
    """The word whose low 40 bits name dtype (16 bits) and device (type, index, present: 8 bits each)."""
    by_kind: dict[tuple, list[int]] = {}
    for tensor in tensors:
        by_kind.setdefault((tensor.dtype, tensor.device), []).append(id(tensor))
    for i in range(past, _IMPL_WORDS):
        values = {kind: {words[sample][i] & 0xFFFFFFFFFF for sample in ids} for kind, ids in by_kind.items()}
        if all(len(value) == 1 for value in values.values()):
            flat = {kind: next(iter(value)) for kind, value in values.items()}
            dtypes = {kind[0]: value & 0xFFFF for kind, value in flat.items()}
            devices = {kind[1]: value >> 16 for kind, value in flat.items()}
            if (
                len(set(flat.values())) == len(flat)
                and len(set(dtypes.values())) == len(dtypes)
                and len(set(devices.values())) == len(devices)
                and max(dtypes.values()) < 256
            ):
                return i * _WORD
    raise _NotFound("no place for dtype and device")


def _usable(address: int) -> int:
    libc = ctypes.CDLL(None)
    for name in ("malloc_usable_size", "malloc_size"):
        if hasattr(libc, name):
            function = getattr(libc, name)
            function.restype, function.argtypes = ctypes.c_size_t, [ctypes.c_void_p]
            return min(int(function(address)), 512)
    raise _NotFound("no malloc_usable_size")


def _find_autograd(storage: int) -> tuple[int, ...]:
    """Offset of the pointer in the TensorImpl; in what it points to: requires_grad, grad_fn, the tangent, is_view."""
    leaf = [torch.empty(3, requires_grad=True) for _ in range(4)]
    bare = [torch.empty(3) for _ in range(4)]
    first = storage // _WORD + 1
    autograd = _WORD * _one(
        "the autograd metadata",
        (
            i
            for i in range(first, first + 4)
            if all(_u64(sample._cdata + _WORD * i) for sample in leaf)
            and not any(_u64(sample._cdata + _WORD * i) for sample in bare)
        ),
    )

    def meta(tensor: torch.Tensor) -> bytes:
        address = _u64(tensor._cdata + autograd)
        return ctypes.string_at(address, _usable(address))

    on = [meta(sample) for sample in leaf]
    off = [meta(sample.requires_grad_(False)) for sample in leaf]
    length = min(map(len, on))
    flag = _one("requires_grad", (k for k in range(length) if all(a[k] == 1 and b[k] == 0 for a, b in zip(on, off))))
    for sample in leaf:
        sample.requires_grad_(True)
    for sample in leaf[:2]:  # a leaf with a gradient still has no grad_fn
        sample.grad = torch.empty(3)
    inner = [leaf[0] * 2, leaf[1].view(3), leaf[2].exp(), leaf[3] + leaf[2]]
    leaves = [meta(sample) for sample in leaf]
    inners = [meta(axis) for axis in inner]
    length = min(map(len, (*leaves, *inners)))

    def word(b: bytes, k: int) -> int:
        return int.from_bytes(b[k : k + _WORD], "little")

    grad_fn = _one(
        "grad_fn",
        (
            k
            for k in range(0, length - 7, _WORD)
            if all(word(b, k) for b in inners) and not any(word(b, k) for b in leaves)
        ),
    )
    level = torch._C._enter_dual_level()
    try:
        duals = [torch._VF._make_dual(torch.empty(3), torch.empty(3), level=level) for _ in range(3)]
        dual_bytes = [meta(dual) for dual in duals]
        views = [torch.empty(3, requires_grad=True).view(3), torch.empty(4).view(2, 2).requires_grad_()]
        others = leaves + inners + [meta(view) for view in views]
        length = min(map(len, (*dual_bytes, *others)))
        fw_grad = _one(
            "the tangent",
            (
                k
                for k in range(0, length - 7, _WORD)
                if all(word(dual_byte, k) for dual_byte in dual_bytes) and not any(word(other, k) for other in others)
            ),
        )
    finally:
        torch._C._exit_dual_level(level=level)
    with torch.no_grad():
        hidden = torch.empty(4, requires_grad=True).view(2, 2)
    aliases = [torch.empty(4)[1:], torch.empty(2, 3).t(), leaf[1].view(3), hidden, torch.empty(3).expand(2, 3)]
    frozen = torch.nn.Parameter(torch.empty(3)).requires_grad_(False)
    whole = [*leaf, frozen, leaf[2].exp(), leaf[3] + leaf[2], torch.nn.Parameter(torch.empty(2))]
    are, are_not = [meta(alias) for alias in aliases], [meta(sample) for sample in whole]
    length = min(map(len, (*are, *are_not)))
    is_view = _one(
        "is_view", (k for k in range(length) if all(b[k] == 1 for b in are) and not any(b[k] for b in are_not))
    )
    return autograd, flag, grad_fn, fw_grad, is_view


def _verify() -> None:
    """Compare what the layout gives with what torch says, on tensors that the search did not see."""
    level = torch._C._enter_dual_level()
    try:
        dual = torch._VF._make_dual(torch.empty(4), torch.empty(4), level=level)
        frozen = torch.nn.Parameter(torch.empty(5, 3)).requires_grad_(False)
        changed, bias = torch.nn.Parameter(torch.empty(5, 3)), torch.nn.Parameter(torch.empty(5))
        changed.data = torch.empty(7, 2, dtype=torch.float64)
        with torch.no_grad():
            detached = bias * 2
        with torch.inference_mode():
            inference = torch.empty(3, 4)
        written = torch.empty(6)
        view = written.view(2, 3)
        written.mul_(torch.empty(6, requires_grad=True))  # the view requires a gradient now
        with torch.no_grad():
            unseen = torch.empty(6, requires_grad=True).view(2, 3)
        for tensor in [
            *_examples(),
            dual,
            frozen,
            changed,
            bias,
            detached,
            inference,
            written,
            view,
            unseen,
            unseen.detach(),
            torch.empty(4, dtype=torch.complex64).conj(),
            torch.empty(5, 5).set_(torch.empty(50).untyped_storage(), 3, (2, 2), (5, 1)),
            bias.view(5, 1).expand(5, 6),
            torch.empty(3, requires_grad=True).detach(),
        ]:
            read = native.read_tensor(tensor)  # type: ignore[union-attr]
            sizes_read, st, offset, numel, _, keys, grad, tangent, data = read
            wanted = (
                tuple(tensor.shape),
                tuple(tensor.stride()),
                tensor.storage_offset(),
                tensor.numel(),
                _keys(tensor),
                tensor.requires_grad,
                tensor is dual,
            )
            if (sizes_read, st, offset, numel, keys, grad, tangent) != wanted:
                raise _NotFound(f"the layout does not read {tuple(tensor.shape)} {tensor.dtype} tensors as torch does")
            if tensor.device.type == "cpu" and data != tensor.untyped_storage().data_ptr():
                raise _NotFound("the data pointer is somewhere else")
    finally:
        torch._C._exit_dual_level(level=level)


def _learn_layout() -> None:
    """Find and verify. What lies unused in memory looks by chance like what is looked for, in three searches of a
    thousand: others follow.
    """
    assert native is not None
    for search in range(_SEARCHES):
        try:
            layout = _find_layout()
            native.set_tensor_layout(*layout, _itemsizes(layout[7]))
            return _verify()
        except _NotFound:
            if search == _SEARCHES - 1:
                raise


def _itemsizes(dtype_at: int) -> bytes:
    """Bytes per element by torch's dtype number; 0 where unknown: C asks Python then."""
    table = bytearray(256)
    for dtype in {t for name in dir(torch) if isinstance(t := getattr(torch, name), torch.dtype)}:
        if str(dtype).startswith("torch.q") or "complex32" in str(dtype):  # torch warns when such tensors are made
            continue
        try:
            number = _u64(torch.empty(0, dtype=dtype, device="meta")._cdata + dtype_at) & 0xFFFF
        except (RuntimeError, TypeError):
            continue
        if number < 256:
            table[number] = dtype.itemsize
    return bytes(table)


class ThreadState:
    """Bits of the byte in which c10 keeps grad mode and inference mode; None where they are read by calls."""

    __slots__ = ("grad_bit", "inference_bit")

    def __init__(self, grad_bit: int, inference_bit: int) -> None:
        self.grad_bit, self.inference_bit = grad_bit, inference_bit


_prepared = False
_layout_known = False
_thread_state: ThreadState | None = None


def _find_thread_state() -> ThreadState | None:
    assert native is not None
    path = os.path.join(os.path.dirname(torch.__file__), "lib", "libc10.so")
    names = ("_ZN3c1013AutogradState13get_tls_stateEv", "_ZN3c104impl26raw_local_dispatch_key_setE")
    if not native.set_thread_state(path, *names, 0):
        return None
    read = native.read_thread_state

    def under(*contexts: Any) -> tuple[bytes, int, int]:
        with ExitStack() as stack:
            for context in contexts:
                stack.enter_context(context)
            return read()

    on = under(torch.inference_mode(False), torch.enable_grad())
    off = under(torch.inference_mode(False), torch.no_grad())
    inside = under(torch.inference_mode(True), torch.enable_grad())
    cast = under(torch.inference_mode(False), torch.enable_grad(), torch.autocast("cpu", dtype=torch.bfloat16))
    changed = [k for k in range(len(on[0])) if on[0][k] != off[0][k]]
    # the words are torch's key sets up to a constant mask
    inc, exc = torch._C._dispatch_tls_local_include_set, torch._C._dispatch_tls_local_exclude_set
    here = read()
    masks = (here[1] ^ inc().raw_repr(), here[2] ^ exc().raw_repr())
    with torch.autocast("cpu", dtype=torch.bfloat16), torch.inference_mode():
        now = read()
        same_masks = (now[1] ^ inc().raw_repr(), now[2] ^ exc().raw_repr()) == masks
    if len(changed) != 1 or not same_masks or on[1:] != off[1:] or cast[1:] == on[1:] or inside[1:] == on[1:]:
        return None
    at = changed[0]
    grad_bit, inference_bit = on[0][at] ^ off[0][at], inside[0][at] & ~on[0][at]
    good = (
        grad_bit.bit_count() == inference_bit.bit_count() == 1
        and grad_bit != inference_bit
        and on[0][at] & grad_bit
        and not off[0][at] & inference_bit
        and cast[0][at] == on[0][at]
    )
    if not good or not native.set_thread_state(path, *names, at):
        return None
    with torch._C._AutoDispatchBelowADInplaceOrView():
        past = read()
    native.set_autograd_keys(past[2] & ~here[2] if not here[2] & ~past[2] else 0)
    return ThreadState(grad_bit, inference_bit)


def prepare() -> bool:
    """Find and verify, once in a process; states a fallback event where a search fails. Whether that is done."""
    global _prepared, _layout_known, _thread_state
    if _prepared or native is None:
        return _prepared
    if torch._C._functorch.maybe_current_level() is not None or forward_ad._current_level >= 0 or below_autograd():
        return False  # tensors are wrapped, or autograd's tables are not as they mostly are: look another time
    _prepared = True
    native.set_torch(
        torch._C.TensorBase,
        torch.Tensor,
        torch.nn.Parameter,
        torch.Size,
        torch.device,
        torch.nn.Module.__getattr__,
        torch._C.TensorBase.requires_grad,
        TUPLE_GETTER,
        Weak,
    )
    try:
        with (
            torch._C.DisableTorchFunction(),
            torch._C._DisableTorchDispatch(),
            torch.inference_mode(False),
            torch.enable_grad(),
            torch.device("cpu"),
            torch.autocast("cpu", enabled=False),
        ):
            _learn_layout()
        _layout_known = True
    except _NotFound as reason:
        native.forget_tensor_layout()
        events.fallback(
            "tensor guards",
            f"this torch lays out tensors in another way ({reason}); tensor guards are evaluated in Python",
        )
    _thread_state = _find_thread_state()
    return True


def tensor_layout_known() -> bool:
    return _layout_known


def thread_state() -> ThreadState | None:
    return _thread_state

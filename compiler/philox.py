"""Random numbers inside of generated kernels as torch's own kernels draw them on a GPU: Philox 4x32-10, whose words are a function of the
generator's seed and offset and of a number's place in torch's kernel.

torch's kernels run `threads` threads, each with a subsequence of its own. One with vectors gives each thread `vector` neighbours at a time,
one without gives it every `threads`-th element; a counter yields four words. What a plan draws it takes from the generator in the order of the
program (`philox_state`), so that what follows draws as in eager. That this torch draws so is tried once for each device and dtype.
"""
from __future__ import annotations

import functools
import threading
from contextlib import contextmanager
from typing import Any, Iterator, Sequence

import torch

from . import events
from .symbolic.expr import as_expr, ceildiv, maybe_int
from .symbolic.predicates import minimum

__all__ = ["ALIGNMENT", "STATE", "Drawn", "draw", "drawn", "draws", "dropout_of", "increment", "most_threads", "neighbours", "plain", "recording", "threads", "threshold", "uniform"]

BLOCK = 256                      # threads of a block
ALIGNMENT = 16                   # bytes of the vectors that torch's kernels take where they can
_MULTIPLIERS = 0xD2511F53, 0xCD9E8D57
_WEYL = 0x9E3779B9, 0xBB67AE85
_LOW = 0xFFFFFFFF

_ours = torch.library.Library("tcompile", "FRAGMENT")
_ours.define("philox_state(Tensor[] laid, SymInt[] increments, *, Device device) -> Tensor", tags=(torch.Tag.nondeterministic_seeded,))


# ---- the generator
class Drawn:
    """What a CUDA graph draws: memory of the graph's that holds seeds and counters, written before each replay."""

    def __init__(self) -> None:
        self.parts: list[tuple[torch.Tensor, tuple[int, ...]]] = []

    def again(self) -> None:
        """Draw for one replay."""
        for memory, increments in self.parts:
            memory.copy_(torch.tensor(_taken(increments, memory.device), dtype=torch.int64), non_blocking=True)


_lock = threading.Lock()
_recording: Drawn | None = None


@contextmanager
def recording() -> Iterator[Drawn]:
    """While a graph is captured: nothing is drawn, what is to be drawn for each replay is kept."""
    global _recording
    _recording = Drawn()
    try:
        yield _recording
    finally:
        _recording = None


def draw(laid: Sequence[torch.Tensor], increments: Sequence[int], *, device: torch.device) -> torch.Tensor:
    """Seed and counter of each draw, in order, and the generator advanced as torch's kernels advance it. `laid`: graph inputs whose addresses
    torch's kernels look at (the runtime does)."""
    if _recording is not None and torch._C._cuda_isCurrentStreamCapturing():
        memory = torch.empty(2 * len(increments), dtype=torch.int64, device=device)
        _recording.parts.append((memory, tuple(increments)))
        return memory
    # (what lies in pageable memory is taken before the call returns)
    return torch.tensor(_taken(increments, device), dtype=torch.int64).to(device, non_blocking=True)


def _taken(increments: Sequence[int], device: torch.device) -> list[int]:
    generator = torch.cuda.default_generators[device.index or 0]
    with _lock:
        seed, offset = generator.initial_seed(), generator.get_offset()
        generator.set_offset(offset + sum(increments))
    if seed >= 1 << 63:
        seed -= 1 << 64
    out = []
    for n in increments:
        out += [seed, offset // 4]
        offset += n
    return out


_ours.impl("philox_state", draw, "CompositeExplicitAutograd")
STATE = torch.ops.tcompile.philox_state.default


def draws(op: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> bool:
    """Whether a call takes numbers from a generator. (Attention without dropout does not.)"""
    return torch.Tag.nondeterministic_seeded in getattr(op, "tags", ()) and dropout_of(op, args, kwargs) != 0


def dropout_of(op: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """The probability of a call of attention; None for other operators."""
    arguments = op._schema.arguments
    given = {a.name: a.default_value for a in arguments} | dict(zip((a.name for a in arguments), args)) | kwargs
    return given.get("dropout_p")


# ---- torch's kernels
@functools.cache
def most_threads(index: int) -> int:
    """Threads that torch's kernels run at most: as many blocks as the device holds at once. (Where there is none, those of an H200.)"""
    if not torch.cuda.is_available():
        return 132 * 2048
    p = torch.cuda.get_device_properties(index)
    return p.multi_processor_count * (p.max_threads_per_multi_processor // BLOCK) * BLOCK


def threads(n: Any, index: int) -> Any:
    """Threads of torch's kernel for n numbers."""
    return maybe_int(minimum(ceildiv(as_expr(n), BLOCK) * BLOCK, most_threads(index)))


def increment(n: Any, index: int) -> Any:
    """By how much torch's kernel for n numbers advances the generator."""
    return maybe_int(((as_expr(n) - 1) // (as_expr(threads(n, index)) * 4) + 1) * 4)


def _product(a: int, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Upper and lower 32 bits of a * x."""
    low = a * (x & 0xFFFF)
    high = a * (x >> 16) + (low >> 16)
    return high >> 16, (high & 0xFFFF) << 16 | low & 0xFFFF


def _words(key: torch.Tensor, counter: torch.Tensor, subsequence: torch.Tensor) -> list[torch.Tensor]:
    k0, k1 = key & _LOW, key >> 32 & _LOW
    c = [counter & _LOW, counter >> 32 & _LOW, subsequence & _LOW, subsequence >> 32 & _LOW]
    for _ in range(10):
        (high, low), (high2, low2) = _product(_MULTIPLIERS[0], c[0]), _product(_MULTIPLIERS[1], c[2])
        c = [high2 ^ c[1] ^ k0, low2, high ^ c[3] ^ k1, low]
        k0, k1 = k0 + _WEYL[0] & _LOW, k1 + _WEYL[1] & _LOW
    return c


def drawn(key: torch.Tensor, counter: torch.Tensor, at: torch.Tensor, threads: torch.Tensor, vector: torch.Tensor) -> torch.Tensor:
    """The primitive `philox` of the loop IR on tensors of int64."""
    v = int(vector)
    if v == 1:
        turn = at // threads
        step, thread, word = turn // 4, at % threads, turn % 4
    else:
        unit = at // v
        step, thread, word = unit // threads * max(1, v // 4) + at % v // 4, unit % threads, at % min(v, 4)
    words = _words(key, counter + step, thread)
    return torch.where(word < 2, torch.where(word == 0, words[0], words[1]), torch.where(word == 2, words[2], words[3]))


def uniform(word: torch.Tensor) -> torch.Tensor:
    """A word as a float32 in (0, 1]."""
    return word.to(torch.float32) * 2.0 ** -32 + 2.0 ** -33


@functools.cache
def threshold(p: float) -> int:
    """The words below this are those whose `uniform` is below p."""
    low, high = 0, 1 << 32
    while low < high:
        middle = (low + high) // 2
        if uniform(torch.tensor(middle)).item() < p:
            low = middle + 1
        else:
            high = middle
    return low


# ---- whether this torch draws so
def neighbours(dtype: torch.dtype, index: int) -> int:
    """How many neighbours a thread of torch's dropout takes at a time where memory is aligned and no element is left over; 0: it draws otherwise."""
    width = ALIGNMENT // dtype.itemsize
    return width if not torch.cuda.is_available() or _dropout_agrees(dtype, index, width) else 0


@functools.cache
def _dropout_agrees(dtype: torch.dtype, index: int, width: int) -> bool:
    most = most_threads(index)
    return _agrees(lambda x: torch.native_dropout(x, 0.5, True)[1], lambda u: u < 0.5, width * (most + BLOCK), dtype, index, width) and \
        _agrees(lambda x: torch.native_dropout(x, 0.5, True)[1], lambda u: u < 0.5, 4 * most + 5, dtype, index, 1)


def plain(index: int) -> bool:
    """Whether torch's uniform numbers and what is made of them are as here."""
    return not torch.cuda.is_available() or _uniform_agrees(index)


@functools.cache
def _uniform_agrees(index: int) -> bool:
    n = 4 * most_threads(index) + 5
    return _agrees(torch.rand_like, lambda u: torch.where(u == 1, 0, u), n, torch.float32, index, 1) and \
        _agrees(lambda x: torch.bernoulli(x, 0.5), lambda u: (u < 0.5).float(), n, torch.float32, index, 1)


def _agrees(theirs: Any, ours: Any, n: int, dtype: torch.dtype, index: int, vector: int) -> bool:
    """One draw of n numbers by torch's kernel, and some of them, from each turn, by this file's arithmetic; the generator stays where it was."""
    device = torch.device("cuda", index)
    generator = torch.cuda.default_generators[index]
    before = generator.get_offset()
    try:
        with torch.cuda.device(device), torch.no_grad():
            want = theirs(torch.ones(n, dtype=dtype, device=device))
            moved = generator.get_offset() - before
            generator.set_offset(before)
            key, counter = draw((), [increment(n, index)], device=device)
            most = torch.tensor(threads(n, index), device=device)
            at = torch.cat([torch.arange(begin, begin + 4096, device=device) for begin in (0, n // 2, n - 4096)])
            got = ours(uniform(drawn(key, counter, at, most, torch.tensor(vector))))
            same = moved == increment(n, index) and torch.equal(got, want[at])
    finally:
        generator.set_offset(before)
    if not same:
        events.emit("fallback", what="random numbers", reason=f"torch {torch.__version__} draws {dtype} otherwise than generated kernels on this GPU", count=1)
    return same

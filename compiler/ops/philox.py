"""Random numbers inside of generated kernels as torch's own kernels draw them on a GPU: Philox 4x32-10, whose words are
a function of the generator's seed and offset and of a number's place in torch's kernel.

torch's kernels run `threads` threads, each with a subsequence of its own. One with vectors gives each thread `vector`
neighbours at a time, one without gives it every `threads`-th element; a counter yields four words. What a plan draws it
takes from the generator in the order of the program (`philox_state`), so that what follows draws as in eager. A CUDA
graph draws anew in each replay, its kernels and torch's in the order of the program, too. That this torch draws so is
tried once for each device and dtype.
"""

from __future__ import annotations

import ctypes
import functools
import os
from contextlib import contextmanager
from typing import Any, Callable, Iterator, Sequence

import torch

from .. import events
from ..base import forks
from ..native import native
from ..symbolic.expr import as_expr, ceildiv, maybe_int
from ..symbolic.predicates import minimum

__all__ = [
    "ALIGNMENT",
    "STATE",
    "States",
    "arguments_of",
    "draw",
    "drawn",
    "draws",
    "draws_in_graphs",
    "dropout_of",
    "increment",
    "most_threads",
    "neighbours",
    "plain",
    "recording",
    "threads",
    "threshold",
    "uniform",
    "words",
]

BLOCK = 256  # threads of a block
ALIGNMENT = 16  # bytes of the vectors that torch's kernels take where they can
_MULTIPLIERS = 0xD2511F53, 0xCD9E8D57
_WEYL = 0x9E3779B9, 0xBB67AE85
_LOW = 0xFFFFFFFF

_ours = torch.library.Library("tcompile", "FRAGMENT")
_ours.define(
    "philox_state(Tensor[] laid, SymInt[] increments, *, Device device) -> Tensor",
    tags=(torch.Tag.nondeterministic_seeded,),
)


# ---- the generator
class _State(ctypes.Structure):
    """at::PhiloxCudaState. While a graph is captured seed and offset are addresses, and `within` counts the draws of
    the graph (32 bits of it, or all).
    """

    _fields_ = [
        ("seed", ctypes.c_uint64),
        ("offset", ctypes.c_uint64),
        ("within", ctypes.c_uint32),
        ("rest", ctypes.c_uint32 * 3),
    ]


_lock = forks.lock()
_recording = False
_alone: "States | None" = None


class States:
    """Seeds and counters of a CUDA graph in which no kernel of torch's draws: `fill` draws for a replay, before it."""

    def __init__(self, count: int, device: torch.device):
        self.increments: list[int] = []
        self.memory = torch.empty(2 * count, dtype=torch.int64, device=device)

    def take(self, increments: Sequence[int]) -> torch.Tensor:
        first = 2 * len(self.increments)
        self.increments += increments
        return self.memory[first : 2 * len(self.increments)]

    def fill(self) -> None:
        self.memory.copy_(
            torch.tensor(_taken(self.increments, self.memory.device), dtype=torch.int64), non_blocking=True
        )


@contextmanager
def recording(alone: States | None = None) -> Iterator[None]:
    """While a torch.cuda.CUDAGraph is captured: kernels read seed and counter where torch's kernels of the graph do, or
    in memory of `alone`, where these do not draw. Nothing is collected: a graph or a tensor of another pool that is
    freed now would end the capture.
    """
    global _recording, _alone
    with forks.resting(), forks.changed(_not_recording):
        _recording, _alone = True, alone
        yield


def _not_recording() -> None:
    global _recording, _alone
    _recording, _alone = False, None


def draw(laid: Sequence[torch.Tensor], increments: Sequence[int], *, device: torch.device) -> torch.Tensor:
    """Seed and counter of each draw, in order, and the generator advanced as torch's kernels advance it. `laid`: graph
    inputs whose addresses torch's kernels look at (the runtime does)."""
    if _recording and torch._C._cuda_isCurrentStreamCapturing():
        return _alone.take(increments) if _alone is not None else _drawn_by_replays(increments, device)
    # (what lies in pageable memory is taken before the call returns)
    return torch.tensor(_taken(increments, device), dtype=torch.int64).to(device, non_blocking=True)


def _taken(increments: Sequence[int], device: torch.device) -> list[int]:
    generator = torch.cuda.default_generators[device.index or 0]
    with _lock:
        seed, offset = generator.initial_seed(), generator.get_offset()
        generator.set_offset(offset + sum(increments))
    out = []
    for n in increments:
        out += [_signed(seed), offset // 4]
        offset += n
    return out


def _drawn_by_replays(increments: Sequence[int], device: torch.device) -> torch.Tensor:
    """The same as kernels of the graph that is captured: each replay draws, between the draws of torch's own
    kernels.
    """
    index, state_of = device.index or 0, _state_of()
    assert state_of is not None and native is not None
    generator = torch.cuda.default_generators[index]
    states = [state_of(generator, n) for n in increments]
    seed, offset = (
        torch.from_dlpack(native.blob(address, 8, 2, index, generator)).view(torch.int64)
        for address in (states[0].seed, states[0].offset)
    )
    memory = torch.empty(2 * len(states), dtype=torch.int64, device=device)
    seeds, counters = memory[0::2], memory[1::2]
    seeds.copy_(seed)
    torch.bitwise_right_shift(offset.expand(len(states)), 2, out=counters)
    torch._foreach_add_(list(counters.unbind()), [state.within // 4 for state in states])
    return memory


@functools.cache
def _state_of() -> Callable[[torch.Generator, int], _State] | None:
    """torch's own function that draws: CUDAGeneratorImpl::philox_cuda_state(increment), which Python does not offer;
    None where it is not found.
    """
    try:
        f = ctypes.CDLL(
            os.path.join(os.path.dirname(torch.__file__), "lib", "libtorch_cuda.so")
        )._ZN2at17CUDAGeneratorImpl17philox_cuda_stateEm
    except (OSError, AttributeError):
        return None
    f.argtypes, f.restype = [ctypes.c_void_p, ctypes.c_uint64], _State
    return lambda generator, n: f(generator._cdata, n)  # type: ignore[attr-defined]


def _signed(seed: int) -> int:
    return seed - (1 << 64) if seed >= 1 << 63 else seed


_ours.impl("philox_state", draw, "CompositeExplicitAutograd")
STATE = torch.ops.tcompile.philox_state.default


def draws(op: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> bool:
    """Whether a call takes numbers from a generator. (Attention without dropout does not.)"""
    return torch.Tag.nondeterministic_seeded in getattr(op, "tags", ()) and dropout_of(op, args, kwargs) != 0


def arguments_of(op: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> dict[str, Any]:
    """The arguments of a call by name, defaults included."""
    arguments = op._schema.arguments
    return (
        {arg.name: arg.default_value for arg in arguments} | dict(zip((arg.name for arg in arguments), args)) | kwargs
    )


def dropout_of(op: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """The probability of a call of attention; None for other operators."""
    return arguments_of(op, args, kwargs).get("dropout_p")


# ---- torch's kernels
@functools.cache
def most_threads(index: int) -> int:
    """Threads that torch's kernels run at most: as many blocks as the device holds at once. (Where there is none, those
    of an H200.)
    """
    if not torch.cuda.is_available():
        return 132 * 2048
    properties = torch.cuda.get_device_properties(index)
    return properties.multi_processor_count * (properties.max_threads_per_multi_processor // BLOCK) * BLOCK


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


def words(key: torch.Tensor, counter: torch.Tensor, subsequence: torch.Tensor, rounds: int = 10) -> list[torch.Tensor]:
    """The four random words of each counter."""
    k0, k1 = key & _LOW, key >> 32 & _LOW
    c = [counter & _LOW, counter >> 32 & _LOW, subsequence & _LOW, subsequence >> 32 & _LOW]
    for _ in range(rounds):
        (high, low), (high2, low2) = _product(_MULTIPLIERS[0], c[0]), _product(_MULTIPLIERS[1], c[2])
        c = [high2 ^ c[1] ^ k0, low2, high ^ c[3] ^ k1, low]
        k0, k1 = k0 + _WEYL[0] & _LOW, k1 + _WEYL[1] & _LOW
    return c


def drawn(
    key: torch.Tensor, counter: torch.Tensor, at: torch.Tensor, threads: torch.Tensor, vector: torch.Tensor
) -> torch.Tensor:
    """The primitive `philox` of the loop IR on tensors of int64."""
    v = int(vector)
    if v == 1:
        turn = at // threads
        step, thread, word = turn // 4, at % threads, turn % 4
    else:
        unit = at // v
        step, thread, word = unit // threads * max(1, v // 4) + at % v // 4, unit % threads, at % min(v, 4)
    four = words(key, counter + step, thread)
    return torch.where(word < 2, torch.where(word == 0, four[0], four[1]), torch.where(word == 2, four[2], four[3]))


def uniform(word: torch.Tensor) -> torch.Tensor:
    """A word as a float32 in (0, 1]."""
    return word.to(torch.float32) * 2.0**-32 + 2.0**-33


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
    """How many neighbours a thread of torch's dropout takes at a time where memory is aligned and no element is left
    over; 0: it draws otherwise.
    """
    width = ALIGNMENT // dtype.itemsize
    return width if not torch.cuda.is_available() or _dropout_agrees(dtype, index, width) else 0


@functools.cache
def _dropout_agrees(dtype: torch.dtype, index: int, width: int) -> bool:
    most = most_threads(index)
    return _agrees(
        lambda x: torch.native_dropout(x, 0.5, True)[1], lambda u: u < 0.5, width * (most + BLOCK), dtype, index, width
    ) and _agrees(lambda x: torch.native_dropout(x, 0.5, True)[1], lambda u: u < 0.5, 4 * most + 5, dtype, index, 1)


def plain(index: int) -> bool:
    """Whether torch's uniform numbers and what is made of them are as here."""
    return not torch.cuda.is_available() or _uniform_agrees(index)


@functools.cache
def _uniform_agrees(index: int) -> bool:
    n = 4 * most_threads(index) + 5
    return _agrees(torch.rand_like, lambda u: torch.where(u == 1, 0, u), n, torch.float32, index, 1) and _agrees(
        lambda x: torch.bernoulli(x, 0.5), lambda u: (u < 0.5).float(), n, torch.float32, index, 1
    )


def draws_in_graphs(index: int) -> bool:
    """Whether kernels of a CUDA graph can draw beside torch's."""
    return not torch.cuda.is_available() or not torch._C._cuda_isCurrentStreamCapturing() and _replays_agree(index)


@functools.cache
def _replays_agree(index: int) -> bool:
    """A graph that draws before and after torch, replayed twice; the generator stays where it was."""
    device, generator, same = torch.device("cuda", index), torch.cuda.default_generators[index], False
    before = generator.get_offset()
    state_of = _state_of() if native is not None and hasattr(native, "blob") else None
    try:
        now = state_of(generator, 0) if state_of is not None else None
        if now is not None and (now.seed, now.offset, now.within) == (generator.initial_seed(), before, 0):
            graph, side = torch.cuda.CUDAGraph(), torch.cuda.Stream(index)
            torch.cuda.synchronize(index)
            with torch.cuda.device(index), torch.cuda.stream(side), recording():
                graph.capture_begin(capture_error_mode="thread_local")
                first, theirs, last = (
                    draw((), [8, 4], device=device),
                    torch.rand(2, device=device),
                    draw((), [4], device=device),
                )
                graph.capture_end()
            with torch.cuda.device(index):
                graph.replay()
                begin = generator.get_offset()
                graph.replay()
                moved = generator.get_offset() - begin
                seed = _signed(generator.initial_seed())
                generator.set_offset(begin + 12)
                want = torch.rand(2, device=device)
                same = (
                    moved == 20
                    and torch.equal(theirs, want)
                    and [*first.tolist(), *last.tolist()]
                    == [seed, begin // 4, seed, begin // 4 + 2, seed, begin // 4 + 4]
                )
    finally:
        generator.set_offset(before)
    if not same:
        events.fallback(
            "random numbers",
            f"torch {torch.__version__} draws in CUDA graphs in a way that generated kernels can't follow",
        )
    return same


def _agrees(theirs: Any, ours: Any, n: int, dtype: torch.dtype, index: int, vector: int) -> bool:
    """One draw of n numbers by torch's kernel, and some of them, from each turn, by this file's arithmetic; the
    generator stays where it was.
    """
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
        events.fallback(
            "random numbers",
            f"torch {torch.__version__} draws {dtype} in another way than generated kernels on this GPU",
        )
    return same

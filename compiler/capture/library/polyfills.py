"""Functions of C that compare, add or call what they are given, written in Python. Capture interprets these in their
place. So tensors, objects with operators of their own and containers from outside mean the same in them as anywhere.

Algorithms follow the documentation of heapq, bisect, functools, itertools and operator: the order of comparisons and of
calls is what programs can observe. Registered in native_library.py.
"""

from __future__ import annotations

from typing import Any, Callable, Iterable, Iterator

import torch

__all__ = [
    "broadcast_shapes",
    "accumulate",
    "latter",
    "tee",
    "call_until",
    "leave",
    "fspath",
    "cmp_to_key",
    "heapify",
    "heappush",
    "heappop",
    "heappushpop",
    "heapreplace",
    "heapify_max",
    "heappop_max",
    "heapreplace_max",
    "bisect_left",
    "bisect_right",
    "insort_left",
    "insort_right",
    "count_of",
    "index_of",
    "concat",
    "iconcat",
    "absolute",
    "call",
    "count_elements",
    "items_backwards",
    "is_enabled_for",
    "starmap",
    "items_by_index",
    "length_hint",
]


# --- torch
def broadcast_shapes(*shapes: Any) -> torch.Size | None:
    """torch.broadcast_shapes; None where torch refuses. torch's own asks its tracer about each size."""
    given = [shape if isinstance(shape, (tuple, list)) else (shape,) for shape in shapes if shape is not None]
    sizes = [1] * max([len(shape) for shape in given], default=0)
    for shape in given:
        for i in range(-len(shape), 0):
            if shape[i] == sizes[i] or shape[i] == 1:
                continue
            if sizes[i] != 1 or shape[i] < 0:
                return None
            sizes[i] = shape[i]
    return torch.Size(sizes)


# --- itertools, iter
def items_by_index(sequence: Any) -> Iterator:
    """iter() of what has __getitem__ alone."""
    i = 0
    while True:
        try:
            value = sequence[i]
        except (IndexError, StopIteration):
            return
        yield value
        i += 1


def items_backwards(sequence: Any, length: int) -> Iterator:
    """reversed() of what has __len__ and __getitem__."""
    for i in range(length - 1, -1, -1):
        try:
            value = sequence[i]
        except (IndexError, StopIteration):
            return
        yield value


def length_hint(obj: Any, default: int = 0) -> int:
    """operator.length_hint."""
    if type(default) is not int:
        raise TypeError(f"'{type(default).__name__}' object cannot be interpreted as an integer")
    try:
        return len(obj)
    except TypeError:
        pass
    try:
        hint = type(obj).__length_hint__
    except AttributeError:
        return default
    try:
        value = hint(obj)
    except TypeError:
        return default
    if value is NotImplemented:
        return default
    if type(value) is not int:
        raise TypeError(f"__length_hint__ must be an integer, not {type(value).__name__}")
    if value < 0:
        raise ValueError("__length_hint__() should return >= 0")
    return value


def latter(a: Any, b: Any) -> Any:
    """The function under which itertools.accumulate gives what it is given."""
    return b


def accumulate(iterable: Iterable, func: Callable | None = None, *, initial: Any = None) -> Iterator:
    iterator = iter(iterable)
    total = initial
    if total is None:
        for total in iterator:
            break
        else:
            return
    yield total
    for value in iterator:
        total = total + value if func is None else func(total, value)
        yield total


def starmap(func: Callable, iterable: Iterable) -> Iterator:
    for arguments in iterable:
        yield func(*arguments)


def tee(iterable: Iterable, n: int = 2) -> tuple:
    if n < 0:
        raise ValueError("n must be >= 0")
    iterator = iter(iterable)
    queues: list[list] = [[] for _ in range(n)]

    def one(mine: list) -> Iterator:
        while True:
            if not mine:
                try:
                    value = next(iterator)
                except StopIteration:
                    return
                for queue in queues:
                    queue.append(value)
            yield mine.pop(0)

    return tuple([one(queue) for queue in queues])


def call_until(func: Callable, sentinel: Any) -> Iterator:
    """iter(func, sentinel)."""
    while True:
        try:
            value = func()
        except StopIteration:
            return
        if value is sentinel or value == sentinel:
            return
        yield value


# --- sys, os
def leave(status: Any = None, /) -> None:
    """sys.exit."""
    raise SystemExit(status)


def fspath(path: Any) -> Any:
    if isinstance(path, (str, bytes)):
        return path
    if not hasattr(type(path), "__fspath__"):
        raise TypeError(f"expected str, bytes or os.PathLike object, not {type(path).__name__}")
    found = type(path).__fspath__(path)
    if not isinstance(found, (str, bytes)):
        raise TypeError(
            f"expected {type(path).__name__}.__fspath__() to return str or bytes, not {type(found).__name__}"
        )
    return found


# --- functools
class KeyByComparison:
    __slots__ = ("compare", "obj")
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, compare: Callable, obj: Any):
        self.compare, self.obj = compare, obj

    def __lt__(self, other: "KeyByComparison") -> bool:
        return self.compare(self.obj, other.obj) < 0

    def __gt__(self, other: "KeyByComparison") -> bool:
        return self.compare(self.obj, other.obj) > 0

    def __le__(self, other: "KeyByComparison") -> bool:
        return self.compare(self.obj, other.obj) <= 0

    def __ge__(self, other: "KeyByComparison") -> bool:
        return self.compare(self.obj, other.obj) >= 0

    def __eq__(self, other: Any) -> bool:
        return self.compare(self.obj, other.obj) == 0


def cmp_to_key(mycmp: Callable) -> Callable:
    def key(obj: Any) -> KeyByComparison:
        return KeyByComparison(mycmp, obj)

    return key


# --- heapq
def _less(a: Any, b: Any) -> bool:
    return a < b


def _greater(a: Any, b: Any) -> bool:
    return b < a


def _toward_root(heap: list, start: int, at: int, before: Callable) -> None:
    item = heap[at]
    while at > start:
        parent = (at - 1) >> 1
        above = heap[parent]
        if not before(item, above):
            break
        heap[at] = above
        at = parent
    heap[at] = item


def _toward_leaf(heap: list, at: int, before: Callable = _less) -> None:
    end, start = len(heap), at
    item = heap[at]
    child = 2 * at + 1
    while child < end:
        right = child + 1
        if right < end and not before(heap[child], heap[right]):
            child = right
        heap[at] = heap[child]
        at = child
        child = 2 * at + 1
    heap[at] = item
    _toward_root(heap, start, at, before)


def _check_heap(heap: Any, function: str) -> None:
    if not isinstance(heap, list):
        raise TypeError(
            f"{function} argument {'1 ' if function not in ('heapify()', 'heappop()') else ''}must be list, not"
            f" {type(heap).__name__}"
        )


def heapify(heap: list) -> None:
    _check_heap(heap, "heapify()")
    for i in reversed(range(len(heap) // 2)):
        _toward_leaf(heap, i)


def heappush(heap: list, item: Any) -> None:
    _check_heap(heap, "heappush()")
    heap.append(item)
    _toward_root(heap, 0, len(heap) - 1, _less)


def heappop(heap: list) -> Any:
    _check_heap(heap, "heappop()")
    if not heap:
        raise IndexError("index out of range")
    last = heap.pop()
    if not heap:
        return last
    smallest = heap[0]
    heap[0] = last
    _toward_leaf(heap, 0)
    return smallest


def heapreplace(heap: list, item: Any) -> Any:
    _check_heap(heap, "heapreplace()")
    if not heap:
        raise IndexError("index out of range")
    smallest = heap[0]
    heap[0] = item
    _toward_leaf(heap, 0)
    return smallest


def heappushpop(heap: list, item: Any) -> Any:
    _check_heap(heap, "heappushpop()")
    if heap and heap[0] < item:
        item, heap[0] = heap[0], item
        _toward_leaf(heap, 0)
    return item


def heapify_max(heap: list) -> None:
    for i in reversed(range(len(heap) // 2)):
        _toward_leaf(heap, i, _greater)


def heappop_max(heap: list) -> Any:
    last = heap.pop()
    if not heap:
        return last
    largest = heap[0]
    heap[0] = last
    _toward_leaf(heap, 0, _greater)
    return largest


def heapreplace_max(heap: list, item: Any) -> Any:
    largest = heap[0]
    heap[0] = item
    _toward_leaf(heap, 0, _greater)
    return largest


# --- bisect
def bisect_left(a: Any, x: Any, lo: int = 0, hi: int | None = None, *, key: Callable | None = None) -> int:
    if lo < 0:
        raise ValueError("lo must be non-negative")
    if hi is None:
        hi = len(a)
    while lo < hi:
        mid = (lo + hi) // 2
        if (a[mid] if key is None else key(a[mid])) < x:
            lo = mid + 1
        else:
            hi = mid
    return lo


def bisect_right(a: Any, x: Any, lo: int = 0, hi: int | None = None, *, key: Callable | None = None) -> int:
    if lo < 0:
        raise ValueError("lo must be non-negative")
    if hi is None:
        hi = len(a)
    while lo < hi:
        mid = (lo + hi) // 2
        if x < (a[mid] if key is None else key(a[mid])):
            hi = mid
        else:
            lo = mid + 1
    return lo


def insort_left(a: Any, x: Any, lo: int = 0, hi: int | None = None, *, key: Callable | None = None) -> None:
    a.insert(bisect_left(a, x if key is None else key(x), lo, hi, key=key), x)


def insort_right(a: Any, x: Any, lo: int = 0, hi: int | None = None, *, key: Callable | None = None) -> None:
    a.insert(bisect_right(a, x if key is None else key(x), lo, hi, key=key), x)


# --- operator, collections
def count_of(a: Iterable, b: Any) -> int:
    n = 0
    for value in a:
        if value is b or value == b:
            n += 1
    return n


def index_of(a: Iterable, b: Any) -> int:
    for i, value in enumerate(a):
        if value is b or value == b:
            return i
    raise ValueError("sequence.index(x): x not in sequence")


def concat(a: Any, b: Any) -> Any:
    if not hasattr(a, "__getitem__"):
        raise TypeError(f"'{type(a).__name__}' object can't be concatenated")
    return a + b


def iconcat(a: Any, b: Any) -> Any:
    if not hasattr(a, "__getitem__"):
        raise TypeError(f"'{type(a).__name__}' object can't be concatenated")
    a += b
    return a


def absolute(a: Any) -> Any:
    return abs(a)


def call(obj: Callable, /, *args: Any, **kwargs: Any) -> Any:
    return obj(*args, **kwargs)


def count_elements(mapping: Any, iterable: Iterable) -> None:
    """What Counter.update does with an iterable."""
    get = mapping.get
    for element in iterable:
        mapping[element] = get(element, 0) + 1


def is_enabled_for(logger: Any, level: int) -> bool:
    """logging.Logger.isEnabledFor without its cache and its lock."""
    return not logger.disabled and logger.manager.disable < level and level >= logger.getEffectiveLevel()


# --- torch
def combine_input_and_mask(op: Callable, input: Any, mask: Any, *args: Any) -> Any:
    """torch.masked's fill of what the mask leaves out, without the autograd function that it defines for tensors with a
    mask of their own.
    """
    from torch.masked import _ops

    if _ops.is_masked_tensor(input):
        raise NotImplementedError("tensors with a mask of their own are not captured")
    if mask is None:
        return input
    canonical = _ops._input_mask(input, mask=mask)
    return _ops._where(canonical, input, _ops._reduction_identity(op.__name__, input, *args))

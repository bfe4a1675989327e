"""What stock counts and writes for itself (graphs, kernels, frames, code text) is not told here: such a value is an
Untold.

An Untold goes through every expression. An assertion that looks at one says nothing about values, so it is left out:
inside of `asserting()` a question that needs a real answer (a truth, a length, a member) raises Internal, which ends
that assertion alone. Elsewhere the answer is what lets a helper go on: yes, nothing in it.
"""

from __future__ import annotations

from typing import Any, Iterator

__all__ = ["Internal", "Untold", "UntoldText", "enter_assertion", "has_untold", "leave_assertion", "length", "unpacked"]


class Internal(Exception):
    """An assertion asked for something that is stock's own."""


_asserting = 0


def enter_assertion() -> None:
    global _asserting
    _asserting += 1


def leave_assertion() -> None:
    global _asserting
    _asserting -= 1


def _asked() -> None:
    if _asserting:
        raise Internal("an assertion on what is stock's own")


class Untold:
    """A value that nobody here knows. As a decorator it leaves its function as it is."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return (
            args[0] if len(args) == 1 and not kwargs and callable(args[0]) and not isinstance(args[0], Untold) else self
        )

    def __getattr__(self, name: str) -> Any:
        if str.startswith(name, "__") and str.endswith(name, "__"):  # of an UntoldText, too
            raise AttributeError(name)
        return UntoldText("untold") if type(name) is str and name in ("name", "code") else self

    def __setattr__(self, name: str, value: Any) -> None:
        pass

    def __getitem__(self, key: Any) -> Any:
        return self

    def __setitem__(self, key: Any, value: Any) -> None:
        pass

    def __delitem__(self, key: Any) -> None:
        pass

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *details: Any) -> None:
        pass

    def __iter__(self) -> Iterator:
        _asked()
        return iter(())

    def __bool__(self) -> bool:
        _asked()
        return True

    def __len__(self) -> int:
        _asked()
        return 0

    def __index__(self) -> int:
        _asked()
        return 0

    __int__ = __index__

    def __contains__(self, item: Any) -> bool:
        _asked()
        return True

    def __hash__(self) -> int:
        return id(self)

    def __repr__(self) -> str:
        return "<stock's own>"

    def __str__(self) -> str:
        return UntoldText("<stock's own>")

    def __mro_entries__(self, bases: Any) -> tuple[type, ...]:
        return (object,)  # a class made of what is not there any more


def _same(self: Any, *others: Any) -> Any:
    return self


for _name in "add sub mul truediv floordiv mod pow lshift rshift and or xor".split():
    setattr(Untold, f"__{_name}__", _same)
    setattr(Untold, f"__r{_name}__", _same)
    setattr(Untold, f"__i{_name}__", _same)
for _name in "neg pos abs invert round".split():
    setattr(Untold, f"__{_name}__", _same)


def _compared(self: Any, other: Any) -> bool:
    _asked()
    return True


class UntoldText(str):
    """Code text of stock's: what takes a str takes it, and has_untold knows it."""

    def __contains__(self, item: Any) -> bool:
        _asked()
        return True

    def __len__(self) -> int:
        _asked()
        return 0


for _name in "eq ne lt le gt ge".split():
    setattr(Untold, f"__{_name}__", _compared)
    setattr(UntoldText, f"__{_name}__", _compared)
UntoldText.__hash__ = str.__hash__  # type: ignore[method-assign]

for _name in dir(str):
    if not _name.startswith("_"):
        setattr(UntoldText, _name, lambda self, *args, **kwargs: Untold())


def has_untold(value: Any, depth: int = 2) -> bool:
    """Whether `value` is an Untold, or a container that holds one."""
    if isinstance(value, (Untold, UntoldText)):
        return True
    return bool(depth and type(value) in (tuple, list) and any(has_untold(v, depth - 1) for v in value))


def length(value: Any) -> Any:
    """len(value); of an Untold it is one, too."""
    return value if isinstance(value, Untold) else len(value)


def unpacked(value: Any, shape: Any) -> Any:
    """What `a, (b, c) = value` takes apart; `shape` is (None, (None, None)). An Untold comes apart into as many as
    there are names.
    """
    if shape is None:
        return value
    if isinstance(value, (Untold, UntoldText)):
        return [unpacked(value, s) for s in shape]
    if type(value) in (tuple, list) and len(value) == len(shape):
        return [unpacked(v, s) for v, s in zip(value, shape)]
    if has_untold(value):  # as many as stock would have told
        return [unpacked(Untold(), s) for s in shape]
    return value

"""What stands for a local variable that has no value, where one is passed on."""

__all__ = ["UNBOUND"]


class _Unbound:
    __slots__ = ()

    def __repr__(self) -> str:
        return "<unbound>"


UNBOUND = _Unbound()

"""What a test prints is shown in part, and ended where it never ends."""

from __future__ import annotations

import pytest

from tcompile.labs.printed import MOST_PRINTED, SHOWN, TooMuchPrinted, printing_limited


def test_the_first_of_it_is_shown(capsys: pytest.CaptureFixture) -> None:
    with printing_limited():
        print("x" * (SHOWN - 2))
        print("yyyy")
        print("z")
    out = capsys.readouterr().out
    assert out.endswith("x\ny…\n") and len(out) == SHOWN + 2


def test_an_endless_print_ends_also_where_errors_are_swallowed(capsys: pytest.CaptureFixture) -> None:
    with pytest.raises(TooMuchPrinted), printing_limited():
        while True:
            try:
                print("again")
            except Exception:
                continue
    assert len(capsys.readouterr().out) <= SHOWN + 2 < MOST_PRINTED

"""What a miss of the disk cache says: which part of the key differs from the latest kernel of the same name."""

from __future__ import annotations

from pathlib import Path

from tcompile.compiler.runtime.cache import KernelCache, content_key
from tcompile.compiler.runtime.cache_misses import note_name, remember, why_missing

SOURCE = "int a;\nint b;\n"


def stored(tmp_path: Path) -> KernelCache:
    cache = KernelCache(tmp_path, 1 << 20)
    library = cache.workspace() / "k.so"
    library.write_bytes(b"binary")
    key = content_key(SOURCE, ("-O2",), "g++ 12")
    cache.put(key, library, SOURCE)
    remember(cache, "k0_add", key, SOURCE, ("-O2",), "g++ 12")
    return cache


def test_each_part_of_the_key_is_named(tmp_path: Path) -> None:
    cache = stored(tmp_path)
    assert why_missing(cache, "k0_mul", SOURCE, ("-O2",), "g++ 12") == "no kernel of this name was compiled before"
    assert "compiler flags `-O2` → `-O3`" in why_missing(cache, "k0_add", SOURCE, ("-O3",), "g++ 12")
    assert "compiler `g++ 12` → `g++ 13`" in why_missing(cache, "k0_add", SOURCE, ("-O2",), "g++ 13")
    assert "compiler flags `-O2` → `-O3 -mavx2`" in why_missing(cache, "k0_add", SOURCE, ("-O3", "-mavx2"), "g++ 12")
    assert "compiler flags `none` → `-mavx2`" in why_missing(cache, "k0_add", SOURCE, ("-O2", "-mavx2"), "g++ 12")
    words = why_missing(cache, "k0_add", "int a;\nint c;\n", ("-O2",), "g++ 12")
    assert "1 of 2 lines of the source, first `int c;`" in words and "flags" not in words


def test_notes_that_can_not_be_read_count_as_none(tmp_path: Path) -> None:
    cache = stored(tmp_path)
    for damage in ("", "{", "[]", '{"parts": 3}', "null", '{"key": "x"}'):
        cache.put_note(note_name("k0_add"), damage)
        assert why_missing(cache, "k0_add", SOURCE, ("-O2",), "g++ 12") == "no kernel of this name was compiled before"


def test_a_removed_kernel_is_told_from_another_one(tmp_path: Path) -> None:
    cache = stored(tmp_path)
    cache._remove(content_key(SOURCE, ("-O2",), "g++ 12"))
    assert "not in the cache any more" in why_missing(cache, "k0_add", SOURCE, ("-O2",), "g++ 12")

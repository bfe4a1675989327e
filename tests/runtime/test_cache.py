"""The disk cache: content, checksums, several processes, bad folders, size."""

import os
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

import tcompile

from tcompile.compiler import events
from tcompile.compiler.config import Options
from tcompile.compiler.runtime import cache as cache_module
from tcompile.compiler.runtime import cpu_kernels, toolchain
from tcompile.compiler.runtime.cache import KernelCache, cache_root, clear, content_key, inspect, open_cache

from .helper import chain_schedule, compiled

pytestmark = pytest.mark.usefixtures("own_cache")

x = torch.randn(10)


def facts(kind, action):
    heard = []
    with events.listen(lambda e: heard.append(e) if e.kind == kind else None):
        action()
    return heard


def test_second_process_compiles_nothing(own_cache, monkeypatch):
    first = facts("compile_c", lambda: compiled(chain_schedule(10, 1.0)))
    assert len(first) == 1
    monkeypatch.setattr(cpu_kernels, "_libraries", {})  # as a new process
    hits = facts("cache", lambda: compiled(chain_schedule(10, 1.0)))
    assert [h.hit for h in hits if h.what == "add_constant"] == [True]
    assert not facts("compile_c", lambda: compiled(chain_schedule(10, 1.0)))
    assert compiled(chain_schedule(10, 2.0))(x)[0].equal(x + 2)


def test_key_depends_on_everything():
    base = content_key("text", ("-O3",), "g++ 12")
    assert (
        len(
            {
                base,
                content_key("text2", ("-O3",), "g++ 12"),
                content_key("text", ("-O2",), "g++ 12"),
                content_key("text", ("-O3",), "g++ 13"),
            }
        )
        == 4
    )


@pytest.mark.parametrize("damage", ["truncate", "flip", "no checksum", "garbage with right checksum"])
def test_damaged_files_are_built_again(own_cache, monkeypatch, damage):
    compiled(chain_schedule(10, 1.0))
    (library,) = own_cache.glob("v1/*/*.so")
    data = bytearray(library.read_bytes())
    library.unlink()  # this process has the file mapped: never write into it
    if damage == "truncate":
        library.write_bytes(data[: len(data) // 2])
    elif damage == "flip":
        data[len(data) // 2] ^= 255
        library.write_bytes(data)
    elif damage == "no checksum":
        library.write_bytes(data)
        library.with_suffix(".sum").unlink()
    else:
        import hashlib

        library.write_bytes(b"not a library")
        library.with_suffix(".sum").write_text(hashlib.sha256(b"not a library").hexdigest())
    monkeypatch.setattr(cpu_kernels, "_libraries", {})
    other = own_cache.with_name("other")  # the loader of this process knows the old path
    shutil.copytree(own_cache, other)
    monkeypatch.setitem(tcompile.config._values, "cache_dir", str(other))
    assert compiled(chain_schedule(10, 1.0))(x)[0].equal(x + 1)
    (library,) = other.glob("v1/*/*.so")
    assert library.stat().st_size > 1000


def test_unwritable_folder_falls_back_and_says_so(tmp_path, monkeypatch):
    blocked = tmp_path / "file"
    blocked.write_text("")
    monkeypatch.setitem(tcompile.config._values, "cache_dir", str(blocked / "below"))
    monkeypatch.setattr(cache_module, "_open", {})
    heard = facts("cache", lambda: compiled(chain_schedule(10, 3.0)))
    assert any(h.what == "folder" and "temporary" in h.reason for h in heard)
    assert compiled(chain_schedule(10, 3.0))(x)[0].equal(x + 3)


def test_the_option_decides_over_the_environment(tmp_path):
    assert "TCOMPILE_CACHE_DIR" in os.environ
    assert cache_root(Options.make(options={"cache_dir": str(tmp_path)})) == tmp_path


@pytest.mark.parametrize(
    "above, mode, group, trusted",
    [
        (0o755, 0o777, None, False),
        (0o755, 0o1777, None, False),
        (0o777, 0o755, None, False),
        (0o1777, 0o755, None, True),
        (0o755, 0o775, 12345, False),
        (0o755, 0o775, None, True),
    ],
)
def test_folder_that_others_can_write_is_not_trusted(tmp_path, monkeypatch, above, mode, group, trusted):
    root = tmp_path / "open"
    folder = root / "v1"
    folder.mkdir(parents=True)
    status = os.stat
    monkeypatch.setattr(
        cache_module.Path,
        "stat",
        lambda path, **how: changed(status(path, **how), group) if path == folder else status(path, **how),
    )
    folder.chmod(mode)
    root.chmod(above)
    monkeypatch.setitem(tcompile.config._values, "cache_dir", str(root))
    assert open_cache(Options.make()).temporary is not trusted


def changed(s, group):
    """A status with another group; None: the user's own."""
    return os.stat_result((*s[:5], s.st_uid if group is None else group, *s[6:10]))


def test_a_new_folder_is_its_owner_s_alone(tmp_path, monkeypatch):
    monkeypatch.setitem(tcompile.config._values, "cache_dir", str(tmp_path / "new"))
    before = os.umask(0)
    try:
        assert open_cache(Options.make()).temporary is False
    finally:
        os.umask(before)
    assert (tmp_path / "new" / "v1").stat().st_mode & 0o777 == 0o700


def test_full_disk_falls_back_and_says_so(own_cache, monkeypatch):
    put = KernelCache.put

    def full(self, key, library, source):
        if not self.temporary:
            raise OSError(28, "No space left on device")
        return put(self, key, library, source)

    monkeypatch.setattr(KernelCache, "put", full)
    heard = facts("cache", lambda: compiled(chain_schedule(10, 5.0)))
    assert any(h.what == "folder" and "No space left" in h.reason for h in heard)
    assert compiled(chain_schedule(10, 5.0))(x)[0].equal(x + 5)


def test_a_disk_that_is_full_for_the_linker_falls_back_and_says_so(own_cache, monkeypatch, tmp_path):
    """The source fits, the library does not: the compiler fails, and may have no room to say why."""
    real = toolchain.subprocess.Popen
    full = tmp_path / "linker"
    full.write_text("#!/bin/sh\nexit 1\n")
    full.chmod(0o755)

    def start(command, **how):
        ours = str(own_cache) in str(how.get("cwd"))
        return real([str(full)] if ours else command, **how)

    monkeypatch.setattr(toolchain.subprocess, "Popen", start)
    temporary_file = toolchain.tempfile.TemporaryFile
    monkeypatch.setattr(toolchain.tempfile, "TemporaryFile", lambda dir: Little(temporary_file(dir=dir), 80_000))
    heard = facts("cache", lambda: compiled(chain_schedule(10, 6.0)))
    assert any(h.what == "folder" and "No space left" in h.reason for h in heard)
    assert compiled(chain_schedule(10, 6.0))(x)[0].equal(x + 6)


class Little:
    """A file on a disk with this many bytes of room."""

    def __init__(self, file, room):
        self.file, self.room = file, room

    def __enter__(self):
        return self

    def __exit__(self, *what):
        self.file.close()

    def write(self, data):
        if len(data) > self.room:
            raise OSError(28, "No space left on device")
        return self.file.write(data)

    def flush(self):
        self.file.flush()


def test_compilers_leave_nothing_in_the_folder_for_temporary_files(own_cache, monkeypatch, tmp_path):
    monkeypatch.setenv("TMPDIR", str(tmp_path / "full"))  # not even there
    assert compiled(chain_schedule(10, 7.0))(x)[0].equal(x + 7)


def test_a_folder_that_can_only_be_read_serves_what_it_has(own_cache, monkeypatch):
    compiled(chain_schedule(10, 1.0))
    compiled(chain_schedule(10, 2.0))
    good, bad = sorted(own_cache.glob("v1/*/*.so"))
    bad.with_suffix(".sum").write_text("0" * 64)
    made = cache_module.tempfile.TemporaryFile

    def read_only(dir):
        if own_cache in dir.parents:
            raise OSError(30, "Read-only file system")
        return made(dir=dir)

    unlink = cache_module.Path.unlink

    def keep(path, **how):
        if own_cache in path.parents:
            raise OSError(30, "Read-only file system")
        unlink(path, **how)

    monkeypatch.setattr(cache_module.tempfile, "TemporaryFile", read_only)
    monkeypatch.setattr(cache_module.Path, "unlink", keep)
    monkeypatch.setattr(cache_module, "_open", {})
    monkeypatch.setattr(cpu_kernels, "_libraries", {})
    monkeypatch.setattr(cache_module, "_temporary", None)
    for _ in range(2):  # the second time from the temporary folder
        heard = facts("cache", lambda: [compiled(chain_schedule(10, c)) for c in (1.0, 2.0)])
        monkeypatch.setattr(cpu_kernels, "_libraries", {})
        hits = sorted(h.hit for h in heard if h.what == "add_constant")
    assert hits == [True, True]
    assert [h.reason for h in heard if h.what == "kernel"] == []
    assert sorted(own_cache.glob("v1/*/*.so")) == [good, bad]
    assert compiled(chain_schedule(10, 2.0))(x)[0].equal(x + 2)


def test_eviction_drops_the_oldest(tmp_path):
    cache = KernelCache(tmp_path, limit_bytes=2500)
    for i in range(4):
        work = cache.workspace() / "a.so"
        work.write_bytes(bytes([i]) * 1000)
        path = cache.put(f"{i:02d}" + "0" * 38, work, "source")
        os.utime(path, (i, i))
    cache.evict()
    assert sorted(e.key[:2] for e in cache.entries()) == ["02", "03"]
    assert not (tmp_path / "v1" / "00" / ("00" + "0" * 38 + ".cpp")).exists()


def test_notes_are_verified(tmp_path):
    cache = KernelCache(tmp_path, 1 << 20)
    cache.put_note("name", "text\nof two lines")
    assert cache.get_note("name") == "text\nof two lines" and cache.get_note("other") is None
    path = tmp_path / "v1" / "notes" / "name"
    path.write_text(path.read_text() + "!")
    assert cache.get_note("name") is None


def sparse(place):
    place.touch()
    os.truncate(place, 1 << 42)


INSTEAD = {
    "a pipe": os.mkfifo,
    "a loop of links": lambda place: place.symlink_to(place.name),
    "a link to nowhere": lambda place: place.symlink_to("/nonexistent/file"),
    "a device without end": lambda place: place.symlink_to("/dev/zero"),
    "4 TB of nothing": sparse,
}


@pytest.mark.parametrize("what", INSTEAD)
def test_what_stands_in_the_place_of_files_is_not_read(tmp_path, what):
    store, library = KernelCache(tmp_path, 1 << 30), tmp_path / "x.so"
    library.write_bytes(b"code")
    key = content_key("int one() { return 1; }", ("-O3",), "g++ 12")
    path = store.put(key, library, "int one() { return 1; }")
    store.put_note("compiler-one", "12.2")
    for place in (path, path.with_suffix(".sum"), path.with_suffix(".cpp"), tmp_path / "v1" / "notes" / "compiler-one"):
        place.unlink()
        INSTEAD[what](place)
    assert store.get(key) is None and store.source(key) is None and store.get_note("compiler-one") is None
    store.put_note("compiler-one", "12.3")
    assert store.get_note("compiler-one") == "12.3" and store.get(store.put(key, library, "x").stem) == path


def test_what_killed_processes_left_goes_after_a_day(tmp_path):
    cache = KernelCache(tmp_path, 1 << 20)
    cache.put_note("note", "text")
    fresh, old, part = cache.workspace(), cache.workspace(), tmp_path / "v1" / "notes" / "x.1.tmp"
    (old / "half.so").write_text("")
    part.write_text("")
    (tmp_path / "v1" / "ab").mkdir()
    # it was killed before the library was in its place
    alone = [tmp_path / "v1" / "ab" / name for name in ("source.cpp", "checksum.sum")]
    for path in alone:
        path.write_text("")
    for path in (old, part, *alone):
        os.utime(path, (1, 1))
    cache.evict()
    assert fresh.exists() and not old.exists() and not part.exists() and cache.get_note("note") == "text"
    assert not any(path.exists() for path in alone)


def test_folders_that_other_processes_remove_while_it_looks(tmp_path, monkeypatch):
    """Each of them, in turn, is gone when its files are asked for."""
    cache = KernelCache(tmp_path, 1 << 20)
    library = tmp_path / "kernel.so"
    library.write_text("library")
    gone: list[str] = []
    scandir = os.scandir

    def removed(path="."):
        place = "." if isinstance(path, int) else os.path.relpath(path, cache.folder)
        if not place.startswith(".") and place not in gone:
            gone.append(place)
            shutil.rmtree(path)
        return scandir(path)

    for _ in range(2):
        cache.workspace()
        cache.put_note("note", "text")
        cache.put("ab" + "0" * 62, library, "x")
    monkeypatch.setattr(os, "scandir", removed)
    cache.evict()
    assert any(place.startswith("build-") for place in gone) and len(gone) >= 3
    assert not list(cache.entries()) and cache.get_note("note") is None


def test_of_very_many_notes_the_oldest_go(tmp_path, monkeypatch):
    monkeypatch.setattr(cache_module, "_MOST_NOTES", 3)
    cache = KernelCache(tmp_path, 1 << 20)
    for i in range(5):
        cache.put_note(f"note-{i}", "text")
        os.utime(tmp_path / "v1" / "notes" / f"note-{i}", (i, i))
    cache.evict()
    assert sorted(p.name for p in (tmp_path / "v1" / "notes").iterdir()) == ["note-2", "note-3", "note-4"]


def test_clearing_leaves_what_is_not_the_cache_s(tmp_path):
    cache = KernelCache(tmp_path, 1 << 20)
    (tmp_path / "v1" / "api").mkdir(parents=True)
    cache.put_note("note", "text")
    busy, left = cache.workspace(), cache.workspace()
    os.utime(left, (1, 1))
    cache.clear()
    assert (tmp_path / "v1" / "api").exists() and cache.get_note("note") is None
    # what another process compiles at this moment, and what a killed one left
    assert busy.exists() and not left.exists()


def test_a_folder_removed_while_a_kernel_is_compiled_is_no_error(own_cache, monkeypatch):
    real = toolchain.subprocess.Popen
    removed = []

    def start(command, **how):
        if not removed:
            removed.append(own_cache)
            shutil.rmtree(own_cache)
        return real(command, **how)

    monkeypatch.setattr(toolchain.subprocess, "Popen", start)
    toolchain.find(Options.make(), open_cache(Options.make()))  # (asks the compiler's version)
    removed.clear()
    heard = facts("cache", lambda: compiled(chain_schedule(10, 8.0)))
    assert removed and any(h.what == "folder" and "temporary" in h.reason for h in heard)
    assert compiled(chain_schedule(10, 8.0))(x)[0].equal(x + 8)


def test_inspect_and_clear(own_cache):
    compiled(chain_schedule(10, 1.0))
    opts = Options.make()
    seen = inspect(opts)
    assert seen["kernels"] == 1 and seen["bytes"] > 0 and seen["folder"] == str(own_cache) and not seen["temporary"]
    assert clear(opts) == 1 and inspect(opts)["kernels"] == 0
    assert compiled(chain_schedule(10, 1.0))(x)[0].equal(x + 1)


def test_threads_and_processes_share_a_folder(own_cache):
    text = (
        "import torch\nfrom tests.runtime.helper import *\n"
        "x = torch.randn(10)\nfor k in range(4):\n    assert compiled(chain_schedule(10, float(k)))(x)[0].equal(x + k)\n"
    )
    root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    running = [subprocess.Popen([sys.executable, "-c", text], cwd=root, stderr=subprocess.PIPE) for _ in range(2)]
    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(lambda k: compiled(chain_schedule(10, float(k % 4)))(x)[0], range(12)))
    assert all(r.equal(x + k % 4) for k, r in enumerate(results))
    for p in running:
        assert p.wait(120) == 0, p.stderr.read().decode()[-2000:]
    assert len(list(own_cache.glob("v1/*/*.so"))) == 4 and not list(own_cache.glob("v1/build-*"))

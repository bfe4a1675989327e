"""The disk cache of compiled kernels: a folder of shared libraries keyed by content.

    <root>/v1/<first two digits>/<key>.so      the library
    <root>/v1/<first two digits>/<key>.sum     its sha256, checked before it is loaded
    <root>/v1/<first two digits>/<key>.cpp     the source, for people
    <root>/v1/graphs/<key>                     what was generated for a whole graph (kept_graphs.py), with its sha256
    <root>/v1/notes/<name>                     small texts: compiler versions, tuning results

The key is the sha256 of source, flags, compiler version, processor features and the version of tcompile. Files are
written beside their place and renamed into it, so that several processes can share a folder. A file whose checksum does
not match is removed and built again. Code is loaded from here, so the folder is its owner's alone. Where it can't be
written, or others can write it, a temporary one serves, and an event says so. One that can be read alone (a
container's) is looked into as well.
"""

from __future__ import annotations

import contextlib
import fnmatch
import functools
import hashlib
import os
import shutil
import stat
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Iterator

from .. import events
from ..codegen.target import cpu_features

__all__ = [
    "KernelCache",
    "CacheEntry",
    "open_cache",
    "temporary_cache",
    "cache_root",
    "why_unusable",
    "content_key",
    "key_parts",
    "used_graphs",
    "used_kernels",
    "used_notes",
    "inspect",
    "clear",
]

FORMAT = "v1"
_EVICT_EVERY = 512  # stores between two looks at the size of the folder
_SHARDS = "[0-9a-f][0-9a-f]"
_MOST_NOTES = 10_000  # of some hundred bytes each
_LARGEST = 1 << 28  # bytes of one file
_DIGEST = 32  # bytes of a sha256
_ABANDONED = 86400.0  # seconds after which what a compiler was writing belongs to a process that was killed


# What this process took from the disk cache or put there, for `save_cache`: a kernel's key -> its library, and names.
used_kernels: dict[str, Path] = {}
used_notes: set[str] = set()
used_graphs: set[str] = set()


@dataclass(frozen=True)
class CacheEntry:
    key: str
    path: Path
    bytes: int  # library and source
    used: float  # time of last use, seconds since the epoch


def cache_root(opts: Any) -> Path:
    """The folder of the disk cache: option `cache_dir` (TCOMPILE_CACHE_DIR), else the user's cache folder."""
    given = opts.get("cache_dir")
    if given:
        return Path(given).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tcompile"


@functools.cache
def _version() -> str:
    """Version of tcompile, as installed."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("tcompile")
    except PackageNotFoundError:
        return "source"


@functools.cache
def _machine() -> str:
    return hashlib.sha256(" ".join(sorted(cpu_features())).encode()).hexdigest()[:16]


def key_parts(flags: tuple[str, ...], compiler: str) -> dict[str, str]:
    """What a kernel's key is made of beside its source."""
    return {
        "flags": " ".join(flags),
        "compiler": compiler,
        "machine": _machine(),
        "version": _version(),
        "format": f"{FORMAT}, functions named by their key",
    }


def content_key(source: str, flags: tuple[str, ...], compiler: str) -> str:
    """Of one compiled kernel."""
    h = hashlib.sha256()
    for part in (source, *key_parts(flags, compiler).values()):
        h.update(part.encode())
        h.update(b"\0")
    return h.hexdigest()[:40]


def _read(path: Path) -> bytes:
    """What a file holds. Raises OSError also of what is no file: a pipe in its place would be waited for. So it does of
    what is larger than any file of ours.
    """
    with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)) as f:
        s = os.fstat(f.fileno())
        if not stat.S_ISREG(s.st_mode):
            raise OSError(f"{path} is not a file")
        if s.st_size > _LARGEST:
            raise OSError(f"{path} has {s.st_size} bytes")
        return f.read()


class KernelCache:
    """One folder of compiled kernels. `limit_bytes`: past it the files used longest ago go. `behind`: a folder to read
    what is not here from.
    """

    def __init__(self, root: Path, limit_bytes: int, temporary: bool = False, behind: KernelCache | None = None):
        self.root, self.limit, self.temporary, self.behind = root, limit_bytes, temporary, behind
        self.folder = root / FORMAT
        self._stores = 0

    def _path(self, key: str, suffix: str = ".so") -> Path:
        return self.folder / key[:2] / (key + suffix)

    # ---- libraries
    def get(self, key: str) -> Path | None:
        """The library, if it is there and whole."""
        path = self._path(key)
        try:
            data = _read(path)
            wanted = _read(self._path(key, ".sum")).decode(errors="replace").strip()
        except OSError:
            return self.behind.get(key) if self.behind is not None else None
        if hashlib.sha256(data).hexdigest() != wanted:
            events.emit("cache", key=key, hit=False, reason="checksum does not match", what="kernel")
            self._remove(key)
            return None
        used_kernels[key] = path
        try:
            os.utime(path)
        except OSError:  # a folder that is read-only by now still serves
            return path
        return path

    def source(self, key: str) -> str | None:
        """The source of a kernel, if it is there."""
        try:
            return _read(self._path(key, ".cpp")).decode()
        except (OSError, UnicodeDecodeError):
            return self.behind.source(key) if self.behind is not None else None

    def put(self, key: str, library: Path, source: str) -> Path:
        """Keep a finished library under this key, too: one that serves several kernels is one file by several names."""
        path = self._path(key)
        _make(self.folder)
        path.parent.mkdir(exist_ok=True)
        code = library.read_bytes()
        self._write(self._path(key, ".cpp"), source)
        self._place(library, path)
        self._write(self._path(key, ".sum"), hashlib.sha256(code).hexdigest())
        used_kernels[key] = path
        self._stored()
        return path

    def _stored(self) -> None:
        self._stores += 1
        if self._stores % _EVICT_EVERY == 1:
            self.evict()

    def _place(self, library: Path, path: Path) -> None:
        partial = path.with_name(f"{path.name}.{os.getpid()}.{id(path):x}.tmp")
        try:
            os.link(library, partial)
        except OSError:  # a file system without links
            shutil.copyfile(library, partial)
        os.replace(partial, path)
        partial.unlink(missing_ok=True)  # (two names of one file are left as they are)

    def _write(self, path: Path, content: str | bytes) -> None:
        partial = path.with_name(f"{path.name}.{os.getpid()}.{id(content):x}.tmp")
        partial.write_bytes(content if isinstance(content, bytes) else content.encode())
        os.replace(partial, path)

    def _remove(self, key: str) -> None:
        with contextlib.suppress(OSError):
            # (in a folder that can be read alone a damaged file stays: it is not loaded)
            for suffix in (".sum", ".so", ".cpp"):
                self._path(key, suffix).unlink(missing_ok=True)

    def workspace(self) -> Path:
        """A new folder for compilers to write into, on the same file system."""
        _make(self.folder)
        return Path(tempfile.mkdtemp(prefix="build-", dir=self.folder))

    # ---- graphs
    def _graph(self, key: str) -> Path:
        return self.folder / "graphs" / key

    def get_graph(self, key: str) -> bytes | None:
        """What is kept of a graph, if it is there and whole."""
        path = self._graph(key)
        try:
            data = _read(path)
        except OSError:
            return self.behind.get_graph(key) if self.behind is not None else None
        if hashlib.sha256(data[_DIGEST:]).digest() != data[:_DIGEST]:
            events.emit("cache", key=key, hit=False, reason="checksum does not match", what="graph")
            with contextlib.suppress(OSError):  # (in a folder that can be read alone it stays: it is not used)
                path.unlink(missing_ok=True)
            return None
        used_graphs.add(key)
        with contextlib.suppress(OSError):  # (a folder that is read-only by now still serves)
            os.utime(path)
        return data[_DIGEST:]

    def put_graph(self, key: str, data: bytes) -> None:
        path = self._graph(key)
        try:
            _make(self.folder)
            path.parent.mkdir(exist_ok=True)
            self._write(path, hashlib.sha256(data).digest() + data)
        except OSError as e:
            events.emit("cache", key=key, hit=False, reason=f"not kept: {e}", what="graph")
            return
        used_graphs.add(key)
        self._stored()

    # ---- notes
    def get_note(self, name: str) -> str | None:
        try:
            text = _read(self.folder / "notes" / name).decode()
        except (OSError, UnicodeDecodeError):
            return self.behind.get_note(name) if self.behind is not None else None
        digest, _, body = text.partition("\n")
        if hashlib.sha256(body.encode()).hexdigest() != digest:
            return None
        used_notes.add(name)
        return body

    def put_note(self, name: str, text: str) -> None:
        path = self.folder / "notes" / name
        try:
            _make(self.folder)
            path.parent.mkdir(exist_ok=True)
            self._write(path, hashlib.sha256(text.encode()).hexdigest() + "\n" + text)
            used_notes.add(name)
        except OSError as e:
            events.emit("cache", key=name, hit=False, reason=f"not kept: {e}", what="note")

    def drop_note(self, name: str) -> None:
        with contextlib.suppress(OSError):  # (it is not there, or the folder can be read alone)
            (self.folder / "notes" / name).unlink()

    # ---- size
    def _files(self, folders: str, names: str) -> Iterator[Path]:
        """As glob; other processes may remove the folders that it looks at, or own them."""
        for folder in self.folder.glob(folders):
            with contextlib.suppress(OSError):
                with os.scandir(folder) as found:
                    paths = [folder / e.name for e in found if fnmatch.fnmatchcase(e.name, names)]
                yield from paths

    def entries(self) -> Iterator[CacheEntry]:
        for path in self._files(_SHARDS, "*.so"):
            try:
                s = path.stat()
                source = path.with_suffix(".cpp").stat().st_size
            except OSError:  # another process removed it
                continue
            yield CacheEntry(path.stem, path, s.st_size + source, s.st_mtime)

    def graphs(self) -> Iterator[CacheEntry]:
        for path in self._files("graphs", "*"):
            with contextlib.suppress(OSError):  # (another process removed it)
                s = path.stat()
                if path.suffix != ".tmp":
                    yield CacheEntry(path.name, path, s.st_size, s.st_mtime)

    def evict(self) -> int:
        """Drop what was used longest ago until the folder is within its limit, and what killed processes left; returns
        the number of kernels dropped."""
        self._sweep()
        found = sorted((*self.entries(), *self.graphs()), key=lambda e: e.used)
        total = sum(e.bytes for e in found)
        dropped = 0
        for entry in found:
            if total <= self.limit:
                break
            total -= entry.bytes
            if entry.path.suffix == ".so":
                self._remove(entry.key)
                dropped += 1
            else:
                with contextlib.suppress(OSError):  # (another process removed it, or the folder can be read alone)
                    entry.path.unlink()
        if dropped:
            events.emit("cache", key="", hit=False, reason=f"size limit: dropped {dropped} kernels", what="evict")
        return dropped

    def _sweep(self) -> None:
        """Remove what processes left that were killed: folders of compilers, unfinished files, sources and checksums
        without a library; and the notes written longest ago where there are very many."""
        before = time.time() - _ABANDONED
        alone = (
            path
            for suffix in ("cpp", "sum")
            for path in self._files(_SHARDS, f"*.{suffix}")
            if not path.with_suffix(".so").exists()
        )
        notes = sorted((_written(p), p) for p in self._files("notes", "*"))
        many = [p for _, p in notes[:-_MOST_NOTES]]
        for path in (*self.folder.glob("build-*"), *self._files("*", "*.tmp"), *alone, *many):
            try:
                if path.stat().st_mtime < before:
                    shutil.rmtree(path) if path.is_dir() else path.unlink()
            except OSError:  # another process removes it
                continue

    def clear(self) -> int:
        """Remove every kernel, graph and note; returns how many kernels there were. Files of other kinds stay: the
        folder may have been chosen badly. So does what other processes are compiling at this moment."""
        n = sum(1 for _ in self.entries())
        self._sweep()
        for folder in (*self.folder.glob(_SHARDS), self.folder / "notes", self.folder / "graphs"):
            shutil.rmtree(folder, ignore_errors=True)
        return n


def _written(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:  # another process removed it
        return 0.0


_open: dict[tuple[Path, int], KernelCache] = {}
_temporary: KernelCache | None = None


def open_cache(opts: Any) -> KernelCache:
    """The cache that the options ask for; a temporary folder of this process where that can't be written or caching is
    off.
    """
    limit = int(opts.get("cache_size_limit_mb")) << 20
    if not opts.get("cache"):
        return temporary_cache(opts, "the option cache is off", quiet=True)
    try:
        root = cache_root(opts)
    except RuntimeError as e:  # no home folder
        return temporary_cache(opts, f"there is no cache folder: {e}")
    known = _open.get((root, limit))
    if known is not None:
        return known
    why = why_unusable(root)
    if why:
        temporary = temporary_cache(opts, f"cache folder {root} can't be used: {why}")
        return (
            KernelCache(temporary.root, limit, temporary=True, behind=KernelCache(root, limit))
            if _is_ours(root)
            else temporary
        )
    cache = _open[(root, limit)] = KernelCache(root, limit)
    return cache


def why_unusable(root: Path) -> str:
    """Why compiled code can't be kept below `root`; empty where it can. Makes the folder."""
    folder = root / FORMAT
    try:
        _make(folder)
        _check_owner(folder)
        with tempfile.TemporaryFile(dir=folder):
            return ""
    except (OSError, ValueError) as e:  # (a name that no file can have)
        return str(e)


def _is_ours(root: Path) -> bool:
    """Whether there is a folder below `root` whose kernels may be loaded."""
    try:
        _check_owner(root / FORMAT)
    except (OSError, ValueError):
        return False
    return True


def _make(folder: Path) -> None:
    """The folder, for its owner alone, whatever the umask."""
    if not folder.exists():
        folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder.mkdir(mode=0o700, exist_ok=True)


def _check_owner(folder: Path) -> None:
    """Code is loaded from here: nobody else may be able to write it, nor to put another folder in its place. Raises
    PermissionError.
    """
    for path in (folder, folder.parent):
        s = path.stat()
        if s.st_uid not in (os.getuid(), 0):
            raise PermissionError(f"{path} belongs to another user")
        if s.st_mode & stat.S_IWOTH and (path is folder or not s.st_mode & stat.S_ISVTX):
            raise PermissionError(f"{path} can be written by everyone: chmod go-w {path}")
    s = folder.stat()
    if s.st_mode & stat.S_IWGRP and s.st_gid != s.st_uid:  # (a user's own group bears the user's number)
        raise PermissionError(f"{folder} can be written by its group: chmod go-w {folder}")


def temporary_cache(opts: Any, why: str, quiet: bool = False) -> KernelCache:
    """A folder that lives as long as this process; an event says why it is used."""
    global _temporary
    limit = int(opts.get("cache_size_limit_mb")) << 20
    if _temporary is None or not _temporary.folder.parent.exists():
        import atexit

        root = Path(tempfile.mkdtemp(prefix="tcompile-"))
        pid = os.getpid()
        atexit.register(lambda: shutil.rmtree(root, ignore_errors=True) if os.getpid() == pid else None)
        _temporary = KernelCache(root, limit, temporary=True)
    if not quiet:
        events.emit("cache", key="", hit=False, reason=f"{why}; a temporary folder is used", what="folder")
    return _temporary


def inspect(opts: Any) -> dict[str, Any]:
    """What `%tcompile cache` shows: folder, number of kernels, bytes, limit, and the newest entries."""
    cache = open_cache(opts)
    found = sorted(cache.entries(), key=lambda e: -e.used)
    return {
        "folder": str(cache.root),
        "temporary": cache.temporary,
        "kernels": len(found),
        "bytes": sum(entry.bytes for entry in (*found, *cache.graphs())),
        "limit_bytes": cache.limit,
        "newest": [(entry.key, entry.bytes, entry.used) for entry in found[:20]],
    }


def clear(opts: Any) -> int:
    """Remove every kernel, graph and note; returns how many kernels there were. Libraries in use stay loaded."""
    return open_cache(opts).clear()

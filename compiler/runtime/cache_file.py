"""Compiled kernels as one file, so that a fleet of machines of a kind, or a class of students, starts warm.

    save(path, opts)     what this process compiled or used, with tuning results and what was generated for whole graphs
    load(path, opts)     put it into the disk cache

The file is a zip archive: `manifest.json` says what made it and names each member with its SHA-256, and the archive's
comment is the SHA-256 of the manifest. All of it is checked before any of it is kept. Kernels are machine code: a
checksum finds damage, and says nothing about who wrote the file.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import platform
import re
import shutil
import sys
import tempfile
import warnings
import zipfile
import zlib
from pathlib import Path
from typing import Any

import torch

from ..errors import CacheFileError
from .cache import KernelCache, key_parts, open_cache, used_graphs, used_kernels, used_notes

__all__ = ["load", "save"]

KIND, FORMAT = "tcompile.cache", 1
MOST_BYTES = 4 << 30  # of all members, unpacked
_MANIFEST = "manifest.json"
_MEMBER = re.compile(r"kernels/[0-9a-f]{40}\.(so|cpp)|graphs/[0-9a-f]{40}|notes/[A-Za-z0-9_][A-Za-z0-9_.-]{0,199}")
_HERE = "compiler-"  # notes about the files of this machine's compiler
_WORDS = {
    "tcompile": "tcompile",
    "cache": "a cache of format",
    "system": "the system",
    "processor": "a processor whose instructions have the digest",
}


def save(path: str | os.PathLike, opts: Any) -> int:
    """Write the kernels that this process compiled or took from the cache. Gives their number."""
    path = Path(path)
    cache = open_cache(opts)
    members: dict[str, bytes] = {}
    gone = 0
    for key, library in sorted(used_kernels.items()):
        try:
            data, source = library.read_bytes(), library.with_suffix(".cpp").read_bytes()
        except OSError:  # evicted, or the cache was cleared
            gone += 1
            continue
        members[f"kernels/{key}.so"], members[f"kernels/{key}.cpp"] = data, source
    kernels = len(members) // 2
    if not kernels:
        why = f"; {gone} that it used are no longer in the cache" if gone else ""
        raise CacheFileError(f"there is nothing to save: this process has compiled no kernel{why}")
    for name in sorted(used_notes):
        text = None if name.startswith(_HERE) else cache.get_note(name)
        if text is not None and _MEMBER.fullmatch(f"notes/{name}"):
            members[f"notes/{name}"] = text.encode()
    for key in sorted(used_graphs):
        if (graph := cache.get_graph(key)) is not None:
            members[f"graphs/{key}"] = graph
    manifest = json.dumps(
        {
            "kind": KIND,
            "format": FORMAT,
            "made_by": {**_made_by(), "torch": torch.__version__, "gpus": _gpus(torch.cuda.is_initialized())},
            "members": {name: hashlib.sha256(data).hexdigest() for name, data in members.items()},
        },
        indent=1,
    ).encode()
    handle, partial = tempfile.mkstemp(prefix=path.name, suffix=".tmp", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as f, zipfile.ZipFile(f, "w", zipfile.ZIP_DEFLATED) as z:
            z.writestr(_MANIFEST, manifest)
            for name, data in members.items():
                z.writestr(name, data)
            z.comment = hashlib.sha256(manifest).hexdigest().encode()
        os.replace(partial, path)
    finally:
        with contextlib.suppress(FileNotFoundError):  # (it is in its place)
            os.unlink(partial)
    if gone:
        logging.getLogger("tcompile").warning(
            "save_cache: %d kernels of this process are no longer in the cache, and were left out", gone
        )
    return kernels


def load(path: str | os.PathLike, opts: Any, trusted: bool) -> int:
    """Put the file's kernels into the disk cache. Gives the number of those that it did not have."""
    if not trusted:
        warnings.warn(
            f"{os.fspath(path)} holds machine code, which runs in your process with all your permissions. Its checksum "
            "finds damage, not malice: load such a file only from someone you trust, and then pass trusted=True.",
            stacklevel=3,
        )
    members = _checked(path)
    cache = open_cache(opts)
    keys = [Path(name).stem for name in members if name.endswith(".so")]
    new = [key for key in keys if cache.get(key) is None]
    work = cache.workspace()
    try:
        for key in new:
            library = work / f"{key}.so"
            library.write_bytes(members[f"kernels/{key}.so"])
            cache.put(key, library, members[f"kernels/{key}.cpp"].decode())
    finally:
        shutil.rmtree(work, ignore_errors=True)
    _keep_more(cache, members)
    return len(new)


def _keep_more(cache: KernelCache, members: dict[str, bytes]) -> None:
    """Notes and graphs that are not there: what was measured on this machine is not exchanged."""
    for name, data in members.items():
        folder, _, key = name.partition("/")
        if folder == "notes" and cache.get_note(key) is None:
            cache.put_note(key, data.decode())
        elif folder == "graphs" and cache.get_graph(key) is None:
            cache.put_graph(key, data)


def _checked(path: str | os.PathLike) -> dict[str, bytes]:
    """The members of the file. CacheFileError where it is none, is damaged, or was made for another machine."""
    shown = os.fspath(path)
    try:
        with zipfile.ZipFile(path) as z:
            manifest = _manifest(z, shown)
            _check_maker(manifest["made_by"], shown)
            return _members(z, manifest["members"], shown)
    except (zipfile.BadZipFile, EOFError, NotImplementedError, RuntimeError, UnicodeDecodeError, zlib.error) as e:
        raise CacheFileError(f"{shown} is damaged, or was not written by save_cache: {e}") from e


def _manifest(z: zipfile.ZipFile, shown: str) -> dict[str, Any]:
    no_file = CacheFileError(f"{shown} was not written by save_cache")
    infos = {i.filename: i for i in z.infolist()}
    if _MANIFEST not in infos or infos[_MANIFEST].file_size > 64 << 20:
        raise no_file
    text = z.read(_MANIFEST)
    if hashlib.sha256(text).hexdigest().encode() != z.comment:
        raise CacheFileError(f"{shown} is damaged: the checksum of its manifest does not match")
    try:
        manifest = json.loads(text)
    except ValueError:
        raise no_file from None
    if not isinstance(manifest, dict) or manifest.get("kind") != KIND:
        raise no_file
    if manifest.get("format") != FORMAT:
        raise CacheFileError(f"{shown} has format {manifest.get('format')!r}; this tcompile reads format {FORMAT}")
    members, made_by = manifest.get("members"), manifest.get("made_by")
    if not isinstance(members, dict) or not isinstance(made_by, dict):
        raise no_file
    return manifest


def _check_maker(made_by: dict[str, Any], shown: str) -> None:
    """Kernels of another version or machine have other keys: they would lie there unused."""
    for name, here in _made_by().items():
        if made_by.get(name) != here:
            raise CacheFileError(
                f"{shown} was saved by {_WORDS[name]} {made_by.get(name)!r}, and here it is {here!r}: its kernels "
                "would not be used. Save one on a machine of this kind"
            )
    gpus = made_by.get("gpus")
    if gpus and not set(gpus) & set(_gpus(torch.cuda.is_available())):
        here = ", ".join(_gpus(torch.cuda.is_available())) or "no GPU"
        raise CacheFileError(f"{shown} was saved on a machine with {', '.join(map(str, gpus))}, and here is {here}")


def _members(z: zipfile.ZipFile, declared: dict[str, Any], shown: str) -> dict[str, bytes]:
    infos = z.infolist()
    names = [info.filename for info in infos if info.filename != _MANIFEST]
    odd = next((name for name in names if not _MEMBER.fullmatch(name)), None)
    if odd is not None:
        raise CacheFileError(f"{shown} holds {odd!r}, which save_cache does not write: none of it was loaded")
    if len(infos) != len(names) + 1 or sorted(names) != sorted(declared):
        raise CacheFileError(f"{shown} is damaged: it does not hold what its manifest names")
    if sum(info.file_size for info in infos) > MOST_BYTES:
        raise CacheFileError(f"{shown} is larger than {MOST_BYTES >> 30} GiB unpacked")
    members = {}
    for name in names:
        data = members[name] = z.read(name)
        if hashlib.sha256(data).hexdigest() != declared[name]:
            raise CacheFileError(f"{shown} is damaged: the checksum of {name} does not match. None of it was loaded")
        if name.startswith("notes/") or name.endswith(".cpp"):
            data.decode()
    lone = next((name for name in names if name.endswith(".so") and name[:-3] + ".cpp" not in members), None)
    if lone is not None:
        raise CacheFileError(f"{shown} is damaged: {lone} has no source beside it")
    return members


def _made_by() -> dict[str, str]:
    """What the keys of kernels are made of, and what the system has to be."""
    parts = key_parts((), "")
    return {
        "tcompile": parts["version"],
        "cache": parts["format"],
        "system": f"{sys.platform} {platform.machine()}",
        "processor": parts["machine"],
    }


def _gpus(ask: bool) -> list[str]:
    """The kinds of this machine's GPUs."""
    if not ask:
        return []
    kinds = (torch.cuda.get_device_capability(i) for i in range(torch.cuda.device_count()))
    return sorted({f"sm_{major}{minor}" for major, minor in kinds})

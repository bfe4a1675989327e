"""`save_cache` and `load_cache`: a process that loads a file compiles nothing, and what is no such file, is damaged,
or was made elsewhere is refused in words before any of it is kept.
"""

import hashlib
import json
import subprocess
import sys
import textwrap
import zipfile

import pytest
import torch

import tcompile
from tcompile.compiler.errors import CacheFileError
from tcompile.compiler.runtime import cache, cache_file, cpu_kernels

pytestmark = pytest.mark.usefixtures("own_cache")

PROGRAM = """
def f(x):
    return (torch.sin(x) * 3 + x).exp() - torch.cumsum(x, 0)
"""


@pytest.fixture
def saved(tmp_path, monkeypatch):
    """The file that a process saved which compiled the program, alone."""
    monkeypatch.setattr(cache, "used_kernels", {})
    monkeypatch.setattr(cache, "used_notes", set())
    monkeypatch.setattr(cache_file, "used_kernels", cache.used_kernels)
    monkeypatch.setattr(cache_file, "used_notes", cache.used_notes)
    tcompile.reset()
    names = {"torch": torch}
    exec(PROGRAM, names)
    x = torch.linspace(-1, 1, 37)
    torch.testing.assert_close(tcompile.compile(names["f"])(x), names["f"](x))
    path = tmp_path / "kernels.tcc"
    assert tcompile.save_cache(path) == len(cache.used_kernels) > 0
    return path


def elsewhere(monkeypatch, tmp_path):
    """As on another machine: an empty cache."""
    monkeypatch.setitem(tcompile.config._values, "cache_dir", str(tmp_path / "elsewhere"))
    monkeypatch.setattr(cpu_kernels, "_libraries", {})
    return tmp_path / "elsewhere"


def test_a_fresh_process_compiles_nothing(saved, tmp_path, monkeypatch):
    folder = elsewhere(monkeypatch, tmp_path)
    program = tmp_path / "fresh.py"
    program.write_text(
        "import torch, tcompile\n"
        "from tcompile.compiler import events\n"
        + PROGRAM
        + textwrap.dedent(
            f"""
            said = []
            events.subscribe(said.append)
            assert tcompile.load_cache({str(saved)!r}, trusted=True) > 0
            assert tcompile.load_cache({str(saved)!r}, trusted=True) == 0
            x = torch.linspace(-1, 1, 37)
            torch.testing.assert_close(tcompile.compile(f)(x), f(x))
            looked = [e.hit for e in said if e.kind == "cache" and e.what != "folder"]
            assert looked and all(looked), said
            assert not [e for e in said if e.kind in ("compile_c", "fallback")], said
            """
        )
    )
    monkeypatch.setenv("TCOMPILE_CACHE_DIR", str(folder))
    done = subprocess.run([sys.executable, str(program)], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]


def test_loading_warns_that_it_is_code(saved, tmp_path, monkeypatch):
    elsewhere(monkeypatch, tmp_path)
    with pytest.warns(UserWarning, match="machine code.*only from someone you trust"):
        tcompile.load_cache(saved)


def test_there_has_to_be_something_to_save(tmp_path, monkeypatch):
    monkeypatch.setattr(cache_file, "used_kernels", {"0" * 40: tmp_path / "gone.so"})
    with pytest.raises(CacheFileError, match="nothing to save.*1 that it used are no longer in the cache"):
        tcompile.save_cache(tmp_path / "k.tcc")
    assert not list(tmp_path.glob("k.tcc*"))


def rewritten(path, *, manifest=None, members=None, comment=None, compression=zipfile.ZIP_STORED):
    """The file with its manifest and members changed by functions; checksums are right unless `comment` is given."""
    with zipfile.ZipFile(path) as z:
        said = json.loads(z.read("manifest.json"))
        held = {name: z.read(name) for name in z.namelist() if name != "manifest.json"}
    if members is not None:
        members(held)
        said["members"] = {name: hashlib.sha256(data).hexdigest() for name, data in held.items()}
    if manifest is not None:
        manifest(said)
    text = json.dumps(said).encode()
    with zipfile.ZipFile(path, "w", compression) as z:
        z.writestr("manifest.json", text)
        for name, data in held.items():
            z.writestr(name, data)
        z.comment = comment or hashlib.sha256(text).hexdigest().encode()


def first_library(held):
    return next(name for name in held if name.endswith(".so"))


def made_by(**other):
    return dict(manifest=lambda said: said["made_by"].update(other))


CHANGED = {
    "another kind": (dict(manifest=lambda said: said.update(kind="a notebook")), "not written by save_cache"),
    "no members": (dict(manifest=lambda said: said.pop("members")), "not written by save_cache"),
    "a later format": (dict(manifest=lambda said: said.update(format=2)), "has format 2"),
    "another version": (made_by(tcompile="9.9"), "saved by tcompile '9.9'"),
    "another processor": (made_by(processor="abc"), "processor whose instructions"),
    "another system": (made_by(system="plan9 vax"), "the system 'plan9 vax'"),
    "another GPU": (made_by(gpus=["sm_10"]), "with sm_10"),
    "its manifest's checksum": (dict(comment=b"0" * 64), "checksum of its manifest"),
    "a member's checksum": (
        dict(manifest=lambda said: said["members"].update({first_library(said["members"]): "0" * 64})),
        r"checksum of kernels/\w+\.so does not match",
    ),
    "a member that is not there": (
        dict(manifest=lambda said: said["members"].update({"notes/more": "0" * 64})),
        "does not hold what its manifest names",
    ),
    "a path out of it": (dict(members=lambda held: held.update({"notes/../../x": b""})), "does not write"),
    "another file": (dict(members=lambda held: held.update({"kernels/x.py": b""})), "does not write"),
    "no source": (
        dict(members=lambda held: held.pop(first_library(held).replace(".so", ".cpp"))),
        "has no source beside it",
    ),
    "a note that is no text": (dict(members=lambda held: held.update({"notes/n": b"\xff"})), "damaged"),
}


@pytest.mark.parametrize("name", CHANGED)
def test_what_is_refused(name, saved, tmp_path, monkeypatch):
    how, words = CHANGED[name]
    rewritten(saved, **how)
    folder = elsewhere(monkeypatch, tmp_path)
    with pytest.raises(CacheFileError, match=words):
        tcompile.load_cache(saved, trusted=True)
    assert not list(folder.rglob("*.so")) and not list(folder.rglob("notes/*"))


def test_unchanged_but_written_anew_it_loads(saved, tmp_path, monkeypatch):
    """That the refusals above are of what was changed."""
    rewritten(saved)
    folder = elsewhere(monkeypatch, tmp_path)
    assert tcompile.load_cache(saved, trusted=True) == len(list(folder.rglob("*.so"))) > 0


def test_no_damage_of_bytes_gets_through(saved, tmp_path, monkeypatch):
    """Cut off, or a byte changed anywhere: refused in words, or (in a field of zip's that nobody reads) loaded whole."""
    whole, folder = saved.read_bytes(), elsewhere(monkeypatch, tmp_path)
    with zipfile.ZipFile(saved) as z:
        held = {name: z.read(name) for name in z.namelist()}
    places = range(0, len(whole), max(1, len(whole) // 150))
    damaged = [whole[:n] for n in places] + [whole[:n] + bytes([whole[n] ^ 0x5A]) + whole[n + 1 :] for n in places]
    refused = 0
    for data in damaged:
        saved.write_bytes(data)
        try:
            tcompile.load_cache(saved, trusted=True)
        except CacheFileError as e:
            assert str(saved) in str(e)
            refused += 1
            continue
        for library in folder.rglob("*.so"):
            assert library.read_bytes() == held[f"kernels/{library.name}"]
    assert refused > 0.9 * len(damaged)


def test_a_file_that_is_not_there_and_a_wrong_argument(tmp_path):
    with pytest.raises(FileNotFoundError):
        tcompile.load_cache(tmp_path / "none", trusted=True)
    with pytest.raises(tcompile.OptionError, match="trusted is True or False"):
        tcompile.load_cache(tmp_path / "none", trusted="yes")

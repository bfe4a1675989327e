"""The distribution: what an sdist and the wheel made from it hold, and that the wheel works away from the checkout."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from ..scripts import script

ROOT = Path(__file__).resolve().parents[2]
BUILT = (ROOT / "extension" / "labextension" / "static" / "style.js").exists()


def python(*args: str, cwd: Path, **env: str) -> str:
    done = subprocess.run(
        [sys.executable, *args], cwd=cwd, env={**os.environ, **env}, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, (done.stdout + done.stderr)[-4000:]
    return done.stdout


@pytest.fixture(scope="module")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    for name in ("build", "hatchling", "hatch_jupyter_builder"):
        pytest.importorskip(name, reason=f"building needs {name}")
    out = tmp_path_factory.mktemp("sdist")
    python("-m", "build", "--sdist", "--no-isolation", "--outdir", str(out), ".", cwd=ROOT, SKIP_JUPYTER_BUILDER="1")
    return next(out.glob("tcompile-*.tar.gz"))


@pytest.fixture(scope="module")
def wheel(sdist: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from the unpacked sdist, as an installer does."""
    out = tmp_path_factory.mktemp("wheel")
    with tarfile.open(sdist) as archive:
        archive.extractall(out, filter="data")
    source = next(p for p in out.iterdir() if p.is_dir())
    python("-m", "build", "--wheel", "--no-isolation", "--outdir", str(out), ".", cwd=source, SKIP_JUPYTER_BUILDER="1")
    return next(out.glob("tcompile-*.whl"))


@pytest.fixture(scope="module")
def site(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel installed into a folder; torch and the rest come from the environment that runs the tests."""
    target = tmp_path_factory.mktemp("site")
    python("-m", "pip", "install", "-q", "--no-deps", "--no-index", "--target", str(target), str(wheel), cwd=target)
    return target


def test_sdist_holds_sources_and_no_binaries(sdist: Path) -> None:
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {
        "pyproject.toml",
        "hatch_build.py",
        "LICENSE",
        "extension/__init__.py",
        "compiler/native/build.py",
        "compiler/native/module.c",
        "labextension/src/mime.ts",
        "labextension/yarn.lock",
    } <= names
    unwanted = [
        n
        for n in names
        if n.endswith(".so")
        or "node_modules" in n
        or n.startswith(("build/", "bench/", ".venv", "tests/browser/artifacts"))
    ]
    assert not unwanted, unwanted[:10]


def test_wheel_holds_the_three_folders_under_one_name(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        metadata = next(archive.read(n).decode() for n in names if n.endswith("METADATA"))
        entries = next(archive.read(n).decode() for n in names if n.endswith("entry_points.txt"))
    for name in ("tcompile/__init__.py", "tcompile/kernel_magics/magics.py", "tcompile/compiler/stages.py"):
        assert name in names
    assert "tcompile/labs/built/01_see_the_compiler/lab.zh.ipynb" in names
    assert not [n for n in names if "hidden_tests" in n or "solution" in n]  # the instructor's package has these
    assert {n.split("/")[0].partition("-")[0] for n in names} == {"tcompile"}
    assert "License-Expression: BSD-3-Clause" in metadata
    assert "tcompile = tcompile.compiler.frontend.graph_calls:tcompile_backend" in entries


@pytest.mark.skipif(not BUILT, reason="the labextension is not built (make labextension)")
def test_wheel_holds_the_labextension_once(wheel: Path) -> None:
    """The package reads one file of it, JupyterLab all others."""
    built = ROOT / "extension" / "labextension"
    with zipfile.ZipFile(wheel) as archive:
        names = [n for n in archive.namelist() if "labextension" in n]
        shared = {n.partition("/labextensions/tcompile-lab/")[2]: archive.read(n) for n in names if "/share/" in n}
    own = [n for n in names if "/share/" not in n]
    assert own == ["tcompile/labextension/standalone.js"]
    files = {f.relative_to(built).as_posix(): f for f in built.rglob("*") if f.is_file()}
    assert set(shared) == files.keys() - {"standalone.js"}
    assert all(shared[name] == files[name].read_bytes() for name in shared)
    assert {"package.json", "sbom.cdx.json", "static/style.js", "static/third-party-licenses.json"} <= set(shared)


def test_wheel_carries_this_python_s_extension_alone(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        libraries = [n for n in archive.namelist() if n.endswith(".so")]
    tag = f"cp{sys.version_info.major}{sys.version_info.minor}"
    if not libraries:  # no C compiler here: the fallback wheel is pure and says so
        assert wheel.name.endswith("-none-any.whl")
        return
    assert len(libraries) == 1 and f"cpython-{tag[2:]}" in libraries[0], libraries
    assert f"-{tag}-" in wheel.name


def test_wheel_compiles_a_function(site: Path, tmp_path: Path) -> None:
    code = (
        "import torch, tcompile, tcompile.compiler\n"
        "fast = tcompile.compile(lambda x: torch.sin(x) * 2 + 1)\n"
        "x = torch.randn(100)\n"
        "torch.testing.assert_close(fast(x), torch.sin(x) * 2 + 1)\n"
        "print(tcompile.__file__)\n"
    )
    printed = python("-c", code, cwd=tmp_path, PYTHONPATH=str(site), TCOMPILE_CACHE_DIR=str(tmp_path / "cache"))
    assert Path(printed.strip().splitlines()[-1]).parent == site / "tcompile"


def test_the_installed_labs_start_without_solutions(site: Path, tmp_path: Path) -> None:
    printed = python("-m", "tcompile", "lab", "start", "1", cwd=tmp_path, PYTHONPATH=str(site))
    assert "lab01.ipynb" in printed and "BEGIN SOLUTION" not in (tmp_path / "lab01.ipynb").read_text()
    code = "import sys; from tcompile.cli import main; sys.exit(main(['lab', 'solution', '1']) != 1)"
    python("-c", code, cwd=tmp_path, PYTHONPATH=str(site))


def test_the_installed_command_and_paths(site: Path, tmp_path: Path) -> None:
    code = "import tcompile; print(tcompile._jupyter_labextension_paths())"
    printed = python("-c", code, cwd=tmp_path, PYTHONPATH=str(site))
    assert "tcompile-lab" in printed


def test_link_tree_follows_the_sources(tmp_path: Path) -> None:
    """What an editable install imports from: relative links, old ones gone."""
    pytest.importorskip("hatchling")
    module = script("hatch_build.py")
    for name in ("extension", "kernel_magics", "compiler"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text(f"name = {name!r}\n")
    (tmp_path / "extension" / "old.py").write_text("")
    tree = module.link_tree(tmp_path)
    assert (tree / "old.py").is_symlink() and not os.path.isabs(os.readlink(tree / "old.py"))
    (tmp_path / "extension" / "old.py").unlink()
    module.link_tree(tmp_path)
    assert sorted(p.name for p in tree.iterdir()) == ["__init__.py", "compiler", "kernel_magics", "labextension"]
    assert (tree / "compiler" / "__init__.py").read_text() == "name = 'compiler'\n"


def test_a_failed_build_of_the_extension_is_said_and_survived(tmp_path: Path) -> None:
    pytest.importorskip("hatchling")
    module = script("hatch_build.py")
    builder = tmp_path / "compiler" / "native" / "build.py"
    builder.parent.mkdir(parents=True)
    builder.write_text("def build_inplace():\n    raise RuntimeError('no C compiler')\n")
    said: list[str] = []
    assert module.build_native(tmp_path, say=said.append) is None
    assert any("NOT built" in line for line in said) and any("no C compiler" in line for line in said)

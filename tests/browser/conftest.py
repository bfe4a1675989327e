"""A JupyterLab server of the tests' own and a headless Chromium; screenshots go to tests/browser/artifacts."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

ROOT = Path(__file__).resolve().parents[2]
LABEXTENSION = ROOT / "extension" / "labextension"
ARTIFACTS = Path(__file__).parent / "artifacts"
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
]
NEWS = "@jupyterlab/apputils-extension/notification.jupyterlab-settings"
QUIET = {NEWS: {"fetchNews": "false", "checkForUpdates": False}}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.browser)


@pytest.fixture(scope="session")
def chromium() -> str:
    sys.path.insert(0, str(ROOT / "tools"))
    try:
        from environment import find_browser
    finally:
        sys.path.remove(str(ROOT / "tools"))
    pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    path = find_browser()
    if path is None:
        pytest.skip("no Chromium on this machine (apt install chromium)")
    if not (LABEXTENSION / "package.json").exists():
        pytest.skip("the labextension is not built (make labextension)")
    return path


class Server:
    """JupyterLab on a free port of loopback, with every path of its own."""

    def __init__(self, home: Path, ours: bool = True):
        """`ours`: with the labextension."""
        self.root = home / "notebooks"
        self.root.mkdir(parents=True)
        switched_off = home / "config" / "labconfig" / "page_config.json"
        switched_off.parent.mkdir(parents=True)
        switched_off.write_text(json.dumps({"disabledExtensions": {"tcompile-lab": not ours}}))
        extensions = home / "data" / "labextensions"
        extensions.mkdir(parents=True)
        (extensions / "tcompile-lab").symlink_to(LABEXTENSION)
        for name, value in QUIET.items():
            target = home / "settings" / name
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(json.dumps(value))
        folders = {
            "JUPYTER_CONFIG_DIR": "config",
            "JUPYTER_DATA_DIR": "data",
            "IPYTHONDIR": "ipython",
            "JUPYTERLAB_SETTINGS_DIR": "settings",
            "JUPYTERLAB_WORKSPACES_DIR": "workspaces",
            "TCOMPILE_CACHE_DIR": "tcompile-cache",
        }
        env = {**os.environ, **{name: str(home / folder) for name, folder in folders.items()}}
        self.runtime = tempfile.TemporaryDirectory(prefix="lab-")  # sockets of kernels: a path of at most 107 bytes
        env["JUPYTER_RUNTIME_DIR"] = self.runtime.name
        env["JUPYTER_PREFER_ENV_PATH"] = "0"  # this checkout's labextension, not one that the environment has installed
        self.log = (home / "server.log").open("w+")
        self.process = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "jupyterlab",
                "--no-browser",
                "--allow-root",
                "--ip=127.0.0.1",
                "--ServerApp.port_retries=1000",
                "--KernelManager.transport=ipc",  # a free TCP port may be another's before the kernel binds it
                "--IdentityProvider.token=",
                f"--ServerApp.root_dir={self.root}",
                "--expose-app-in-browser",
                "--LabApp.check_for_updates_class=jupyterlab.NeverCheckForUpdate",
                "--LabApp.extension_manager=readonly",
            ],
            env=env,
            stdout=self.log,
            stderr=subprocess.STDOUT,
        )
        self._wait()

    def _wait(self) -> None:
        said = Path(self.runtime.name, f"jpserver-{self.process.pid}.json")  # the server tells the port that it got
        for _ in range(300):
            if self.process.poll() is not None:
                break
            try:
                self.url = json.loads(said.read_text())["url"].rstrip("/")
                with urllib.request.urlopen(f"{self.url}/api", timeout=2):
                    return
            except (urllib.error.URLError, OSError, ValueError):
                time.sleep(0.2)
        self.log.seek(0)
        raise RuntimeError(f"JupyterLab did not start:\n{self.log.read()[-3000:]}")

    def add(self, name: str, notebook: dict[str, Any]) -> str:
        (self.root / name).write_text(json.dumps(notebook))
        return name

    def stop(self) -> None:
        self.process.terminate()
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
        self.log.close()
        self.runtime.cleanup()


@pytest.fixture(scope="session")
def server(chromium: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    running = Server(tmp_path_factory.mktemp("lab"))
    yield running
    running.stop()


@pytest.fixture(scope="session")
def browser(chromium: str) -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as driver:
        running = driver.chromium.launch(executable_path=chromium, args=FLAGS)
        yield running
        running.close()


class Lab:
    """One page of JupyterLab. Notes whatever the page throws and every request that leaves loopback."""

    def __init__(self, browser: Any, server: Server, width: int = 1400, height: int = 1000):
        self.server = server
        self.context = browser.new_context(viewport={"width": width, "height": height})
        self.page = self.context.new_page()
        self.errors: list[str] = []
        self.console: list[str] = []
        self.outside: list[str] = []
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))
        self.page.on("console", lambda m: m.type in ("error", "warning") and self.console.append(f"{m.type}: {m.text}"))
        self.page.on("request", self._request)

    def _request(self, request: Any) -> None:
        parts = urlsplit(request.url)
        if parts.scheme in ("http", "https", "ws", "wss") and parts.hostname not in ("127.0.0.1", "localhost", "::1"):
            self.outside.append(request.url)

    def open(self, name: str, kernel: bool = False) -> None:
        self.page.goto(f"{self.server.url}/lab/tree/{name}?reset")
        self.page.wait_for_function("window.jupyterapp?.shell?.currentWidget?.content?.model != null", timeout=90_000)
        if kernel:
            self.page.wait_for_function("window.jupyterapp.shell.currentWidget.sessionContext.isReady", timeout=90_000)
        self.page.wait_for_selector(".jp-Notebook .jp-Cell", timeout=60_000)
        self.page.evaluate("() => window.jupyterapp.shell.collapseLeft()")

    def command(self, name: str, args: dict[str, Any] | None = None) -> Any:
        return self.page.evaluate(
            "([name, args]) => window.jupyterapp.commands.execute(name, args).then(() => null)", [name, args or {}]
        )

    def theme(self, name: str) -> None:
        self.command("apputils:change-theme", {"theme": name})
        light = "false" if "Dark" in name else "true"
        self.page.wait_for_function(f"document.body.dataset.jpThemeLight === '{light}'")
        self.page.wait_for_timeout(300)

    def shot(self, name: str, target: Any = None) -> Path:
        ARTIFACTS.mkdir(exist_ok=True)
        path = ARTIFACTS / f"{name}.png"
        (target or self.page).screenshot(path=path)
        return path

    def check(self) -> None:
        """Nothing thrown, nothing of ours on the console, nothing asked of another machine."""
        assert not self.errors, self.errors
        # (that plugins took long to activate is said of a busy machine, not of them)
        said = [line for line in self.console if not line.endswith("to activate.")]
        ours = [line for line in said if "tcompile" in line.lower() or "tc-" in line]
        assert not ours, ours
        assert not self.outside, self.outside


@pytest.fixture
def lab(browser: Any, server: Server) -> Iterator[Lab]:
    page = Lab(browser, server)
    yield page
    page.context.close()


@pytest.fixture
def narrow_lab(browser: Any, server: Server) -> Iterator[Lab]:
    page = Lab(browser, server, width=660, height=1000)
    yield page
    page.context.close()

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
import warnings
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
        self.env = env
        self.start()

    def start(self) -> None:
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
            env=self.env,
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
        raise RuntimeError(f"JupyterLab did not start:\n{self.said(3000)}")

    def said(self, characters: int) -> str:
        """The end of what it wrote."""
        return Path(self.log.name).read_text()[-characters:]

    def add(self, name: str, notebook: dict[str, Any]) -> str:
        (self.root / name).write_text(json.dumps(notebook))
        return name

    def restart(self) -> None:
        self._end()
        self.start()

    def _end(self) -> None:
        self.process.terminate()
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def stop(self) -> None:
        self._end()
        self.log.close()
        self.runtime.cleanup()


@pytest.fixture(scope="session")
def server(chromium: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    running = Server(tmp_path_factory.mktemp("lab"))
    yield running
    running.stop()


class Chromium:
    """A headless Chromium, which can be started again."""

    def __init__(self, driver: Any, path: str):
        self.launch = lambda: driver.chromium.launch(executable_path=path, args=FLAGS)
        self.running = self.launch()

    def new_context(self, **options: Any) -> Any:
        return self.running.new_context(**options)

    def new_page(self) -> Any:
        return self.running.new_page()

    def restart(self) -> None:
        self.running.close()
        self.running = self.launch()


@pytest.fixture(scope="session")
def browser(chromium: str) -> Iterator[Chromium]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as driver:
        ours = Chromium(driver, chromium)
        yield ours
        ours.running.close()


# What a page is at that did not open. Without frames no page of JupyterLab gets on: a timer tells of it. It is waited
# for, since an evaluation has no limit of time.
STATE = """async () => ({
  app: window.jupyterapp !== undefined,
  widget: window.jupyterapp?.shell?.currentWidget?.id ?? null,
  dialogs: [...document.querySelectorAll('.jp-Dialog')].map(dialog => dialog.innerText),
  frames: await Promise.race([
    new Promise(done => requestAnimationFrame(() => done(true))),
    new Promise(done => setTimeout(() => done(false), 3000)),
  ]),
  text: document.body.innerText.slice(0, 300),
})"""


class Lab:
    """One page of JupyterLab. Notes whatever the page throws and every request that leaves loopback."""

    def __init__(self, browser: Chromium, server: Server, width: int = 1400, height: int = 1000):
        self.server = server
        self.browser = browser
        self.viewport = {"width": width, "height": height}
        self._new_page()

    def _new_page(self) -> None:
        self.context = self.browser.new_context(viewport=self.viewport)
        self.page = self.context.new_page()
        self.errors: list[str] = []
        self.console: list[str] = []
        self.outside: list[str] = []
        self.pending: set[str] = set()
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))
        self.page.on("console", lambda m: m.type in ("error", "warning") and self.console.append(f"{m.type}: {m.text}"))
        self.page.on("request", self._request)
        self.page.on("requestfinished", lambda request: self.pending.discard(request.url))
        self.page.on("requestfailed", lambda request: self.pending.discard(request.url))

    def _request(self, request: Any) -> None:
        self.pending.add(request.url)
        parts = urlsplit(request.url)
        if parts.scheme in ("http", "https", "ws", "wss") and parts.hostname not in ("127.0.0.1", "localhost", "::1"):
            self.outside.append(request.url)

    def open(self, name: str, kernel: bool = False) -> None:
        """A second try has a new server and a new browser: once in many runs one of them opened nothing any more."""
        from playwright.sync_api import TimeoutError as Late

        try:
            self._open(name, kernel)
        except Late as error:
            warnings.warn(
                f"JupyterLab did not open {name}, so it is started again: {error}\n{self.state()}", stacklevel=2
            )
            self.server.restart()
            self.browser.restart()
            self._new_page()
            self._open(name, kernel)

    def _open(self, name: str, kernel: bool) -> None:
        self.page.goto(f"{self.server.url}/lab/tree/{name}?reset")
        self.wait("window.jupyterapp?.shell?.currentWidget?.content?.model != null", 90_000)
        if kernel:
            self.wait("window.jupyterapp.shell.currentWidget.sessionContext.isReady", 90_000)
        self.page.wait_for_selector(".jp-Notebook .jp-Cell", timeout=60_000)
        self.page.evaluate("() => window.jupyterapp.shell.collapseLeft()")

    def wait(self, condition: str, timeout: float = 30_000) -> None:
        """Until the JavaScript `condition` holds, looked at by a timer: frames stop on a busy machine. ms."""
        self.page.wait_for_function(condition, polling=100, timeout=timeout)

    def state(self) -> str:
        """What the page and its server are at, for the message of a failure."""
        try:
            page = json.dumps(self.page.wait_for_function(STATE, polling=100, timeout=20_000).json_value())
        except Exception as error:  # the page may be gone: that is what is to be said
            page = str(error)
        heard = {"page": page, "pending": sorted(self.pending), "errors": self.errors, "console": self.console[-10:]}
        return "\n".join(f"{what}: {said}" for what, said in {**heard, "server": self.server.said(2000)}.items())

    def command(self, name: str, args: dict[str, Any] | None = None) -> Any:
        return self.page.evaluate(
            "([name, args]) => window.jupyterapp.commands.execute(name, args).then(() => null)", [name, args or {}]
        )

    def theme(self, name: str) -> None:
        self.command("apputils:change-theme", {"theme": name})
        light = "false" if "Dark" in name else "true"
        self.wait(f"document.body.dataset.jpThemeLight === '{light}'")
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
def lab(browser: Chromium, server: Server) -> Iterator[Lab]:
    page = Lab(browser, server)
    yield page
    page.context.close()


@pytest.fixture
def narrow_lab(browser: Chromium, server: Server) -> Iterator[Lab]:
    page = Lab(browser, server, width=660, height=1000)
    yield page
    page.context.close()

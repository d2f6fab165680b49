"""A real JupyterLab on a copy of the course, and a real browser that opens it.

`pytest tests/browser` runs these tests, with the extra `browser` and a browser; the README's test
command leaves them out, since they take minutes.
"""

import json
import os
import secrets
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest
from lab import Lab

ROOT = Path(__file__).parent.parent.parent
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome")
TOKEN = secrets.token_hex()
SETTINGS = {  # every cell is in the page, and nothing asks or saves by itself
    "notebook-extension/tracker": {"windowingMode": "none"},
    "docmanager-extension/plugin": {"autosave": False},
    "apputils-extension/notification": {"fetchNews": "false", "checkForUpdates": False, "doNotDisturbMode": True},
}


@pytest.fixture(scope="session")
def chromium():
    """A browser without a window."""
    executable = next(filter(None, map(shutil.which, BROWSERS)), None)
    if executable is None:
        pytest.fail(f"no browser is installed (looked for {', '.join(BROWSERS)}); on Debian: apt install chromium")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as driver:
        arguments = ["--no-sandbox", "--disable-dev-shm-usage"]  # as root, and in a container with little shared memory
        browser = driver.chromium.launch(executable_path=executable, args=arguments)
        yield browser
        browser.close()


@pytest.fixture(scope="session")
def server(chromium, tmp_path_factory):
    """The address of a JupyterLab that serves a copy of the course, until the tests end."""
    folder = tmp_path_factory.mktemp("lab")
    for name in ("course_utils", "data", "gradaudit", "notebooks"):
        shutil.copytree(ROOT / name, folder / "course" / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name, setting in SETTINGS.items():
        path = folder / "settings" / "@jupyterlab" / f"{name}.jupyterlab-settings"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(setting))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    own = {name: str(folder / name.lower()) for name in ("JUPYTER_CONFIG_DIR", "JUPYTER_RUNTIME_DIR", "IPYTHONDIR")}
    environment = os.environ | own | {
        "JUPYTERLAB_SETTINGS_DIR": str(folder / "settings"),
        "JUPYTERLAB_WORKSPACES_DIR": str(folder / "workspaces"),
        "PYTHONPATH": str(folder / "course"),
    }  # fmt: skip
    command = [
        sys.executable, "-m", "jupyterlab", "--no-browser", "--allow-root", "--ip=127.0.0.1", f"--port={port}",
        "--ServerApp.port_retries=0", f"--ServerApp.root_dir={folder / 'course'}", f"--IdentityProvider.token={TOKEN}",
        "--ServerApp.shutdown_no_activity_timeout=600", "--MappingKernelManager.cull_idle_timeout=300",
        "--LabApp.extension_manager=readonly", "--LabApp.news_url=None", "--expose-app-in-browser",
    ]  # fmt: skip
    address = f"http://127.0.0.1:{port}"
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            command, cwd=folder, env=environment, stdout=log, stderr=log, stdin=subprocess.DEVNULL
        )
        try:
            _wait_until_it_answers(process, address, folder / "log")
            yield address
        finally:
            _end(process, address)


@pytest.fixture
def lab(server, chromium):
    """JupyterLab in a fresh window of 1280 x 1400 pixels; a test's kernel ends with it."""
    page = chromium.new_page(viewport={"width": 1280, "height": 1400})
    try:
        yield Lab(page, server, TOKEN)
    finally:
        page.close()
        _end_kernels(server)


def _end_kernels(address: str) -> None:
    for session in json.loads(_request(f"{address}/api/sessions")):
        _request(f"{address}/api/sessions/{session['id']}", "DELETE")


def _request(address: str, method: str = "GET") -> bytes:
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    request = urllib.request.Request(address, method=method, headers={"Authorization": f"token {TOKEN}"})
    return direct.open(request, timeout=30).read()


def _wait_until_it_answers(process: subprocess.Popen, address: str, log: Path) -> None:
    for _ in range(240):
        if process.poll() is not None:
            break
        try:
            _request(f"{address}/api/status")
            return
        except OSError:
            time.sleep(0.25)
    pytest.fail(f"JupyterLab did not start:\n{log.read_text(errors='replace')[-3000:]}")


def _end(process: subprocess.Popen, address: str) -> None:
    """Asks the server to end, which ends its kernels too; ends it if it does not."""
    try:
        _request(f"{address}/api/shutdown", "POST")
        process.wait(timeout=20)
    except (OSError, subprocess.TimeoutExpired):
        process.kill()  # a kernel ends when its server has gone
        process.wait(timeout=20)

"""Start an engine of this machine that measures trials as a page: a browser without a window, or
Node.

    browser = start_browser("chromium", "http://127.0.0.1:8000/", "wasm")
    browser.stop()

Code is optimised from the start where the engine can be told to (V8: `--no-liftoff`): otherwise the
first rounds would measure the baseline compiler.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from webmlc.core.errors import UserError
from webmlc.core.machine import Device

V8_FLAGS = ("--no-liftoff", "--no-wasm-lazy-compilation")
"""Compile with the optimising compiler alone, and all functions at once."""
STOP_SECONDS = 5.0
"""Seconds that a browser may take to end before it is killed."""

_CHROMIUM = (
    "--headless=new",
    "--no-sandbox",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-background-timer-throttling",
    "--disable-backgrounding-occluded-windows",
    "--disable-renderer-backgrounding",
    f"--js-flags={' '.join(V8_FLAGS)}",
)
_CHROMIUM_GPU = ("--enable-unsafe-webgpu", "--enable-features=Vulkan")
_FIREFOX_PREFERENCES = {
    "app.update.enabled": False,
    "browser.shell.checkDefaultBrowser": False,
    "datareporting.policy.dataSubmissionEnabled": False,
    "browser.startup.homepage_override.mstone": "ignore",
    "javascript.options.wasm_baselinejit": False,
    "dom.webgpu.enabled": True,
}


@dataclass(frozen=True, slots=True)
class Engine:
    """An engine that can be started: its executables in order of preference, a variable that names
    another one, and its command line for a URL and a folder for its profile.
    """

    executables: tuple[str, ...]
    variable: str
    command: Callable[[str, str, Path, Device], list[str]]
    advice: str


def _chromium(executable: str, url: str, profile: Path, device: Device) -> list[str]:
    gpu = _CHROMIUM_GPU if device == "webgpu" else ()
    adapter = os.environ.get("WEBMLC_WEBGPU_ADAPTER")
    chosen = [f"--use-webgpu-adapter={adapter}"] if adapter and gpu else []
    return [executable, f"--user-data-dir={profile}", *_CHROMIUM, *gpu, *chosen, url]


def _firefox(executable: str, url: str, profile: Path, device: Device) -> list[str]:
    lines = [
        f'user_pref("{name}", {str(value).lower() if isinstance(value, bool) else repr(value)});'
        for name, value in _FIREFOX_PREFERENCES.items()
    ]
    (profile / "user.js").write_text("\n".join(lines), "utf-8")
    return [executable, "--headless", "--no-remote", "--profile", str(profile), url]


def _node(executable: str, url: str, profile: Path, device: Device) -> list[str]:
    return [executable, *V8_FLAGS, str(Path(__file__).parent / "page" / "join.mjs"), url]


ENGINES: Mapping[str, Engine] = {
    "chromium": Engine(
        ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable"),
        "WEBMLC_CHROMIUM",
        _chromium,
        "install Chromium or Chrome",
    ),
    "firefox": Engine(("firefox", "firefox-esr"), "WEBMLC_FIREFOX", _firefox, "install Firefox"),
    "node": Engine(("node", "nodejs"), "WEBMLC_NODE", _node, "install Node 20 or later"),
}
"""The engines that can be started, by name."""


class Browser:
    """A running engine, with a profile that is removed when it stops."""

    def __init__(self, command: list[str], profile: tempfile.TemporaryDirectory[str]) -> None:
        self._profile = profile
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def has_ended(self) -> bool:
        """True if the engine ended by itself, or was stopped."""
        return self._process.poll() is not None

    def stop(self) -> None:
        """End the engine and all of its processes."""
        for number in (signal.SIGTERM, signal.SIGKILL):
            try:
                os.killpg(self._process.pid, number)
                self._process.wait(STOP_SECONDS)
            except ProcessLookupError:
                break
            except subprocess.TimeoutExpired:
                continue
        self._process.wait()
        self._profile.cleanup()


def find(engine: str) -> str | None:
    """The executable of an engine, or `None` if it is not installed."""
    row = ENGINES[engine]
    names = (os.environ.get(row.variable), *row.executables)
    return next(filter(None, (shutil.which(name) for name in names if name)), None)


def is_installed(engine: str) -> bool:
    """True if an engine can be started. Those of this Python always can."""
    return engine not in ENGINES or find(engine) is not None


def start_browser(engine: str, url: str, device: Device) -> Browser:
    """Start an engine with a URL. Raises `UserError` if it is not installed."""
    executable = find(engine)
    if executable is None:
        row = ENGINES[engine]
        raise UserError(
            f"--engine {engine}: not found; {row.advice}, or set {row.variable} to its executable"
        )
    profile = tempfile.TemporaryDirectory(prefix="webmlc-tune-", ignore_cleanup_errors=True)
    return Browser(ENGINES[engine].command(executable, url, Path(profile.name), device), profile)

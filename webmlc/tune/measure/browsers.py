"""Start an engine of this machine that joins a search: a browser without a window, or Node.

In: an engine's name and the URL of the search's page. Out: a process, which `stop` ends.

    with start_browser("chromium", server.url, "wasm") as browser:
        ...

Browsers start with an empty profile in a temporary folder. Engines optimise all code before it runs
first. Otherwise the first rounds would measure baseline code.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from webmlc.core.errors import UserError
from webmlc.core.machine import DEVICES, Device
from webmlc.tune.measure.listen import PAGE

V8_FLAGS = ("--no-liftoff", "--no-wasm-lazy-compilation")
"""Flags of V8 for code that is optimised when a module is compiled.

Measured in Node 20 on the first run of a matrix product, which takes 0.12 ms at best: 0.16 ms with
these flags, 13 ms without, and 2 ms with `--no-wasm-dynamic-tiering`, which compiles functions when
they are called first.
"""
_GUARD = '("$@"; kill 0) & cat; kill 0'
"""A script that runs an engine. It ends the engine's processes if the engine itself ends, or if the
process that started it does, even where that is killed.
"""

_CHROMIUM_FLAGS = (
    "--headless=new",
    "--no-sandbox",  # needs privileges that containers lack; only the page of the search is opened
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-background-timer-throttling",
    "--disable-backgrounding-occluded-windows",
    "--disable-renderer-backgrounding",
    f"--js-flags={' '.join(V8_FLAGS)}",
)
_CHROMIUM_GPU_FLAGS = ("--enable-unsafe-webgpu", "--enable-features=Vulkan")
_ADAPTER_VARIABLE = "WEBMLC_WEBGPU_ADAPTER"
"""Names the adapter that Chromium uses, such as "swiftshader". Without it, Chromium chooses."""

_FIREFOX_PREFERENCES: Mapping[str, Any] = {
    # No first-run pages, and no questions.
    "browser.aboutwelcome.enabled": False,
    "browser.shell.checkDefaultBrowser": False,
    "browser.startup.homepage_override.mstone": "ignore",
    "datareporting.policy.dataSubmissionEnabled": False,
    # No requests except the page's requests.
    "app.normandy.enabled": False,
    "app.update.enabled": False,
    "browser.safebrowsing.malware.enabled": False,
    "browser.safebrowsing.phishing.enabled": False,
    "extensions.update.enabled": False,
    "network.captive-portal-service.enabled": False,
    "network.connectivity-service.enabled": False,
    "services.settings.server": "",
    "toolkit.telemetry.unified": False,
    # Optimised code, an exact timer and the GPU.
    "javascript.options.wasm_baselinejit": False,
    "privacy.reduceTimerPrecision": False,
    "dom.webgpu.enabled": True,
}


def _chromium(executable: str, url: str, profile: Path, device: Device) -> list[str]:
    """The command of Chromium and its relatives."""
    gpu = list(_CHROMIUM_GPU_FLAGS) if DEVICES[device].has_adapters else []
    if adapter := os.environ.get(_ADAPTER_VARIABLE):
        gpu.append(f"--use-webgpu-adapter={adapter}")
    return [executable, f"--user-data-dir={profile}", *_CHROMIUM_FLAGS, *gpu, url]


def _firefox(executable: str, url: str, profile: Path, device: Device) -> list[str]:
    """The command of Firefox, which reads its preferences from the profile."""
    lines = [f'user_pref("{n}", {json.dumps(v)});\n' for n, v in _FIREFOX_PREFERENCES.items()]
    (profile / "user.js").write_text("".join(lines), "utf-8")
    return [executable, "--headless", "--no-remote", "--profile", str(profile), url]


def _node(executable: str, url: str, profile: Path, device: Device) -> list[str]:
    """The command of Node, which has no profile."""
    return [executable, *V8_FLAGS, str(PAGE / "join.mjs"), url]


@dataclass(frozen=True, slots=True)
class Engine:
    """An engine that can be started.

    - `executables`: the names of its program, the preferred name first.
    - `variable`: the environment variable that names another program.
    - `command`: the command line for a program, a URL, the folder of a profile, and a device.
    - `advice`: what to do if the program is missing.
    """

    executables: tuple[str, ...]
    variable: str
    command: Callable[[str, str, Path, Device], list[str]]
    advice: str

    def find(self) -> str | None:
        """The path of the program, or `None` if it is not installed."""
        variable = os.environ.get(self.variable)
        names = (variable,) if variable else self.executables
        return next(filter(None, map(shutil.which, names)), None)


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
    """An engine that runs. Its profile is removed when it stops."""

    def __init__(self, command: list[str], profile: tempfile.TemporaryDirectory[str]) -> None:
        self._profile = profile
        self._process = subprocess.Popen(
            ("sh", "-c", _GUARD, "sh", *command),
            stdin=subprocess.PIPE,  # ends when this process does
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # a process group of its own, which `stop` ends
        )

    def __enter__(self) -> Browser:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def has_ended(self) -> bool:
        """True if the engine ended on its own, or was stopped."""
        return self._process.poll() is not None

    def stop(self) -> None:
        """End all processes of the engine, and remove its profile."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._profile.cleanup()


def is_installed(engine: str) -> bool:
    """True if an engine can be started here."""
    return ENGINES[engine].find() is not None


def start_browser(engine: str, url: str, device: Device) -> Browser:
    """Start an engine with the page at `url`, which measures kernels of `device`.

    Raises `UserError` if the engine is not installed.
    """
    row = ENGINES[engine]
    executable = row.find()
    if executable is None:
        raise UserError(
            f"{engine} is not installed; {row.advice}, or set {row.variable} to its program"
        )
    profile = tempfile.TemporaryDirectory(prefix="webmlc-tune-", ignore_cleanup_errors=True)
    return Browser(row.command(executable, url, Path(profile.name), device), profile)

"""Install the wheel of this checkout into a folder, and run its command line as a user does.

    webmlc = Installed(install(tmp_path), home=tmp_path / "home")
    report = webmlc.json("build", "model.onnx", cwd=folder)

Commands run with their defaults: the cache is on, in a home of its own, and the current folder is
not the checkout.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
SECONDS = 120
"""The longest that a command may take."""
WHEEL = "import sys; from hatchling.build import build_wheel; print(build_wheel(sys.argv[1]))"


def install(folder: Path) -> Path:
    """Build the wheel, and install it into a new folder, which is returned."""
    built = _checked([sys.executable, "-c", WHEEL, str(folder)], cwd=ROOT)
    wheel = folder / built.stdout.split()[-1]
    target = folder / "installed"
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    options = ["--no-deps", "--no-index", "--no-compile", "--target", str(target)]
    _checked([*pip, *options, str(wheel)], cwd=folder)
    return target


def _checked(command: list[str], cwd: Path) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done


@dataclass(frozen=True, slots=True)
class Result:
    """The exit code of a command, and what it printed."""

    code: int
    out: str
    err: str


@dataclass(frozen=True, slots=True)
class Installed:
    """An installation in a folder, and the home of the user who runs it."""

    target: Path
    home: Path

    @property
    def command(self) -> list[str]:
        """The beginning of every command."""
        return [sys.executable, "-m", "webmlc"]

    @property
    def environment(self) -> dict[str, str]:
        """The variables of the user: those of this process, without any of webmlc's."""
        variables = {k: v for k, v in os.environ.items() if not k.startswith("WEBMLC_")}
        variables.pop("PYTHONDONTWRITEBYTECODE", None)
        home = {"HOME": str(self.home), "XDG_CACHE_HOME": str(self.home / ".cache")}
        return variables | home | {"PYTHONPATH": str(self.target), "COLUMNS": "200"}

    def start(
        self,
        *arguments: object,
        cwd: Path,
        prepare: Callable[[], None] | None = None,
        command: list[str] | None = None,
    ) -> subprocess.Popen[str]:
        """Start webmlc, or another `command` of the user, in a folder. `prepare` runs in the
        process before it begins.
        """
        return subprocess.Popen(
            [*(command or self.command), *map(str, arguments)],
            cwd=cwd,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            encoding="utf-8",
            preexec_fn=prepare,
        )

    def run(
        self,
        *arguments: object,
        cwd: Path,
        code: int = 0,
        prepare: Callable[[], None] | None = None,
    ) -> Result:
        """Run a command, which has to end with this exit code, and without a traceback."""
        process = self.start(*arguments, cwd=cwd, prepare=prepare)
        try:
            out, err = process.communicate(timeout=SECONDS)
        finally:
            process.kill()
        assert "Traceback" not in err, err
        assert process.returncode == code, (arguments, process.returncode, out, err)
        return Result(process.returncode, out, err)

    def json(self, *arguments: object, cwd: Path, code: int = 0) -> Any:
        """Run a command with `--json`, and return what it printed."""
        return json.loads(self.run(*arguments, "--json", cwd=cwd, code=code).out)

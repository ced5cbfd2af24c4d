"""Scripts under Node that answer requests line by line, and packages that one of them runs.

    Script(path).ask(request)                     # what the script answers, of JSON
    in_node(folder, [as_tensors({"x": x})])       # the results of the JavaScript runtime
    answer_once(path, job)                        # what a script says that answers only one

A `Script` runs until the session ends, however many tests ask it: a start takes longer than most
answers.
"""

from __future__ import annotations

import atexit
import json
import select
import shutil
import subprocess
from collections.abc import Mapping
from functools import cache, partial
from pathlib import Path
from typing import IO, Any

import numpy as np

from tests.fuzz.waiting import answers_in_time

SCRIPT = Path(__file__).parent / "js" / "run_package.mjs"
RUNTIME = Path(__file__).parents[1] / "runtime_js"
RED_ZONES = Path(__file__).parent / "js" / "red_zones"
SECONDS = 60.0
"""The processor time that an answer may take. Chosen by hand."""


class ScriptError(Exception):
    """A script that gave no answer: `kind` is "crash" or "hang"."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


class Script:
    """A script that answers requests (`js/answer_lines.mjs`), started anew when it has ended."""

    def __init__(self, path: Path, *arguments: str, seconds: float = SECONDS) -> None:
        self.command = ["node", str(path), *arguments]
        self.seconds = seconds
        self.process: subprocess.Popen[str] | None = None

    def ask(self, request: Any) -> Any:
        """The answer. Raises `ScriptError`; pytest shows what the script wrote on stderr."""
        if self.process is None:
            pipe = subprocess.PIPE
            self.process = subprocess.Popen(self.command, stdin=pipe, stdout=pipe, text=True)
        try:
            return json.loads(self._answer(self.process, json.dumps(request)))
        except ScriptError:
            self.close()
            raise

    def _answer(self, process: subprocess.Popen[str], request: str) -> str:
        """The answer to a request, one line each."""
        assert process.stdin is not None and process.stdout is not None
        try:
            process.stdin.write(f"{request}\n")
            process.stdin.flush()
        except BrokenPipeError:
            raise ScriptError("crash", f"Node ended: {process.wait()}") from None
        if not answers_in_time(partial(_is_ready, process.stdout), process.pid, self.seconds):
            raise ScriptError("hang", f"no result after {self.seconds:.0f} s")
        line = process.stdout.readline()
        if not line:
            raise ScriptError("crash", f"Node ended: {process.wait()}")
        return line

    def close(self) -> None:
        """End the script."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
        self.process = None


def _is_ready(stream: IO[str], seconds: float) -> bool:
    """True if there is something to read within this time: an answer is one line."""
    return bool(select.select([stream], [], [], seconds)[0])


@cache
def script(path: Path) -> Script:
    """A script that all tests of this process share."""
    shared = Script(path)
    atexit.register(shared.close)
    return shared


def in_node(folder: Path, runs: list[dict[str, Any]], threads: int = 2) -> Any:
    """The results of some runs on the CPU: `{name: {shape, data: [text]}}`, or `{error, code}`."""
    return script(SCRIPT).ask({"folder": str(folder), "threads": threads, "runs": runs})


def answer_once(path: Path, job: Any) -> Any:
    """The answer of a script that reads one job, and then ends. Both are JSON."""
    done = subprocess.run(
        ["node", str(path)],
        input=json.dumps(job),
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def tensor(array: Any) -> dict[str, Any]:
    """An array of numbers, booleans or texts as the script reads it."""
    array = np.asarray(array)
    if array.dtype == object:
        return {"dtype": "string", "shape": list(array.shape), "data": array.ravel().tolist()}
    numbers = array.ravel().astype(int) if array.dtype == bool else array.ravel()
    data = [str(n) if array.dtype.itemsize == 8 else n for n in numbers.tolist()]
    return {"dtype": str(array.dtype), "shape": list(array.shape), "data": data}


def as_tensors(feeds: Mapping[str, Any]) -> dict[str, Any]:
    """The inputs of a run as the script reads them."""
    return {name: tensor(array) for name, array in feeds.items()}


def copy_with_red_zones(folder: Path) -> Path:
    """A copy of the JavaScript runtime in which a run that writes outside its buffers fails."""
    for path in RUNTIME.glob("*.js"):
        changed = (RED_ZONES / path.name).is_file()
        shutil.copy(path, folder / (f"plain_{path.name}" if changed else path.name))
    for path in RED_ZONES.glob("*.js"):
        shutil.copy(path, folder / path.name)
    return folder

"""The three ways a package runs: wasm through wasmtime, webgpu through wgpu-py, wasm in Node.

A build serves all three. Every run is in the debug mode with red zones. Packages of an odd number
run with two threads, whose loops are shared out however small they are.
"""

from __future__ import annotations

import base64
import json
import select
import subprocess
import tempfile
import traceback
from dataclasses import replace
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import IO, Any, Literal
from unittest.mock import patch

import numpy as np
import onnx

from tests.fuzz.graph import Array
from tests.fuzz.sizes.inputs import Feeds
from tests.fuzz.sizes.processes import Failure, answer_requests
from tests.fuzz.waiting import answers_in_time
from tests.node import copy_with_red_zones

Way = Literal["wasm", "webgpu", "node"]
WAYS: tuple[Way, ...] = ("wasm", "webgpu", "node")
SERVE = Path(__file__).parents[2] / "js" / "serve_runs.mjs"
Results = list[dict[str, Array] | Failure]


def build_package(data: bytes, folder: str, ways: tuple[Way, ...]) -> Failure | None:
    """Build a package for these ways; a `Failure` where that is refused, or goes wrong."""
    from webmlc.compile import build
    from webmlc.core.errors import UserError
    from webmlc.core.machine import WASM_MACHINES

    shared = replace(WASM_MACHINES["simd128"], parallel_operations=0)
    target = "both" if "webgpu" in ways and len(ways) > 1 else ways[0].replace("node", "wasm")
    try:
        with patch.dict(WASM_MACHINES, simd128=shared):  # type: ignore[arg-type]
            build(onnx.ModelProto.FromString(data), folder, target=target)  # type: ignore[arg-type]
    except UserError as error:
        return Failure("unsupported", str(error))
    except Exception as error:
        return _bug(error)
    return None


def run_package(
    folder: str, way: Literal["wasm", "webgpu"], threads: int, runs: list[Feeds]
) -> Any:
    """The result of each run."""
    from webmlc.core.errors import InputError, UserError
    from webmlc.host.load import load

    try:
        features: Literal["simd128", "relaxed"] = "simd128" if threads > 1 else "relaxed"
        model = load(folder, way, threads, features, red_zones=True)
    except Exception as error:
        return [_bug(error)] * len(runs)
    results: Results = []
    for feeds in runs:
        try:
            results.append(model.run(feeds))
        except InputError as error:
            results.append(Failure("input", str(error)))
        except UserError as error:
            results.append(Failure("user", str(error)))
            model.restore()
        except Exception as error:
            results.append(_bug(error))
            model.restore()
    model.dispose()
    return results


def _bug(error: Exception) -> Failure:
    return Failure("internal", f"{type(error).__name__}: {error}\n{traceback.format_exc(limit=-3)}")


def serve(connection: Connection) -> None:
    """Answer requests: the name of one of the two functions, and its arguments."""
    import webmlc.compile
    import webmlc.host.load  # noqa: F401

    functions = {"build": build_package, "run": run_package}
    answer_requests(connection, lambda name, *arguments: functions[name](*arguments))


class Node:
    """The JavaScript runtime under Node, with red zones; started anew when it dies or hangs."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.folder = tempfile.TemporaryDirectory(prefix="webmlc-runtime-")
        copy_with_red_zones(Path(self.folder.name))
        self.process: subprocess.Popen[str] | None = None

    def run(self, folder: str, threads: int, runs: list[Feeds]) -> Results | Failure:
        """The result of each run of a package; a `Failure` if the process dies or hangs."""
        if self.process is None:
            self.process = subprocess.Popen(
                ["node", str(SERVE), self.folder.name],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
        encoded = [{name: _encoded(array) for name, array in feeds.items()} for feeds in runs]
        request = {"folder": folder, "threads": threads, "runs": encoded}
        answer = self._ask(self.process, json.dumps(request))
        if isinstance(answer, Failure):
            self.close()
            return answer
        return [_decoded(result) for result in answer]

    def _ask(self, process: subprocess.Popen[str], request: str) -> Any:
        assert process.stdin is not None and process.stdout is not None
        try:
            process.stdin.write(f"{request}\n")
            process.stdin.flush()
        except BrokenPipeError:
            return Failure("crash", "Node ended")
        if not answers_in_time(partial(_is_ready, process.stdout), process.pid, self.seconds):
            return Failure("hang", f"no result after {self.seconds:.0f} s")
        line = process.stdout.readline()
        return json.loads(line) if line else Failure("crash", f"Node ended: {process.wait()}")

    def close(self) -> None:
        """End the process."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
        self.process = None


def _is_ready(stream: IO[str], seconds: float) -> bool:
    """Whether there is something to read within this time: an answer is one line."""
    return bool(select.select([stream], [], [], seconds)[0])


def _encoded(array: Array) -> dict[str, Any]:
    data = base64.b64encode(np.ascontiguousarray(array).tobytes()).decode()
    return {"dtype": array.dtype.name, "shape": list(array.shape), "data": data}


def _decoded(result: dict[str, Any]) -> dict[str, Array] | Failure:
    if isinstance(result.get("error"), str):
        kind = {"input": "input", "internal": "internal"}.get(result["code"], "user")
        return Failure(kind, result["error"])
    return {
        name: np.frombuffer(base64.b64decode(t["data"]), _dtype(t["dtype"])).reshape(t["shape"])
        for name, t in result.items()
    }


def _dtype(name: str) -> Any:
    from webmlc.core.dtypes import DType

    return DType(name).numpy

"""The three ways a package runs: wasm through wasmtime, webgpu through wgpu-py, wasm in Node.

A build serves all three. Every run is in the debug mode with red zones. Packages of an odd number
run with two threads, whose loops are shared out however small they are.
"""

from __future__ import annotations

import base64
import tempfile
import traceback
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Literal
from unittest.mock import patch

import numpy as np
import onnx

from tests.fuzz.graph import Array
from tests.fuzz.sizes.inputs import Feeds
from tests.fuzz.sizes.processes import Failure, answer_requests
from tests.node import Script, ScriptError, copy_with_red_zones

Way = Literal["wasm", "webgpu", "node"]
WAYS: tuple[Way, ...] = ("wasm", "webgpu", "node")
SERVE = Path(__file__).parents[2] / "js" / "serve_runs.mjs"
Results = list[dict[str, Array] | Failure]


def build_package(data: bytes, folder: str, ways: tuple[Way, ...]) -> Failure | None:
    """Build a package for these ways; a `Failure` where that is refused, or goes wrong."""
    from webmlc.core.errors import UserError
    from webmlc.pipeline import build
    from webmlc.target.wasm.target import VARIANTS

    plain = VARIANTS["simd128"]
    shared = replace(plain, machine=replace(plain.machine, parallel_operations=0))
    target = "both" if "webgpu" in ways and len(ways) > 1 else ways[0].replace("node", "wasm")
    try:
        with patch.dict(VARIANTS, simd128=shared):
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

    functions = {"build": build_package, "run": run_package}
    answer_requests(connection, lambda name, *arguments: functions[name](*arguments))


class Node:
    """The JavaScript runtime under Node, with red zones; started anew when it dies or hangs."""

    def __init__(self, seconds: float) -> None:
        self.folder = tempfile.TemporaryDirectory(prefix="webmlc-runtime-")
        copy_with_red_zones(Path(self.folder.name))
        self.script = Script(SERVE, self.folder.name, seconds=seconds)

    def run(self, folder: str, threads: int, runs: list[Feeds]) -> Results | Failure:
        """The result of each run of a package; a `Failure` if the process dies or hangs."""
        encoded = [{name: _encoded(array) for name, array in feeds.items()} for feeds in runs]
        try:
            answer = self.script.ask({"folder": folder, "threads": threads, "runs": encoded})
        except ScriptError as error:
            return Failure(error.kind, str(error))
        return [_decoded(result) for result in answer]

    def close(self) -> None:
        """End the process."""
        self.script.close()


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

"""Graphs run in a process of their own, so that a crash or a hang is a result like any other.

runner = Runner("wasm", seconds=60)
runner.run(graph)    # the outputs of every configuration, or a `Failure`
"""

from __future__ import annotations

import multiprocessing
import resource
import tempfile
import traceback
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from typing import Literal
from unittest.mock import patch

import onnx

from tests.fuzz.graph import Array, FuzzGraph
from tests.fuzz.waiting import answers_in_time

Device = Literal["wasm", "webgpu"]
CONFIGURATIONS = {
    "wasm": (("relaxed", 1), ("simd128", 2)),
    "webgpu": (("relaxed", 1),),
}
"""Variant and threads of each run of a package. Small graphs are not worth sharing out; in the
`simd128` module they are all the same.
"""
GRAPHS_PER_PROCESS = 200
MOST_BYTES = 6 << 30
"""Memory of a process: a graph that needs more is an error, and no other process's end."""


@dataclass(frozen=True, slots=True)
class Failure:
    """A graph that could not be built or run: `unsupported` (the message has a line for each node),
    `error`, `crash` or `hang`.
    """

    kind: str
    message: str


Results = dict[str, dict[str, Array]] | Failure


class Runner:
    """A process that builds and runs models, started anew when it dies or hangs."""

    def __init__(self, device: Device, seconds: float) -> None:
        self.device, self.seconds = device, seconds
        self.process: multiprocessing.process.BaseProcess | None = None
        self.connection: Connection | None = None
        self._done = 0

    def run(self, graph: FuzzGraph) -> Results:
        """Outputs by configuration and name."""
        if self.process is None or self._done >= GRAPHS_PER_PROCESS:
            self._start()
        assert self.process is not None and self.connection is not None
        self._done += 1
        try:
            self.connection.send((graph.to_model().SerializeToString(), graph.feeds()))
            if not answers_in_time(self.connection.poll, self.process.pid, self.seconds):
                self.close()
                return Failure("hang", f"no result after {self.seconds:.0f} s")
            results: Results = self.connection.recv()
        except (EOFError, BrokenPipeError, ConnectionResetError):
            self.process.join(5)
            code = self.process.exitcode
            self.close()
            return Failure("crash", f"the process ended with exit code {code}")
        return results

    def close(self) -> None:
        """End the process."""
        if self.process is not None and self.connection is not None:
            self.process.kill()
            self.process.join()
            self.connection.close()
        self.process = self.connection = None

    def _start(self) -> None:
        self.close()
        context = multiprocessing.get_context("spawn")
        self.connection, other = context.Pipe()
        self.process = context.Process(target=_serve, args=(other, self.device), daemon=True)
        self.process.start()
        other.close()
        self.connection.recv()  # ready: starting takes its time, which is no graph's
        self._done = 0


def _serve(connection: Connection, device: Device) -> None:
    from tests import shader_compilers

    shader_compilers.watch()
    resource.setrlimit(resource.RLIMIT_DATA, (MOST_BYTES, MOST_BYTES))
    connection.send("ready")  # imported before the first graph is timed
    while True:
        try:
            data, feeds = connection.recv()
        except EOFError:
            return
        connection.send(build_and_run(onnx.ModelProto.FromString(data), feeds, device))


def build_and_run(model: onnx.ModelProto, feeds: dict[str, Array], device: Device) -> Results:
    """Build a package and run it in every configuration of the device."""
    from webmlc.core.errors import UnsupportedError
    from webmlc.host.load import load
    from webmlc.pipeline import build
    from webmlc.target.targets import TARGETS
    from webmlc.target.wasm.target import WASM

    results: dict[str, dict[str, Array]] = {}
    plain = WASM.variants["simd128"]
    shared = replace(plain, machine=replace(plain.machine, parallel_operations=0))
    variants = {**WASM.variants, "simd128": shared}
    try:
        with (
            patch.dict(TARGETS, wasm=replace(WASM, variants=variants)),
            tempfile.TemporaryDirectory(prefix="webmlc-fuzz-") as folder,
        ):
            build(model, folder, target=device)
            for features, threads in CONFIGURATIONS[device]:
                loaded = load(folder, device, threads, features)  # type: ignore[arg-type]
                try:
                    results[f"{device} {features}, {threads} thread(s)"] = loaded.run(feeds)
                finally:
                    loaded.dispose()
    except UnsupportedError as error:
        return Failure("unsupported", "\n".join(map(str, error.nodes)))
    except Exception as error:
        place = traceback.format_exc(limit=-4)
        return Failure("error", f"{type(error).__name__}: {error}\n{place}")
    return results

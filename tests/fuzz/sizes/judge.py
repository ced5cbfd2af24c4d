"""onnxruntime as the judge of a run: its outputs, and how far nudged inputs move them. If it
differs from us, onnx.reference is the second opinion.

Served from a process (`processes.Process(serve, seconds)`): onnxruntime may crash on bad inputs.
"""

from __future__ import annotations

import contextlib
import re
import warnings
from collections.abc import Sequence
from multiprocessing.connection import Connection

import ml_dtypes
import numpy as np
import onnx
import onnxruntime
from onnx.reference import ReferenceEvaluator

from tests.fuzz.graph import Array, captured
from tests.fuzz.sizes.inputs import Feeds
from tests.fuzz.sizes.processes import Failure, answer_requests
from tests.fuzz.sizes.references import EXACT

ERRORS_ONLY = 4
ULPS = 4.0
EXACT_PRODUCTS = ("session.x64quantprecision", "1")
"""Products of bytes do not saturate, as they do on x64 processors without VNNI by default."""

OUT_OF_MEMORY = re.compile(r"[Ff]ailed to allocate memory|bad_alloc|bad allocation")
MAX_RESULT_BYTES = 64 << 20
"""The most bytes of outputs that are judged. A `Range` of a moved limit has gigabytes, and takes
longer to send from process to process than to compute. Chosen by hand.
"""


class Judge:
    """A session, and its runs."""

    def __init__(self) -> None:
        self.session: onnxruntime.InferenceSession | None = None

    def handle(self, request: str, *arguments: object) -> object:
        """`open` a model, `run` it, run it `nudged` several times, or ask the `reference`."""
        try:
            match request, arguments:
                case "open", (bytes(data),):
                    self._open(data)
                    return None
                case "run", (dict(feeds),):
                    return self._run(feeds)
                case "nudged", (dict(feeds), int(count), bool(flushes)):
                    rng = np.random.default_rng(count)
                    return [
                        self._run(nudged(feeds, rng, flushes and n % 2 == 1)) for n in range(count)
                    ]
                case "reference", (bytes(data), dict(feeds), tuple(names)):
                    return reference(data, feeds, names)
        except Exception as error:  # onnxruntime raises classes of its own
            kind = "memory" if OUT_OF_MEMORY.search(str(error)) else "refused"
            return Failure(kind, f"{type(error).__name__}: {error}")
        raise AssertionError(request)

    def _open(self, data: bytes) -> None:
        options = onnxruntime.SessionOptions()
        options.log_severity_level = ERRORS_ONLY
        options.intra_op_num_threads = 1
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
        options.add_session_config_entry(*EXACT_PRODUCTS)
        self.session = onnxruntime.InferenceSession(
            data, options, providers=["CPUExecutionProvider"]
        )

    def _run(self, feeds: Feeds) -> dict[str, Array] | Failure:
        assert self.session is not None
        names = [output.name for output in self.session.get_outputs()]
        arrays = list(map(np.asarray, self.session.run(names, feeds)))
        size = sum(array.nbytes for array in arrays)
        if size > MAX_RESULT_BYTES:
            return Failure("memory", f"the outputs have {size} bytes")
        return dict(zip(names, arrays, strict=True))


def reference(data: bytes, feeds: Feeds, names: Sequence[str]) -> dict[str, Array]:
    """What onnx.reference computes of these outputs. Those that need an operator which it does not
    have are missing.
    """
    results: dict[str, Array] = {}
    for name in names:
        model = onnx.ModelProto.FromString(data)
        _keep(model.graph, name)
        with (
            np.errstate(all="ignore"),
            warnings.catch_warnings(),
            contextlib.suppress(NotImplementedError),
        ):
            warnings.simplefilter("ignore")
            evaluator = ReferenceEvaluator(model, new_ops=[*EXACT])
            results[name] = np.asarray(evaluator.run(None, feeds)[0])
    return results


def _keep(graph: onnx.GraphProto, name: str) -> None:
    """Remove the nodes that an output does not depend on, and the other outputs."""
    nodes, needed = [], {name}
    for node in reversed(graph.node):
        if needed.intersection(node.output):
            nodes.append(node)
            needed.update((*node.input, *captured(node)))
    outputs = [output for output in graph.output if output.name == name]
    del graph.node[:], graph.output[:]
    graph.node.extend(reversed(nodes))
    graph.output.extend(outputs)


def nudged(feeds: Feeds, rng: np.random.Generator, flushes: bool) -> Feeds:
    """The inputs with their floats a few units in the last place off. If `flushes`, subnormal
    numbers are zeros.
    """
    return {name: _nudged(array, rng, flushes) for name, array in feeds.items()}


def _nudged(array: Array, rng: np.random.Generator, flushes: bool) -> Array:
    if array.dtype.kind not in "fV" or not array.size:
        return array
    step = ULPS * float(ml_dtypes.finfo(array.dtype).eps) * rng.uniform(-1, 1, array.shape)
    with np.errstate(all="ignore"):
        wide = array.astype(np.float64)
        if flushes:
            is_subnormal = np.abs(wide) < float(ml_dtypes.finfo(array.dtype).tiny)
            wide = np.where(is_subnormal, 0.0, wide)
        return np.asarray(wide + step * np.abs(wide), array.dtype)


def serve(connection: Connection) -> None:
    """Answer requests."""
    answer_requests(connection, Judge().handle)

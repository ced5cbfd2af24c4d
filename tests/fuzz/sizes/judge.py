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
from onnx.reference.op_run import OpRun
from onnx.reference.ops import op_grid_sample

from tests.fuzz.graph import Array, captured
from tests.fuzz.sizes.inputs import Feeds
from tests.fuzz.sizes.processes import Failure, answer_requests

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


class Pow(OpRun):  # type: ignore[misc]
    """Powers of integers: 0 to a negative power, which is undefined, is 0."""

    def _run(self, x: Array, y: Array) -> tuple[Array]:
        if x.dtype.kind == "f":
            return (np.power(x, y).astype(x.dtype),)
        power = np.power(x.astype(np.float64), y.astype(np.float64))
        return (np.where(np.isfinite(power), np.trunc(power), 0).astype(x.dtype),)


class LRN(OpRun):  # type: ignore[misc]
    """The definition, with each window summed by itself. onnx.reference reads past the channels.
    The sum of onnxruntime slides: a NaN or a large number stays in the sums of later channels.
    """

    def _run(self, x: Array, alpha: float, beta: float, bias: float, size: int) -> tuple[Array]:
        squares = np.square(x.astype(np.float64))
        channels = x.shape[1]
        sums = np.zeros_like(squares)
        for c in range(channels):
            window = slice(max(c - (size - 1) // 2, 0), min(c + size // 2, channels - 1) + 1)
            sums[:, c] = squares[:, window].sum(axis=1)
        return ((x / (bias + alpha / size * sums) ** beta).astype(x.dtype),)


FAR = 1e4
"""The largest position of a grid, from -1 to 1 inside, that a reference is asked for."""


class GridSample(op_grid_sample.GridSample):  # type: ignore[misc]
    """The operator of ONNX's own domain. onnxruntime casts infinite positions to integers, which
    onnx.reference refuses to do: here they are far outside, and a NaN is nowhere.
    """

    op_domain = "com.microsoft"

    def _run(
        self,
        x: Array,
        grid: Array,
        align_corners: int = 0,
        mode: str = "bilinear",
        padding_mode: str = "zeros",
    ) -> tuple[Array]:
        mode = {"bilinear": "linear", "bicubic": "cubic"}.get(mode, mode)
        places = np.clip(np.nan_to_num(grid, posinf=FAR, neginf=-FAR), -FAR, FAR)
        (result,) = super()._run(x, places, mode, padding_mode, align_corners)
        is_nowhere = np.isnan(grid).any(axis=-1)[:, None]
        return (np.where(is_nowhere, np.float32(np.nan), result),)


class DynamicQuantizeMatMul(OpRun):  # type: ignore[misc]
    """Exact products: onnxruntime's saturate on x86 without VNNI, whatever the option says."""

    op_domain = "com.microsoft"

    def _run(
        self, a: Array, b: Array, scale: Array, zero: Array | None = None, bias: Array | None = None
    ) -> tuple[Array]:
        low, high = min(a.min(), 0), max(a.max(), 0)
        step = np.float32((high - low) / np.float32(255)) if high > low else np.float32(1)
        offset = np.clip(np.rint(-low / step), 0, 255)
        quantised = np.clip(np.rint(a / step) + offset, 0, 255).astype(np.int64) - int(offset)
        weights = b.astype(np.int64) - (0 if zero is None else zero.astype(np.int64))
        product = (quantised @ weights).astype(np.float32) * (step * scale)
        return (product if bias is None else product + bias,)


EXACT = (Pow, LRN, GridSample, DynamicQuantizeMatMul)
"""Operators that onnx.reference does not have, or that it computes wrong."""


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
            is_normal = np.abs(wide) >= float(ml_dtypes.finfo(array.dtype).tiny)
            wide = np.where(is_normal, wide, 0.0)
        return np.asarray(wide + step * np.abs(wide), array.dtype)


def serve(connection: Connection) -> None:
    """Answer requests."""
    answer_requests(connection, Judge().handle)

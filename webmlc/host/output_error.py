"""Compare one output of a model with the output of a reference.

In: two arrays. Out: an `OutputError`, whose verdict also considers how much the reference varies.

    error = compare("y", expected, actual, tolerance=1e-3)
    assert error.verdict == "passed"
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import GraphProto, NodeProto, numpy_helper

Array = NDArray[Any]
Verdict = Literal["passed", "failed", "inconclusive"]
MIN_SHARE_WITHIN_ONE_STEP = 0.999
"""The share of a quantised output's elements that must be at most one quantisation step off.

Chosen by hand: an element between two steps may round either way.
"""
MAX_SPREADS = 4.0
"""An error of at most this many times the spread of the reference itself is inconclusive.

Chosen by hand: if the model draws random numbers, any two evaluations are about equally far apart.
"""
DISTURBANCE = 1e-6
"""The disturbance of inputs that shows the sensitivity of the reference, relative to each element:
some sixteen times the rounding of a float32 (chosen by hand).
"""
MAX_SENSITIVITY = 0.1
"""A reference that disturbed inputs move by a larger share of the output than this says nothing
(chosen by hand).
"""
ROUNDING = 1.001
"""An error of at most this many quantisation steps counts as one step.

Chosen by hand: float32 rounds when it multiplies by the scale.
"""


@dataclass(frozen=True, slots=True)
class OutputError:
    """The largest error of one output: absolute, and relative to the largest expected element.

    - `steps` (quantised outputs): the error in quantisation steps.
    - `within` (quantised outputs): the share of the elements that are at most one step off.
    - `spread` (outputs that are too far from the reference): the difference between two evaluations
      of the reference, with and without its optimisations, in the unit of `relative`.
    - `sensitivity` (the same outputs): how far the reference moves when the inputs are disturbed by
      `DISTURBANCE`, in the unit of `relative`.
    - `is_random`: random numbers that the model draws decide the output.
    - `reference`: this output's reference, if it is not the reference of the whole result.
    - `sizes`: the sizes of the inputs' symbolic dimensions, if they differ from the first
      comparison ("batch = 2").
    - `refusal`: why the package refused these inputs, which the reference ran.
    """

    output: str
    shape: tuple[int, ...]
    scale: float
    error: float
    relative: float
    passed: bool
    steps: float | None = None
    within: float | None = None
    spread: float | None = None
    sensitivity: float | None = None
    is_random: bool = False
    reference: str | None = None
    sizes: str = ""
    refusal: str = ""

    @property
    def verdict(self) -> Verdict:
        """The verdict on this output. It passes if the reference itself moves as much when its
        inputs are disturbed a little. It is inconclusive if the reference moves by a large share of
        the output, if it differs from itself, or if the output is random.
        """
        if self.passed:
            return "passed"
        if self.is_random and self.relative < float("inf"):
            return "inconclusive"
        if self.is_as_sensitive:
            return "passed" if (self.sensitivity or 0.0) <= MAX_SENSITIVITY else "inconclusive"
        return "inconclusive" if self.varies_as_much else "failed"

    @property
    def varies_as_much(self) -> bool:
        """True if the error is about as large as the spread of the reference."""
        return self.relative <= MAX_SPREADS * (self.spread or 0.0)

    @property
    def is_as_sensitive(self) -> bool:
        """True if the error is about as large as the change by disturbed inputs."""
        return 0 < self.relative <= MAX_SPREADS * (self.sensitivity or 0.0)


def compare(
    name: str, expected: Array, actual: Array, tolerance: float, step: float | None = None
) -> OutputError:
    """Compute the error of one output. NaNs and infinities must be in the same places.

    `step` is the quantisation step, if the output is quantised.
    """
    if expected.shape != actual.shape:
        return OutputError(name, actual.shape, 0.0, float("inf"), float("inf"), False)
    if expected.size == 0:
        return OutputError(name, actual.shape, 0.0, 0.0, 0.0, True)
    if actual.dtype == object:  # texts: the error is 1 if some of them differ
        expected, actual = np.zeros(actual.shape, np.int64), np.asarray(expected != actual)
    expected_values, actual_values = expected.astype(np.float64), actual.astype(np.float64)
    finite = np.isfinite(expected_values)
    nonfinite_agree = np.array_equal(
        expected_values[~finite], actual_values[~finite], equal_nan=True
    )
    errors = np.abs(expected_values[finite] - actual_values[finite])
    error = float(errors.max(initial=0.0)) if nonfinite_agree else float("inf")
    scale = float(np.abs(expected_values[finite]).max(initial=0.0))
    relative = error / scale if scale else error
    if step is not None and nonfinite_agree:
        within = float(np.mean(errors <= step * ROUNDING))
        passed = within >= MIN_SHARE_WITHIN_ONE_STEP
        return OutputError(name, actual.shape, scale, error, relative, passed, error / step, within)
    is_exact = not np.issubdtype(expected.dtype, np.floating)
    passed = bool(error == 0.0 if is_exact else relative <= tolerance)
    return OutputError(name, actual.shape, scale, error, relative, passed)


def with_spread(error: OutputError, first: Array, second: Array) -> OutputError:
    """Add the difference between two evaluations of the reference to an error that is too large."""
    if error.passed or error.steps is not None or not np.issubdtype(first.dtype, np.floating):
        return error
    return replace(error, spread=compare(error.output, first, second, 0.0).relative)


def with_sensitivity(error: OutputError, first: Array, disturbed: Array) -> OutputError:
    """Add how far the output of the reference moved on disturbed inputs to an error that is too
    large. The largest of several calls counts.
    """
    if error.passed:
        return error
    moved = compare(error.output, first, disturbed, 0.0).relative
    return replace(error, sensitivity=max(moved, error.sensitivity or 0.0))


_MOVES = frozenset({"Reshape", "Transpose", "Squeeze", "Unsqueeze", "Flatten", "Identity", "Cast"})


def quantisation_steps(model: onnx.ModelProto) -> dict[str, float]:
    """The step of every quantised output of the model; the largest step if it has several."""
    producers = {name: node for node in model.graph.node for name in node.output}
    steps = {o.name: _step(model.graph, producers, o.name) for o in model.graph.output}
    return {name: step for name, step in steps.items() if step is not None}


def _step(graph: GraphProto, producers: dict[str, NodeProto], value: str) -> float | None:
    producer = producers.get(value)
    while producer is not None and producer.op_type in _MOVES:
        producer = producers.get(producer.input[0])
    if producer is None:
        return None
    if producer.op_type == "QuantizeLinear" or producer.op_type.startswith("QLinear"):
        return 1.0
    if producer.op_type != "DequantizeLinear":
        return None
    scale = _constant(graph, producers, producer.input[1])
    return None if scale is None else float(np.abs(scale).max())


def _constant(graph: GraphProto, producers: dict[str, NodeProto], name: str) -> np.ndarray | None:
    """The array of an initialiser or of a Constant node, also through Identity nodes."""
    producer = producers.get(name)
    while producer is not None and producer.op_type == "Identity":
        name = producer.input[0]
        producer = producers.get(name)
    if (
        producer is not None
        and producer.op_type == "Constant"
        and producer.attribute[0].name == "value"
    ):
        return numpy_helper.to_array(producer.attribute[0].t)
    tensors = (t for t in graph.initializer if t.name == name)
    return next((numpy_helper.to_array(t) for t in tensors), None)

"""Run a damaged ONNX model by onnxruntime and by `onnx.reference`.

Each runtime may refuse a model for a reason that does not touch its meaning (`onnx_twins.py`). Then
it runs a twin, a model of the same meaning without that part.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import ml_dtypes
import numpy as np
import onnx
import onnxruntime
from onnx.reference import ReferenceEvaluator

from tests.graph.ops.test_rows import REFERENCE_DIFFERS
from tests.users.mutations.onnx_twins import explicit_twin, repaired_twin, sorted_twin
from tests.users.mutations.small_floats import round_once
from webmlc.graph.table import OPS

Values = Mapping[str, Any]

REASON = 160
"""The characters that a message shows of a runtime's refusal."""

ONNXRUNTIME_DIFFERS = {
    "MaxUnpool": "places indices in `output_shape`, not in the shape that the kernel implies",
    "NhwcMaxPool": "rounds the negative count of windows larger than the input towards 0, not down",
    "QLinearSoftmax": "multiplies by the whole part of 1 / scale instead of dividing by the scale",
}
"""The operators that onnxruntime computes otherwise than the tests of ONNX, or than quantisation is
defined.
"""
_CASTS = {
    name: "casts NaN and quotients beyond 32 bits to integers, which C++ leaves undefined"
    for domain, name in OPS
    if name.startswith("QLinear") or name == "QuantizeLinear"
}
Numbers = Literal["ordinary", "extreme", "not finite"]
"""The constants of a model: all of them ordinary, or one of them enormous, tiny or a scale of 0, or
one of them infinite or NaN.
"""
_NOT_NUMBERS = {
    "ArgMax": "takes no NaN for the largest number",
    "ArgMin": "takes no NaN for the smallest number",
    "MaxPool": "keeps or loses a NaN by its place in a vector",
}
UNDEFINED: Mapping[Numbers, Mapping[str, str]] = {
    "ordinary": {},
    "extreme": {**_CASTS, **_NOT_NUMBERS},  # sums of enormous numbers are NaN
    "not finite": {
        **_CASTS,
        **_NOT_NUMBERS,
        "GRU": "skips the product with an initial state of zeros",
        "LSTM": "skips the product with an initial state of zeros",
        "MaxRoiPool": "casts corners that are not finite to integers, which C++ leaves undefined",
        "RNN": "skips the product with an initial state of zeros",
    },
}
"""The operators whose results are not defined with such constants, and what onnxruntime does."""


@dataclass(frozen=True, slots=True)
class References:
    """The results of the runtimes that run a model, and the reasons of those that do not."""

    results: Mapping[str, Values]
    refusals: Mapping[str, str]

    @property
    def runs(self) -> bool:
        """True if onnxruntime runs the model as it is."""
        return "onnxruntime" in self.results

    @property
    def reasons(self) -> str:
        return "; ".join(f"{name}: {reason[:REASON]}" for name, reason in self.refusals.items())

    def oracles(self, operators: set[str], outputs: Values, numbers: Numbers) -> dict[str, Values]:
        """The results of which a right package has one. `numbers` says what the constants of the
        model are.

        Results of `onnx.reference` are left out if the model has an operator that it computes
        wrongly (`tests/graph/ops/test_rows.py`), and results of onnxruntime for the operators of
        `ONNXRUNTIME_DIFFERS`. Operators of `UNDEFINED` have no oracle.
        If onnxruntime has none, results of `onnx.reference` must have the dtypes of the package's:
        numpy decides the dtypes of many operators.
        """
        if operators & UNDEFINED[numbers].keys():
            return {}
        oracles = {
            name: values
            for name, values in self.results.items()
            if name == "onnx" or not operators & ONNXRUNTIME_DIFFERS.keys()
        }
        if "onnx" not in oracles:
            return oracles
        is_wrong = bool(operators & REFERENCE_DIFFERS.keys())
        pairs = ((outputs.get(name), value) for name, value in oracles["onnx"].items())
        is_typed = all(getattr(a, "dtype", None) == getattr(b, "dtype", None) for a, b in pairs)
        if is_wrong or (len(oracles) == 1 and not is_typed):
            del oracles["onnx"]
        return oracles


def references_of(path: Path, feeds: Values) -> References:
    """Run a model by each runtime. A twin runs only if onnxruntime refuses the model."""
    results: dict[str, Values] = {}
    refusals: dict[str, str] = {}

    def attempt(name: str, run: Callable[[], Values]) -> None:
        try:
            results[name] = run()
        except Exception as error:  # the references raise whatever they meet
            refusals[name] = f"{type(error).__name__}: {' '.join(str(error).split())}"

    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        attempt("onnxruntime", lambda: run_onnxruntime(str(path), feeds))
        if not results:
            attempt("onnxruntime on a twin", lambda: _run_repaired(path, feeds))
        attempt("onnx", lambda: _run_onnx_reference(path, feeds))
    return References(results, refusals)


def explicit_results(path: Path, feeds: Values) -> Values | None:
    """The results of the model's explicit twin by onnxruntime, or None if it has none."""
    try:
        twin = explicit_twin(onnx.load(path))
        return None if twin is None else run_onnxruntime(twin.SerializeToString(), feeds)
    except Exception:
        return None


def run_onnxruntime(model: str | bytes, feeds: Values) -> Values:
    """Run a model, given as a path or as bytes. Bytes are run as they are, without fusions."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    if isinstance(model, bytes):
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    outputs = session.get_outputs()
    results = session.run(None, dict(feeds))
    return {o.name: _typed(v, o.type) for o, v in zip(outputs, results, strict=True)}


def _typed(value: Any, name: str) -> Any:
    """A result of onnxruntime in its own type. onnxruntime returns the bytes of small floats."""
    element = name.removeprefix("tensor(").removesuffix(")")
    if not element.startswith("float8"):
        return value
    return value.view(getattr(ml_dtypes, element.replace("float8", "float8_")))


def _run_repaired(path: Path, feeds: Values) -> Values:
    return run_onnxruntime(repaired_twin(onnx.load(path)).SerializeToString(), feeds)


def _run_onnx_reference(path: Path, feeds: Values) -> Values:
    evaluator = ReferenceEvaluator(sorted_twin(onnx.load(path)))
    round_once(evaluator)
    return dict(zip(evaluator.output_names, evaluator.run(None, dict(feeds)), strict=True))

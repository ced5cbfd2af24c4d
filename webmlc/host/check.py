"""Compare a compiled model with onnxruntime (or `onnx.reference`, where that cannot run it).

In: an ONNX file. Out: the error of each output relative to its scale and, on a mismatch, the first
node whose result differs, found by building the model up to one value after another (bisection).

    result = check_model(Path("model.onnx"), build, "wasm", threads=1)
    assert result.verdict == "passed", result.first_difference

Where the references disagree among themselves, a difference says nothing: the result is
`inconclusive`.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import onnx
import onnx.utils
from numpy.typing import NDArray

from webmlc.core.errors import InputError, WebmlcError
from webmlc.frontend.bind_constants import Constants, bind_constants
from webmlc.frontend.sort_nodes import sort_nodes
from webmlc.host.load import load
from webmlc.host.quantisation_step import quantisation_steps
from webmlc.host.try_model import Build, read_inputs

Array = NDArray[Any]
WITHIN_ONE_STEP = 0.999
"""The share of a quantised output's elements that must be at most one step off."""
Verdict = Literal["passed", "failed", "inconclusive"]
ONNXRUNTIME, ONNX_REFERENCE = "onnxruntime", "onnx.reference"
MOST_SPREADS = 4.0
"""An error of up to this many times what the reference differs from itself tells nothing: two draws
of random numbers are about as far apart as any other two."""
_ROUNDING = 1.001
"""A step, and what float32 adds to it when it multiplies by the scale."""


@dataclass(frozen=True, slots=True)
class OutputError:
    """The largest error of one output: absolute, and relative to the largest expected element.

    Of a quantised output also `steps`, the error in steps of its quantisation, and `within`, the
    share of the elements that are at most one step off. `spread`: of an output that is too far
    from the reference, how far two evaluations of the reference itself are apart, as `relative`:
    where the error is not much larger, the output is inconclusive. `reference`: what it was
    compared with, where that is not the result's reference.
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
    reference: str | None = None

    @property
    def verdict(self) -> Verdict:
        """Whether the output is within the tolerance, or whether that can be said at all."""
        if self.passed:
            return "passed"
        is_comparable = self.relative > MOST_SPREADS * (self.spread or 0.0)
        return "failed" if is_comparable else "inconclusive"


@dataclass(frozen=True, slots=True)
class CheckResult:
    """What a check found; `first_difference` names the first ONNX node that differs."""

    outputs: tuple[OutputError, ...]
    reference: str
    first_difference: str | None = None

    @property
    def verdict(self) -> Verdict:
        """The worst of the outputs': failed before inconclusive before passed."""
        verdicts = {output.verdict for output in self.outputs}
        order: tuple[Verdict, ...] = ("failed", "inconclusive")
        return next((verdict for verdict in order if verdict in verdicts), "passed")

    def notes(self) -> list[str]:
        """A sentence for each output whose verdict needs one."""
        notes = []
        for output in self.outputs:
            if output.verdict == "inconclusive":
                notes.append(
                    f"{output.output}: {self.reference} with and without its optimisations differs "
                    f"from itself by {output.spread:.2g}: an error of {output.relative:.2g} says "
                    "nothing. Does the model draw random numbers, or was it exported without "
                    "model.eval()?"
                )
            elif output.reference is not None:
                notes.append(
                    f"{output.output}: {self.reference} differs, and webmlc agrees with "
                    f"{output.reference}."
                )
            elif output.steps is not None and output.steps > _ROUNDING:
                notes.append(
                    f"{output.output}: at least {WITHIN_ONE_STEP:.1%} of the elements are within "
                    "one quantisation step."
                )
        return notes

    def rows(self) -> list[dict[str, Any]]:
        """A row per output, to print."""
        quantised = any(o.steps is not None for o in self.outputs)
        spread = any(o.spread is not None for o in self.outputs)
        several = any(o.reference is not None for o in self.outputs)
        return [
            {
                "output": o.output,
                "shape": list(o.shape),
                "scale": o.scale,
                "error": o.error,
                "relative": o.relative,
                **({"steps": o.steps, "within one": o.within} if quantised else {}),
                **({"reference's own": o.spread} if spread else {}),
                **({"against": o.reference or self.reference} if several else {}),
                "verdict": o.verdict,
            }
            for o in self.outputs
        ]


def check_model(
    path: Path,
    build: Build,
    device: Literal["wasm", "webgpu"],
    threads: int = 1,
    sizes: Mapping[str, int] | None = None,
    seed: int = 0,
    tolerance: float = 1e-3,
    given: Path | None = None,
    constants: Constants | None = None,
) -> CheckResult:
    """Run the model both ways on the same inputs and compare every output.

    `given` is a `.npz` file of inputs; those that it does not hold are random. `constants` are
    built in; the reference takes them as inputs.

    `tolerance` is relative to the largest expected element of the output; integers and booleans
    must be equal. Of a quantised output `WITHIN_ONE_STEP` of the elements may be one step of its
    quantisation off: what lies between two steps rounds by the last bit of a float. An output that
    is too far from onnxruntime may agree with `onnx.reference` instead (a sigmoid far below one, of
    which onnxruntime computes few digits), and its row says so; one that is not much farther from
    it than onnxruntime is from itself, without its optimisations, is inconclusive. Raises what
    building and running raise.
    """
    fixed = constants or {}
    with tempfile.TemporaryDirectory(prefix="webmlc-check-") as scratch:
        package = Path(scratch) / "package"
        build(path, package, constants=fixed)
        model = load(package, device, threads)
        inputs = read_inputs(model, given, sizes or {}, seed)
        actual = model.run(inputs)
        model.dispose()
    source = onnx.load(path, load_external_data=False)
    inputs |= bind_constants(source.graph, fixed)[0]
    expected, reference = run_reference(path, inputs)
    steps = quantisation_steps(source)
    errors = tuple(compare(n, expected[n], a, tolerance, steps.get(n)) for n, a in actual.items())
    if reference == ONNXRUNTIME and not all(e.passed for e in errors):
        errors = _against_either(errors, path, inputs, actual, tolerance, steps)
    if reference == ONNXRUNTIME and not all(e.passed for e in errors):
        plain, _ = run_reference(path, inputs, optimised=False)
        errors = tuple(with_spread(e, expected[e.output], plain[e.output]) for e in errors)
    result = CheckResult(errors, reference)
    if result.verdict != "failed":
        return result
    first = _first_difference(path, build, device, inputs, tolerance, fixed)
    return CheckResult(errors, reference, first)


def run_reference(
    path: Path, inputs: Mapping[str, Array], optimised: bool = True
) -> tuple[dict[str, Array], str]:
    """The expected outputs, and who computed them. Raises `InputError` where nobody can."""
    try:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.log_severity_level = 4
        if not optimised:
            options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
        session = onnxruntime.InferenceSession(
            str(path), options, providers=["CPUExecutionProvider"]
        )
        names = [o.name for o in session.get_outputs()]
        results = session.run(None, dict(inputs))
        return _tensors(names, results), ONNXRUNTIME
    except Exception as error:  # onnxruntime raises its own classes, one per status
        try:
            return _run_onnx_reference(path, inputs), ONNX_REFERENCE
        except Exception as second:
            raise InputError(
                f"no reference can run {path} on these inputs; try other sizes (--dim) or "
                f"inputs of your own (--inputs)\n  onnxruntime: {error}\n  onnx.reference: {second}"
            ) from second


def _run_onnx_reference(path: Path, inputs: Mapping[str, Array]) -> dict[str, Array]:
    """The expected outputs by numpy; raises what an operator's Python raises."""
    from onnx.reference import ReferenceEvaluator

    evaluator = ReferenceEvaluator(str(path))
    return _tensors(evaluator.output_names, list(evaluator.run(None, dict(inputs))))


def _tensors(names: Sequence[str], results: Any) -> dict[str, Array]:
    """Results by output name; the elements of a sequence by its name and their position.

    ZipMap's dictionaries, one a row, are the table whose columns are their keys.
    """
    tensors: dict[str, Array] = {}
    for name, result in zip(names, results, strict=True):
        if isinstance(result, list) and result and isinstance(result[0], dict):
            tensors[name] = np.array([list(row.values()) for row in result], np.float32)
        elif isinstance(result, list):
            tensors |= {f"{name}/{i}": element for i, element in enumerate(result)}
        else:
            tensors[name] = result
    return tensors


def compare(
    name: str, expected: Array, actual: Array, tolerance: float, step: float | None = None
) -> OutputError:
    """The error of one output; NaNs and infinities must be in the same places.

    `step` is that of the output's quantisation, where it is quantised.
    """
    if expected.shape != actual.shape:
        return OutputError(name, actual.shape, 0.0, float("inf"), float("inf"), False)
    if expected.size == 0:
        return OutputError(name, actual.shape, 0.0, 0.0, 0.0, True)
    wide, own = expected.astype(np.float64), actual.astype(np.float64)
    finite = np.isfinite(wide)
    alike = np.array_equal(wide[~finite], own[~finite], equal_nan=True)
    error = float(np.abs(wide[finite] - own[finite]).max(initial=0.0)) if alike else float("inf")
    scale = float(np.abs(wide[finite]).max(initial=0.0))
    relative = error / scale if scale else error
    if step is not None and alike:
        within = float(np.mean(np.abs(wide[finite] - own[finite]) <= step * _ROUNDING))
        passed = within >= WITHIN_ONE_STEP
        return OutputError(name, actual.shape, scale, error, relative, passed, error / step, within)
    exact = not np.issubdtype(expected.dtype, np.floating)
    passed = bool(error == 0.0 if exact else relative <= tolerance)
    return OutputError(name, actual.shape, scale, error, relative, passed)


def with_spread(error: OutputError, one: Array, other: Array) -> OutputError:
    """The error, with how far two evaluations of the reference are apart where it is too large."""
    if error.passed or error.steps is not None or not np.issubdtype(one.dtype, np.floating):
        return error
    return replace(error, spread=compare(error.output, one, other, 0.0).relative)


def _against_either(
    errors: Sequence[OutputError],
    path: Path,
    inputs: Mapping[str, Array],
    actual: Mapping[str, Array],
    tolerance: float,
    steps: Mapping[str, float],
) -> tuple[OutputError, ...]:
    """The errors; those against `onnx.reference` where only onnxruntime differs."""
    try:
        expected = _run_onnx_reference(path, inputs)
    except Exception:  # not all that onnxruntime runs has a form in numpy
        return tuple(errors)
    found = []
    for error in errors:
        name = error.output
        other = compare(name, expected[name], actual[name], tolerance, steps.get(name))
        agrees = other.passed and not error.passed
        found.append(replace(other, reference=ONNX_REFERENCE) if agrees else error)
    return tuple(found)


def _first_difference(
    path: Path,
    build: Build,
    device: Literal["wasm", "webgpu"],
    inputs: Mapping[str, Array],
    tolerance: float,
    constants: Constants,
) -> str | None:
    """The first node, in topological order, whose result differs when the model ends there."""
    model = onnx.load(path)
    in_order = sort_nodes(model)
    nodes = [n for n in in_order.graph.node if n.op_type != "Constant" and n.output and n.output[0]]
    if not nodes:
        return None
    with tempfile.TemporaryDirectory(prefix="webmlc-check-") as scratch:
        if in_order is not model:  # onnx cuts only models that its checker accepts
            path = Path(scratch) / "sorted.onnx"
            onnx.save(in_order, path)
        low, high = 0, len(nodes) - 1
        while low < high:
            middle = (low + high) // 2
            value = nodes[middle].output[0]
            if _differs_at(path, build, device, inputs, value, tolerance, constants):
                high = middle
            else:
                low = middle + 1
    node = nodes[low]
    return f"{node.op_type} {node.name or node.output[0]!r} (value {node.output[0]!r})"


def _differs_at(
    path: Path,
    build: Build,
    device: Literal["wasm", "webgpu"],
    inputs: Mapping[str, Array],
    value: str,
    tolerance: float,
    constants: Constants,
) -> bool:
    """True where the model cut at `value` gives another result than the reference, or fails."""
    with tempfile.TemporaryDirectory(prefix="webmlc-check-") as scratch:
        cut = Path(scratch) / "cut.onnx"
        try:
            onnx.utils.extract_model(str(path), str(cut), list(inputs), [value])
            expected, _ = run_reference(cut, inputs)
        except Exception:  # the cut is no valid model by itself: it tells nothing
            return False
        try:
            build(cut, Path(scratch) / "package", constants=constants)
            model = load(Path(scratch) / "package", device)
            actual = model.run({p.name: inputs[p.name] for p in model.inputs})
            model.dispose()
        except WebmlcError:
            return True
        steps = quantisation_steps(onnx.load(cut, load_external_data=False))
    return not all(
        compare(n, expected[n], a, tolerance, steps.get(n)).passed for n, a in actual.items()
    )

"""Compare a compiled model with onnxruntime, or with `onnx.reference` if that cannot run it.

In: a model file. Out: the error of each output relative to its scale. On a mismatch, also the first
node whose result differs: bisection builds the model up to one value after another.

    result = check_model(Path("model.onnx"), build_package, "wasm", threads=1)
    assert result.verdict == "passed", result.first_difference

If the references disagree with each other, a difference means nothing, and the result is
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

from webmlc.build_options import DEFAULTS, BuildOptions
from webmlc.core.errors import InputError, UserError, WebmlcError
from webmlc.frontend.bind_constants import bind_constants
from webmlc.frontend.doors.export_source import export_source
from webmlc.frontend.gguf.file import is_gguf
from webmlc.frontend.sort_nodes import sort_nodes
from webmlc.host.load import load
from webmlc.host.quantisation_step import quantisation_steps
from webmlc.host.try_model import Build, read_inputs, suggest_options

Array = NDArray[Any]
MIN_SHARE_WITHIN_ONE_STEP = 0.999
"""The share of a quantised output's elements that must be at most one quantisation step off.

Chosen by hand: an element between two steps may round either way.
"""
Verdict = Literal["passed", "failed", "inconclusive"]
ONNXRUNTIME, ONNX_REFERENCE = "onnxruntime", "onnx.reference"
MAX_SPREADS = 4.0
"""An error of at most this many times the spread of the reference itself is inconclusive.

Chosen by hand: if the model draws random numbers, any two evaluations are about equally far apart.
"""
_ROUNDING = 1.001
"""An error of at most this many quantisation steps counts as one step.

Chosen by hand: float32 rounds when it multiplies by the scale.
"""


@dataclass(frozen=True, slots=True)
class OutputError:
    """The largest error of one output: absolute, and relative to the largest expected element.

    - `steps` (quantised outputs): the error in quantisation steps.
    - `within` (quantised outputs): the share of the elements that are at most one step off.
    - `spread` (outputs that are too far from the reference): the difference between two evaluations
      of the reference, in the unit of `relative`.
    - `reference`: the reference of this output, if it differs from that of the whole result.
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
        """The verdict on this output; it is inconclusive if the reference varies as much."""
        if self.passed:
            return "passed"
        is_comparable = self.relative > MAX_SPREADS * (self.spread or 0.0)
        return "failed" if is_comparable else "inconclusive"


@dataclass(frozen=True, slots=True)
class CheckResult:
    """The result of a check; `first_difference` names the first ONNX node that differs."""

    outputs: tuple[OutputError, ...]
    reference: str
    first_difference: str | None = None

    @property
    def verdict(self) -> Verdict:
        """The worst verdict of the outputs: failed, then inconclusive, then passed."""
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
                    f"{output.output}: at least {MIN_SHARE_WITHIN_ONE_STEP:.1%} of the elements "
                    "are within one quantisation step."
                )
        return notes

    def rows(self) -> list[dict[str, Any]]:
        """Build a row per output, to print."""
        has_steps = any(o.steps is not None for o in self.outputs)
        has_spread = any(o.spread is not None for o in self.outputs)
        has_references = any(o.reference is not None for o in self.outputs)
        return [
            {
                "output": o.output,
                "shape": list(o.shape),
                "scale": o.scale,
                "error": o.error,
                "relative": o.relative,
                **({"steps": o.steps, "within one": o.within} if has_steps else {}),
                **({"reference's own": o.spread} if has_spread else {}),
                **({"against": o.reference or self.reference} if has_references else {}),
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
    inputs_file: Path | None = None,
    options: BuildOptions = DEFAULTS,
) -> CheckResult:
    """Run the model and a reference on the same inputs, and compare every output.

    `inputs_file` is a `.npz` file; inputs that it does not hold are random. `options.constants` are
    built into the package; the reference takes them as inputs.

    `tolerance` is relative to the largest expected element of the output. Integers and booleans
    must be equal. Elements of a quantised output may be one quantisation step off, because the last
    bit of a float decides how an element between two steps rounds. All but a share of
    1 - `MIN_SHARE_WITHIN_ONE_STEP` must be that close.

    An output that is too far from onnxruntime may agree with `onnx.reference` instead, and its row
    says so. An example is a sigmoid far below one, of which onnxruntime computes few digits. The
    other outputs are compared with the spread between onnxruntime with and without optimisations:
    see `MAX_SPREADS`. A model of another framework is exported once, and the export is checked.
    Raises every error of building and running.
    """
    if is_gguf(path):
        raise UserError(
            f"{path}: webmlc check compares with onnxruntime, which does not read GGUF files. "
            "Use webmlc run."
        )
    model = export_source(path)
    if not isinstance(model, onnx.ModelProto):
        return _check_onnx(
            path, build, device, threads, sizes, seed, tolerance, inputs_file, options
        )
    with tempfile.TemporaryDirectory(prefix="webmlc-export-") as scratch:
        exported = Path(scratch) / f"{path.stem}.onnx"
        onnx.save(model, exported)
        return _check_onnx(
            exported, build, device, threads, sizes, seed, tolerance, inputs_file, options
        )


def _check_onnx(
    path: Path,
    build: Build,
    device: Literal["wasm", "webgpu"],
    threads: int,
    sizes: Mapping[str, int] | None,
    seed: int,
    tolerance: float,
    inputs_file: Path | None,
    options: BuildOptions,
) -> CheckResult:
    """Check an ONNX file (see `check_model`)."""
    options = replace(options, target=device)
    with tempfile.TemporaryDirectory(prefix="webmlc-check-") as scratch:
        package = Path(scratch) / "package"
        build(path, package, options)
        model = load(package, device, threads)
        inputs = read_inputs(model, inputs_file, sizes or {}, seed)
        with suggest_options("--dim or --inputs", bool(sizes or inputs_file)):
            actual = model.run(inputs)
        model.dispose()
    source = onnx.load(path, load_external_data=False)
    inputs |= bind_constants(source.graph, options.constants or {})[0]
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
    first = _first_difference(path, build, device, inputs, tolerance, options)
    return CheckResult(errors, reference, first)


def run_reference(
    path: Path, inputs: Mapping[str, Array], optimised: bool = True
) -> tuple[dict[str, Array], str]:
    """Compute the expected outputs, and name the reference. Raises `InputError` if none can."""
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
    """Compute the expected outputs with `onnx.reference`; raises any error of its operators."""
    from onnx.reference import ReferenceEvaluator

    evaluator = ReferenceEvaluator(str(path))
    return _tensors(evaluator.output_names, list(evaluator.run(None, dict(inputs))))


def _tensors(names: Sequence[str], results: Any) -> dict[str, Array]:
    """Return the results by output name.

    The name of a sequence's element is that of the sequence and its position. The dictionaries of
    ZipMap, one per row, become a table with a column per key.
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
    """Compute the error of one output. NaNs and infinities must be in the same places.

    `step` is the quantisation step, if the output is quantised.
    """
    if expected.shape != actual.shape:
        return OutputError(name, actual.shape, 0.0, float("inf"), float("inf"), False)
    if expected.size == 0:
        return OutputError(name, actual.shape, 0.0, 0.0, 0.0, True)
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
        within = float(np.mean(errors <= step * _ROUNDING))
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


def _against_either(
    errors: Sequence[OutputError],
    path: Path,
    inputs: Mapping[str, Array],
    actual: Mapping[str, Array],
    tolerance: float,
    steps: Mapping[str, float],
) -> tuple[OutputError, ...]:
    """Replace the errors of outputs that differ from onnxruntime, but not from `onnx.reference`."""
    try:
        expected = _run_onnx_reference(path, inputs)
    except Exception:  # onnx.reference lacks some models that onnxruntime runs
        return tuple(errors)
    result = []
    for error in errors:
        name = error.output
        other = compare(name, expected[name], actual[name], tolerance, steps.get(name))
        agrees = other.passed and not error.passed
        result.append(replace(other, reference=ONNX_REFERENCE) if agrees else error)
    return tuple(result)


def _first_difference(
    path: Path,
    build: Build,
    device: Literal["wasm", "webgpu"],
    inputs: Mapping[str, Array],
    tolerance: float,
    options: BuildOptions,
) -> str | None:
    """Describe the first node, in order, whose result differs if the model ends there."""
    model = onnx.load(path)
    in_order = sort_nodes(model)
    nodes = [n for n in in_order.graph.node if n.op_type != "Constant" and n.output and n.output[0]]
    if not nodes:
        return None
    with tempfile.TemporaryDirectory(prefix="webmlc-check-") as scratch:
        if in_order is not model:  # onnx extracts parts only of models that its checker accepts
            path = Path(scratch) / "sorted.onnx"
            onnx.save(in_order, path)
        low, high = 0, len(nodes) - 1
        while low < high:
            middle = (low + high) // 2
            value = nodes[middle].output[0]
            if _differs_at(path, build, device, inputs, value, tolerance, options):
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
    options: BuildOptions,
) -> bool:
    """True if the model cut at `value` fails, or gives another result than the reference."""
    with tempfile.TemporaryDirectory(prefix="webmlc-check-") as scratch:
        cut = Path(scratch) / "cut.onnx"
        try:
            onnx.utils.extract_model(str(path), str(cut), list(inputs), [value])
            expected, _ = run_reference(cut, inputs)
        except Exception:  # the part is not a valid model by itself
            return False
        try:
            build(cut, Path(scratch) / "package", options)
            model = load(Path(scratch) / "package", device)
            actual = model.run({p.name: inputs[p.name] for p in model.all_inputs})
            model.dispose()
        except WebmlcError:
            return True
        steps = quantisation_steps(onnx.load(cut, load_external_data=False))
    return not all(
        compare(n, expected[n], a, tolerance, steps.get(n)).passed for n, a in actual.items()
    )

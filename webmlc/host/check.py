"""Compare a compiled model with onnxruntime, or with `onnx.reference` if onnxruntime cannot run it.

In: a model file, or the folder of a package and the model that it was built from. Out: the error of
each output relative to its scale. On a mismatch, also the first node whose result differs.

    result = check_model(Path("model.onnx"), build_package, CheckOptions("wasm", threads=1))
    assert result.verdict == "passed", result.first_difference

The sizes 1 and 2 of each batch are compared, too, unless the caller chose the inputs. A difference
means nothing if the references disagree with each other, or if the model draws random numbers. The
result is then `inconclusive`.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import onnx
from numpy.typing import NDArray

from webmlc.build_options import DEFAULTS, BuildOptions
from webmlc.core.errors import InputError, UserError
from webmlc.frontend.bind_constants import bind_constants
from webmlc.frontend.doors.export_source import export_source
from webmlc.frontend.file_kinds import is_kind
from webmlc.frontend.protos import subgraphs
from webmlc.graph.checks.example_sizes import batch_symbols
from webmlc.graph.checks.warn_of_training import RANDOM
from webmlc.graph.table import with_rows
from webmlc.host.check_options import CheckOptions
from webmlc.host.first_difference import first_difference
from webmlc.host.load import Model, load
from webmlc.host.output_error import (
    DISTURBANCE,
    MIN_SHARE_WITHIN_ONE_STEP,
    ROUNDING,
    OutputError,
    Verdict,
    compare,
    quantisation_steps,
    with_sensitivity,
    with_spread,
)
from webmlc.host.reference import (
    ONNX_REFERENCE,
    ONNXRUNTIME,
    run_onnx_reference,
    run_reference,
)
from webmlc.host.try_model import Build, random_inputs, suggest_options
from webmlc.package.manifest import MANIFEST
from webmlc.package.sizes import from_size

Array = NDArray[Any]
BATCHES = (1, 2)
"""The sizes of a batch that are compared: users mostly run 1, and 2 shows faults that 1 hides."""
DISTURBED_RUNS = 3
"""The runs of the reference on disturbed inputs (chosen by hand)."""


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
        return [note for output in self.outputs if (note := self._note(output))]

    def _note(self, output: OutputError) -> str:
        subject = f"{output.output} ({output.sizes})" if output.sizes else output.output
        if output.refusal:
            return f"{output.sizes}: the package refuses what the reference runs. {output.refusal}"
        if output.verdict == "inconclusive" and output.is_random:
            return (
                f"{subject}: the model draws random numbers, so no two runs are equal. Nothing "
                "but the shape was compared."
            )
        if output.verdict == "inconclusive" and output.varies_as_much:
            return (
                f"{subject}: {self.reference} with and without its optimisations differs "
                f"from itself by {output.spread:.2g}: an error of {output.relative:.2g} says "
                "nothing. Was the model exported without model.eval()?"
            )
        if not output.passed and output.is_as_sensitive:
            says = "says nothing" if output.verdict == "inconclusive" else "is no larger"
            return (
                f"{subject}: {self.reference} itself moves by {output.sensitivity:.2g} if the "
                f"inputs change by {DISTURBANCE:g} of their size: an error of "
                f"{output.relative:.2g} {says}."
            )
        if output.reference is not None:
            return (
                f"{subject}: {self.reference} differs, and webmlc agrees with {output.reference}."
            )
        if output.steps is not None and output.steps > ROUNDING:
            return (
                f"{subject}: at least {MIN_SHARE_WITHIN_ONE_STEP:.1%} of the elements "
                "are within one quantisation step."
            )
        return ""

    def rows(self) -> list[dict[str, Any]]:
        """Build a row per output, to print."""
        has_sizes = any(o.sizes for o in self.outputs)
        has_steps = any(o.steps is not None for o in self.outputs)
        has_spread = any(o.spread is not None for o in self.outputs)
        has_sensitivity = any(o.sensitivity is not None for o in self.outputs)
        has_references = any(o.reference is not None for o in self.outputs)
        return [
            {
                "output": o.output,
                **({"with": o.sizes} if has_sizes else {}),
                "shape": list(o.shape),
                "scale": o.scale,
                "error": _finite(o.error),
                "relative": _finite(o.relative),
                **({"steps": o.steps, "within one": o.within} if has_steps else {}),
                **({"reference's own": o.spread} if has_spread else {}),
                **({"when disturbed": o.sensitivity} if has_sensitivity else {}),
                **({"against": o.reference or self.reference} if has_references else {}),
                "verdict": o.verdict,
            }
            for o in self.outputs
        ]


def _finite(value: float) -> float | None:
    """The number, or `None` for an infinite number, which JSON does not have."""
    return value if math.isfinite(value) else None


def check_model(
    path: Path, build: Build, check: CheckOptions, options: BuildOptions = DEFAULTS
) -> CheckResult:
    """Run a model and a reference on the same inputs, and compare every output.

    `path` is a model or a package. `options.constants` are built into the package; the reference
    takes them as inputs.

    Integers and booleans must be equal. Elements of a quantised output may be one quantisation step
    off, because the last bit of a float decides how an element between two steps rounds. A share of
    at least `MIN_SHARE_WITHIN_ONE_STEP` of the elements must be within one step.

    An output that is too far from onnxruntime may agree with `onnx.reference` instead, and its row
    says so. An example is a sigmoid far below one: onnxruntime computes few digits of it. The error
    of any other output is compared with two distances: between the results of onnxruntime with and
    without optimisations, and between its results on inputs and on disturbed inputs. See
    `OutputError.verdict`. A model of another framework is exported once, and the export is checked.
    The reference of a model with operators of people's own is `onnx.reference`, together with the
    definitions of these operators.
    Raises every error of building and running.
    """
    with with_rows(operator.row for operator in options.operators):
        return _check_model(path, build, check, replace(options, target=check.device))


def _check_model(
    path: Path, build: Build, check: CheckOptions, options: BuildOptions
) -> CheckResult:
    if not (path / MANIFEST).is_file():
        if check.built_from is not None:
            raise UserError(f"{path}: --model is for the folder of a package; this is a model")
        with _onnx_file(path) as source, tempfile.TemporaryDirectory(prefix="webmlc-check-") as out:
            build(source, Path(out) / "package", options)
            model = load(Path(out) / "package", check.device, check.threads)
            comparison = _Comparison.of(model, source, check, options)
            result = comparison.result()
            model.dispose()
            if not any(o.verdict == "failed" and not o.sizes for o in result.outputs):
                return result
            inputs = comparison.inputs()
            first = first_difference(source, build, inputs, check.tolerance, options)
            return replace(result, first_difference=first)
    model = load(path, check.device, check.threads)
    try:
        if check.built_from is None:
            return _check_devices(model, path, check)
        with _onnx_file(check.built_from) as source:
            return _Comparison.of(model, source, check, options).result()
    finally:
        model.dispose()


@contextmanager
def _onnx_file(path: Path) -> Iterator[Path]:
    """The path of an ONNX file. A model of another framework is exported to a temporary file."""
    if is_kind(path, ".gguf"):
        raise UserError(
            f"{path}: webmlc check compares with onnxruntime, which does not read GGUF files. "
            "Use webmlc run."
        )
    model = export_source(path)
    if not isinstance(model, onnx.ModelProto):
        yield path
        return
    with tempfile.TemporaryDirectory(prefix="webmlc-export-") as scratch:
        exported = Path(scratch) / f"{path.stem}.onnx"
        onnx.save(model, exported)
        yield exported


def _check_devices(model: Model, folder: Path, check: CheckOptions) -> CheckResult:
    """Compare the programs of a package with each other. Raises `UserError` if it has only one."""
    other_devices: list[Literal["wasm", "webgpu"]] = [
        device for device in model.manifest.programs if device != model.device
    ]
    if not other_devices:
        raise UserError(
            f"{folder} is a package for {model.device} only: name the model that it was built "
            "from, --model model.onnx, or build it with --target both"
        )
    inputs = random_inputs(model, check.dims or {}, check.seed, check.arrays)
    other = load(folder, other_devices[0])
    try:
        expected, actual = other.run(inputs), model.run(inputs)
    finally:
        other.dispose()
    errors = tuple(compare(name, expected[name], a, check.tolerance) for name, a in actual.items())
    return CheckResult(errors, f"the package on {other_devices[0]}")


@dataclass(frozen=True, slots=True)
class _Comparison:
    """A loaded package, and the ONNX file whose results it should have.

    `steps` are the quantisation steps of outputs, and `random` the outputs that random numbers
    decide.
    """

    model: Model
    path: Path
    check: CheckOptions
    constants: Mapping[str, Array] = field(default_factory=dict)
    steps: Mapping[str, float] = field(default_factory=dict)
    random: frozenset[str] = frozenset()

    @classmethod
    def of(
        cls, model: Model, path: Path, check: CheckOptions, options: BuildOptions
    ) -> _Comparison:
        source = onnx.load(path, load_external_data=False)
        constants = bind_constants(source.graph, options.constants or {})[0]
        random = random_outputs(source)
        return cls(model, path, check, constants, quantisation_steps(source), random)

    def inputs(self, sizes: Mapping[str, int] | None = None) -> dict[str, Array]:
        """The inputs of a comparison, constants included; random inputs if `sizes` are given."""
        arrays = self.check.arrays if sizes is None else None
        sizes = {**(self.check.dims or {}), **(sizes or {})}
        return {**random_inputs(self.model, sizes, self.check.seed, arrays), **self.constants}

    def result(self) -> CheckResult:
        """Compare on the inputs, and on inputs of other batch sizes unless the inputs are given."""
        inputs = self.inputs()
        with suggest_options("--dim or --inputs", bool(self.check.dims or self.check.arrays)):
            actual = self.model.run(self.fed(inputs))
        errors, reference = self.errors(inputs, actual)
        if self.check.inputs is None:
            errors += tuple(self.batch_errors(inputs))
        return CheckResult(errors, reference)

    def fed(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """The inputs that the package has."""
        return {name: array for name, array in inputs.items() if name not in self.constants}

    def batch_errors(self, first: Mapping[str, Array]) -> Iterator[OutputError]:
        """The errors with each size of `BATCHES` that no input of the first comparison had. A
        size that the reference refuses, too, is left out.
        """
        manifest, fixed = self.model.manifest, self.check.dims or {}
        places = {
            size: (port.name, axis)
            for port in manifest.model_inputs
            for axis, size in enumerate(port.shape)
            if isinstance(size, str)
        }
        shapes = (port.shape for port in manifest.model_inputs)
        for symbol in batch_symbols(map(from_size, shape) for shape in shapes):
            name, axis = places.get(symbol, ("", 0))
            for size in BATCHES:
                if symbol in fixed or not name or first[name].shape[axis] == size:
                    continue
                inputs = self.inputs({symbol: size})
                text = f"{symbol} = {size}"
                try:
                    actual = self.model.run(self.fed(inputs))
                except InputError as error:
                    if self.reference_runs(inputs):
                        refused = OutputError("", (), 0.0, float("inf"), float("inf"), False)
                        yield replace(refused, sizes=text, refusal=str(error))
                    continue
                if self.reference_runs(inputs):
                    errors, _ = self.errors(inputs, actual)
                    yield from (replace(error, sizes=text) for error in errors)

    def reference_runs(self, inputs: Mapping[str, Array]) -> bool:
        """True if a reference computes with these inputs."""
        try:
            run_reference(self.path, inputs)
        except InputError:
            return False
        return True

    def errors(
        self, inputs: Mapping[str, Array], actual: Mapping[str, Array]
    ) -> tuple[tuple[OutputError, ...], str]:
        """Compare the outputs that the package computed, and name the reference."""
        expected, reference = run_reference(self.path, inputs)
        actual = dict(_tensors(actual, expected))
        errors = tuple(
            replace(
                compare(name, expected[name], array, self.check.tolerance, self.steps.get(name)),
                is_random=name in self.random,
            )
            for name, array in actual.items()
        )
        if reference == ONNXRUNTIME and not all(e.verdict == "passed" for e in errors):
            errors = self.against_either(errors, inputs, actual)
        if reference == ONNXRUNTIME and not all(e.verdict == "passed" for e in errors):
            plain, _ = run_reference(self.path, inputs, optimised=False)
            errors = tuple(with_spread(e, expected[e.output], plain[e.output]) for e in errors)
        for run in range(DISTURBED_RUNS if any(e.verdict != "passed" for e in errors) else 0):
            moved, _ = run_reference(self.path, disturbed(inputs, run))
            errors = tuple(with_sensitivity(e, expected[e.output], moved[e.output]) for e in errors)
        return errors, reference

    def against_either(
        self,
        errors: Sequence[OutputError],
        inputs: Mapping[str, Array],
        actual: Mapping[str, Array],
    ) -> tuple[OutputError, ...]:
        """Replace the errors of outputs that differ from onnxruntime, but not from
        `onnx.reference`.
        """
        try:
            expected = run_onnx_reference(self.path, inputs)
        except Exception:  # onnx.reference lacks some models that onnxruntime runs
            return tuple(errors)
        result = []
        for error in errors:
            name = error.output
            step = self.steps.get(name)
            other = compare(name, expected[name], actual[name], self.check.tolerance, step)
            agrees = other.passed and not error.passed
            result.append(replace(other, reference=ONNX_REFERENCE) if agrees else error)
        return tuple(result)


def disturbed(inputs: Mapping[str, Array], seed: int) -> dict[str, Array]:
    """The inputs, with each float changed by `DISTURBANCE` of its size in a random direction. A
    float of few digits moves by a unit of its last place, or not at all.
    """
    generator = np.random.default_rng(seed)
    moved = dict(inputs)
    for name, array in inputs.items():
        if np.issubdtype(array.dtype, np.floating):
            signs = generator.choice([-DISTURBANCE, DISTURBANCE], array.shape)
            moved[name] = np.asarray(array * (1 + signs)).astype(array.dtype)
    return moved


def _tensors(
    outputs: Mapping[str, Array], expected: Mapping[str, Array]
) -> Iterator[tuple[str, Array]]:
    """The outputs, with a tensor for each element of a sequence, as the reference names them."""
    for name, value in outputs.items():
        if name in expected:
            yield name, value
        else:
            yield from ((f"{name}/{i}", element) for i, element in enumerate(value))


def random_outputs(model: onnx.ModelProto) -> frozenset[str]:
    """The outputs of a model that depend on operators which draw random numbers, also in functions
    and in graphs inside nodes.
    """
    functions = {f.name for f in model.functions if _draws(f.node, frozenset())}
    values: set[str] = set()
    for _ in model.graph.node:  # nodes may be in any order
        count = len(values)
        for node in model.graph.node:
            if not values.isdisjoint(node.input) or _draws([node], functions):
                values.update(node.output)
        if len(values) == count:
            break
    return frozenset(o.name for o in model.graph.output if o.name in values)


def _draws(nodes: Iterable[onnx.NodeProto], functions: frozenset[str] | set[str]) -> bool:
    """True if a node, or a node inside it, draws random numbers."""
    return any(
        (node.op_type in RANDOM and node.domain in ("", "ai.onnx"))
        or node.op_type in functions
        or any(_draws(graph.node, functions) for graph in subgraphs(node))
        for node in nodes
    )

"""Check a model from Python: build it, run it, and compare it with a reference (`host.check`).

result = webmlc.check(module, (torch.zeros(1, 3, 224, 224),))
assert result.verdict == "passed", result.notes()
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import onnx
from numpy.typing import NDArray

from webmlc.build_options import BuildOptions, HasRow
from webmlc.core.errors import UserError
from webmlc.frontend.bind_constants import Constants
from webmlc.frontend.doors.export_source import export_source
from webmlc.frontend.read_model import Source
from webmlc.host.check import CheckResult, check_model
from webmlc.host.check_options import CheckOptions
from webmlc.pipeline import build_package


def check(
    model: Source,
    example_inputs: Any = None,
    *,
    inputs: Mapping[str, NDArray[Any]] | None = None,
    dims: Mapping[str, int] | None = None,
    device: Literal["wasm", "webgpu"] = "wasm",
    threads: int = 1,
    constants: Constants | None = None,
    dynamic_shapes: Any = None,
    built_from: str | Path | None = None,
    operators: Sequence[HasRow] = (),
    tolerance: float = 1e-3,
    seed: int = 0,
) -> CheckResult:
    """Compare the results of a model with the results of onnxruntime, or of `onnx.reference`.

    `model` is a model that `webmlc.build` takes, or the folder of a package. A package is compared
    with the model that it was `built_from`; without it, the package's programs are compared with
    each other. A model of another framework is exported with `example_inputs` and `dynamic_shapes`,
    as in a build, and the reference runs the export. The check runs the example inputs, or `inputs`
    by name. Other inputs are random, with sizes `dims` of symbolic dimensions. Unless `inputs` are
    given, batches of 1 and 2 are run, too. The reference computes `operators` of your own by their
    definitions.

    `tolerance` is relative to the largest element of an output. The result has a `verdict`
    ("passed", "failed" or "inconclusive"), the errors of all `outputs`, and `notes()`.

    Raises every error of building and running.
    """
    source = model
    if not isinstance(model, str | Path | onnx.ModelProto):
        source = export_source(model, example_inputs, dynamic_shapes)
    with tempfile.TemporaryDirectory(prefix="webmlc-check-") as scratch:
        path = Path(source) if isinstance(source, str | Path) else Path(scratch) / "model.onnx"
        examples = None
        if isinstance(source, onnx.ModelProto):
            onnx.save(source, path)
            examples = _named(source, example_inputs)
        elif not isinstance(source, str | Path):
            raise UserError("no reference computes this model: give an ONNX model, or its path")
        elif example_inputs is not None:
            raise UserError("example_inputs are for models in memory: give `inputs` by name")
        built_from = None if built_from is None else Path(built_from)
        check = CheckOptions(
            device, threads, inputs, dims, seed, tolerance, built_from, examples=examples
        )
        options = BuildOptions(constants=constants, operators=operators)
        return check_model(path, build_package, check, options)


def _named(model: onnx.ModelProto, examples: Any) -> dict[str, NDArray[Any]] | None:
    """The example inputs by input name, if each example is an array with the rank of its input."""
    initialisers = {tensor.name for tensor in model.graph.initializer}
    ports = [port for port in model.graph.input if port.name not in initialisers]
    if isinstance(examples, Mapping):
        values = [examples.get(port.name) for port in ports]
    else:
        values = list(examples) if isinstance(examples, Sequence) else [examples]
    arrays = [_array(value) for value in values]
    ranks = [len(port.type.tensor_type.shape.dim) for port in ports]
    if [None if a is None else a.ndim for a in arrays] != ranks:
        return None
    return {p.name: a for p, a in zip(ports, arrays, strict=True) if a is not None}


def _array(value: Any) -> NDArray[Any] | None:
    """The array of a tensor of any framework; `None` for another value, such as a shape."""
    if hasattr(value, "detach"):
        value = value.detach().cpu()
    if not hasattr(value, "__array__"):
        return None
    return np.asarray(value)

"""Measure the effects of the quantisation of a model's weights on its outputs and its size.

In: the packages of the float model and of the quantised model. Out: a row for each output.

    loss = quantisation_loss(Path("build/float"), Path("build/int8"), inputs_file, sizes={"n": 128})
    loss.outputs[0].relative        # 0.0076

Inputs that a `.npz` file does not hold are random.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from webmlc.host.load import load
from webmlc.host.try_model import read_inputs
from webmlc.package.manifest_json import read_manifest

Array = NDArray[Any]


@dataclass(frozen=True, slots=True)
class OutputLoss:
    """The difference of one output from the same output of the float model.

    - `relative`: the norm of the difference, relative to the norm of the output.
    - `cosine`: the least cosine between the two outputs' vectors along the last axis.
    - `same_argmax`: the share of the vectors whose largest element is at the same place.
    """

    output: str
    shape: tuple[int, ...]
    relative: float
    cosine: float
    same_argmax: float


@dataclass(frozen=True, slots=True)
class QuantisationLoss:
    """The differences of all outputs, and the bytes of the weights before and after."""

    outputs: tuple[OutputLoss, ...]
    float_bytes: int
    quantised_bytes: int

    def rows(self) -> list[dict[str, Any]]:
        """Build a row per output, to print."""
        return [
            {
                "output": o.output,
                "shape": list(o.shape),
                "relative error": o.relative,
                "least cosine": o.cosine,
                "same argmax": o.same_argmax,
            }
            for o in self.outputs
        ]


def quantisation_loss(
    float_package: Path,
    quantised_package: Path,
    inputs_file: Path | None = None,
    sizes: Mapping[str, int] | None = None,
    seed: int = 0,
) -> QuantisationLoss:
    """Run both packages on the CPU, on the same inputs, and compare their outputs.

    Raises every error of loading and running.
    """
    model = load(float_package, "wasm")
    inputs = read_inputs(model, inputs_file, sizes or {}, seed)
    expected = model.run(inputs)
    model.dispose()
    model = load(quantised_package, "wasm")
    actual = model.run(inputs)
    model.dispose()
    outputs = tuple(output_loss(name, expected[name], array) for name, array in actual.items())
    return QuantisationLoss(outputs, _weight_bytes(float_package), _weight_bytes(quantised_package))


def output_loss(name: str, expected: Array, actual: Array) -> OutputLoss:
    """Compare one output. The error is not a number if the shapes differ, because the weights
    decide the sizes.
    """
    if expected.shape != actual.shape:
        return OutputLoss(name, actual.shape, float("nan"), float("nan"), float("nan"))
    width = expected.shape[-1] if expected.ndim else 1
    a, b = (array.astype(np.float64).reshape(-1, max(width, 1)) for array in (expected, actual))
    norms = np.linalg.norm(a, axis=1) * np.linalg.norm(b, axis=1)
    cosines = (a * b).sum(1)[norms > 0] / norms[norms > 0]
    return OutputLoss(
        name,
        actual.shape,
        float(np.linalg.norm(a - b) / max(float(np.linalg.norm(a)), np.finfo(np.float64).tiny)),
        float(cosines.min(initial=1.0)),
        float(np.mean(a.argmax(1) == b.argmax(1))) if a.size else 1.0,
    )


def _weight_bytes(package: Path) -> int:
    return sum(file.bytes for file in read_manifest(package).weights)

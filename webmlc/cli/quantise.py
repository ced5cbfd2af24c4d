"""Measure the loss of `webmlc build --quantise`: build what is to be compared, and compare it."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from webmlc.frontend.bind_constants import Constants
    from webmlc.host.quantisation_loss import QuantisationLoss


def measured_loss(
    model: Path,
    package: Path,
    target: Literal["wasm", "webgpu", "both"],
    constants: Constants,
    quantise: Literal["int4", "int8"],
    exact: bool,
    inputs: Path | None,
    sizes: Mapping[str, int],
) -> QuantisationLoss:
    """Build the float model in a temporary folder, and compare the quantised `package` with it.

    A package for GPUs only is built again for the CPU, where each machine can run it.
    """
    from webmlc.compile import build
    from webmlc.host.quantisation_loss import quantisation_loss

    with tempfile.TemporaryDirectory(prefix="webmlc-quantise-") as scratch:
        before, after = Path(scratch) / "float", package
        build(model, before, "wasm", constants=constants)
        if target == "webgpu":
            after = Path(scratch) / "quantised"
            build(model, after, "wasm", constants=constants, exact=exact, quantise=quantise)
        return quantisation_loss(before, after, inputs, sizes)

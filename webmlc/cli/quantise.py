"""Measure the loss of `webmlc build --quantise`: build a float package, and compare both."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from webmlc.build_options import BuildOptions

if TYPE_CHECKING:
    from webmlc.host.quantisation_loss import QuantisationLoss


def measured_loss(
    model: Path, package: Path, options: BuildOptions, inputs: Path | None
) -> QuantisationLoss:
    """Build the float model in a temporary folder, and compare the quantised `package` with it.
    `options` are the options of `package`.

    A package without a program for the CPU is built again for the CPU, which every machine has.
    """
    from webmlc.core.machine import DEVICES
    from webmlc.host.quantisation_loss import quantisation_loss
    from webmlc.pipeline import build_package

    with tempfile.TemporaryDirectory(prefix="webmlc-quantise-") as scratch:
        before, after = Path(scratch) / "float", package
        build_package(model, before, replace(options, target="wasm", quantise=None))
        if options.target != "both" and not DEVICES[options.target].runs_steps:
            after = Path(scratch) / "quantised"
            build_package(model, after, replace(options, target="wasm"))
        return quantisation_loss(before, after, inputs)

"""Build a source of a framework for the CPU, and run the package in Python."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

import webmlc
from webmlc.package.manifest import Manifest

Array = NDArray[Any]


@dataclass(frozen=True)
class Built:
    """The manifest of a package, and what the package computed."""

    manifest: Manifest
    outputs: Mapping[str, Array]

    def types(self) -> dict[str, str]:
        """The type of every input and output, as in `float32[batch, 4]`."""
        ports = (*self.manifest.inputs, *self.manifest.outputs)
        return {p.name: f"{p.dtype}[{', '.join(map(str, p.shape))}]" for p in ports}

    def assert_close(self, expected: Mapping[str, Any], tolerance: float = 1e-5) -> None:
        """Compare every output with what the framework itself computes."""
        assert set(self.outputs) == set(expected)
        for name, value in expected.items():
            actual, wanted = self.outputs[name], np.asarray(value)
            assert actual.shape == wanted.shape, name
            np.testing.assert_allclose(actual, wanted, tolerance, tolerance, err_msg=name)


def build_and_run(source: Any, inputs: Mapping[str, Array], **options: Any) -> Built:
    """Build a source with these options of `webmlc.build`, and run it once."""
    with tempfile.TemporaryDirectory() as folder:
        manifest = webmlc.build(source, folder, target="wasm", **options)
        model = webmlc.load(folder, device="wasm")
        try:
            return Built(manifest, model.run(dict(inputs)))
        finally:
            model.dispose()

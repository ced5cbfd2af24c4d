"""Every bug that the fuzzer over run-time sizes found: a model, inputs, and the right verdicts.

Each case runs in both runtimes, those of `ON_GPU` on the GPU, too: shaders take two thirds of the
time of a build, and what hosts check before a run is the same on each device. `equal` is equal to
onnxruntime, `refused` refused like it, `by reference` equal to the second opinion.
"""

from __future__ import annotations

from pathlib import Path

import onnx.parser
import pytest

from tests.fuzz.sizes import devices
from tests.fuzz.sizes.cases import control_flow, microsoft, numbers, shapes
from tests.fuzz.sizes.check import Bench

HEAD = '<ir_version: 10, opset_import: ["" : 21, "com.microsoft" : 1]> '
CASES = {**shapes.CASES, **control_flow.CASES, **microsoft.CASES, **numbers.CASES}

ON_GPU = {
    "a range with the least step",
    "a view of a constant that only a run shapes",
    "an infinity minus itself",
    "an update at a constant index of a symbolic axis",
    "diagonals far outside",
    "elements that a GPU may take for 0",
    "indices that look like others in 32 bits",
    "negative powers of integers",
    "powers of infinity, and infinite powers",
    "reductions of nothing, of types without vectors",
    "samples at infinity",
    "sizes that do not fit in some iteration",
}
"""Cases that kernels decide rather than hosts."""


@pytest.mark.parametrize("name", CASES)
def test_a_bug_of_sizes_stays_mended(bench: Bench, name: str, tmp_path: Path) -> None:
    text, cases = CASES[name]
    model = onnx.parser.parse_model(HEAD + text)
    ways = devices.WAYS if name in ON_GPU else ("wasm", "node")
    failure = bench.host.ask("build", model.SerializeToString(), str(tmp_path), ways)
    assert failure is None, failure
    checked = bench.check_runs(model, str(tmp_path), [f for _, f in cases], 1, ways)
    assert not checked.skipped
    assert tuple(checked.verdicts) == ways
    for way, verdicts in checked.verdicts.items():
        kinds = [verdict.kind for verdict in verdicts]
        assert kinds == [kind for kind, _ in cases], (way, verdicts)

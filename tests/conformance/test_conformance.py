"""ONNX's operator tests pass on WASM and on WebGPU as `passing_wasm.txt` and `passing_webgpu.txt`
say, and no others do.

A line is a test; in brackets the inputs that its model was specialised on (none: it went through
`webmlc.build` and `webmlc.load` as it is); `(CPU)` where steps of a webgpu program ran on the CPU.
`python -m tests.conformance.run --device DEVICE --pin` writes the lists anew.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx.backend.test.case.test_case import TestCase

from tests.conformance.backend import UnsupportedError, WebmlcBackend
from tests.conformance.model_cases import GROUPS
from tests.conformance.run import FOLDER, all_cases, compare, run_case

PINNED = {
    device: {
        line.split()[0]: line
        for line in (FOLDER / f"passing_{device}.txt").read_text().splitlines()
    }
    for device in ("wasm", "webgpu")
}
SPECIALISED_AT_LEAST, AS_IS_AT_LEAST = 1820, 1780
"""Tests that pass on each device at least: with inputs built in, and without."""
WITH_DATA = [(g, n) for g in GROUPS if g != "light" for n in all_cases(g)]


def together(*case: str) -> Any:
    """A parameter whose tests one worker runs: they share a package for both devices."""
    return pytest.param(*case, marks=pytest.mark.xdist_group(case[-1]))


@pytest.mark.parametrize("device", PINNED)
@pytest.mark.parametrize("name", [together(name) for name in all_cases()])
def test_operators(name: str, device: str) -> None:
    """Passes as it is pinned; what is not pinned does not pass."""
    outcome = run_case(name, device, target="both")
    if name in PINNED[device]:
        assert outcome.state == "passed", outcome.reason
        assert outcome.pin == PINNED[device][name]
    else:
        assert outcome.state != "passed", f"passes now: add {outcome.pin!r} to the list"


@pytest.mark.parametrize("name", [n for n, pin in PINNED["wasm"].items() if "[" in pin])
def test_what_is_built_in_has_to_be(name: str) -> None:
    """Without inputs built in, these tests are refused; of others it makes no difference. Sequences
    and optionals are always built in, of the tensors in them.
    """
    inputs = all_cases()[name][1].model.graph.input
    if all(info.type.HasField("tensor_type") for info in inputs):
        assert run_case(name, "wasm", as_is=True).state == "unsupported"


@pytest.mark.parametrize("device", PINNED)
def test_the_lists_are_long_enough_and_true(device: str) -> None:
    pins = PINNED[device].values()
    assert PINNED[device].keys() <= all_cases().keys()
    assert len(pins) >= SPECIALISED_AT_LEAST
    assert sum("[" not in pin for pin in pins) >= AS_IS_AT_LEAST


@pytest.mark.parametrize("device", PINNED)
@pytest.mark.parametrize(("group", "name"), [together(*case) for case in WITH_DATA])
def test_models_with_data(group: str, name: str, device: str) -> None:
    """All 140 of three groups are computed right."""
    outcome = run_case(name, device, group, target="both")
    assert outcome.state == "passed", outcome.reason


def test_no_model_with_data_is_missing() -> None:
    assert len(WITH_DATA) == 140


def test_a_wrong_result_is_seen() -> None:
    """The comparison can fail: dtype, shape and values."""
    case = all_cases()["test_relu"][1]
    assert isinstance(case, TestCase)
    want = np.ones((2, 3), np.float32)
    compare(want, want, case)
    for wrong in (want.astype(np.float64), want[:1], want * np.float32(1.01)):
        with pytest.raises(AssertionError):
            compare(wrong, want, case)


def test_the_backend_is_onnx_s_own_interface() -> None:
    text = '<ir_version: 8, opset_import: ["" : 17]> g (float[2] x) => (float[2] y) { y = Neg(x) }'
    model = onnx.parser.parse_model(text)
    assert WebmlcBackend.is_compatible(model)
    assert WebmlcBackend.supports_device("CPU")
    assert not WebmlcBackend.supports_device("TPU")
    (y,) = WebmlcBackend.run_model(model, [np.float32([1, -2])], "CPU")
    assert y.tolist() == [-1, 2]


def test_inputs_that_decide_the_code_are_built_in() -> None:
    """Never where nothing is specialised; and not where a run can read the sizes."""
    head = '<ir_version: 8, opset_import: ["" : 17]>'
    x = np.arange(6, dtype=np.float32)
    transform = onnx.parser.parse_model(
        head
        + """
        g (float[1, 6, 1] x, int64 n) => (float[1, f, 3, 2] y) <int64 length = {4}> {
            y = STFT(x, n, , length) }"""
    )
    feeds = [x.reshape(1, 6, 1), np.int64(2)]
    rep = WebmlcBackend.prepare(transform, "NUMPY")
    assert rep.run(feeds)[0].shape == (1, 2, 3, 2)
    assert rep.built_in == ("n",)
    with pytest.raises(UnsupportedError):
        WebmlcBackend.prepare(transform, "NUMPY", as_is=True).run(feeds)
    reshape = onnx.parser.parse_model(
        head
        + """
        g (float[6] x, int64[2] s) => (float[a, b] y) { y = Reshape(x, s) }"""
    )
    rep = WebmlcBackend.prepare(reshape, "CPU")
    assert rep.run([x, np.array([3, -1])])[0].shape == (3, 2)
    assert rep.built_in == ()

"""The operator tests of ONNX that pass on WASM keep passing: `passing_wasm.txt` is the pinned list.

`python -m tests.conformance.run --pin` writes it anew, when more pass.
"""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx.backend.test.case.test_case import TestCase

from tests.conformance.backend import WebmlcBackend
from tests.conformance.model_cases import GROUPS
from tests.conformance.run import FOLDER, all_cases, compare, run_case

PINNED = (FOLDER / "passing_wasm.txt").read_text().split()
AT_LEAST = 1750
WITH_DATA = [(g, n) for g in GROUPS if g != "light" for n in all_cases(g)]
TEXT = "test_strnorm_model_"


@pytest.mark.parametrize("name", PINNED)
def test_passes_on_wasm(name: str) -> None:
    outcome = run_case(name, "wasm")
    assert outcome.state == "passed", outcome.reason


@pytest.mark.parametrize("device", ["wasm", "webgpu"])
@pytest.mark.parametrize(("group", "name"), WITH_DATA)
def test_models_with_data(group: str, name: str, device: str) -> None:
    """All 140 of three groups: computed right or, where the input is text, refused."""
    outcome = run_case(name, device, group)
    if name.startswith(TEXT):
        assert outcome.state == "unsupported" and "it is text" in outcome.reason
    else:
        assert outcome.state == "passed", outcome.reason


def test_no_model_with_data_is_missing() -> None:
    assert len(WITH_DATA) == 140


def test_the_list_is_long_enough_and_true() -> None:
    assert len(set(PINNED)) == len(PINNED) >= AT_LEAST
    assert set(PINNED) <= set(all_cases())


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


def test_inputs_that_are_shapes_are_built_in() -> None:
    text = """<ir_version: 8, opset_import: ["" : 17]>
        g (float[6] x, int64[2] s) => (float[a, b] y) { y = Reshape(x, s) }"""
    rep = WebmlcBackend.prepare(onnx.parser.parse_model(text), "NUMPY")
    x = np.arange(6, dtype=np.float32)
    assert rep.run([x, np.array([2, 3])])[0].shape == (2, 3)
    assert rep.run([x, np.array([3, -1])])[0].shape == (3, 2)

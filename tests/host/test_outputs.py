"""Runs that return only some outputs, on every device."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import webmlc
from tests.against_onnxruntime import parse
from tests.decoders import DECODER, rows
from webmlc.core.errors import InputError
from webmlc.host.load import Model
from webmlc.package.manifest import Run
from webmlc.package.manifest_json import read_manifest
from webmlc.package.transfers import select_segments

pytestmark = pytest.mark.xdist_group("outputs")  # one worker builds what the tests share

MODEL = parse(
    """g (float[n,4] x) => (float[n,4] a, int64[k] places, float[n,1] total, float[2] constant) {
        a = Exp(x)
        positive = Relu(x)
        indices = NonZero(positive)
        first = Constant<value_ints=[0]>()
        places = ReduceSum<keepdims=0>(indices, first)
        last = Constant<value_ints=[-1]>()
        total = ReduceSum(a, last)
        constant = Constant<value_floats=[1.0, 2.0]>()
    }"""
)
"""Its outputs are in several segments, because data decide a size. One is a constant."""
X = np.arange(-6, 6, dtype=np.float32).reshape(3, 4)
NAMES = ("a", "places", "total", "constant")


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("outputs")
    webmlc.build(MODEL, folder)
    return folder


def test_only_the_chosen_outputs_return(model: Model) -> None:
    everything = model.run({"x": X})
    assert tuple(everything) == NAMES
    np.testing.assert_allclose(everything["total"][:, 0], np.exp(X).sum(1), rtol=1e-5)
    for chosen in ([], ["total"], ["places", "a"], ["constant"], list(NAMES)):
        results = model.run({"x": X}, chosen)
        assert list(results) == [name for name in NAMES if name in chosen]
        for name, array in results.items():
            np.testing.assert_array_equal(array, everything[name])


def test_a_wrong_name_is_an_error(model: Model) -> None:
    with pytest.raises(
        InputError, match="no output is named 'b'; the model returns 'a', 'places', 'total'"
    ):
        model.run({"x": X}, ["a", "b"])
    with pytest.raises(InputError, match="outputs is 'a', expected a list of names"):
        model.run({"x": X}, "a")


def test_last_steps_for_other_outputs_are_left_out(package: Path) -> None:
    program = read_manifest(package).programs["wasm"]
    buffers = {port.name: port.buffer for port in read_manifest(package).outputs}

    def count(*names: str) -> int:
        segments = select_segments(program, [buffers[name] for name in names])
        return sum(run.last - run.first for run in segments if isinstance(run, Run))

    assert count(*NAMES) == len(program.steps)
    assert count("a") < count("total") <= len(program.steps)


def test_a_session_grows_without_outputs(tmp_path: Path) -> None:
    webmlc.build(DECODER, tmp_path, target="wasm")
    model = webmlc.load(tmp_path, device="wasm")
    session, other = model.session(capacity=16), model.session(capacity=16)
    for feeds in (rows(5), rows(2)):
        assert session.run(feeds, []) == {}
        other.run(feeds)
    feeds = rows(1)
    np.testing.assert_array_equal(session.run(feeds, ["y"])["y"], other.run(feeds)["y"])
    past: dict[str, Any] = {"past": np.zeros((1, 0, 4), np.float32)}
    assert list(model.run(rows(3) | past, ["present"])) == ["present"]
    assert list(model.run(rows(3) | past, ["y"])) == ["y"]
    with pytest.raises(
        InputError, match="no output is named 'z'; the model returns 'y', 'present'"
    ):
        model.run(rows(3) | past, ["z"])
    model.dispose()


def test_a_constant_that_only_the_cpu_reads_is_an_output(tmp_path: Path) -> None:
    """A package for the GPU computes float64 on the CPU, which holds the constant."""
    model = parse(
        """g (double[3] x) => (double[3] y, double[3] w, double[3] z) <double[3] w = {1, 2, 3}>
        { y = Add (x, w)  z = Neg (w) }"""
    )
    webmlc.build(model, tmp_path)
    loaded = webmlc.load(tmp_path, device="webgpu")
    for x in (np.zeros(3), np.ones(3)):
        outputs = loaded.run({"x": x})
        assert outputs["y"].tolist() == (x + np.arange(1, 4)).tolist()
        assert outputs["w"].tolist() == [1, 2, 3]
        assert outputs["z"].tolist() == [-1, -2, -3]
    loaded.dispose()

"""The cases of onnxruntime's own operators on both devices, with the sizes of the case and with
symbols in their place.

`tests/graph/ops/test_rows.py` compares the same cases with the numpy meaning of the graph.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

import numpy as np
import onnx
import pytest

import webmlc
from tests.conformance.backend import package
from tests.graph.ops.test_rows import expected_results, make_model
from webmlc.core.errors import UnsupportedError
from webmlc.graph.ir import Array
from webmlc.graph.table import OPS

STATIC = {
    ("QLinearConcat", 0): "the rows of the case have one size",
    ("Attention", 3): "a mask of ends and starts has twice the size of the batch",
    ("RelativePositionBias", 0): "the table is a weight, and the lengths are constants",
    ("RelativePositionBias", 1): "as above",
}
"""The cases that are only tested with numbers as sizes."""
LEVELS: tuple[tuple[int | None, slice[Any, Any, Any]], ...] = (
    (None, slice(None)),
    (None, slice(-1)),
    (None, slice(1)),
    (1, slice(1)),
)
"""The inputs and their axes whose sizes become symbols, from all to the first axis of the first
input.
"""


def cases() -> Iterator[object]:
    for (domain, name), row in OPS.items():
        if row.cases and (domain == "com.microsoft" or (not domain and row.signature)):
            for number in range(len(row.cases)):
                yield pytest.param(domain, name, number, id=f"{name}-{number}")


def with_symbols(
    model: onnx.ModelProto, inputs: int | None, axes: slice[Any, Any, Any]
) -> onnx.ModelProto:
    """The model with symbols for these axes of its first inputs. Equal sizes become one symbol."""
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    for value in copy.graph.input[:inputs]:
        for dimension in value.type.tensor_type.shape.dim[axes]:
            if dimension.dim_value > 1:
                dimension.dim_param = f"n{dimension.dim_value}"
    return copy


@cache
def expected(
    domain: str, name: str, number: int
) -> tuple[onnx.ModelProto, dict[str, Array], list[Array]]:
    """The model of a case with typed outputs, its inputs, and the right outputs."""
    model, feeds = make_model(domain, name, OPS[domain, name].cases[number])
    results = [np.asarray(r) for r in expected_results(domain, name, model, feeds)]
    for info, array in zip(model.graph.output, results, strict=True):
        element = onnx.helper.np_dtype_to_tensor_dtype(array.dtype)
        shape = [f"{info.name}_{axis}" for axis in range(array.ndim)]
        info.CopyFrom(onnx.helper.make_tensor_value_info(info.name, element, shape))
    return model, feeds, results


def run(model: onnx.ModelProto, feeds: dict[str, Array], device: Any) -> list[Array]:
    folder = package(model.SerializeToString(), "both")
    loaded = webmlc.load(folder.name, device=device)
    try:
        results = loaded.run(feeds)
        return [np.asarray(results[o.name]) for o in model.graph.output]
    finally:
        loaded.dispose()


def compare(actual: list[Array], results: list[Array]) -> None:
    for got, want in zip(actual, results, strict=True):
        assert (got.dtype, got.shape) == (want.dtype, want.shape)
        if want.dtype.kind == "f":
            np.testing.assert_allclose(got, want, rtol=5e-4, atol=5e-5)
        else:  # a quantised number may be rounded to the next step
            np.testing.assert_allclose(got, want, rtol=0, atol=got.dtype.itemsize == 1)


@pytest.mark.parametrize("device", ["wasm", "webgpu"])
@pytest.mark.parametrize(("domain", "name", "number"), list(cases()))
def test_numbers(domain: str, name: str, number: int, device: str) -> None:
    model, feeds, results = expected(domain, name, number)
    compare(run(model, feeds, device), results)


@pytest.mark.parametrize("device", ["wasm", "webgpu"])
@pytest.mark.parametrize(("domain", "name", "number"), list(cases()))
def test_symbols(domain: str, name: str, number: int, device: str) -> None:
    """All sizes are symbols, or fewer: a row refuses a symbol where it needs a number."""
    model, feeds, results = expected(domain, name, number)
    if not feeds or (name, number) in STATIC:
        pytest.skip("nothing of it is symbolic")
    for level in LEVELS:
        try:
            compare(run(with_symbols(model, *level), feeds, device), results)
        except UnsupportedError:
            if level == LEVELS[-1]:
                raise
        else:
            return

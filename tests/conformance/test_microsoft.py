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
import onnxruntime
import pytest

import webmlc
from tests.conformance.backend import package
from tests.graph.ops.test_rows import QUIET, expected_results, make_model
from webmlc.core.errors import UnsupportedError
from webmlc.graph.ir import Array
from webmlc.graph.ops.operator import case
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
        if row.cases and row.signature is not None:
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
            np.testing.assert_allclose(got, want, rtol=0, atol=got.dtype.name in ("int8", "uint8"))


@pytest.mark.parametrize("device", ["wasm", "webgpu"])
@pytest.mark.parametrize(("domain", "name", "number"), list(cases()))
def test_numbers(domain: str, name: str, number: int, device: str) -> None:
    model, feeds, results = expected(domain, name, number)
    compare(run(model, feeds, device), results)


HALVES = ("float16[6, 8]", "float16[6, 4]", "float16[4, 20, 8]", None, "float16[4, 8, 10]")
SCALE = "float16[] in 0.01..0.02"
INTEGERS = ("uint8[2, 3, 8] in 0..255", "int8[8, 24] in -60..60")
FIRST, SECOND = (
    ((np.arange(n * 64) * 37 % 256).astype(np.uint8).reshape(4, n, 16), np.full((4, n), 0.03))
    for n in (16, 32)
)


@pytest.mark.parametrize("device", ["wasm", "webgpu"])
@pytest.mark.parametrize(
    ("name", "inputs", "attributes"),
    [
        ("MoE", HALVES, {"k": 2, "activation_type": "swiglu", "swiglu_fusion": 1,
                         "swiglu_limit": 2.0}),
        ("QMoE", ("float16[6, 32]", "float16[6, 4]", FIRST[0], FIRST[1].astype(np.float32), None,
                  SECOND[0][..., :8].copy(), SECOND[1].astype(np.float32)), {"k": 2}),
        ("QAttention", (*INTEGERS, "float16[24]", SCALE, SCALE, None,
                        np.uint8(113), np.int8(3)), {"num_heads": 2}),
        ("MatMulIntegerToFloat", (*INTEGERS, SCALE, SCALE, np.uint8(113),
                                  np.int8(3), "float16[24]"), {}),
    ],
)  # fmt: skip
def test_halves(name: str, inputs: Any, attributes: dict[str, Any], device: str) -> None:
    """Results of halves are halves, near onnxruntime's results in float32."""
    model, feeds = make_model("com.microsoft", name, case(*inputs, **attributes))
    wide_inputs = (
        x.replace("float16", "float32") if isinstance(x, str) else x if x is None else widened(x)
        for x in inputs
    )
    wide, _ = make_model("com.microsoft", name, case(*wide_inputs, **attributes))
    wide_feeds = {k: widened(v) for k, v in feeds.items()}
    (want,) = expected_results("com.microsoft", name, wide, wide_feeds)
    element = onnx.TensorProto.FLOAT16
    model.graph.output[0].CopyFrom(
        onnx.helper.make_tensor_value_info("y0", element, [None] * want.ndim)
    )
    (got,) = run(model, feeds, device)
    assert got.dtype == np.float16
    np.testing.assert_allclose(got, want, rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize("device", ["wasm", "webgpu"])
def test_scores_of_hidden_keys(device: str) -> None:
    """The fourth output of a causal attention is finite, as in onnxruntime."""
    x = "float32[2, 3, 8]"
    attention = case(x, x, x, num_heads=2, unidirectional=1, outputs=4)
    model, feeds = make_model("com.microsoft", "MultiHeadAttention", attention)
    for info, rank in zip(model.graph.output, (3, 4, 4, 4), strict=True):
        info.CopyFrom(onnx.helper.make_tensor_value_info(info.name, 1, [None] * rank))
    session = onnxruntime.InferenceSession(model.SerializeToString(), QUIET)
    compare(run(model, feeds, device), list(session.run(None, feeds)))


def widened(array: Array) -> Array:
    """The array, or its halves as float32."""
    return array.astype(np.float32) if array.dtype == np.float16 else array


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

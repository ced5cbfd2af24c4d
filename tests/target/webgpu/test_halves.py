"""Test that kernels store float32 parameters as halves, and compute what they computed."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.schedule.rules import kernels as k
from tests.target.webgpu import gpu
from webmlc.core.dtypes import DType
from webmlc.core.machine import F16, F16_SUBGROUPS, SUBGROUPS, WEBGPU, Machine
from webmlc.loops.interp import run
from webmlc.loops.ir import LoopFunction
from webmlc.loops.narrow_parameters import narrow_parameters
from webmlc.loops.verify import verify
from webmlc.schedule.rules import schedule_kernel
from webmlc.target.targets import lower, machine_of
from webmlc.target.webgpu.emit_shaders import emit_shaders

HALF_STEP = 2.0**-11
"""The relative error of a value that is rounded to float16, from the format."""

CASES: dict[str, tuple[LoopFunction, dict[str, int]]] = {
    "matmul": (k.matmul(9, 16, 24), {}),
    "matmul without epilogue": (k.matmul(9, 16, 24, epilogue=False), {}),
    "symbolic matmul": (k.matmul(k.S, 16, 8), {"s": 5}),
    "convolution": (k.convolution(6, 5, 8, 16, 3), {}),
    "softmax": (k.softmax(3, 300), {}),
    "odd softmax": (k.softmax(5, 7), {}),
    "layer norm": (k.layer_norm(2, 3, 100), {}),
    "sum": (k.total(3, 777, keep=1), {}),
    "add": (k.add_bias(3, 5, 7), {}),
    "transpose": (k.transpose((1, 0), 40, 33), {}),
}
"""Kernels of float32, and the values of their symbols."""


def all_narrow(function: LoopFunction) -> LoopFunction:
    """A kernel whose parameters are all halves."""
    narrow = narrow_parameters(function, [b.name for b in function.params])
    verify(narrow)
    return narrow


def rounded(arrays: k.Arrays) -> tuple[k.Arrays, k.Arrays]:
    """Arrays as halves, and the same values in float32."""
    halves = {name: x.astype(np.float16) for name, x in arrays.items()}
    return halves, {name: x.astype(np.float32) for name, x in halves.items()}


def result_of(function: LoopFunction, arrays: k.Arrays, symbols: dict[str, int]) -> NDArray[Any]:
    """The results of the interpreter."""
    results = {name: x.copy() for name, x in arrays.items()}
    run(function, results, symbols)
    return results[function.params[-1].name]


@pytest.mark.parametrize("name", CASES)
def test_a_result_is_that_of_float32_rounded_once(name: str) -> None:
    function, symbols = CASES[name]
    narrow = all_narrow(function)
    halves, wide = rounded(k.arguments(function, symbols))
    want = result_of(function, wide, symbols)
    np.testing.assert_allclose(
        result_of(narrow, halves, symbols).astype(np.float32), want, rtol=HALF_STEP, atol=1e-6
    )
    lowered = lower(schedule_kernel(narrow, F16).function, F16)
    shaders = emit_shaders({"kernel": lowered}, features=F16.features)
    assert shaders.features == ("shader-f16",)
    assert "atomic" not in shaders.text
    assert all(f"{b.name}_0: array<" in shaders.text for b in narrow.params)
    assert "array<f32>" not in shaders.text
    assert "array<vec4f>" not in shaders.text
    (got,) = gpu.run_on_gpu(lowered, halves, symbols, features=F16.features).values()
    assert got.dtype == np.float16
    np.testing.assert_allclose(got.astype(np.float32), want, rtol=2 * HALF_STEP, atol=1e-5)


def test_infinities_and_nans_stay() -> None:
    function = k.add_bias(3, 5, 7)
    halves, _ = rounded(k.arguments(function, {}))
    halves[function.params[0].name].flat[:3] = np.inf, -np.inf, np.nan
    lowered = lower(schedule_kernel(all_narrow(function), F16).function, F16)
    (got,) = gpu.run_on_gpu(lowered, halves, features=F16.features).values()
    np.testing.assert_array_equal(got.flat[:3], np.float16([np.inf, -np.inf, np.nan]))


def test_some_parameters_stay_float32() -> None:
    function = k.matmul(4, 16, 8)
    narrow = narrow_parameters(function, ["b"])
    types = {buffer.name: buffer.dtype for buffer in narrow.params}
    assert types == {**dict.fromkeys(types, DType.float32), "b": DType.float16}
    assert narrow_parameters(function, []) is function


def test_what_a_workgroup_copies_of_halves_are_halves() -> None:
    narrow = all_narrow(k.matmul(1024, 1024, 64))
    lowered = lower(schedule_kernel(narrow, F16).function, F16)
    shared = [b for b in lowered.allocations if b.scope == "shared"]
    assert {b.dtype for b in shared} == {DType.float16}
    text = emit_shaders({"kernel": lowered}, features=F16.features).text
    assert text.count(": array<vec4h, ") == len(shared)


@pytest.mark.parametrize(("function", "machine"), [
    (all_narrow(k.softmax(3, 300)), F16_SUBGROUPS),
    (all_narrow(k.matmul(64, 64, 64)), F16),
    (k.softmax(3, 300), SUBGROUPS),
    (k.matmul(64, 64, 64), WEBGPU),
])  # fmt: skip
def test_a_kernel_is_compiled_for_the_features_that_it_uses(
    function: LoopFunction, machine: Machine
) -> None:
    assert machine_of(function, F16_SUBGROUPS) == machine


def test_both_features_in_one_kernel() -> None:
    function = k.softmax(3, 300)
    halves, wide = rounded(k.arguments(function, {}))
    narrow = replace(all_narrow(function), name="softmax")
    lowered = lower(schedule_kernel(narrow, F16_SUBGROUPS).function, F16_SUBGROUPS)
    features = F16_SUBGROUPS.features
    shaders = emit_shaders({"softmax": lowered}, features=features)
    assert shaders.features == ("shader-f16", "subgroups")
    (got,) = gpu.run_on_gpu(lowered, halves, features=features).values()
    want = result_of(function, wide, {})
    np.testing.assert_allclose(got.astype(np.float32), want, rtol=2 * HALF_STEP, atol=1e-6)

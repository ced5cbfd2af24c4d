"""Test that kernels that differ in numbers only share a shader, and compute what each did."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.target.webgpu import gpu
from webmlc.loops.ir import LoopFunction
from webmlc.loops.text import parse_function
from webmlc.target.webgpu.emit_shaders import Shaders, join_shaders
from webmlc.target.webgpu.printer import emit_shader

SHIFT = """\
@T.kernel
def {name}(A: T.Buffer((512,), "float32"), C: T.Output((512,), "float32"){symbol}):
    for b in T.thread_binding(4, "blockIdx.x"):
        for t in T.thread_binding({threads}, "threadIdx.x"):
            C[{place}] = A[{source}] * T.float32({factor})
"""


def kernel(
    name: str, place: str, source: str, threads: int = 32, factor: str = "3.0", symbol: str = ""
) -> LoopFunction:
    """A kernel that copies elements to other places, and multiplies them by a factor."""
    text = SHIFT.format(
        name=name, place=place, source=source, threads=threads, factor=factor, symbol=symbol
    )
    return parse_function(text)


def joined(*functions: LoopFunction) -> Shaders:
    return join_shaders({f.name: emit_shader(f, frozenset()) for f in functions}, shares=True)


def result(function: LoopFunction, shaders: Shaders, n: int = 0) -> np.ndarray:
    arrays = {"A": np.arange(512, dtype=np.float32), "C": np.zeros(512, np.float32)}
    symbols = dict.fromkeys(shaders.entries[function.name].symbols, n)
    entry = shaders.entries[function.name]
    return gpu.launch(shaders.text, entry, function, arrays, symbols)["C"]


def test_kernels_that_differ_in_integers_share_a_shader() -> None:
    first = kernel("first", "b * 64 + t", "b * 16 + t + 5")
    second = kernel("second", "b * 96 + t", "b * 32 + t + 40")
    shaders = joined(first, second)
    assert shaders.text.count("@compute") == 1
    assert shaders.lines["first"] == shaders.lines["second"]
    assert {entry.name for entry in shaders.entries.values()} == {"first"}
    for function in (first, second):
        alone = join_shaders({function.name: emit_shader(function, frozenset())})
        np.testing.assert_array_equal(result(function, shaders), result(function, alone))
    assert result(second, shaders)[96] == (32 + 40) * 3


def test_an_index_without_an_addend_has_one_of_0() -> None:
    first = kernel("first", "t", "b * 64 + t")
    second = kernel("second", "t + 64", "b * 64 + t")
    shaders = joined(first, second)
    assert "C_0[tx + n0] = " in shaders.text
    assert shaders.entries["first"].integers == (0,)
    assert shaders.entries["second"].integers == (64,)


def test_equal_columns_of_integers_are_one_variable() -> None:
    first = kernel("first", "b * 64 + t", "b * 64 + t + 64")
    second = kernel("second", "b * 96 + t", "b * 96 + t + 96")
    shaders = joined(first, second)
    assert shaders.entries["first"].integers == (64,)
    assert shaders.entries["second"].integers == (96,)


@pytest.mark.parametrize(
    ("factor", "other"), [("0.1", "3.5"), ("1e-20", "0.0"), ("1.1754943508222875e-38", "7.1e+30")]
)
def test_kernels_that_differ_in_floats_share_a_shader(factor: str, other: str) -> None:
    first = kernel("first", "b * 64 + t", "b * 64 + t + 5", factor=factor)
    second = kernel("second", "b * 64 + t", "b * 64 + t + 5", factor=other)
    shaders = joined(first, second)
    assert shaders.text.count("@compute") == 1
    for function, value in ((first, factor), (second, other)):
        (bits,) = shaders.entries[function.name].integers
        assert np.int32(bits).view(np.float32) == np.float32(value)
        alone = join_shaders({function.name: emit_shader(function, frozenset())})
        np.testing.assert_array_equal(result(function, shaders), result(function, alone))
    assert result(first, shaders)[0] == 5 * np.float32(factor)


@pytest.mark.parametrize("changes", [{"threads": 16}, {"factor": "-3.0"}])
def test_sizes_of_workgroups_and_signs_are_not_shared(changes: dict[str, Any]) -> None:
    first = kernel("first", "b * 64 + t", "b * 64 + t + 5")
    second = kernel("second", "b * 64 + t", "b * 64 + t + 5", **changes)
    shaders = joined(first, second)
    assert shaders.text.count("@compute") == 2
    assert not any(entry.integers for entry in shaders.entries.values())


def test_the_uniform_holds_symbols_and_then_integers() -> None:
    symbol = ", n0: T.symbol"
    first = kernel("first", "b * 64 + t", "b * 32 + t + n0", symbol=symbol)
    second = kernel("second", "b * 96 + t", "b * 32 + t + n0", symbol=symbol)
    shaders = joined(first, second)
    assert "array<vec4<i32>, 1>" in shaders.text
    assert shaders.entries["second"].symbols == ("n0",)
    assert result(second, shaders, n=7)[96] == (32 + 7) * 3

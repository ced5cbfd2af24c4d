"""Test every code of every small type in wasmtime, bit by bit, against numpy and ml_dtypes."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from webmlc.core.dtypes import DType
from webmlc.core.expr import Cast, Expr, Var, call, const
from webmlc.core.machine import WASM_MACHINES
from webmlc.loops.ir import Buffer, For, LoopFunction, Store
from webmlc.target.legalise_types import SMALL_FLOATS, SMALL_INTEGERS, TINY_INTEGERS
from webmlc.target.targets import lower
from webmlc.target.wasm.emit_module import emit_module

SMALL = sorted(SMALL_FLOATS | SMALL_INTEGERS)
"""The types of less than 32 bits."""
WIDE = [DType.float32, DType.float64, DType.int32, DType.int64, DType.uint64]
"""The types that small types are converted to."""
Array = np.ndarray


def elementwise(count: int, *dtypes: DType, meaning: Callable[..., Expr]) -> LoopFunction:
    """`Y[i] = meaning(X0[i], X1[i], ...)`. The last of `dtypes` is the type of Y."""
    shape = (const(count),)
    *sources, target = (Buffer(f"B{i}", shape, dtype) for i, dtype in enumerate(dtypes))
    o, i = Var("o"), Var("i")
    index = o * 8 + i
    store = Store(target, (index,), meaning(*(s[index] for s in sources)))
    body = For(o, const(count // 8), For(i, const(8), store, "vectorized"))
    return LoopFunction("f", (*sources, target), 1, (), (), body)


def run(run_wasm: object, function: LoopFunction, features: str, *inputs: Array) -> Array:
    """The result of a function on these inputs."""
    assert callable(run_wasm)
    target = function.params[-1]
    result = np.zeros(inputs[0].shape, target.dtype.numpy)
    arrays = {b.name: a for b, a in zip(function.params, (*inputs, result), strict=True)}
    run_wasm(lower(function, WASM_MACHINES[features]), arrays, features=features)  # type: ignore[index]
    return result


def codes(dtype: DType) -> Array:
    """Every bit pattern of a type. For integers that includes patterns with spare bits, as
    ml_dtypes reads them.
    """
    holder = np.uint8 if dtype.bytes == 1 else np.uint16
    patterns = np.arange(1 << (8 * dtype.bytes)) % (1 << (dtype.bits if dtype.is_float else 16))
    return patterns.astype(holder).view(dtype.numpy)


def edges(dtype: DType) -> Array:
    """As float32: each number of `dtype`, each midpoint of two, and the numbers next to all
    of these.
    """
    with np.errstate(all="ignore"):
        exact = np.unique(codes(dtype).astype(np.float32))
        exact = exact[np.isfinite(exact)]
        midpoints = exact[:-1] + (exact[1:] - exact[:-1]) / 2
        points = np.concatenate([exact, midpoints]).astype(np.float32)
        neighbours = [np.nextafter(points, np.float32(side)) for side in (-np.inf, np.inf)]
        special = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 1e-45, -1e-45, 3e38, -3e38])
        bits = np.random.default_rng(0).integers(0, 1 << 32, 1 << 15, np.uint32)
        values = np.concatenate([points, *neighbours, special, bits.view(np.float32)])
    return np.resize(values, -(-values.size // 8) * 8).astype(np.float32)


def assert_same(actual: Array, expected: Array) -> None:
    """Assert that bits are equal, except those of a NaN and the spare bits of a short type."""
    if actual.dtype.kind in "iub":
        np.testing.assert_array_equal(actual, expected)
        return
    wide_actual, wide_expected = actual.astype(np.float64), expected.astype(np.float64)
    np.testing.assert_array_equal(wide_actual, wide_expected)
    numbers = ~np.isnan(wide_expected)
    np.testing.assert_array_equal(
        np.signbit(wide_actual[numbers]), np.signbit(wide_expected[numbers])
    )


@pytest.mark.parametrize("features", ["relaxed", "simd128"])
@pytest.mark.parametrize("source", SMALL)
def test_every_code_converts(run_wasm: object, source: DType, features: str) -> None:
    values = codes(source)
    for target in [*WIDE, *SMALL]:
        if target.is_integer and source.is_float:
            continue  # tested below in the range where the result is defined
        function = elementwise(values.size, source, target, meaning=lambda x, t=target: Cast(x, t))
        actual = run(run_wasm, function, features, values)
        with np.errstate(all="ignore"):
            expected = values.astype(np.float32) if source.is_float else values.astype(np.int32)
            assert_same(actual, expected.astype(target.numpy))


@pytest.mark.parametrize("features", ["relaxed", "simd128"])
def test_finite_halves_are_widened(run_wasm: object, features: str) -> None:
    values = codes(DType.float16)
    values = np.where(np.isfinite(values), values, np.float16(0))

    def widened(x: Expr) -> Expr:
        return Cast(call("finite", x), DType.float32)

    function = elementwise(values.size, DType.float16, DType.float32, meaning=widened)
    assert_same(run(run_wasm, function, features, values), values.astype(np.float32))


@pytest.mark.parametrize("features", ["relaxed", "simd128"])
@pytest.mark.parametrize("target", sorted(SMALL_FLOATS))
def test_conversions_round_to_the_nearest(run_wasm: object, target: DType, features: str) -> None:
    values = edges(target)
    function = elementwise(values.size, DType.float32, target, meaning=lambda x: Cast(x, target))
    actual = run(run_wasm, function, features, values)
    with np.errstate(all="ignore"):
        assert_same(actual, values.astype(target.numpy))


def test_float64_rounds_to_float16_once(run_wasm: object) -> None:
    midpoints = (
        codes(DType.float16)[:0x7BFF].astype(np.float64) + codes(DType.float16)[1:0x7C00]
    ) / 2
    tail = np.float64(2.0**-45)
    values = np.concatenate(
        [midpoints, midpoints * (1 + tail), midpoints * (1 - tail), [1e300, -1e300, 1e9]]
    )
    values = np.resize(
        np.concatenate([values, -values, [np.nan, np.inf]]), -(-values.size // 8) * 16
    )
    function = elementwise(
        values.size, DType.float64, DType.float16, meaning=lambda x: Cast(x, DType.float16)
    )
    with np.errstate(all="ignore"):
        assert_same(run(run_wasm, function, "relaxed", values), values.astype(np.float16))


@pytest.mark.parametrize("source", [DType.float32, DType.float16, DType.float64, DType.int64])
@pytest.mark.parametrize("target", [*sorted(SMALL_INTEGERS), DType.int32, DType.int64])
def test_integers_convert_within_their_range(
    run_wasm: object, source: DType, target: DType
) -> None:
    low, high = (max(-2000, min(2000, limit)) for limit in target.limits)
    values = np.linspace(low, high, 4096).astype(source.numpy)
    values = np.clip(values, low, high).astype(source.numpy)
    function = elementwise(4096, source, target, meaning=lambda x: Cast(x, target))
    assert_same(run(run_wasm, function, "relaxed", values), values.astype(target.numpy))


@pytest.mark.parametrize("dtype", sorted(TINY_INTEGERS))
def test_integers_wrap(run_wasm: object, dtype: DType) -> None:
    values = np.arange(-512, 512, dtype=np.int32)
    function = elementwise(1024, DType.int32, dtype, meaning=lambda x: Cast(x, dtype))
    assert_same(run(run_wasm, function, "relaxed", values), values.astype(dtype.numpy))


@pytest.mark.parametrize("dtype", SMALL)
def test_each_operation_rounds_or_wraps(run_wasm: object, dtype: DType) -> None:
    """(a + b) - b is not a where a + b is rounded or wrapped."""
    a = np.resize(codes(dtype), 1 << 12)
    b = np.roll(a, 77)

    def meaning(x: Expr, y: Expr) -> Expr:
        return call("sub", call("add", x, y), y)

    actual = run(
        run_wasm, elementwise(1 << 12, dtype, dtype, dtype, meaning=meaning), "relaxed", a, b
    )
    wide = np.float32 if dtype.is_float else np.int32
    with np.errstate(all="ignore"):
        total = (a.astype(wide) + b.astype(wide)).astype(dtype.numpy).astype(wide)
        assert_same(actual, (total - b.astype(wide)).astype(dtype.numpy))


@pytest.mark.parametrize("dtype", [DType.float16, DType.float8_e5m2, DType.int4])
def test_small_types_are_loaded_as_vectors(dtype: DType) -> None:
    function = elementwise(64, dtype, DType.float32, meaning=lambda x: Cast(x, DType.float32))
    lowered = lower(function, WASM_MACHINES["relaxed"])
    text = emit_module({"f": lowered}, [], "relaxed").text
    load = "v128.load16x4_u" if dtype.bytes == 2 else "v128.load32_zero"
    assert load in text and "v128.store " in text
    assert "f32.store" not in text


@pytest.mark.parametrize("features", ["relaxed", "simd128"])
def test_booleans_are_masks_in_vectors(run_wasm: object, features: str) -> None:
    rng = np.random.default_rng(0)
    a, b = rng.integers(0, 2, (2, 256)).astype(bool)
    x = rng.standard_normal(256).astype(np.float32)

    def meaning(p: Expr, q: Expr, v: Expr) -> Expr:
        return call("select", call("bit_xor", p, v > 0.0), call("bit_not", q), p & q)

    types = (DType.bool, DType.bool, DType.float32, DType.bool)
    function = elementwise(256, *types, meaning=meaning)
    text = emit_module({"f": lower(function, WASM_MACHINES["relaxed"])}, [], "relaxed").text
    assert "v128.store32_lane" in text and "i32.store8" not in text
    actual = run(run_wasm, function, features, a, b, x)
    np.testing.assert_array_equal(actual, np.where(a ^ (x > 0), ~b, a & b))


def test_strided_booleans_are_masks(run_wasm: object) -> None:
    shape = (const(256),)
    source, target = Buffer("X", shape, DType.bool), Buffer("Y", shape, DType.bool)
    o, i = Var("o"), Var("i")
    store = Store(target, (i * 32 + o,), ~source[255 - (i * 32 + o),])
    body = For(o, const(32), For(i, const(8), store, "vectorized"))
    x = np.random.default_rng(0).integers(0, 2, 256).astype(bool)
    function = LoopFunction("f", (source, target), 1, (), (), body)
    np.testing.assert_array_equal(run(run_wasm, function, "relaxed", x), ~x[::-1])

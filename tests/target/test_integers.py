"""Test integer operators on special values: none traps, and all results agree with numpy."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.target.test_legalise_types import elementwise, run
from webmlc.core.dtypes import DType
from webmlc.core.expr import Expr, Var, call, const
from webmlc.core.machine import RELAXED, WEBGPU
from webmlc.core.scalar_operators import SCALAR_OPERATORS
from webmlc.loops.ir import Buffer, For, LoopFunction, Store
from webmlc.target.targets import lower
from webmlc.target.wasm.emit_module import print_function

INTEGERS = [d for d in DType if d.is_integer and d.bits >= 8]
DIVISIONS = ["floordiv", "floormod", "truncdiv", "truncmod"]
OTHER_OPERATORS = ["min", "max", "neg", "abs", "sign", "bit_not", "add", "sub", "mul", "bit_xor"]


def pairs(dtype: DType) -> tuple[np.ndarray, np.ndarray]:
    """Every pair of numbers at the ends of the range, around zero, and in between."""
    low, high = (int(limit) for limit in dtype.limits)
    near_zero = [v for v in range(-9, 10) if low <= v <= high]
    values = [low, low + 1, low // 2, low // 3, high // 3, high // 2, high - 1, high, *near_zero]
    a, b = (v.reshape(-1) for v in np.meshgrid(*[np.array(values, dtype.numpy)] * 2))
    size = -(-a.size // 8) * 8
    return np.resize(a, size), np.resize(b, size)


@pytest.mark.parametrize("features", ["relaxed", "simd128"])
@pytest.mark.parametrize("op", [*DIVISIONS, *OTHER_OPERATORS])
@pytest.mark.parametrize("dtype", INTEGERS)
def test_integer_operators_agree_with_numpy(
    run_wasm: object, dtype: DType, op: str, features: str
) -> None:
    row = SCALAR_OPERATORS[op]
    inputs = pairs(dtype)[: row.arity]
    types = (dtype,) * (row.arity + 1)
    function = elementwise(inputs[0].size, *types, meaning=lambda *x: call(op, *x))
    with np.errstate(all="ignore"):
        expected = row.meaning(*inputs).astype(dtype.numpy)
    np.testing.assert_array_equal(run(run_wasm, function, features, *inputs), expected)


@pytest.mark.parametrize("divisor", [-7, -1, 1, 3, 8, 255])
@pytest.mark.parametrize("op", DIVISIONS)
@pytest.mark.parametrize("dtype", [DType.int32, DType.int64, DType.uint32, DType.uint8])
def test_division_by_literals_agrees_with_numpy(
    run_wasm: object, dtype: DType, op: str, divisor: int
) -> None:
    if not dtype.is_signed and divisor < 0:
        divisor = -divisor
    a = pairs(dtype)[0]
    function = elementwise(a.size, dtype, dtype, meaning=lambda x: call(op, x, divisor))
    with np.errstate(all="ignore"):
        expected = SCALAR_OPERATORS[op].meaning(a, np.array(divisor, dtype.numpy))
    np.testing.assert_array_equal(run(run_wasm, function, "relaxed", a), expected)


def test_only_divisors_that_may_be_zero_are_guarded() -> None:
    def text(meaning: object) -> str:
        assert callable(meaning)
        function = elementwise(8, DType.int32, DType.int32, DType.int32, meaning=meaning)
        return str(lower(function, WEBGPU).body)

    assert "select" not in text(lambda x, y: call("truncdiv", x, 7))
    assert "select" in text(lambda x, y: call("truncdiv", x, y))


@pytest.mark.parametrize("dtype", [DType.uint8, DType.int16, DType.uint32])
@pytest.mark.parametrize("op", ["shift_left", "shift_right"])
def test_all_lanes_shift_by_an_amount_from_memory(run_wasm: object, dtype: DType, op: str) -> None:
    shape = (const(64),)
    x, by = Buffer("X", shape, dtype), Buffer("N", (const(1),), dtype)
    y = Buffer("Y", shape, dtype)
    o, i = Var("o"), Var("i")
    store = Store(y, (o * 8 + i,), call(op, x[o * 8 + i], by[0]))
    body = For(o, const(8), For(i, const(8), store, "vectorized"))
    values = np.resize(pairs(dtype)[0], 64)
    amount = np.array([3], dtype.numpy)
    actual = run(
        run_wasm, LoopFunction("f", (x, by, y), 1, (), (), body), "relaxed", values, amount
    )
    np.testing.assert_array_equal(actual, SCALAR_OPERATORS[op].meaning(values, amount))


@pytest.mark.parametrize("dtype", [DType.int32, DType.int64, DType.uint64, DType.int8])
def test_integer_powers_are_exact(run_wasm: object, dtype: DType) -> None:
    low = -5 if dtype.is_signed else 0
    a, b = np.meshgrid(np.arange(low, 11), np.arange(low, 65))
    count = a.size // 8 * 8
    base, exponent = (v.reshape(-1)[:count].astype(dtype.numpy) for v in (a, b))

    def meaning(x: Expr, y: Expr) -> Expr:
        return call("pow", x, y)

    function = elementwise(count, dtype, dtype, dtype, meaning=meaning)
    expected = SCALAR_OPERATORS["pow"].meaning(base, exponent)
    np.testing.assert_array_equal(run(run_wasm, function, "relaxed", base, exponent), expected)


@pytest.mark.parametrize("dtype", [DType.float32, DType.float64, DType.float16])
@pytest.mark.parametrize("op", ["floormod", "truncmod"])
def test_remainders_of_floats_are_exact(run_wasm: object, dtype: DType, op: str) -> None:
    rng = np.random.default_rng(0)
    special = [0.0, -0.0, 1.0, -1.0, 3.0, -3.0, 0.1, 7.25, np.inf, -np.inf, np.nan]
    a, b = (v.reshape(-1) for v in np.meshgrid(special, special))
    x, y = rng.uniform(-99, 99, (2, 4096))
    multiples = np.round(y, 1) * rng.integers(-50, 50, 4096)
    a = np.concatenate([a, x, multiples, x * 1e7])
    b = np.concatenate([b, y, np.round(y, 1), y])
    # Positive numbers of every exponent: quotients have up to 2,098 bits.
    integer = np.dtype(f"int{dtype.bits}")
    end = np.array(np.inf, dtype.numpy).view(integer)
    floats = rng.integers(1, end, (2, 4096), integer).view(dtype.numpy).astype(np.float64)
    least, largest = np.array([1, end - 1], integer).view(dtype.numpy).astype(np.float64)
    a = np.concatenate([a, floats[0], [largest, -largest, largest]])
    b = np.concatenate([b, floats[1], [least, 3 * least, -7 * least]])
    size = -(-a.size // 8) * 8
    with np.errstate(all="ignore"):
        first, second = (np.resize(v, size).astype(dtype.numpy) for v in (a, b))
        expected = SCALAR_OPERATORS[op].meaning(first, second)
    types = (dtype, dtype, dtype)
    function = elementwise(size, *types, meaning=lambda p, q: call(op, p, q))
    actual = run(run_wasm, function, "relaxed", first, second)
    np.testing.assert_array_equal(actual, expected)
    zeros = (expected == 0) & (np.isfinite(second) | (op == "floormod"))
    np.testing.assert_array_equal(np.signbit(actual[zeros]), np.signbit(expected[zeros]))


@pytest.mark.parametrize("features", ["relaxed", "simd128"])
@pytest.mark.parametrize(
    "op", ["dot_u8_i8", "dot_u7_i8", "dot_i16", "word_u8", "even_i8", "odd_i8", "odd_u8"]
)
def test_operators_on_words_of_small_integers(run_wasm: object, op: str, features: str) -> None:
    """At the ends of every byte's range, and on random words. Products of bytes run as
    scalars as well.
    """
    row = SCALAR_OPERATORS[op]
    words = np.random.default_rng(2).integers(-(2**31), 2**31, (4, 4096), np.int32)
    ends = np.array([0, 1, 127, 128, 255], np.uint8)
    words[:2, :625] = np.stack(np.meshgrid(*[ends] * 4), -1).reshape(-1, 4).view(np.int32)[:, 0]
    words[1, :625] = words[1, :625][::-1]
    if op == "dot_u7_i8":
        words[0] &= 0x7F7F7F7F
    inputs = words[: row.arity]
    types = (DType.int32,) * (row.arity + 1)
    function = elementwise(inputs.shape[1], *types, meaning=lambda *x: call(op, *x))
    expected = row.meaning(*inputs)
    np.testing.assert_array_equal(run(run_wasm, function, features, *inputs), expected)
    if op in ("dot_u8_i8", "dot_u7_i8", "word_u8"):
        assert isinstance(function.body, For) and isinstance(function.body.body, For)
        inner = replace(function.body.body, kind="serial")
        serial = replace(function, body=replace(function.body, body=inner))
        np.testing.assert_array_equal(run(run_wasm, serial, features, *inputs), expected)


def test_the_numpy_meaning_of_products_of_bytes() -> None:
    a, b = np.array([200, 3, 255, 0], np.uint8), np.array([-128, 127, 1, -7], np.int8)
    actual = SCALAR_OPERATORS["dot_u8_i8"].meaning(a.view(np.int32), b.view(np.int32))
    assert actual.item() == int(a.astype(int) @ b.astype(int))
    halves = SCALAR_OPERATORS["even_i8"].meaning(b.view(np.int32)).view(np.int16)
    assert halves.tolist() == [-128, 1]


@pytest.mark.parametrize("zero", [0, 3, 128])
@pytest.mark.parametrize("dtype", [DType.uint8, DType.int8])
def test_quantisation_rounds_ties_to_even_and_saturates(
    run_wasm: object, dtype: DType, zero: int
) -> None:
    """It uses no saturating conversion, which takes eight instructions per vector on x86."""
    low, high = (float(limit) for limit in dtype.limits)

    def meaning(x: Expr) -> Expr:
        shifted = call("round", x) + float(zero)
        return call("max", call("min", shifted, high), low).astype(dtype)

    multiples = np.arange(-600, 600, 0.25, np.float32)
    ends = np.array([np.inf, -np.inf, 1e30, -1e30, 3e9, -3e9, -0.0, 1e-30], np.float32)
    x = np.concatenate([multiples, np.nextafter(multiples, np.float32(1e9)), ends])
    function = elementwise(x.size, DType.float32, dtype, meaning=meaning)
    expected = np.clip(np.rint(x) + zero, low, high).astype(dtype.numpy)
    np.testing.assert_array_equal(run(run_wasm, function, "relaxed", x), expected)
    text = print_function(lower(function, RELAXED), "relaxed").text
    assert "trunc_sat" not in text and "nearest" not in text

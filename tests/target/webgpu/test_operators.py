"""Test every scalar operator on the GPU against its numpy meaning, as scalars and as vectors, on
ordinary values and edge cases.
"""

from __future__ import annotations

import numpy as np
import pytest

from tests.target.webgpu import gpu
from webmlc.core.dtypes import DType
from webmlc.core.expr import Call, Cast, Const, Expr, Var, call
from webmlc.core.machine import WEBGPU
from webmlc.core.scalar_operators import SCALAR_OPERATORS
from webmlc.loops.ir import Axis, Block, Buffer, For, LoopFunction, Store
from webmlc.schedule.rules import schedule_kernel
from webmlc.target.targets import lower

FLOATS = [0.0, -0.0, 0.5, -0.5, 1.0, -1.0, 1.5, 2.5, -2.5, 3.7, -3.7, 0.1, -0.01, 1e-4]
INTEGERS = [0, 1, -1, 2, -2, 3, -3, 7, -7, 8, -8, 100, -100, 12345, -12345, 2**30]
DOMAINS = {
    "sqrt": (0.0, 50.0), "log": (1e-3, 50.0), "asin": (-1.0, 1.0), "acos": (-1.0, 1.0),
    "atanh": (-0.9, 0.9), "acosh": (1.0, 30.0), "exp": (-20.0, 20.0), "cosh": (-8.0, 8.0),
    "sinh": (-8.0, 8.0), "tan": (-1.2, 1.2),
}  # fmt: skip
"""The interval to test an operator on, where it is not the default."""
UNARY = [
    "neg", "abs", "sign", "floor", "ceil", "trunc", "round", "sqrt", "exp", "log", "erf", "sin",
    "cos", "tan", "asin", "acos", "atan", "sinh", "cosh", "tanh", "asinh", "acosh", "atanh",
]  # fmt: skip
BINARY = [
    "add", "sub", "mul", "div", "floordiv", "floormod", "truncmod", "min", "max", "relaxed_max",
    "pow",
]  # fmt: skip
BINARY_INTEGER = [
    "add", "sub", "mul", "floordiv", "floormod", "truncdiv", "truncmod", "min", "max", "bit_and",
    "bit_or", "bit_xor",
]  # fmt: skip


def _kernel(size: int, dtype: DType, arity: int, value: object) -> LoopFunction:
    """`out[i] = value(a[i], b[i], ...)`."""
    i, axis = Var("i"), Var("vi")
    shape = (Const(size),)
    inputs = tuple(Buffer(name, shape, dtype) for name in "ab"[:arity])
    body = value(*(b[axis] for b in inputs))  # type: ignore[operator]
    assert isinstance(body, Expr)
    out = Buffer("out", shape, body.dtype)
    block = Block("out", (Axis(axis, Const(size), "spatial"),), (i,), Store(out, (axis,), body))
    return LoopFunction("kernel", (*inputs, out), 1, (), (), For(i, Const(size), block))


def _run(size: int, dtype: DType, arguments: list[np.ndarray], value: object) -> np.ndarray:
    """The result on the GPU of `out[i] = value(a[i], b[i], ...)`."""
    function = _kernel(size, dtype, len(arguments), value)
    lowered = lower(schedule_kernel(function, WEBGPU).function, WEBGPU)
    arrays = dict(zip("ab", arguments, strict=False))
    arrays["out"] = np.zeros(size, function.params[-1].dtype.numpy)
    result: np.ndarray = gpu.run_on_gpu(lowered, arrays)["out"]
    return result


def _floats(size: int, seed: int, low: float = -4.0, high: float = 4.0) -> np.ndarray:
    """Random floats in an interval, edge cases first."""
    values = np.random.default_rng(seed).uniform(low, high, size).astype(np.float32)
    edges = np.float32([v for v in FLOATS if low <= v <= high])
    values[: len(edges)] = edges
    return values


@pytest.mark.parametrize("size", [63, 64], ids=["scalars", "vectors"])
@pytest.mark.parametrize("name", UNARY)
def test_unary_operators(name: str, size: int) -> None:
    x = _floats(size, 0, *DOMAINS.get(name, (-25.0, 25.0)))
    actual = _run(size, DType.float32, [x], lambda a: Call(name, (a,), DType.float32))
    expected = SCALAR_OPERATORS[name].meaning(x.astype(np.float64))
    np.testing.assert_allclose(actual, expected, rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize("size", [4095, 4096], ids=["scalars", "vectors"])
@pytest.mark.parametrize("name", ["sin", "cos", "tan"])
def test_angles_of_every_size_are_reduced_exactly(name: str, size: int) -> None:
    """The first angle is the float32 that is relatively nearest to a multiple of π/2."""
    bits = np.random.default_rng(0).integers(0x00800000, 0x7F800000, size).astype(np.uint32)
    x = bits.view(np.float32)
    x[::2] *= -1
    x[0] = 16367173 * 2.0**72
    actual = _run(size, DType.float32, [x], lambda a: Call(name, (a,), DType.float32))
    expected = SCALAR_OPERATORS[name].meaning(x.astype(np.float64))
    np.testing.assert_allclose(actual, expected, rtol=1e-6 if name == "tan" else 4e-7)


@pytest.mark.parametrize("size", [63, 64], ids=["scalars", "vectors"])
@pytest.mark.parametrize("name", ["eq", "ne", "lt", "le", "gt", "ge"])
def test_comparisons_of_nan(name: str, size: int) -> None:
    special = np.float32([np.nan, 1, np.nan, 2, np.inf, -np.inf, -np.nan])
    x, y = np.resize(special, size), np.resize(special[:5], size)
    actual = _run(size, DType.float32, [x, y], lambda a, b: Call(name, (a, b), DType.bool))
    np.testing.assert_array_equal(actual, SCALAR_OPERATORS[name].meaning(x, y))


@pytest.mark.parametrize("size", [63, 64], ids=["scalars", "vectors"])
@pytest.mark.parametrize("name", BINARY)
def test_binary_operators(name: str, size: int) -> None:
    x, y = _floats(size, 0), np.roll(_floats(size, 1), 5)
    if name in ("div", "floordiv", "floormod", "truncmod"):
        y = np.where(np.abs(y) < 0.1, np.float32(0.75), y)
    if name == "pow":
        y = np.where(x <= 0, np.abs(np.round(y)), y).astype(np.float32)
    actual = _run(size, DType.float32, [x, y], lambda a, b: Call(name, (a, b), DType.float32))
    expected = SCALAR_OPERATORS[name].meaning(x, y)
    np.testing.assert_allclose(actual, expected, rtol=3e-5, atol=1e-5)


@pytest.mark.parametrize("size", [63, 64], ids=["scalars", "vectors"])
@pytest.mark.parametrize("exponent", [0.0, 0.25, 0.75, 1.5, -0.25, -1.0, 3.0, 0.3, -2.7])
def test_powers_of_numbers_without_a_sign(exponent: float, size: int) -> None:
    """Roots compute the powers by multiples of 1/4."""
    x = np.abs(_floats(size, 0))
    x[1:4] = 0, np.inf, np.nan
    actual = _run(size, DType.float32, [x], lambda a: call("unsigned_pow", a, exponent))
    with np.errstate(divide="ignore"):
        expected = SCALAR_OPERATORS["unsigned_pow"].meaning(x, np.float32(exponent))
    np.testing.assert_allclose(actual, expected, rtol=1e-5)


@pytest.mark.parametrize("name", ["floormod", "truncmod"])
def test_remainders_of_floats_are_exact(name: str) -> None:
    """Of quotients with more digits than a float, too."""
    special = np.float32([0, 1, -3, 0.1, 7.25, 1e30, -3e38, 2**24, 1.5e-38, np.inf, np.nan])
    x, y = (v.reshape(-1) for v in np.meshgrid(special, special))
    random = np.random.default_rng(0).integers(0x00800000, 0x7F000000, (2, 4096), np.int32)
    x, y = (np.concatenate(v)[:4160] for v in zip((x, y), random.view(np.float32), strict=True))
    with np.errstate(all="ignore"):
        expected = SCALAR_OPERATORS[name].meaning(x, y)
        is_subnormal = (expected != 0) & (np.abs(expected) < np.finfo(np.float32).tiny)
    actual = _run(x.size, DType.float32, [x, y], lambda a, b: Call(name, (a, b), DType.float32))
    np.testing.assert_array_equal(actual[~is_subnormal], expected[~is_subnormal])


@pytest.mark.parametrize("size", [63, 64], ids=["scalars", "vectors"])
@pytest.mark.parametrize("dtype", [DType.int32, DType.uint32])
@pytest.mark.parametrize("name", BINARY_INTEGER)
def test_integer_operators(name: str, dtype: DType, size: int) -> None:
    values = np.resize(np.array(INTEGERS), size)
    x = np.abs(values).astype(np.uint32) if dtype is DType.uint32 else values.astype(np.int32)
    y = np.roll(x, 3)
    y[y == 0] = 5
    actual = _run(size, dtype, [x, y], lambda a, b: Call(name, (a, b), dtype))
    with np.errstate(over="ignore"):
        np.testing.assert_array_equal(actual, SCALAR_OPERATORS[name].meaning(x, y))


@pytest.mark.parametrize("divisor", [1, 2, 8, 3, 7, -3])
@pytest.mark.parametrize("name", ["floordiv", "floormod"])
def test_division_by_a_literal_rounds_down(name: str, divisor: int) -> None:
    x = np.resize(np.array(INTEGERS, np.int32), 63)
    right = Const(divisor)
    actual = _run(63, DType.int32, [x], lambda a: Call(name, (a, right), DType.int32))
    np.testing.assert_array_equal(actual, SCALAR_OPERATORS[name].meaning(x, divisor))


@pytest.mark.parametrize("size", [63, 64], ids=["scalars", "vectors"])
def test_nan_and_infinity_are_distinguished(size: int) -> None:
    x = np.resize(np.float32([1, np.nan, np.inf, -np.inf, 0, -1, 3e38]), size)
    for name in ("isnan", "isinf"):
        actual = _run(
            size, DType.float32, [x], lambda a, n=name: Cast(Call(n, (a,), DType.bool), DType.int32)
        )
        np.testing.assert_array_equal(actual, SCALAR_OPERATORS[name].meaning(x).astype(np.int32))


def test_infinite_literals_are_built_at_run_time() -> None:
    x = np.zeros(64, np.float32)
    for value in (np.inf, -np.inf, np.nan):
        literal = Const(float(value), DType.float32)
        actual = _run(
            64, DType.float32, [x], lambda a, v=literal: Call("add", (a, v), DType.float32)
        )
        np.testing.assert_array_equal(actual, np.full(64, value, np.float32))


@pytest.mark.parametrize("size", [63, 64], ids=["scalars", "vectors"])
def test_select_and_comparisons(size: int) -> None:
    x, y = _floats(size, 2), _floats(size, 3)
    for name in ("lt", "le", "gt", "ge", "eq", "ne"):
        actual = _run(
            size, DType.float32, [x, y],
            lambda a, b, n=name: Call("select", (Call(n, (a, b), DType.bool), a, b), DType.float32),
        )  # fmt: skip
        np.testing.assert_array_equal(actual, np.where(SCALAR_OPERATORS[name].meaning(x, y), x, y))


@pytest.mark.parametrize("dtype", [DType.int8, DType.uint8, DType.int16, DType.uint16])
def test_narrow_integers_wrap(dtype: DType) -> None:
    x = np.resize(np.array(INTEGERS, np.int32), 63)
    actual = _run(63, DType.int32, [x], lambda a: Cast(Cast(a, dtype), DType.int32))
    np.testing.assert_array_equal(actual, x.astype(dtype.numpy).astype(np.int32))


@pytest.mark.parametrize("size", [63, 64], ids=["scalars", "vectors"])
def test_logarithms_near_one_have_a_small_relative_error(size: int) -> None:
    x = (1 + np.linspace(-0.3, 0.3, size) ** 5 * 100).astype(np.float32)
    actual = _run(size, DType.float32, [x], lambda a: Call("log", (a,), DType.float32))
    np.testing.assert_allclose(actual, np.log(x.astype(np.float64)), rtol=1e-6, atol=1e-12)


@pytest.mark.parametrize("size", [63, 64], ids=["scalars", "vectors"])
@pytest.mark.parametrize("name", ["eq", "ne"])
def test_subnormal_numbers_are_not_0(name: str, size: int) -> None:
    x = np.resize(np.float32([0, -0.0, 1e-40, -1e-45, 1, np.nan, -np.inf]), size)
    zero = Const(0.0, DType.float32)
    actual = _run(size, DType.float32, [x], lambda a: Call(name, (a, zero), DType.bool))
    np.testing.assert_array_equal(actual, (x == 0) == (name == "eq"))


@pytest.mark.parametrize("size", [63, 64], ids=["scalars", "vectors"])
@pytest.mark.parametrize("name", ["sub", "div"])
def test_an_infinity_minus_itself_is_no_number(name: str, size: int) -> None:
    x = np.resize(np.float32([0, -2, np.nan, np.inf, -np.inf, 3e38]), size)
    actual = _run(size, DType.float32, [x], lambda a: Call(name, (a, a), DType.float32))
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(actual, SCALAR_OPERATORS[name].meaning(x, x))

"""Test types that WGSL lacks against numpy: parts of words, pairs of words, and 16-bit floats."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tests.target.webgpu import gpu
from webmlc.core.dtypes import DType
from webmlc.core.expr import Bitcast, Call, Cast, Const, Expr, Var
from webmlc.core.machine import WEBGPU
from webmlc.core.scalar_operators import SCALAR_OPERATORS
from webmlc.loops.ir import Axis, Block, Buffer, For, LoopFunction, Store
from webmlc.schedule.rules import schedule_kernel
from webmlc.target.targets import lower

Array = np.ndarray[Any, Any]
SMALL = [DType.int8, DType.uint8, DType.int16, DType.uint16]
LONGS = [DType.int64, DType.uint64]
HALVES = [DType.float16, DType.bfloat16]
EDGES = [0, 1, 2, 3, 7, 2**15, 2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**33 + 5, 10**12, 2**62 + 3]


def _run(arguments: list[Array], value: Callable[..., Expr]) -> Array:
    """`out[i] = value(a[i], b[i], ...)` on the GPU."""
    i, axis = Var("i"), Var("vi")
    size = Const(len(arguments[0]))
    names = "ab"[: len(arguments)]
    inputs = tuple(
        Buffer(name, (size,), DType.of(a.dtype)) for name, a in zip(names, arguments, strict=True)
    )
    body = value(*(b[axis] for b in inputs))
    out = Buffer("out", (size,), body.dtype)
    block = Block("out", (Axis(axis, size, "spatial"),), (i,), Store(out, (axis,), body))
    function = LoopFunction("kernel", (*inputs, out), 1, (), (), For(i, size, block))
    lowered = lower(schedule_kernel(function, WEBGPU).function, WEBGPU)
    arrays = dict(zip(names, arguments, strict=True))
    arrays["out"] = np.full(len(arguments[0]), 7).astype(body.dtype.numpy)
    result: Array = gpu.run_on_gpu(lowered, arrays)["out"]
    return result


def _longs(dtype: DType) -> Array:
    """64-bit integers at the edges of words and of their range."""
    values = [*EDGES, *([-v for v in EDGES] if dtype is DType.int64 else [2**63 + 1, 2**64 - 1])]
    values += [np.iinfo(dtype.numpy).min, 2**63 - 1]
    return np.array(values, dtype.numpy)


@pytest.mark.parametrize("size", [1, 5, 64, 131])
@pytest.mark.parametrize("dtype", [DType.bool, *SMALL, *LONGS, *HALVES])
def test_a_store_does_not_change_neighbouring_elements(dtype: DType, size: int) -> None:
    data = np.random.default_rng(0).integers(0, 256, size * dtype.bytes, np.uint8)
    x = (data & 1).astype(bool) if dtype is DType.bool else data.view(dtype.numpy)
    if dtype.is_float:
        x = np.where(x == x, x, np.ones_like(x))
    actual = _run([x], lambda a: Call("select", (Const(True, DType.bool), a, a), dtype))
    assert actual.tobytes() == x.tobytes()


@pytest.mark.parametrize("dtype", LONGS)
@pytest.mark.parametrize(
    "name", ["add", "sub", "mul", "floordiv", "floormod", "truncdiv", "truncmod", "min", "max",
             "bit_and", "bit_or", "bit_xor", "lt", "le", "gt", "ge", "eq", "ne"],
)  # fmt: skip
def test_binary_operators_on_long_integers(name: str, dtype: DType) -> None:
    x, y = (m.reshape(-1) for m in np.meshgrid(_longs(dtype), _longs(dtype)))
    if name.startswith(("floor", "trunc")):
        is_undefined = (y == 0) | ((x == np.iinfo(x.dtype).min) & (y.astype(np.int64) == -1))
        y = np.where(is_undefined, np.ones_like(y), y)
    result = SCALAR_OPERATORS[name].result
    result_type = DType.bool if result == "bool" else dtype
    actual = _run([x, y], lambda a, b: Call(name, (a, b), result_type))
    if name == "truncdiv":  # numpy has none for integers, and its `abs` is signed
        quotients = [abs(int(a)) // abs(int(b)) for a, b in zip(x, y, strict=True)]
        signs = np.where((x < 0) != (y < 0), -1, 1).astype(object)
        expected = (np.array(quotients, object) * signs).astype(dtype.numpy)
    else:
        with np.errstate(over="ignore"):
            expected = SCALAR_OPERATORS[name].meaning(x, y)
    np.testing.assert_array_equal(actual, expected)


@pytest.mark.parametrize("dtype", LONGS)
@pytest.mark.parametrize("name", ["shift_left", "shift_right"])
def test_shifts_of_long_integers(name: str, dtype: DType) -> None:
    amounts = np.array([0, 1, 5, 31, 32, 33, 63], dtype.numpy)
    x, y = (m.reshape(-1) for m in np.meshgrid(_longs(dtype), amounts))
    actual = _run([x, y], lambda a, b: Call(name, (a, b), dtype))
    np.testing.assert_array_equal(actual, SCALAR_OPERATORS[name].meaning(x, y))


@pytest.mark.parametrize("name", ["neg", "abs", "sign", "bit_not"])
def test_unary_operators_on_long_integers(name: str) -> None:
    x = _longs(DType.int64)
    actual = _run([x], lambda a: Call(name, (a,), DType.int64))
    np.testing.assert_array_equal(actual, SCALAR_OPERATORS[name].meaning(x))


@pytest.mark.parametrize("source", [DType.bool, *SMALL, *LONGS, DType.int32, DType.uint32])
@pytest.mark.parametrize(
    "target", [DType.bool, *SMALL, *LONGS, DType.int32, DType.uint32, DType.float32, *HALVES]
)
def test_casts_of_integers(source: DType, target: DType) -> None:
    values = [0, 1, -1, 2, 100, -100, 127, 128, 255, 256, 65535, -65536, 12345678, -12345678]
    values += [2**40 + 1, -(2**40) - 12345, 2**53 - 1] if source in LONGS else []
    x = np.array(values).astype(source.numpy)
    actual = _run([x], lambda a: Cast(a, target))
    with np.errstate(over="ignore"):
        expected = (x.astype(np.float32) if target in HALVES else x).astype(target.numpy)
    np.testing.assert_array_equal(actual, expected)


@pytest.mark.parametrize("target", [*SMALL, *LONGS, *HALVES, DType.bool])
def test_casts_of_floats(target: DType) -> None:
    values = [0.0, 0.4, 1.0, 2.5, 100.25, 127.0]
    values += [-1.5, -127.0] if target.is_signed else []
    values += [1e9, 4.3e9, 1e18] if target in LONGS else []
    values += [1e-8, 6e-8, 1e-5, 65504.0, 1e9, 0.1, -0.3, np.inf] if target in HALVES else []
    x = np.float32(values)
    with np.errstate(over="ignore"):
        expected = x.astype(target.numpy)
    np.testing.assert_array_equal(_run([x], lambda a: Cast(a, target)), expected)


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("name", ["add", "sub", "mul", "div", "max"])
def test_each_operation_on_halves_rounds_once(name: str, dtype: DType) -> None:
    rng = np.random.default_rng(1)
    x, y = (rng.uniform(-4, 4, 200).astype(dtype.numpy) for _ in range(2))
    actual = _run([x, y], lambda a, b: Call(name, (a, b), dtype))
    expected = SCALAR_OPERATORS[name].meaning(x.astype(np.float32), y.astype(np.float32))
    np.testing.assert_array_equal(actual, expected.astype(dtype.numpy))


@pytest.mark.parametrize("dtype", HALVES)
def test_halves_and_their_bits_convert(dtype: DType) -> None:
    x = np.arange(0, 2**16, 7, dtype=np.uint16)
    values = x.view(np.float16 if dtype is DType.float16 else ml_dtypes.bfloat16)
    x = x[~np.isnan(values.astype(np.float32))]
    as_bits = _run([x], lambda a: Bitcast(Cast(Bitcast(a, dtype), DType.float32), DType.uint32))
    expected = x.view(values.dtype).astype(np.float32).view(np.uint32)
    if dtype is DType.bfloat16:  # the copy may flush subnormals
        as_bits, expected = as_bits[(expected << 1) >> 24 > 0], expected[(expected << 1) >> 24 > 0]
    np.testing.assert_array_equal(as_bits, expected)


@pytest.mark.parametrize("dtype", SMALL)
def test_small_arithmetic_wraps(dtype: DType) -> None:
    x = np.array([0, 1, -1, 100, -100, 127, 128, 255, 32767]).astype(dtype.numpy)
    for name in ("add", "sub", "mul"):
        actual = _run([x, x[::-1].copy()], lambda a, b, n=name: Call(n, (a, b), dtype))
        np.testing.assert_array_equal(actual, SCALAR_OPERATORS[name].meaning(x, x[::-1]))


@pytest.mark.parametrize("dtype", [DType.int32, DType.uint32, *LONGS])
def test_powers_of_integers(dtype: DType) -> None:
    x, y = np.array([0, 1, 2, 3, 7, 10, 2, 5]), np.array([0, 5, 30, 7, 3, 9, 31, 0])
    x = np.where(dtype.is_signed & (np.arange(8) % 2 == 1), -x, x).astype(dtype.numpy)
    y = y.astype(dtype.numpy)
    actual = _run([x, y], lambda a, b: Call("pow", (a, b), dtype))
    np.testing.assert_array_equal(actual, np.power(x, y))

"""Every scalar operator and cast through the interpreter, against the table's numpy meaning."""

from __future__ import annotations

import numpy as np
import pytest

from webmlc.core.dtypes import DType
from webmlc.core.expr import Bitcast, Call, Cast, Const, Expr, Var
from webmlc.core.scalar_operators import SCALAR_OPERATORS
from webmlc.loops.interp import run
from webmlc.loops.ir import Buffer, For, LoopFunction, Store

COUNT = 12
FLOATS = ("float16", "bfloat16", "float32", "float64")
INTEGERS = ("int8", "uint8", "int16", "int32", "uint32", "int64")
I = Var("i")  # noqa: E741

FLOAT_ONLY = {
    *("div", "pow", "floor", "ceil", "trunc", "round", "sqrt", "exp", "log", "erf", "sin", "cos"),
    *("tan", "asin", "acos", "atan", "sinh", "cosh", "tanh", "asinh", "acosh", "atanh"),
    *("isnan", "isinf", "log1p", "unsigned_pow"),
}
WORDS_ONLY = {
    *(
        "dot_u8_i8",
        "dot_u7_i8",
        "dot_i8",
        "dot_i16",
        "word_u8",
        "even_i8",
        "odd_i8",
        "odd_u8",
        "add_i16",
    ),
}
INTEGER_ONLY = {"truncdiv", "bit_and", "bit_or", "bit_xor", "bit_not", "shift_left", "shift_right"}
CASES = [
    (row.name, dtype)
    for row in SCALAR_OPERATORS.values()
    for dtype in (*FLOATS, *INTEGERS)
    if dtype not in (INTEGERS if row.name in FLOAT_ONLY else FLOATS)
    or row.name not in (FLOAT_ONLY | INTEGER_ONLY)
    if not (row.name == "erf" and dtype == "bfloat16")
    if dtype == "int32" or row.name not in WORDS_ONLY
]


def values(dtype: str, seed: int, op: str = "") -> np.ndarray:  # type: ignore[type-arg]
    generator = np.random.default_rng(seed)
    kind = DType(dtype)
    if kind.is_float:
        array = generator.standard_normal(COUNT) * 2
        array[:4] = [0.0, np.inf, -np.inf, np.nan]
        return array.astype(kind.numpy)
    if op.startswith("shift") and seed == 1:
        return generator.integers(0, 7, COUNT).astype(kind.numpy)
    info = np.iinfo(dtype)
    array = generator.integers(max(info.min, -(2**40)), min(info.max, 2**40), COUNT)
    array[:2] = [info.max, info.min]
    if seed == 1:
        array = np.where(array == 0, 3, array)
    return array.astype(kind.numpy)


def result(value: Expr, arrays: dict[str, np.ndarray]) -> np.ndarray:  # type: ignore[type-arg]
    out = Buffer("out", (Const(COUNT),), value.dtype)
    inputs = tuple(Buffer(n, (Const(COUNT),), DType.of(a.dtype)) for n, a in arrays.items())
    body = For(I, Const(COUNT), Store(out, (I,), value))
    got = np.zeros(COUNT, value.dtype.numpy)
    run(LoopFunction("f", (*inputs, out), 1, (), (), body), {**arrays, "out": got})
    return got


def element(name: str, array: np.ndarray) -> Expr:  # type: ignore[type-arg]
    return Buffer(name, (Const(COUNT),), DType.of(array.dtype))[I]


@pytest.mark.parametrize(("op", "dtype"), CASES)
def test_operator(op: str, dtype: str) -> None:
    row = SCALAR_OPERATORS[op]
    arrays = {f"x{n}": values(dtype, n, op) for n in range(row.arity)}
    if op == "select":
        arrays["x0"] = np.arange(COUNT) % 3 == 0
    with np.errstate(all="ignore"):
        expected = np.asarray(row.meaning(*arrays.values()))
    kind = DType.bool if row.result == "bool" else DType(dtype)
    got = result(Call(op, tuple(element(n, a) for n, a in arrays.items()), kind), arrays)
    same(got, expected.astype(kind.numpy))


def same(got: np.ndarray, expected: np.ndarray) -> None:  # type: ignore[type-arg]
    """Equal, NaN as NaN; through float64 because bfloat16 arrays do not know their NaNs."""
    if DType.of(got.dtype).is_float:
        got, expected = got.astype(np.float64), expected.astype(np.float64)
    np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize("source", [*FLOATS, *INTEGERS, "bool"])
@pytest.mark.parametrize("target", [*FLOATS, *INTEGERS, "bool"])
def test_cast(source: str, target: str) -> None:
    if source == "bool":
        array = np.arange(COUNT) % 2 == 0
    elif DType(source).is_float:
        array = np.linspace(-3.7, 99.9, COUNT).astype(DType(source).numpy)
        if target.startswith("u"):
            array = np.abs(array)
    else:
        array = values(source, 0)
    with np.errstate(all="ignore"):
        expected = array.astype(DType(target).numpy)
    got = result(Cast(element("x", array), DType(target)), {"x": array})
    np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize(
    ("source", "target"),
    [("float32", "int32"), ("int32", "float32"), ("int64", "float64"), ("uint32", "int32")],
)
def test_bitcast(source: str, target: str) -> None:
    array = values(source, 0)
    got = result(Bitcast(element("x", array), DType(target)), {"x": array})
    np.testing.assert_array_equal(got.view(np.uint8), array.view(np.uint8))

"""Test every elementary function in wasmtime, on dense samples, against numpy in a wider type."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from webmlc.core.dtypes import DType
from webmlc.core.expr import Call, Expr, Var, call, const, literal
from webmlc.core.machine import RELAXED
from webmlc.core.rewrite import rewrite
from webmlc.graph.ops.elementwise import sigmoid
from webmlc.loops.ir import Buffer, For, LoopFunction, Store, map_expressions
from webmlc.target.targets import lower
from webmlc.target.wasm.emit_module import print_function

COUNT = 1 << 16
"""The elements of a sample."""
WIDE = np.longdouble
"""The type in which errors are computed."""


def elementwise(
    op: str | Callable[..., Expr], dtype: DType, inputs: int = 1, kind: str = "serial"
) -> LoopFunction:
    """A function that applies `op` to every element of its inputs, in inner loops of 8."""
    shape = (const(COUNT),)
    sources = tuple(Buffer(f"X{i}", shape, dtype) for i in range(inputs))
    target = Buffer("Y", shape, dtype)
    o, i = Var("o"), Var("i")
    index: Expr = o * 8 + i
    operands = [x[index] for x in sources]
    value = call(op, *operands) if isinstance(op, str) else op(*operands)
    store = Store(target, (index,), value)
    body = For(o, const(COUNT // 8), For(i, const(8), store, kind))
    return LoopFunction("f", (*sources, target), 1, (), (), body)


def ulps(result: np.ndarray, exact: np.ndarray) -> float:
    """The largest error, in units in the last place of the result's type."""
    spacing = np.spacing(np.abs(exact).astype(result.dtype)).astype(WIDE)
    smallest = WIDE(np.finfo(result.dtype).tiny)
    with np.errstate(invalid="ignore"):
        error = np.abs(result - exact) / np.maximum(spacing, np.spacing(np.float32(smallest)))
    return float(np.max(error[np.isfinite(exact)]))


def dense(low: float, high: float) -> np.ndarray:
    """Numbers of every magnitude between the limits, all numbers next to the limits and to
    `BREAKS`, and evenly spaced ones. Every interval of a range reduction is covered.
    """
    limits = np.array([low, high, *(b for b in BREAKS if low <= b <= high)], np.float32)
    neighbours = (limits.view(np.int32)[:, None] + np.arange(-64, 65, dtype=np.int32)).view(
        np.float32
    )
    evenly_spaced = np.linspace(low, high, COUNT // 2 - neighbours.size)
    magnitudes = np.geomspace(SMALLEST, max(abs(low), abs(high)), COUNT // 2)
    magnitudes[::2] *= -1 if low < 0 else 1
    x = np.concatenate([neighbours.ravel(), evenly_spaced, magnitudes]).astype(np.float32)
    return np.clip(x, np.float32(low), np.float32(high))


SMALLEST = float(np.finfo(np.float32).tiny)
"""The smallest normal float32."""
HALVES = [(n + 0.5) * math.log(2) * sign for n in (0, 1, 23, 24, 120) for sign in (-1, 1)]
"""Odd multiples of ln 2 / 2."""
TURNS = [n * math.pi / 4 * sign for n in (1, 2, 3, 4, 5, 475, 476, 41719) for sign in (-1, 1)]
"""Multiples of π/4."""
BREAKS = [
    0.5,
    0.55,
    -0.55,
    1.0,
    1.15,
    -1.15,
    2**-0.5,
    2**0.5,
    math.tan(math.pi / 8),
    *HALVES,
    *TURNS,
]
"""The points where a range reduction changes its interval, the bounds of polynomials, and zeros of
sine and cosine.
"""
ERF = np.vectorize(math.erf, otypes=[np.float64])
CASES = {
    "exp": (np.exp, dense(-86.9, 88.7228), 2.0),
    "log": (np.log, dense(SMALLEST, 3.4e38), 2.0),
    "log1p": (np.log1p, dense(0, 3.4e38), 2.0),
    "tanh": (np.tanh, dense(-100, 100), 2.0),
    "erf": (ERF, dense(-100, 100), 2.0),
    "sin": (np.sin, dense(-(2**15), 2**15), 2.0),
    "cos": (np.cos, dense(-(2**15), 2**15), 2.0),
    "tan": (np.tan, dense(-(2**15), 2**15), 3.0),
    "asin": (np.arcsin, dense(-1, 1), 2.5),
    "acos": (np.arccos, dense(-1, 1), 2.0),
    "atan": (np.arctan, dense(-3.4e38, 3.4e38), 3.0),
    "sinh": (np.sinh, dense(-89.41, 89.41), 4.0),
    "cosh": (np.cosh, dense(-89.41, 89.41), 3.5),
    "asinh": (np.arcsinh, dense(-3.4e38, 3.4e38), 2.0),
    "acosh": (np.arccosh, dense(1, 3.4e38), 2.5),
    "atanh": (np.arctanh, dense(-1, 1), 2.5),
}
"""The function of numpy, the samples, and the largest error in units in the last place."""


@pytest.mark.parametrize("op", CASES)
@pytest.mark.parametrize("features", ["relaxed", "simd128"])
@pytest.mark.parametrize("kind", ["serial", "vectorized"])
def test_float32_functions_are_within_their_error_bounds(run_wasm, op, features, kind) -> None:
    meaning, x, limit = CASES[op]
    y = np.zeros_like(x)
    lowered = lower(elementwise(op, DType.float32, kind=kind), RELAXED)
    run_wasm(lowered, {"X0": x, "Y": y}, features=features)
    with np.errstate(divide="ignore"):
        exact = meaning(x.astype(np.float64)).astype(WIDE)
    assert ulps(y, exact) <= limit


@pytest.mark.parametrize("op", ["erf", "tanh"])
@pytest.mark.parametrize("kind", ["serial", "vectorized"])
@pytest.mark.parametrize("divisor", [math.sqrt(2), -3.0, 0.0])
def test_dividing_the_argument_by_a_literal_needs_no_division(run_wasm, op, kind, divisor) -> None:
    """The argument of GELU's error function is x / sqrt(2). A divisor of zero still needs a
    division.
    """
    x = np.resize([*dense(-8, 8)[:-2], 0.0, np.nan], COUNT).astype(np.float32)
    y = np.zeros_like(x)
    function = elementwise(op, DType.float32, kind=kind)
    divided = map_expressions(
        function.body, lambda e: rewrite(e, lambda n: _divide_argument(n, op, divisor))
    )
    lowered = lower(replace(function, body=divided), RELAXED)
    text = print_function(lowered, "relaxed").text
    assert len(re.findall(r"\.div ", text)) == (1 if divisor else 2) * text.count("store")
    run_wasm(lowered, {"X0": x, "Y": y})
    with np.errstate(all="ignore"):
        exact = CASES[op][0](x.astype(np.float64) / np.float64(np.float32(divisor))).astype(WIDE)
    assert ulps(y[x == x], exact[x == x]) <= 3.5 and np.isnan(y[x != x]).all()


@pytest.mark.parametrize("op", ["erf", "tanh"])
@pytest.mark.parametrize("divisor", [1e-39, 3e38])
def test_an_inverse_that_is_no_normal_float32_is_not_used(run_wasm, op, divisor) -> None:
    """0 · infinity would be NaN, and a subnormal inverse would lose bits."""
    x = np.resize(np.array([0.0, -0.0, 1e-40, -2e-39, 1.0, 3e38, -1e38], np.float32), COUNT)
    y = np.zeros_like(x)
    function = elementwise(op, DType.float32, kind="vectorized")
    divided = map_expressions(
        function.body, lambda e: rewrite(e, lambda n: _divide_argument(n, op, divisor))
    )
    run_wasm(lower(replace(function, body=divided), RELAXED), {"X0": x, "Y": y})
    with np.errstate(all="ignore"):
        expected = CASES[op][0](x.astype(np.float64) / np.float64(np.float32(divisor)))
    np.testing.assert_allclose(y, expected, rtol=1e-6, atol=1e-45)


LOGISTIC = {
    "sigmoid": (sigmoid, lambda x: 1 / (1 + np.exp(-x))),
    "silu": (lambda x: x * sigmoid(x), lambda x: x / (1 + np.exp(-x))),
}
"""Sigmoid and SiLU, as an expression and as a function of numpy."""


@pytest.mark.parametrize("name", LOGISTIC)
@pytest.mark.parametrize("features", ["relaxed", "simd128"])
@pytest.mark.parametrize("kind", ["serial", "vectorized"])
def test_a_sigmoid_needs_one_exponential_and_one_division(run_wasm, name, features, kind) -> None:
    """It has no negation and no select, and x · sigmoid(x) needs no further multiplication."""
    body, meaning = LOGISTIC[name]
    # Near -24·ln 2 the sum 1 + e^-x is rounded, although e^-x is an integer.
    x = np.concatenate([dense(-86, 86)[: COUNT // 2], dense(-17, 1)[: COUNT // 2 - 4]])
    x = np.concatenate([x, [np.inf, -np.inf, np.nan, -0.0]]).astype(np.float32)
    y = np.zeros_like(x)
    lowered = lower(elementwise(body, DType.float32, kind=kind), RELAXED)
    text = print_function(lowered, features).text
    stores = text.count(".store")
    assert text.count(".div ") == stores
    assert not re.search(r"\((\S+\.)?(neg|andnot|\w*select) ", text)
    assert kind == "serial" or features == "simd128" or text.count("f32x4.mul") == stores
    run_wasm(lowered, {"X0": x, "Y": y}, features=features)
    with np.errstate(all="ignore"):
        exact = meaning(x.astype(WIDE))
    assert ulps(y[:-4], exact[:-4]) <= 2
    np.testing.assert_array_equal(y[-4:], exact[-4:].astype(np.float32))


@pytest.mark.parametrize("features", ["relaxed", "simd128"])
@pytest.mark.parametrize("kind", ["serial", "vectorized"])
def test_the_error_of_gelu_is_bounded_relative_to_its_argument(run_wasm, features, kind) -> None:
    """Above -1/2 the error is also bounded relative to the result. Below, 1 + erf(x/√2) cancels."""
    x = dense(-20, 20)
    x = np.concatenate(
        [x[: COUNT // 2], dense(-4, 4)[: COUNT // 2 - 4], [-0.0, 1e38, np.nan, np.inf]]
    )
    x = x.astype(np.float32)
    y = np.zeros_like(x)

    def gelu(v: Expr) -> Expr:
        return v * 0.5 * (call("erf", v * math.sqrt(0.5)) + 1.0)

    lowered = lower(elementwise(gelu, DType.float32, kind=kind), RELAXED)
    run_wasm(lowered, {"X0": x, "Y": y}, features=features)
    erfc = np.vectorize(math.erfc, otypes=[np.float64])
    exact = x * 0.5 * erfc(-x.astype(np.float64) * math.sqrt(0.5))
    np.testing.assert_array_equal(y[-4:], exact[-4:].astype(np.float32))
    x, y, exact = x[:-4], y[:-4], exact[:-4].astype(WIDE)
    assert np.max(np.abs(y - exact) / np.spacing(np.abs(x))) <= 2
    assert ulps(y[x >= -0.5], exact[x >= -0.5]) <= 2


@pytest.mark.parametrize("features", ["relaxed", "simd128"])
@pytest.mark.parametrize("kind", ["serial", "vectorized"])
def test_exponentials_underflow_to_zero(run_wasm, features, kind) -> None:
    """e^x is accurate down to 2^-125.5, and 0 below."""
    x = np.linspace(-110, -86.9, COUNT).astype(np.float32)
    y = np.zeros_like(x)
    lowered = lower(elementwise("exp", DType.float32, kind=kind), RELAXED)
    run_wasm(lowered, {"X0": x, "Y": y}, features=features)
    exact = np.exp(x.astype(np.float64))
    is_representable = exact > 2.0**-125.49
    assert ulps(y[is_representable], exact[is_representable].astype(WIDE)) <= 2
    assert not y[exact < 2.0**-125.51].any()


def _divide_argument(node: Expr, op: str, divisor: float) -> Expr | None:
    """op(x) -> op(x / divisor)."""
    match node:
        case Call(op=name, args=(x,)) if name == op:
            return call(op, Call("div", (x, literal(divisor, x)), x.dtype))
    return None


@pytest.mark.parametrize("features", ["relaxed", "simd128"])
def test_selects_use_the_relaxed_instruction_if_there_is_one(features) -> None:
    lowered = lower(elementwise("log", DType.float32, kind="vectorized"), RELAXED)
    text = print_function(lowered, features).text
    assert ("i32x4.relaxed_laneselect" in text) == (features == "relaxed")
    assert ("v128.bitselect" in text) == (features == "simd128")


@pytest.mark.parametrize("op", ["sin", "cos", "tan"])
@pytest.mark.parametrize("features", ["relaxed", "simd128"])
@pytest.mark.parametrize("kind", ["serial", "vectorized"])
def test_large_angles_are_reduced_exactly(run_wasm, op, features, kind) -> None:
    """The samples have every exponent, and small angles beside large ones. The first is the float32
    that is nearest to a multiple of π/2, relative to the spacing of its neighbours.
    """
    rng = np.random.default_rng(0)
    x = rng.integers(0, 0x7F800000, COUNT).astype(np.uint32).view(np.float32)
    x[::2] *= -1
    x[:2] = 16367173 * 2.0**72, -0.0
    y = np.zeros_like(x)
    lowered = lower(elementwise(op, DType.float32, kind=kind), RELAXED)
    run_wasm(lowered, {"X0": x, "Y": y}, features=features)
    exact = getattr(np, op)(x.astype(np.float64)).astype(WIDE)
    assert ulps(y, exact) <= (3 if op == "tan" else 2)


SPECIAL = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 1.0, -1.0, 2.0, 100.0, -100.0, 1e-40, 1e38])
"""Zeros, infinities, NaN, and numbers with exact results."""


@pytest.mark.parametrize("op", CASES)
@pytest.mark.parametrize("kind", ["serial", "vectorized"])
def test_special_values_agree_with_numpy(run_wasm, op, kind) -> None:
    x = np.resize(SPECIAL, COUNT).astype(np.float32)
    with np.errstate(all="ignore"):
        exact = CASES[op][0](x.astype(np.float64)).astype(np.float32)
    y = np.zeros_like(x)
    run_wasm(lower(elementwise(op, DType.float32, kind=kind), RELAXED), {"X0": x, "Y": y})
    np.testing.assert_allclose(y, exact, rtol=4e-7, atol=1e-37)
    if op != "log1p":
        np.testing.assert_array_equal(np.signbit(y[exact == 0]), np.signbit(exact[exact == 0]))


FLOAT64 = {
    "exp": 3.0, "log": 3.0, "log1p": 4.0, "sin": 3.0, "cos": 3.0, "atan": 3.0, "asin": 6.0,
    "acos": 6.0, "erf": 4.0, "asinh": 5.0, "acosh": 5.0, "atanh": 5.0, "sinh": 5.0, "cosh": 5.0,
    "tanh": 4.0, "tan": 6.0,
}  # fmt: skip
"""The largest error of each float64 function, in units in the last place."""


@pytest.mark.parametrize(("op", "limit"), FLOAT64.items())
def test_float64_functions_are_within_their_error_bounds(run_wasm, op, limit) -> None:
    x = CASES[op][1].astype(np.float64)
    y = np.zeros_like(x)
    run_wasm(lower(elementwise(op, DType.float64), RELAXED), {"X0": x, "Y": y})
    with np.errstate(divide="ignore"):
        exact = CASES[op][0](x.astype(WIDE))
    assert ulps(y, exact) <= limit


@pytest.mark.parametrize("op", FLOAT64)
def test_float64_special_values_agree_with_numpy(run_wasm, op) -> None:
    extremes = [1e-310, -1e-310, 5e-324, 1e-20, 709.5, 710.2, -720.0, -744.0, -746.0, 1e300, 1e5]
    x = np.resize(np.concatenate([SPECIAL, extremes]), COUNT)
    if op in ("sin", "cos", "tan"):  # large angles count as 0
        x = np.where(np.abs(x) < 1e5, x, 0.0)
    with np.errstate(all="ignore"):
        exact = CASES[op][0](x)
    y = np.zeros_like(x)
    run_wasm(lower(elementwise(op, DType.float64), RELAXED), {"X0": x, "Y": y})
    np.testing.assert_allclose(y, exact, rtol=1e-14, atol=5e-324)
    if op not in ("sin", "tan"):  # range reduction loses the sign of zero
        np.testing.assert_array_equal(np.signbit(y[exact == 0]), np.signbit(exact[exact == 0]))


@pytest.mark.parametrize("op", ["sin", "cos"])
def test_float64_sines_of_huge_numbers_are_from_minus_1_to_1(run_wasm, op) -> None:
    x = np.resize([1e17, -1e18, 2.0**63, 1e30, -1e300, np.inf, np.nan], COUNT)
    y = np.zeros_like(x)
    run_wasm(lower(elementwise(op, DType.float64), RELAXED), {"X0": x, "Y": y})
    is_finite = np.isfinite(x)
    assert (np.abs(y[is_finite]) <= 1).all() and np.isnan(y[~is_finite]).all()


def check_power(y: np.ndarray, a: np.ndarray, b: np.ndarray, limit: float) -> None:
    """Assert that y is a^b: within `limit` where the result is normal, else rounded as by numpy."""
    with np.errstate(all="ignore"):
        exact = np.power(a.astype(np.float64), b.astype(np.float64))
        rounded = exact.astype(np.float32)
    normal = np.isfinite(rounded) & (np.abs(exact) >= SMALLEST)
    assert ulps(y[normal], exact[normal].astype(WIDE)) <= limit
    np.testing.assert_allclose(y[~normal], rounded[~normal], atol=SMALLEST)


@pytest.mark.parametrize("features", ["relaxed", "simd128"])
def test_power(run_wasm, features) -> None:
    rng = np.random.default_rng(0)
    a = np.concatenate([rng.uniform(-4, 4, COUNT // 2), dense(-3.4e38, 3.4e38)[: COUNT // 2]])
    b = np.where(rng.random(COUNT) < 0.5, rng.integers(-8, 9, COUNT), rng.uniform(-9, 9, COUNT))
    a[: len(SPECIAL) ** 2], b[: len(SPECIAL) ** 2] = np.array(list(product(SPECIAL, SPECIAL))).T
    a, b = a.astype(np.float32), b.astype(np.float32)
    y = np.zeros_like(a)
    lowered = lower(elementwise("pow", DType.float32, 2), RELAXED)
    run_wasm(lowered, {"X0": a, "X1": b, "Y": y}, features=features)
    check_power(y, a, b, 2)


@pytest.mark.parametrize("exponent", [*np.arange(-5, 5.25, 0.25), 7, 16, -16, 17, 0.3, -2.7])
@pytest.mark.parametrize("kind", ["serial", "vectorized"])
@pytest.mark.parametrize("op", ["pow", "unsigned_pow"])
def test_power_with_a_literal_exponent(run_wasm, exponent, kind, op) -> None:
    """An exponent of 3/4, as in local response normalisation, is computed with three
    roundings in vectors.
    """
    is_integer = float(exponent).is_integer() and op == "pow"
    x = np.concatenate(
        [dense(-8 if is_integer else 0, 8)[: COUNT // 2], dense(0, 3.4e38)[: COUNT // 2]]
    )
    y = np.zeros_like(x)

    def power(v: Expr) -> Expr:
        return call(op, v, float(exponent))

    run_wasm(lower(elementwise(power, DType.float32, kind=kind), RELAXED), {"X0": x, "Y": y})
    check_power(y, x, np.float32(exponent), 2.4 if exponent == 0.75 else 2)


def test_power_of_integers(run_wasm) -> None:
    rng = np.random.default_rng(0)
    a = rng.integers(-9, 10, COUNT).astype(np.int32)
    b = rng.integers(0, 9, COUNT).astype(np.int32)
    y = np.zeros_like(a)
    run_wasm(lower(elementwise("pow", DType.int32, 2), RELAXED), {"X0": a, "X1": b, "Y": y})
    np.testing.assert_array_equal(y, np.power(a, b))


@pytest.mark.parametrize("dtype", [DType.float16, DType.bfloat16])
@pytest.mark.parametrize("op", ["add", "mul", "div", "max"])
def test_small_floats_round_as_in_numpy(run_wasm, dtype, op) -> None:
    rng = np.random.default_rng(1)
    patterns = rng.integers(0, 1 << 16, (2, COUNT)).astype(np.uint16)
    a, b = patterns.view(dtype.numpy)
    y = np.zeros(COUNT, np.uint16)
    lowered = lower(elementwise(op, dtype, 2), RELAXED)
    run_wasm(lowered, {"X0": patterns[0], "X1": patterns[1], "Y": y})
    meaning = {"add": np.add, "mul": np.multiply, "div": np.divide, "max": np.maximum}[op]
    with np.errstate(all="ignore"):
        exact = meaning(a.astype(np.float32), b.astype(np.float32)).astype(dtype.numpy)
    result = y.view(dtype.numpy).astype(np.float32)
    np.testing.assert_array_equal(result, exact.astype(np.float32))

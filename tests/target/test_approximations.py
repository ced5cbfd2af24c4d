"""Every elementary function, densely sampled in wasmtime, against numpy in a wider type."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from webmlc.core.dtypes import DType
from webmlc.core.expr import Call, Expr, Var, call, const, literal
from webmlc.core.machine import RELAXED
from webmlc.core.rewrite import rewrite
from webmlc.graph.ops.elementwise import sigmoid
from webmlc.loops.ir import Buffer, For, LoopFunction, Store, map_expressions
from webmlc.target.lower import lower
from webmlc.target.wasm.emit_module import print_function

COUNT = 1 << 14
WIDE = np.longdouble


def elementwise(
    op: str | Callable[..., Expr], dtype: DType, inputs: int = 1, kind: str = "serial"
) -> LoopFunction:
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
    """The largest error in units in the last place of the result's type."""
    spacing = np.spacing(np.abs(exact).astype(result.dtype)).astype(WIDE)
    tiny = WIDE(np.finfo(result.dtype).tiny)
    error = np.abs(result.astype(WIDE) - exact) / np.maximum(spacing, np.spacing(np.float32(tiny)))
    return float(np.max(error[np.isfinite(exact)]))


def spread(low: float, high: float) -> np.ndarray:
    """Evenly spaced values, and as many near zero."""
    even = np.linspace(low, high, COUNT // 2)
    small = np.geomspace(1e-6, max(abs(low), abs(high)), COUNT // 2)
    if low < 0:
        small[::2] *= -1
    return np.concatenate([even, np.clip(small, low, high)]).astype(np.float32)


ERF = np.vectorize(math.erf, otypes=[np.float64])
CASES = {
    "exp": (np.exp, spread(-86.9, 88.7), 2.0),
    "log": (np.log, np.geomspace(1e-37, 3e38, COUNT).astype(np.float32), 2.0),
    "log1p": (np.log1p, spread(0, 1e4), 3.0),
    "tanh": (np.tanh, spread(-10, 10), 6.0),
    "erf": (ERF, spread(-5, 5), 6.0),
    "sin": (np.sin, spread(-math.pi / 4, math.pi / 4), 2.0),
    "cos": (np.cos, spread(-math.pi / 4, math.pi / 4), 2.0),
    "tan": (np.tan, spread(-1.2, 1.2), 4.0),
    "asin": (np.arcsin, spread(-1, 1), 4.0),
    "acos": (np.arccos, spread(-1, 0.999), 4.0),
    "atan": (np.arctan, spread(-50, 50), 4.0),
    "sinh": (np.sinh, spread(-80, 80), 4.0),
    "cosh": (np.cosh, spread(-80, 80), 4.0),
    "asinh": (np.arcsinh, spread(-1e4, 1e4), 5.0),
    "acosh": (np.arccosh, spread(1, 1e4), 5.0),
    "atanh": (np.arctanh, spread(-0.999, 0.999), 5.0),
}


@pytest.mark.parametrize("op", CASES)
@pytest.mark.parametrize("features", ["relaxed", "simd128"])
@pytest.mark.parametrize("kind", ["serial", "vectorized"])
def test_float32_within_a_few_ulps(run_wasm, op, features, kind) -> None:
    meaning, x, limit = CASES[op]
    y = np.zeros_like(x)
    lowered = lower(elementwise(op, DType.float32, kind=kind), RELAXED)
    run_wasm(lowered, {"X0": x, "Y": y}, features=features)
    assert ulps(y, meaning(x.astype(np.float64)).astype(WIDE)) <= limit


@pytest.mark.parametrize("op", ["erf", "tanh"])
@pytest.mark.parametrize("kind", ["serial", "vectorized"])
@pytest.mark.parametrize("divisor", [math.sqrt(2), -3.0, 0.0])
def test_a_quotient_of_a_literal_costs_no_division(run_wasm, op, kind, divisor) -> None:
    """But by zero, where it is one: the argument of GELU's error function is x / sqrt(2)."""
    x = np.resize([*spread(-8, 8)[:-2], 0.0, np.nan], COUNT).astype(np.float32)
    y = np.zeros_like(x)
    function = elementwise(op, DType.float32, kind=kind)
    divided = map_expressions(function.body, lambda e: rewrite(e, lambda n: _by(n, op, divisor)))
    lowered = lower(replace(function, body=divided), RELAXED)
    text = print_function(lowered, "kernel", "relaxed").text
    assert len(re.findall(r"\.div ", text)) == (1 if divisor else 2) * text.count("store")
    run_wasm(lowered, {"X0": x, "Y": y})
    with np.errstate(all="ignore"):
        exact = CASES[op][0](x.astype(np.float64) / np.float64(np.float32(divisor))).astype(WIDE)
    assert ulps(y[x == x], exact[x == x]) <= 7 and np.isnan(y[x != x]).all()


LOGISTIC = {
    "sigmoid": (sigmoid, lambda x: 1 / (1 + np.exp(-x))),
    "silu": (lambda x: x * sigmoid(x), lambda x: x / (1 + np.exp(-x))),
}


@pytest.mark.parametrize("name", LOGISTIC)
@pytest.mark.parametrize("features", ["relaxed", "simd128"])
@pytest.mark.parametrize("kind", ["serial", "vectorized"])
def test_a_sigmoid_is_one_exponential_and_one_quotient(run_wasm, name, features, kind) -> None:
    """No negation, no choice; and x · sigmoid(x) no product more."""
    body, meaning = LOGISTIC[name]
    x = np.concatenate([spread(-86, 86)[: COUNT - 4], [np.inf, -np.inf, np.nan, -0.0]])
    x = x.astype(np.float32)
    y = np.zeros_like(x)
    lowered = lower(elementwise(body, DType.float32, kind=kind), RELAXED)
    text = print_function(lowered, "kernel", features).text
    stores = text.count(".store")
    assert text.count(".div ") == stores
    assert not re.search(r"\((\S+\.)?(neg|andnot|\w*select) ", text)
    assert kind == "serial" or features == "simd128" or text.count("f32x4.mul") == 0
    run_wasm(lowered, {"X0": x, "Y": y}, features=features)
    with np.errstate(all="ignore"):
        exact = meaning(x.astype(WIDE))
    assert ulps(y[:-4], exact[:-4]) <= 3
    np.testing.assert_array_equal(y[-4:], exact[-4:].astype(np.float32))


def _by(node: Expr, op: str, divisor: float) -> Expr | None:
    """op(x) -> op(x / divisor)."""
    match node:
        case Call(op=name, args=(x,)) if name == op:
            return call(op, Call("div", (x, literal(divisor, x)), x.dtype))
    return None


@pytest.mark.parametrize("features", ["relaxed", "simd128"])
def test_selects_take_what_the_machine_has(features) -> None:
    lowered = lower(elementwise("log", DType.float32, kind="vectorized"), RELAXED)
    text = print_function(lowered, "kernel", features).text
    assert ("i32x4.relaxed_laneselect" in text) == (features == "relaxed")
    assert ("v128.bitselect" in text) == (features == "simd128")


@pytest.mark.parametrize("op", ["sin", "cos"])
def test_angles_of_thousands_keep_absolute_accuracy(run_wasm, op) -> None:
    x = np.linspace(-2e4, 2e4, COUNT).astype(np.float32)
    y = np.zeros_like(x)
    run_wasm(lower(elementwise(op, DType.float32), RELAXED), {"X0": x, "Y": y})
    assert np.abs(y - getattr(np, op)(x.astype(np.float64))).max() < 5e-6


SPECIAL = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 1.0, -1.0, 2.0, 100.0, -100.0, 1e-40, 1e38])


@pytest.mark.parametrize("op", CASES)
@pytest.mark.parametrize("kind", ["serial", "vectorized"])
def test_special_values_are_numpys(run_wasm, op, kind) -> None:
    x = np.resize(SPECIAL, COUNT).astype(np.float32)
    with np.errstate(all="ignore"):
        exact = CASES[op][0](x.astype(np.float64)).astype(np.float32)
    if op in ("sin", "cos", "tan"):  # reduction is for angles up to some ten thousands
        x, exact = (np.where(np.abs(x) < 1e5, v, np.float32(0)) for v in (x, exact))
        exact = np.where((x == 0) & (op == "cos"), np.float32(1), exact)
    y = np.zeros_like(x)
    run_wasm(lower(elementwise(op, DType.float32, kind=kind), RELAXED), {"X0": x, "Y": y})
    np.testing.assert_allclose(y, exact, rtol=2e-6, atol=1e-37)


FLOAT64 = {
    "exp": 3.0, "log": 3.0, "log1p": 4.0, "sin": 3.0, "cos": 3.0, "atan": 3.0, "asin": 6.0,
    "acos": 6.0, "erf": 4.0, "asinh": 5.0, "acosh": 5.0, "atanh": 5.0, "sinh": 5.0, "cosh": 5.0,
    "tanh": 4.0, "tan": 6.0,
}  # fmt: skip


@pytest.mark.parametrize(("op", "limit"), FLOAT64.items())
def test_float64(run_wasm, op, limit) -> None:
    x = CASES[op][1].astype(np.float64)
    y = np.zeros_like(x)
    run_wasm(lower(elementwise(op, DType.float64), RELAXED), {"X0": x, "Y": y})
    assert ulps(y, CASES[op][0](x.astype(WIDE))) <= limit


@pytest.mark.parametrize("op", FLOAT64)
def test_float64_special_values_are_numpys(run_wasm, op) -> None:
    extremes = [1e-310, -1e-310, 5e-324, 1e-20, 709.5, 710.2, -720.0, -744.0, -746.0, 1e300, 1e5]
    x = np.resize(np.concatenate([SPECIAL, extremes]), COUNT)
    if op in ("sin", "cos", "tan"):  # as for float32
        x = np.where(np.abs(x) < 1e5, x, 0.0)
    with np.errstate(all="ignore"):
        exact = CASES[op][0](x)
    y = np.zeros_like(x)
    run_wasm(lower(elementwise(op, DType.float64), RELAXED), {"X0": x, "Y": y})
    np.testing.assert_allclose(y, exact, rtol=1e-14, atol=5e-324)
    if op not in ("sin", "tan"):  # reduction loses the sign of a zero
        np.testing.assert_array_equal(np.signbit(y[exact == 0]), np.signbit(exact[exact == 0]))


@pytest.mark.parametrize("dtype", [DType.float32, DType.int32])
def test_power(run_wasm, dtype) -> None:
    rng = np.random.default_rng(0)
    if dtype is DType.int32:
        a = rng.integers(-9, 10, COUNT).astype(np.int32)
        b = rng.integers(0, 9, COUNT).astype(np.int32)
    else:
        a = rng.uniform(-4, 4, COUNT).astype(np.float32)
        b = np.where(rng.random(COUNT) < 0.5, rng.integers(-8, 9, COUNT), rng.uniform(-9, 9, COUNT))
        b = b.astype(np.float32)
    y = np.zeros_like(a)
    run_wasm(lower(elementwise("pow", dtype, 2), RELAXED), {"X0": a, "X1": b, "Y": y})
    with np.errstate(all="ignore"):
        np.testing.assert_allclose(y, np.power(a, b), rtol=1e-6)


@pytest.mark.parametrize("dtype", [DType.float16, DType.bfloat16])
@pytest.mark.parametrize("op", ["add", "mul", "div", "max"])
def test_small_floats_round_as_numpys(run_wasm, dtype, op) -> None:
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

"""Compare the programs of tensor expressions with numpy."""

from __future__ import annotations

import numpy as np
import pytest

from webmlc import T, te
from webmlc.core.errors import UserError


def test_a_linear_layer_with_relu_of_any_number_of_rows() -> None:
    n = T.symbol("n")
    x = te.placeholder((n, 12), name="x")
    w = te.placeholder((7, 12), name="w")
    b = te.placeholder((7,), name="b")
    k = te.reduce_axis((0, 12), name="k")
    product = te.compute((n, 7), lambda i, j: te.sum(x[i, k] * w[j, k], axis=k), name="product")
    y = te.compute((n, 7), lambda i, j: te.max(product[i, j] + b[j], 0.0), name="y")
    program = te.create_prim_func([x, w, b, y])
    rng = np.random.default_rng(1)
    arrays = [rng.standard_normal(s).astype(np.float32) for s in ((5, 12), (7, 12), (7,))]
    result = np.empty((5, 7), np.float32)
    program(*arrays, result)
    expected = np.maximum(arrays[0] @ arrays[1].T + arrays[2], 0)
    np.testing.assert_allclose(result, expected, rtol=1e-5, atol=1e-6)


def test_a_reduction_over_two_axes_and_two_results() -> None:
    x = te.placeholder((4, 6, 5), name="x")
    r, s = te.reduce_axis((0, 6), name="r"), te.reduce_axis((0, 5), name="s")
    total = te.compute((4,), lambda i: te.sum(x[i, r, s], axis=[r, s]), name="total")
    largest = te.compute((4, 5), lambda i, j: te.max(x[i, r, j], axis=r), name="largest")
    program = te.create_prim_func([x, total, largest])
    array = np.random.default_rng(2).standard_normal((4, 6, 5)).astype(np.float32)
    sums, maxima = np.empty(4, np.float32), np.empty((4, 5), np.float32)
    program(array, sums, maxima)
    np.testing.assert_allclose(sums, array.sum((1, 2)), rtol=1e-5)
    assert (maxima == array.max(1)).all()


def test_padding_by_a_condition_and_integers() -> None:
    x = te.placeholder((5,), "int32", name="x")
    padded = te.compute(
        (8,),
        lambda i: te.if_then_else(te.all(i >= 1, i < 6), x[te.max(te.min(i - 1, 4), 0)], 0),
        name="padded",
    )
    array, result = np.arange(5, dtype=np.int32), np.empty(8, np.int32)
    te.create_prim_func([x, padded])(array, result)
    assert result.tolist() == [0, 0, 1, 2, 3, 4, 0, 0]


def test_the_functions_of_numbers() -> None:
    x = te.placeholder((6,), name="x")
    y = te.compute(
        (6,), lambda i: te.exp(te.sqrt(te.fabs(x[i]))) + te.sigmoid(x[i]) - te.power(x[i], 2.0)
    )
    array, result = np.linspace(-2, 2, 6).astype(np.float32), np.empty(6, np.float32)
    te.create_prim_func([x, y])(array, result)
    expected = np.exp(np.sqrt(np.abs(array))) + 1 / (1 + np.exp(-array)) - array**2
    np.testing.assert_allclose(result, expected, rtol=1e-5)


def test_errors_say_what_to_do() -> None:
    x = te.placeholder((4, 4), name="x")
    k = te.reduce_axis((0, 4))
    with pytest.raises(UserError, match="a reduction is the whole body"):
        te.compute((4,), lambda i: te.sum(x[i, k], axis=k) * 2.0)
    with pytest.raises(UserError, match="is read, and is not among the tensors"):
        te.create_prim_func([te.compute((4,), lambda i: x[i, 0])])
    with pytest.raises(UserError, match="starts at 0"):
        te.reduce_axis((1, 4))
    with pytest.raises(UserError, match="unknown dtype"):
        te.placeholder((4,), "float31")


def test_an_index_outside_its_tensor_is_refused() -> None:
    n = T.symbol("n")
    x = te.placeholder((n,), name="x")
    y = te.compute((n,), lambda i: x[i + 1], name="y")
    with pytest.raises(UserError, match=r"main: x\[v_i \+ 1\] may be outside x"):
        te.create_prim_func([x, y])
    last = te.compute((n,), lambda i: x[te.min(i + 1, n - 1)], name="last")
    array, result = np.arange(4, dtype=np.float32), np.empty(4, np.float32)
    te.create_prim_func([x, last])(array, result)
    assert result.tolist() == [1, 2, 3, 3]


def test_tensors_may_have_the_names_of_axes() -> None:
    tensors = [te.placeholder((3,), name="v_i"), te.placeholder((3,), name="i")]
    total = te.compute((3,), lambda i: tensors[0][i] + tensors[1][i], name="total")
    arrays = [np.float32([1, 2, 3]), np.float32([4, 5, 6]), np.empty(3, np.float32)]
    te.create_prim_func([*tensors, total])(*arrays)
    assert arrays[2].tolist() == [5, 7, 9]


def test_a_maximum_of_python_says_which_one_to_use() -> None:
    x = te.placeholder((8,), "float32", name="x")
    with pytest.raises(TypeError, match=r"no truth value: .* Use max, min or if_then_else of te"):
        te.compute((8,), lambda i: max(x[i], 0.0))

"""The builder writes the same nodes to each destination, under names that the destination
chooses.
"""

import pickle
from dataclasses import replace

import numpy as np
import pytest

from webmlc.core.dtypes import DType
from webmlc.core.expr import const
from webmlc.graph.builder import Builder, Expansion, type_numbers
from webmlc.graph.ir import Function, Node, TensorType
from webmlc.graph.rewrite.rewriting import Rewriting, Simplification

VECTOR = TensorType(DType.float32, (const(4),))
SOURCE = Node("Celu", ("x",), ("y",), origin=("celu1",))
FUNCTION = Function("main", ("x",), ("y",), (SOURCE,), {"x": VECTOR, "y": VECTOR}, {})


@pytest.mark.parametrize(
    ("destination", "names"),
    [
        (Expansion(), ("y/Exp", "y/Exp_1", "y/constant")),
        (Rewriting(FUNCTION), ("y/Exp", "y/Exp_1", "y/constant")),
        (Simplification(FUNCTION, {}), ("y/Exp_1", "y/Exp_2", "y/3")),
    ],
    ids=["expansion", "rewriting", "simplification"],
)
def test_names_are_new(
    destination: Expansion | Rewriting | Simplification, names: tuple[str, ...]
) -> None:
    build = Builder(SOURCE, destination)
    first = build("Exp", "x")
    second = build("Exp", first)
    two = build.constant(2, DType.float32)
    assert (first, second, two) == names
    assert destination.constants[two].dtype == np.float32
    assert [(n.op, n.inputs, n.outputs, n.origin) for n in destination.nodes] == [
        ("Exp", ("x",), (first,), ("celu1",)),
        ("Exp", (first,), (second,), ("celu1",)),
    ]


def test_an_expansion_uses_each_name_once() -> None:
    names = {"y/Relu"}
    assert Builder(SOURCE, Expansion(names))("Relu", "x") == "y/Relu_1"
    assert Builder(SOURCE, Expansion(names))("Relu", "x") == "y/Relu_2"


def test_a_rewriting_infers_types_unless_they_are_passed() -> None:
    rewriting = Rewriting(FUNCTION)
    build = Builder(SOURCE, rewriting)
    assert rewriting.types[build("Cast", "x", to=7)] == TensorType(DType.int64, (const(4),))
    assert rewriting.types[build("Cast", "x", type_=VECTOR, to=7)] == VECTOR
    parts = build.many("Split", "x", outputs=("a", "b"), axis=0, num_outputs=2)
    assert parts == ("a", "b")
    assert rewriting.types["a"] == TensorType(DType.float32, (const(2),))


def test_a_rewriting_reads_a_constant_under_another_shape() -> None:
    rewriting = Rewriting(FUNCTION)
    build = Builder.without_origin(rewriting)
    build.constant(np.arange(4, dtype=np.int8), name="bytes")
    word = TensorType(DType.int32, (const(1),))
    assert rewriting.view(build, "bytes", word, "word") == "word"
    assert rewriting.constants["word"].tolist() == [0x03020100]
    assert rewriting.view(build, "x", TensorType(DType.float32, (const(2), const(2))), "square")
    (node,) = rewriting.nodes
    assert (node.domain, node.op, node.origin) == ("webmlc", "View", ())


def test_a_simplification_appends_no_equal_node() -> None:
    simplification = Simplification(FUNCTION, {})
    build = Builder(SOURCE, simplification)
    first = build("Exp", "x")
    assert build("Exp", "x") == first
    assert len(simplification.nodes) == 1


def test_a_simplification_finds_an_equal_constant() -> None:
    simplification = Simplification(FUNCTION, {})
    build = Builder(SOURCE, simplification)
    six = build.constant(np.float32(6), name="weights")
    assert six == "weights/1"
    assert build.constant(np.array(2, np.float32) * np.array(3, np.float32)) == six


def nodes_of(expansion: Expansion) -> list[tuple[str, tuple[str, ...]]]:
    return [(node.op, node.inputs) for node in expansion.nodes]


def test_operators_of_a_value_write_nodes_in_the_order_of_evaluation() -> None:
    expansion = Expansion()
    build = Builder(Node("Celu", ("a", "b"), ("y",)), expansion)
    a, b = build.inputs
    result = (a + b * a - b) @ a
    assert result == "y/MatMul"
    assert nodes_of(expansion) == [
        ("Mul", ("b", "a")),
        ("Add", ("a", "y/Mul")),
        ("Sub", ("y/Add", "b")),
        ("MatMul", ("y/Sub", "a")),
    ]


def test_a_number_is_on_the_side_on_which_it_is_written() -> None:
    expansion = Expansion()
    (x,) = Builder(SOURCE, expansion).inputs
    assert (1 - x, np.float32(2) * x, x / [3]) == ("y/Sub", "y/Mul", "y/Div")
    assert [inputs.index("x") for _, inputs in nodes_of(expansion)] == [1, 1, 0]
    assert expansion.constants["y/constant_1"].dtype == np.float32
    assert expansion.constants["y/constant_2"].dtype == np.int64


@pytest.mark.parametrize("dtype", [DType.float32, DType.float16, DType.int8, DType.bfloat16])
def test_a_number_gets_the_element_type_of_the_other_operand(dtype: DType) -> None:
    type_ = TensorType(dtype, (const(4),))
    rewriting = Rewriting(replace(FUNCTION, types={"x": type_, "y": type_}))
    (x,) = Builder(SOURCE, rewriting).inputs
    assert (2 * x + 1).type == type_
    assert {array.dtype for array in rewriting.constants.values()} == {np.dtype(dtype.numpy)}


def test_inference_types_the_numbers_of_an_expansion() -> None:
    expansion = Expansion()
    build = Builder(replace(SOURCE, inputs=("condition", "x")), expansion)
    condition, x = build.inputs
    condition.where(x, 0)
    (name,) = expansion.constants
    types = {"x": VECTOR, "condition": TensorType(DType.bool, (const(4),))}
    type_numbers(expansion.nodes[0], expansion.constants, types.get)
    assert expansion.constants[name].dtype == np.float32


def test_a_node_belongs_to_the_innermost_function_that_it_reads() -> None:
    expansion = Expansion()
    build = Builder(SOURCE, expansion)
    inner, body = build.inner("step")
    (x,), place = build.inputs, inner.fresh("place")
    assert nodes_of(expansion) == []
    _ = x - place
    assert (len(expansion.nodes), nodes_of(body)) == (0, [("Sub", ("x", place))])


def test_an_omitted_input_is_empty_and_none_at_the_end_is_left_out() -> None:
    expansion = Expansion()
    build = Builder(Node("Clip", ("x", "", "high"), ("y",)), expansion)
    assert [build.optional(i) for i in range(4)] == ["x", None, "high", None]
    build("Clip", "x", build.optional(1), build.optional(2), build.optional(3))
    assert nodes_of(expansion) == [("Clip", ("x", "", "high"))]


def test_a_pickled_value_is_its_name() -> None:
    (x,) = Builder(SOURCE, Expansion()).inputs
    copy = pickle.loads(pickle.dumps(x))
    assert (type(copy), copy) == (str, "x")

"""The guarantees of the graph passes, tested on small graphs in ONNX text."""

from __future__ import annotations

from collections import Counter

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import numpy_helper

from webmlc.core.errors import UnsupportedError
from webmlc.core.expr import Var
from webmlc.frontend.read_model import read_model
from webmlc.graph.infer.evaluate import evaluate_module
from webmlc.graph.infer.infer_shapes import UnknownShapeError, infer_shapes
from webmlc.graph.infer.normalise import normalise
from webmlc.graph.ir import Array, Function, Module
from webmlc.graph.simplify.constants import fold_constants
from webmlc.graph.simplify.simplify_graph import simplify_graph


def parse(text: str, **constants: Array) -> onnx.ModelProto:
    """A model from ONNX text; `constants` become initialisers."""
    model = onnx.parser.parse_model('<ir_version: 8, opset_import: ["" : 17]>\n' + text)
    model.graph.initializer.extend(numpy_helper.from_array(a, n) for n, a in constants.items())
    return model


def optimise(model: onnx.ModelProto) -> Module:
    return simplify_graph(fold_constants(infer_shapes(normalise(read_model(model)))))


def operators(function: Function) -> list[str]:
    return [node.op for node in function.nodes]


def check(model: onnx.ModelProto, module: Module, **feeds: Array) -> None:
    """Check that the function computes the same as onnxruntime."""
    session = onnxruntime.InferenceSession(model.SerializeToString())
    expected = session.run(None, feeds)
    actual = evaluate_module(module, feeds)
    for name, want in zip(module.main.outputs, expected, strict=True):
        np.testing.assert_allclose(actual[name], want, rtol=2e-5, atol=2e-5)


RNG = np.random.default_rng(0)


def normal(*shape: int) -> Array:
    return RNG.standard_normal(shape).astype(np.float32)


def test_shape_arithmetic_of_symbols_vanishes() -> None:
    model = parse(
        """g (float[batch, seq, 6] x) => (float[batch, a, b, c] y) {
            s = Shape(x)
            n = Gather<axis = 0>(s, zero)
            m = Gather<axis = 0>(s, one)
            n1 = Unsqueeze(n, axis)
            m1 = Unsqueeze(m, axis)
            shape = Concat<axis = 0>(n1, m1, heads)
            split = Reshape(x, shape)
            y = Transpose<perm = [0, 2, 1, 3]>(split)
        }""",
        zero=np.array(0), one=np.array(1), axis=np.array([0]), heads=np.array([2, -1]),
    )  # fmt: skip
    module = optimise(model)
    assert operators(module.main) == ["Reshape", "Transpose"]
    assert str(module.main.types["y"]) == "float32[batch, 2, seq, 3]"
    check(model, module, x=normal(3, 5, 6))


def test_values_of_comparisons_and_where() -> None:
    """The export of `expand(-1, n)`: Where(Equal(shape, -1), ones, shape)."""
    model = parse(
        """g (float[1, n] x) => (float[a, n] y) {
            s = Shape(x)
            is = Equal(wanted, minus)
            t = Where(is, s, wanted)
            y = Expand(x, t)
        }""",
        wanted=np.array([4, -1]), minus=np.array([-1]),
    )  # fmt: skip
    module = optimise(model)
    assert operators(module.main) in (["SymbolicConstant", "Expand"], ["Expand"])
    assert str(module.main.types["y"]) == "float32[4, n]"


def test_floor_of_half_a_symbol() -> None:
    model = parse(
        """g (float[1, 2, h, 8] x) => (float[1, 2, b, 4] y) {
            s = Shape<start = 2>(x)
            f = Cast<to = 1>(s)
            halves = Mul(f, half)
            floors = Floor(halves)
            sizes = Cast<to = 7>(floors)
            y2 = Slice(x, zeros, sizes, axes)
            y = Identity(y2)
        }""",
        half=np.float32([0.5]), zeros=np.array([0, 0]), axes=np.array([2, 3]),
    )  # fmt: skip
    module = optimise(model)
    assert "h // 2" in str(module.main.types["y"])
    check(model, module, x=normal(1, 2, 7, 8))


def test_unknown_shapes_name_the_value() -> None:
    model = parse("g (float[4, 4] x, int64[k] s) => (float[a] y) { y = ReduceSum(x, s) }")
    with pytest.raises(UnknownShapeError, match="run time") as caught:
        optimise(model)
    assert caught.value.values == ("s",)


def test_unknown_axes_in_a_branch_name_the_value() -> None:
    """Shapes in a branch must hold for all runs. The error names a value of the model, not one of
    an expansion.
    """
    model = parse(
        """g (float[4, 4] x, int64[1] axes, bool c) => (float[a, b] y) {
            y = If(c) <then_branch = t () => (float[a, b] w) { w = ReduceSum(x, axes) },
                       else_branch = e () => (float[a, b] w) { w = Identity(x) }>
        }"""
    )
    with pytest.raises(UnknownShapeError, match="axes is computed at run time") as caught:
        optimise(model)
    assert caught.value.values == ("axes",)


def test_a_size_may_be_one_of_two_numbers() -> None:
    """Symbols decide which number it is. Both numbers are integers, but the condition is not."""
    model = parse(
        """g (float[n] x) => (int64[a] y) <int64[1] one = {1}, int64[1] two = {2}> {
            s = Shape(x)
            is_one = Equal(s, one)
            size = Where(is_one, two, one)
            more = Add(size, one)
            y = ConstantOfShape<value = int64[1] {7}>(more)
        }"""
    )
    module = optimise(model)
    check(model, module, x=normal(1))
    check(model, module, x=normal(5))


def test_all_unsupported_nodes_are_reported_at_once() -> None:
    model = parse(
        """g (float[4] x) => (float[4] y) {
            a = Nonsense(x)
            b = Relu(a)
            y = Nonsense(b)
        }"""
    )
    with pytest.raises(UnsupportedError, match="2 nodes") as caught:
        optimise(model)
    assert [node.operator for node in caught.value.nodes] == ["Nonsense", "Nonsense"]


def test_batch_normalisation_folds_into_convolution() -> None:
    model = parse(
        """g (float[1, 3, 6, 6] x) => (float[1, 4, 6, 6] y) {
            a = Conv<pads = [1, 1, 1, 1]>(x, w)
            b = BatchNormalization(a, scale, bias, mean, var)
            c = Mul(b, factor)
            y = Relu(c)
        }""",
        w=normal(4, 3, 3, 3), scale=normal(4), bias=normal(4), mean=normal(4),
        var=np.abs(normal(4)) + 1, factor=normal(4, 1, 1),
    )  # fmt: skip
    module = optimise(model)
    assert operators(module.main) == ["Conv", "Relu"]
    assert len(module.main.nodes[0].inputs) == 3
    check(model, module, x=normal(1, 3, 6, 6))


def test_shared_convolution_is_not_folded() -> None:
    model = parse(
        """g (float[1, 3, 6, 6] x) => (float[1, 4, 4, 4] y, float[1, 4, 4, 4] z) {
            a = Conv(x, w)
            y = Mul(a, factor)
            b = Identity(a)
            z = Relu(b)
        }""",
        w=normal(4, 3, 3, 3), factor=normal(4, 1, 1),
    )  # fmt: skip
    module = optimise(model)
    assert Counter(operators(module.main)) == {"Conv": 1, "Mul": 1, "Relu": 1}
    check(model, module, x=normal(1, 3, 6, 6))


def test_padding_folds_into_convolution() -> None:
    model = parse(
        """g (float[1, 3, 6, 6] x) => (float[1, 4, 6, 6] y) {
            p = Pad(x, pads)
            y = Conv(p, w)
        }""",
        w=normal(4, 3, 3, 3), pads=np.array([0, 0, 0, 1, 0, 0, 2, 1]),
    )  # fmt: skip
    module = optimise(model)
    assert operators(module.main) == ["Conv"]
    assert module.main.nodes[0].attributes["pads"] == (0, 1, 2, 1)
    check(model, module, x=normal(1, 3, 6, 6))


def test_transposes_and_views_compose() -> None:
    model = parse(
        """g (float[2, 3, 4] x) => (float[2, 3, 4] y, float[24] z) {
            a = Transpose<perm = [2, 0, 1]>(x)
            y0 = Transpose<perm = [1, 2, 0]>(a)
            y = Relu(y0)
            b = Flatten(x)
            c = Unsqueeze(b, one)
            d = Reshape(c, all)
            z = Relu(d)
        }""",
        one=np.array([1]), all=np.array([-1]),
    )  # fmt: skip
    module = optimise(model)
    assert Counter(operators(module.main)) == {"Relu": 2, "Reshape": 1}
    check(model, module, x=normal(2, 3, 4))


@pytest.mark.parametrize(
    ("apart", "perm", "expected"),
    [
        ([2, 2, 3, 5, 4], [0, 2, 1, 3, 4], ["ChannelShuffle"]),
        ([2, 3, 2, 5, 4], [0, 2, 1, 3, 4], ["ChannelShuffle"]),
        ([2, 6, 5, 2, 2], [0, 1, 2, 4, 3], ["ChannelShuffle"]),
        ([2, 3, 2, 5, 4], [0, 2, 1, 4, 3], ["Reshape", "Transpose", "Reshape"]),
        ([2, 2, 3, 5, 4], [0, 1, 3, 2, 4], ["Reshape", "Transpose", "Reshape"]),
    ],
)
def test_swapping_the_halves_of_an_axis_becomes_a_channel_shuffle(
    apart: list[int], perm: list[int], expected: list[str]
) -> None:
    model = parse(
        f"""g (float[2, 6, 5, 4] x) => (float[2, 6, 5, 4] y) {{
            a = Reshape(x, apart)
            b = Transpose<perm = {perm}>(a)
            y = Reshape(b, whole)
        }}""",
        apart=np.array(apart), whole=np.array([2, 6, 5, 4]),
    )  # fmt: skip
    module = optimise(model)
    assert operators(module.main) == expected
    check(model, module, x=normal(2, 6, 5, 4))


def test_a_concat_drops_parts_without_elements() -> None:
    model = parse(
        """g (float[2, 3] x) => (float[2, 3] y) {
            none = Slice(x, zero, zero, one)
            all = Concat<axis = 1>(none, x)
            y = Relu(all)
        }""",
        zero=np.array([0]), one=np.array([1]),
    )  # fmt: skip
    module = optimise(model)
    assert operators(module.main) == ["Relu"]
    check(model, module, x=normal(2, 3))


def test_equal_expressions_are_computed_once() -> None:
    model = parse(
        """g (float[4] x) => (float[4] y) {
            a = Exp(x)
            b = Exp(x)
            y = Add(a, b)
        }"""
    )
    module = optimise(model)
    assert operators(module.main) == ["Exp", "Add"]
    check(model, module, x=normal(4))


HOT = {
    "compared": "h = Equal(j, steps)\n hot = Cast <to = 1> (h)",
    "compared, constant first": "h = Equal(steps, j)\n hot = Cast <to = 1> (h)",
    "spelled": "hot = OneHot(i, depth, ends)",
    "spelled in integers": "h = OneHot <axis = 2> (i, depth, whole)\n hot = Cast <to = 1> (h)",
}
NOT_HOT = {
    "other steps": "k = Add(steps, steps)\n h = Equal(j, k)\n hot = Cast <to = 1> (h)",
    "a row compared with itself": "h = Equal(row, steps)\n hot = Cast <to = 1> (h)",
    "other values": "hot = OneHot(i, depth, others)",
    "another axis": "t = OneHot <axis = 0> (i, depth, ends)\n"
    "hot = Transpose <perm = [1, 2, 0]> (t)",
}


def hot_product(rows: str, table: Array) -> onnx.ModelProto:
    return parse(
        f"""g (int64[n, 8] i, int64[1, 8, 5] row) => (float[n, 8, 6] y) {{
            j = Unsqueeze(i, last)
            {rows}
            y = MatMul(hot, table)
        }}""",
        table=table, steps=np.arange(5)[None, None], depth=np.array(5), last=np.array([2]),
        ends=np.float32([0, 1]), whole=np.array([0, 1]), others=np.float32([1, 2]),
    )  # fmt: skip


@pytest.mark.parametrize("rows", HOT.values(), ids=HOT)
def test_a_product_of_one_hot_rows_is_a_lookup(rows: str) -> None:
    model = hot_product(rows, normal(5, 6))
    module = optimise(model)
    assert "Gather" in operators(module.main) and "MatMul" not in operators(module.main)
    beyond = np.array([[0, 4, 5, -1, 2**31, -6, 3, -(2**31)], [1, 2, 3, 4, -5, -4, 6, 0]])
    check(model, module, i=beyond, row=beyond[:1, :, None].repeat(5, 2))


@pytest.mark.parametrize("rows", NOT_HOT.values(), ids=NOT_HOT)
def test_other_products_are_not_replaced(rows: str) -> None:
    assert "MatMul" in operators(optimise(hot_product(rows, normal(5, 6))).main)


def test_rows_that_are_not_finite_are_multiplied() -> None:
    """Each row of the product contains 0 · infinity."""
    table = normal(5, 6)
    table[2, 3] = np.inf
    assert "MatMul" in operators(optimise(hot_product(HOT["spelled"], table)).main)


@pytest.mark.parametrize(
    "text",
    [
        "a = Add(t, one)\n y = Mul(a, half)",
        "a = Mul(t, half)\n y = Add(half, a)",
        "a = Add(one, t)\n y = Mul(x, a)",
        "a = Mul(three, t)\n y = Add(a, threes)",
    ],
)
def test_tanh_between_zero_and_its_double_is_a_sigmoid(text: str) -> None:
    constants = {"half": np.float32(0.5), "one": np.float32(1), "three": np.float32(3)}
    model = parse(
        f"g (float[2, 3] x) => (float[2, 3] y) {{ u = Mul(x, scale)\n t = Tanh(u)\n {text} }}",
        scale=np.float32(0.7), threes=np.float32([3, 3, 3]), **constants,
    )  # fmt: skip
    module = optimise(model)
    assert operators(module.main)[:2] == ["Mul", "Sigmoid"]
    check(model, module, x=normal(2, 3) * 4)


@pytest.mark.parametrize("text", ["y = Add(t, half)", "a = Add(t, one)\n y = Mul(a, t)"])
def test_other_sums_of_tanh_are_not_replaced(text: str) -> None:
    model = parse(
        f"g (float[2, 3] x) => (float[2, 3] y) {{ t = Tanh(x)\n {text} }}",
        half=np.float32(0.5), one=np.float32(1),
    )  # fmt: skip
    assert "Tanh" in operators(optimise(model).main)


def test_outputs_keep_their_names() -> None:
    """An output that is an input, a constant, a repeated value, or another output."""
    model = parse(
        """g (float[4] x) => (float[4] same, float[4] twice, float[4] y, float[4] fixed) {
            same = Identity(x)
            y = Relu(x)
            twice = Identity(y)
            fixed = Neg(k)
        }""",
        k=normal(4),
    )
    module = optimise(model)
    graph = {output for node in module.main.nodes for output in node.outputs}
    assert set(module.main.outputs) <= graph
    check(model, module, x=normal(4))


def test_constants_that_would_grow_are_not_folded() -> None:
    model = parse(
        "g (float[1] x) => (float[a, b] y) { z = Expand(k, shape)\n y = Add(x, z) }",
        k=normal(1), shape=np.array([1024, 1024]),
    )  # fmt: skip
    assert operators(optimise(model).main) == ["Expand", "Add"]


def test_a_long_chain_stays_linear() -> None:
    """Test 2,000 nodes: each pass walks once, so this takes about a second, not minutes."""
    lines = "\n".join(f"v{i + 1} = {'Relu' if i % 2 else 'Neg'}(v{i})" for i in range(2000))
    model = parse(f"g (float[n, 4] v0) => (float[n, 4] v2000) {{ {lines} }}")
    module = optimise(model)
    assert len(module.main.nodes) == 2000
    assert module.main.types["v2000"].shape[0] == Var("n")


def test_an_if_with_a_known_condition_becomes_its_branch() -> None:
    model = parse(
        """g (float[3] x) => (float[3] y) {
            s = Size(x)
            big = Greater(s, two)
            y = If(big) <
                then_branch = a () => (float[3] t) { t = Relu(x) },
                else_branch = b () => (float[3] e) { e = Neg(x) }
            >
        }""",
        two=np.array(2),
    )
    module = optimise(model)
    assert operators(module.main) == ["Relu"]
    check(model, module, x=normal(3))


def test_zeros_of_a_run_time_shape_are_not_added() -> None:
    model = parse(
        """g (float[n, 3] x) => (float[n, 3] y) {
            s = Shape(x)
            zeros = ConstantOfShape(s)
            y = Add(x, zeros)
        }"""
    )
    module = optimise(model)
    assert operators(module.main) == ["Identity"]
    check(model, module, x=normal(2, 3))


def test_large_attention_without_a_mask_has_none() -> None:
    """256 rows of zeros, which are too many to be folded to a constant."""
    rows, width = 256, 8
    value = onnx.helper.make_tensor_value_info
    values = [value(n, onnx.TensorProto.FLOAT, [1, 2, rows, width]) for n in "qkvy"]
    node = onnx.helper.make_node("Attention", list("qkv"), ["y"])
    graph = onnx.helper.make_graph([node], "g", values[:3], values[3:])
    opsets = [onnx.helper.make_opsetid("", 23)]
    model = onnx.helper.make_model(graph, opset_imports=opsets, ir_version=10)
    module = optimise(model)
    assert {"ConstantOfShape", "ReduceMax", "Equal", "Where", "Add"}.isdisjoint(
        operators(module.main)
    )
    check(model, module, **{n: normal(1, 2, rows, width) for n in "qkv"})


def test_a_condition_that_holds_everywhere_chooses_one_side() -> None:
    model = parse(
        """g (float[2, 3] x, float[3] b) => (float[2, 3] y, float[2, 3] z) {
            two = Constant<value_ints = [2, 1]>()
            ones = ConstantOfShape<value = float[1] {1.0}>(two)
            one = Constant<value_float = 1.0>()
            holds = Equal(ones, one)
            y = Where(holds, x, b)
            z = Where(holds, b, x)
        }"""
    )
    module = optimise(model)
    assert operators(module.main) == ["Where", "Identity"]  # b has fewer elements than z
    check(model, module, x=normal(2, 3), b=normal(3))

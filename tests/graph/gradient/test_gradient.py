"""Gradient: compare derivatives with differences of the function in float64."""

from __future__ import annotations

import zlib
from collections.abc import Mapping

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from tests.graph.ops.test_rows import make_input
from webmlc.core.errors import UnsupportedError
from webmlc.frontend.read_model import read_model
from webmlc.graph.infer.evaluate import evaluate_module
from webmlc.graph.infer.infer_shapes import infer_shapes
from webmlc.graph.infer.normalise import normalise
from webmlc.graph.ir import Array, Module
from webmlc.graph.ops import elementwise
from webmlc.graph.ops.operator import Case
from webmlc.host.load import load
from webmlc.pipeline import build

PREVIEW = "ai.onnx.preview.training"
HEADER = f'<ir_version: 9, opset_import: ["" : 18, "{PREVIEW}" : 1]>'
STEP = 1e-6


def module_of(model: onnx.ModelProto) -> Module:
    return infer_shapes(normalise(read_model(model)))


def evaluate(model: onnx.ModelProto, feeds: Mapping[str, Array]) -> dict[str, Array]:
    return evaluate_module(module_of(model), feeds)


def without_gradients(model: onnx.ModelProto, output: str) -> onnx.ModelProto:
    """The model of one output, without the gradients that no node reads."""
    read = {name for node in model.graph.node for name in node.input}
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    del copy.graph.node[:], copy.graph.output[:]
    for node in model.graph.node:
        if node.op_type != "Gradient" or read & set(node.output):
            copy.graph.node.append(node)
    copy.graph.output.extend(info for info in model.graph.output if info.name == output)
    return copy


def differences(model: onnx.ModelProto, feeds: dict[str, Array], x: str, y: str) -> Array:
    """The derivative of the sum of `y` by each element of `x`, by central differences."""
    module = module_of(without_gradients(model, y))
    result = np.zeros(feeds[x].shape)
    for index in np.ndindex(feeds[x].shape):
        sums = []
        for step in (STEP, -STEP):
            shifted = feeds[x].copy()
            shifted[index] += step
            sums.append(evaluate_module(module, {**feeds, x: shifted})[y].sum())
        result[index] = (sums[0] - sums[1]) / (2 * STEP)
    return result


def check(text: str, **shapes: Array) -> None:
    """Check the outputs `g` and `h` of a model: the gradients of `z` by `a` and by `b`."""
    model = onnx.parser.parse_model(HEADER + text)
    for x, dx in (("a", "g"), ("b", "h")):
        if x in shapes:
            got = evaluate(model, shapes)[dx]
            np.testing.assert_allclose(got, differences(model, shapes, x, "z"), 1e-5, 1e-6)


ELEMENTWISE = [
    pytest.param(row.name, case, id=f"{row.name}-{number}")
    for row in elementwise.OPS
    for number, case in enumerate(row.cases)
    if case.opset is None
    and isinstance(case.inputs[-1 if row.name == "Where" else 0], str)
    and "float" in str(case.inputs[-1 if row.name == "Where" else 0])
]


@pytest.mark.parametrize(("op", "case"), ELEMENTWISE)
def test_gradients_of_elementwise_operators(op: str, case: Case) -> None:
    """Test each elementwise row: its derivative comes from its expression."""
    rng = np.random.default_rng(zlib.crc32(op.encode()))
    feeds: dict[str, Array] = {}
    constants: dict[str, Array] = {}
    names: list[str] = []
    for i, spec in enumerate(case.inputs):
        names.append("" if spec is None else f"x{i}")
        if spec is not None:
            array = make_input(spec, rng)
            array = array.astype(np.float64) if array.dtype.kind == "f" else array
            (feeds if isinstance(spec, str) else constants)[f"x{i}"] = array
    forward = helper.make_node(op, names, ["y"], **case.attributes)
    xs = [name for name, array in feeds.items() if array.dtype.kind == "f"]
    zs = [name for name in feeds if name not in xs]
    ports = {n: helper.np_dtype_to_tensor_dtype(a.dtype) for n, a in feeds.items()}
    inputs = [helper.make_tensor_value_info(n, ports[n], a.shape) for n, a in feeds.items()]
    weight = numpy_helper.from_array(rng.uniform(0.5, 2, 1), "w")
    nodes = [forward]
    if op in BOOLEAN:
        nodes.append(helper.make_node("Cast", ["y"], ["c"], to=TensorProto.DOUBLE))
    nodes.append(helper.make_node("Mul", ["c" if op in BOOLEAN else "y", "w"], ["z"]))
    gradient = helper.make_node(
        "Gradient", [*xs, *zs], [f"d{x}" for x in xs], domain=PREVIEW, xs=xs, zs=zs or None, y="z"
    )
    ranks = {f"d{x}": feeds[x].ndim for x in xs}
    ranks["z"] = max([1, *(array.ndim for array in feeds.values())])
    outputs = [
        helper.make_tensor_value_info(n, TensorProto.DOUBLE, [f"{n}_{axis}" for axis in range(r)])
        for n, r in ranks.items()
    ]
    tensors = [weight, *(numpy_helper.from_array(a, n) for n, a in constants.items())]
    graph = helper.make_graph([*nodes, gradient], "g", inputs, outputs, tensors)
    opsets = [helper.make_opsetid("", 24), helper.make_opsetid(PREVIEW, 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=10)
    got = evaluate(model, feeds)
    for x in xs:
        want = differences(model, feeds, x, "z")
        np.testing.assert_allclose(got[f"d{x}"], want, 2e-5, 2e-5)


BOOLEAN = {"IsNaN", "IsInf", "Equal", "Less", "LessOrEqual", "Greater", "GreaterOrEqual"}

GRADIENT = "ai.onnx.preview.training.Gradient"
ONE = f'g = {GRADIENT} <xs: strings = ["a"], y: string = "z"> (a)'
TWO = f'g, h = {GRADIENT} <xs: strings = ["a", "b"], y: string = "z"> (a, b)'

RNG = np.random.default_rng(5)
A, B, C = RNG.uniform(-2, 2, (3, 4)), RNG.uniform(-2, 2, (4, 2)), RNG.uniform(-2, 2, (2, 3, 4))


@pytest.mark.parametrize(
    ("a", "b"),
    [((3, 4), (4, 2)), ((4,), (4, 2)), ((3, 4), (4,)), ((4,), (4,)), ((2, 1, 3, 4), (5, 4, 2)),
     ((3, 4), (2, 4, 5)), ((2, 3, 4), (4,)), ((4,), (2, 4, 3))],
)  # fmt: skip
def test_matmul(a: tuple[int, ...], b: tuple[int, ...]) -> None:
    signature = f"(double{list(a)} a, double{list(b)} b) => (double z, double g, double h)"
    check(
        f"m {signature} {{ p = MatMul (a, b) q = Mul (p, p) z = ReduceSum <keepdims: int = 0> (q)"
        f" {TWO} }}",
        a=RNG.uniform(-2, 2, a),
        b=RNG.uniform(-2, 2, b),
    )


@pytest.mark.parametrize(
    ("equation", "a", "b"),
    [
        ("ij,jk->ik", (3, 4), (4, 2)),
        ("...pdfb,pdqk->...qfbk", (2, 2, 3, 2, 1), (2, 3, 2, 2)),  # of a Fourier transform
        ("bi,bi->b", (2, 3), (2, 3)),
    ],
)
def test_einsum(equation: str, a: tuple[int, ...], b: tuple[int, ...]) -> None:
    signature = f"(double{list(a)} a, double{list(b)} b) => (double z, double g, double h)"
    check(
        f'm {signature} {{ p = Einsum <equation: string = "{equation}"> (a, b) q = Mul (p, p) '
        f"z = ReduceSum <keepdims: int = 0> (q) {TWO} }}",
        a=RNG.uniform(-2, 2, a),
        b=RNG.uniform(-2, 2, b),
    )


@pytest.mark.parametrize("left", [0, 1])
@pytest.mark.parametrize("right", [0, 1])
def test_gemm(left: int, right: int) -> None:
    a, b = (A.T.copy() if left else A), (B.T.copy() if right else B)
    forward = (
        f"p = Gemm <alpha: float = 0.5, beta: float = 2.0, transA: int = {left}, "
        f"transB: int = {right}> (a, b, k) z = Mul (p, p)"
    )
    check(
        f"m (double{list(a.shape)} a, double{list(b.shape)} b) => (double z, double g, double h)"
        f" <double[2] k = {{0.5, -1}}> {{ {forward} {TWO} }}",
        a=a,
        b=b,
    )


def test_gemm_bias() -> None:
    """The gradient of a bias is a sum over the rows to which the bias was broadcast."""
    check(
        "m (double[3,4] x, double[2] a) => (double z, double g)"
        " <double[4,2] w = {1,2,3,4,-1,-2,-3,1}>"
        f" {{ p = Gemm <beta: float = 2.0> (x, w, a) z = Mul (p, p) {ONE} }}",
        a=B[0],
        x=A,
    )


@pytest.mark.parametrize(
    "forward",
    [
        "p = Transpose <perm: ints = [2, 0, 1]> (a)",
        "p = Reshape (a, s)",
        "p = Flatten <axis: int = 2> (a)",
        "u = Unsqueeze (a, i) t = Exp (u) p = Squeeze (t, i)",
        "p = ReduceSum (a, i)",
        "p = ReduceSum <keepdims: int = 0> (a, i)",
        "p = ReduceMean <keepdims: int = 0> (a, i)",
        "p = ReduceMean (a)",
        "p = ReduceSumSquare <keepdims: int = 0> (a, i)",
        "q = Softmax <axis: int = 1> (a) p = Mul (q, a)",
        "q = LogSoftmax <axis: int = 0> (a) p = Mul (q, a)",
        "e = Expand (a, x) p = Mul (e, e)",
        "q = Sin (a) c = Concat <axis: int = 1> (a, q, a) p = Exp (c)",
        "q, r = Split <axis: int = -1, num_outputs: int = 2> (a) p = Exp (r)",
        "q = Sigmoid (a) p = Mul (q, a)",
        "f = Cast <to: int = 11> (a) p = Exp (f)",
        "q = Relu (a) r = Identity (q) t = Add (q, r) p = Mul (t, a)",
        "k = ReduceSum <keepdims: int = 0> (a) p = Div (a, k)",
    ],
)
def test_gradient_rules(forward: str) -> None:
    check(
        f"m (double[2,3,4] a) => (double z, double g)"
        f" <int64[2] s = {{6, 4}}, int64[1] i = {{1}}, int64[4] x = {{5, 2, 3, 1}}>"
        f" {{ {forward} z = Mul (p, p) {ONE} }}",
        a=C,
    )


def test_the_tests_of_the_standard_differentiate_scalars_of_symbolic_graphs_too() -> None:
    check(
        f"m (double[n,4] a, double[4] b) => (double z, double g, double h)"
        f" {{ p = Mul (a, b) q = Tanh (p) z = ReduceMean (q) {TWO} }}",
        a=A,
        b=A[0],
    )


def test_gradients_of_second_order() -> None:
    """The gradient of a gradient: of an elementwise chain and of a product."""
    text = f"""m (double[3,4] a) => (double z, double g) <double[4,2] w = {{1,2,3,4,-1,-2,-3,1}}> {{
        t = Tanh (a) p = MatMul (t, w) q = Mul (p, p) y = ReduceSum (q)
        d = {GRADIENT} <xs: strings = ["a"], y: string = "y"> (a)
        z = Mul (d, d)
        {ONE} }}"""
    check(text, a=A)


def test_a_gradient_at_another_value_and_by_an_intermediate() -> None:
    """The function is computed again for inputs other than those of xs."""
    text = f"""m (double[3] a, double[3] b) => (double[3] g, double[3] h, double[3] i) {{
        t = Exp (a) s = Sin (t) z = Mul (s, b)
        g = {GRADIENT} <xs: strings = ["a"], zs: strings = ["b"], y: string = "z"> (b, a)
        h, i = {GRADIENT} <xs: strings = ["t", "b"], y: string = "z"> (t, b) }}"""
    a, b = RNG.uniform(-1, 1, 3), RNG.uniform(-1, 1, 3)
    got = evaluate(onnx.parser.parse_model(HEADER + text), {"a": a, "b": b})
    np.testing.assert_allclose(got["g"], np.cos(np.exp(b)) * np.exp(b) * a)
    np.testing.assert_allclose(got["h"], np.cos(np.exp(a)) * b)
    np.testing.assert_allclose(got["i"], np.sin(np.exp(a)))


def test_gradients_far_from_zero_are_not_nan() -> None:
    ops = ("Sigmoid", "Softplus", "Swish", "Mish", "Celu", "Elu", "Gelu", "Tanh", "Selu", "Relu")
    for op in ops:
        model = onnx.parser.parse_model(
            f'<ir_version: 9, opset_import: ["" : 24, "{PREVIEW}" : 1]>'
            f"m (float[5] a) => (float g) {{ z = {op} (a) {ONE} }}"
        )
        (got,) = evaluate(model, {"a": np.float32([-1e3, -1e2, 0, 1e2, 1e3])}).values()
        assert np.isfinite(got).all(), op
        assert got[0] == pytest.approx(0, abs=1e-6)


def test_a_gradient_before_its_target_and_of_constants() -> None:
    """The order in the file does not matter. A value that does not depend on x has the derivative
    0.
    """
    text = f"""m (float[2] a) => (float[2] g, float[2] h) <float[2] c = {{1, 2}}> {{
        g = {GRADIENT} <xs: strings = ["a"], y: string = "z"> (a)
        z = Mul (a, a)
        y = Mul (c, c)
        h = {GRADIENT} <xs: strings = ["a"], y: string = "y"> (a) }}"""
    got = evaluate(onnx.parser.parse_model(HEADER + text), {"a": np.float32([3, 4])})
    assert got["g"].tolist() == [6, 8]
    assert got["h"].tolist() == [0, 0]


def test_a_gradient_by_a_constant() -> None:
    text = f"""m (float[2] a) => (float[2] g) <float[2] c = {{1, 2}}> {{
        z = Mul (c, c) g = {GRADIENT} <xs: strings = ["c"], y: string = "z"> (c) }}"""
    got = evaluate(onnx.parser.parse_model(HEADER + text), {"a": np.float32([3, 4])})
    assert got["g"].tolist() == [2, 4]


@pytest.mark.parametrize("device", ["wasm", "webgpu"])
def test_a_training_step(device: str, tmp_path: str) -> None:
    """Test the gradients of a dense layer in float32 on each device."""
    text = f"""m (float[n,4] x, float[4,2] a, float[2] b, float[n,2] t) =>
        (float[1,1] z, float[4,2] g, float[2] h) {{
        p = Gemm (x, a, b) q = Gelu (p) e = Sub (q, t) s = Mul (e, e) z = ReduceMean (s)
        g, h = {GRADIENT}
            <xs: strings = ["a", "b"], zs: strings = ["x", "t"], y: string = "z"> (a, b, x, t) }}"""
    header = HEADER.replace("18", "20")
    rng = np.random.default_rng(1)
    shapes = {"x": (3, 4), "a": (4, 2), "b": (2,), "t": (3, 2)}
    feeds = {n: rng.uniform(-1, 1, s).astype(np.float32) for n, s in shapes.items()}
    model = onnx.parser.parse_model(header + text)
    build(model, tmp_path, target=device)  # type: ignore[arg-type]
    got = load(tmp_path, device=device).run(feeds)  # type: ignore[arg-type]
    exact = onnx.parser.parse_model(header + text.replace("float[", "double["))
    exact_feeds = {n: a.astype(np.float64) for n, a in feeds.items()}
    for x, dx in (("a", "g"), ("b", "h")):
        want = differences(exact, exact_feeds, x, "z")
        np.testing.assert_allclose(got[dx], want, 1e-4, 1e-5)


@pytest.mark.parametrize(
    ("forward", "message"),
    [
        (
            "z = CumSum (a, i)",
            "CumSum (node 'z'): webmlc does not know its derivative, which a Gradient needs",
        ),
        ("y = Neg (a)", "Gradient (node 'g'): 'z' is no value that this graph computes before it"),
        (
            f'z = Neg (a) q = {GRADIENT} <xs: strings = ["a"], y: string = "z"> (a, a)',
            "Gradient (node 'q'): 2 inputs for the 1 of xs and zs",
        ),
    ],
)
def test_gradients_that_are_refused(forward: str, message: str) -> None:
    text = f"m (float[3] a) => (float[3] g) <int64 i = {{0}}> {{ {forward} {ONE} }}"
    with pytest.raises(UnsupportedError) as error:
        evaluate(onnx.parser.parse_model(HEADER + text), {})
    assert message in str(error.value)

"""TensorFlow Lite files compute what LiteRT recorded, operator by operator and as whole models."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from zipfile import ZipFile

import numpy as np
import onnxruntime
import pytest

import webmlc
from tests.frontend.tflite.operator_cases import (
    CASES,
    HYBRID,
    QUANTISED,
    floats,
    hybrid_inputs,
    joined,
    quantised_inputs,
)
from tests.frontend.tflite.record import RECORDED
from tests.frontend.tflite.tflite_file import (
    FileGraph,
    FileOperator,
    FileTensor,
    FileWriter,
    constant,
    tflite_file,
)
from webmlc.core.errors import ModelError, UnsupportedError, UserError
from webmlc.frontend.doors.door import Example
from webmlc.frontend.doors.export_source import export_source
from webmlc.frontend.tflite.export_tflite import export_tflite
from webmlc.frontend.tflite.file import open_tflite
from webmlc.frontend.tflite.operators.quantised import FORMS, WIDE_FORMS
from webmlc.frontend.tflite.table import REFUSED, ROWS
from webmlc.frontend.tflite.write_subgraph import unique_names

RECORDS = dict(np.load(RECORDED))


def export(content: bytes, folder: Path) -> Any:
    path = folder / "model.tflite"
    path.write_bytes(content)
    return export_tflite(path, Example())


def run(model: Any, inputs: dict[str, np.ndarray]) -> list[np.ndarray]:
    """The results of onnxruntime, which computes exactly the operators of the model."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(model.SerializeToString(), options)
    return list(session.run(None, inputs))


@pytest.mark.parametrize("name", CASES)
def test_an_operator_computes_what_litert_computes(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    expected = [RECORDS[f"{name}/{number}"] for number in range(len(case.outputs))]
    model = export(case.content(tuple(array.shape for array in expected)), tmp_path)
    arrays = case.arrays()
    for port in model.graph.input:
        if port.name.startswith("state_"):
            sizes = [dim.dim_value for dim in port.type.tensor_type.shape.dim]
            arrays[port.name] = np.zeros(sizes, np.float32)
    for actual, wanted in zip(run(model, arrays), expected, strict=False):
        assert (actual.dtype, actual.shape) == (wanted.dtype, wanted.shape)
        np.testing.assert_allclose(actual, wanted, 1e-5, 1e-5)


def test_quantised_operators_compute_the_integers_of_litert(tmp_path: Path) -> None:
    """On some processors, sums of onnxruntime's MatMulInteger saturate."""
    graphs = {n: graph for n, graph in QUANTISED.items() if n != "FULLY_CONNECTED of int16"}
    graph = joined(graphs)
    actual = run(export(tflite_file([graph]), tmp_path), quantised_inputs(graph))
    for name, array in zip(graphs, actual, strict=True):
        np.testing.assert_array_equal(array, RECORDS[f"quantised {name}"], name, strict=True)


@pytest.mark.parametrize("device", ["wasm", "webgpu"])
def test_packages_compute_the_integers_of_litert(device: Any, tmp_path: Path) -> None:
    """The operators that are written on integers, in one package."""
    forms = {*FORMS, *WIDE_FORMS}
    graphs = {name: graph for name, graph in QUANTISED.items() if name.split()[0] in forms}
    graph, path = joined(graphs), tmp_path / "model.tflite"
    path.write_bytes(tflite_file([graph]))
    manifest = webmlc.build(path, tmp_path / "package", target=device)
    package = webmlc.load(tmp_path / "package", device=device)
    try:
        actual = package.run(quantised_inputs(graph))
    finally:
        package.dispose()
    for name, port in zip(graphs, manifest.outputs, strict=True):
        array = actual[port.name]
        np.testing.assert_array_equal(array, RECORDS[f"quantised {name}"], name, strict=True)


@pytest.mark.parametrize("name", HYBRID)
def test_float_inputs_of_quantised_weights_are_rounded(name: str, tmp_path: Path) -> None:
    graph, expected = HYBRID[name], RECORDS[f"hybrid {name}"]
    (actual,) = run(export(tflite_file([graph]), tmp_path), hybrid_inputs(graph))
    np.testing.assert_allclose(actual, expected, 0, 1e-5 * np.abs(expected).max(), strict=True)


def run_file(
    tensors: list[FileTensor],
    operators: list[FileOperator],
    outputs: list[int],
    folder: Path,
    *x: Any,
) -> list[np.ndarray]:
    """The results of a file whose inputs are its first tensors."""
    graph = FileGraph(tensors, operators, range(len(x)), outputs)
    model = export(tflite_file([graph]), folder)
    return run(model, {tensors[i].name: array for i, array in enumerate(x)})


TABLE = np.array([[-5, 0], [3, 7], [100, -100]], np.int8)
"""Bytes of a quantised tensor."""


def test_rows_of_a_table_of_bytes_are_dequantised(tmp_path: Path) -> None:
    tensors = [
        FileTensor("ids", (2,), "INT32"),
        constant("table", TABLE, scale=0.5, zero=3),
        FileTensor("rows", (2, 2)),
    ]
    lookup = [FileOperator("EMBEDDING_LOOKUP", [0, 1], [2])]
    (rows,) = run_file(tensors, lookup, [2], tmp_path, np.array([2, 0], np.int32))
    np.testing.assert_array_equal(rows, (TABLE[[2, 0]].astype(np.float32) - 3) * np.float32(0.5))


@pytest.mark.parametrize(("element", "numpy_type"), [("FLOAT32", np.float32), ("INT32", np.int32)])
def test_a_cast_of_a_quantised_tensor_casts_its_integers(
    element: str, numpy_type: Any, tmp_path: Path
) -> None:
    tensors = [FileTensor("x", (3, 2), "INT8", scale=0.5, zero=3), FileTensor("y", (3, 2), element)]
    cast = [FileOperator("CAST", [0], [1], "CastOptions")]
    (y,) = run_file(tensors, cast, [1], tmp_path, TABLE)
    assert y.dtype == numpy_type
    np.testing.assert_array_equal(y, TABLE)


def test_offsets_of_a_run_reach_the_end(tmp_path: Path) -> None:
    tensors = [
        FileTensor("x", (3, 4)),
        FileTensor("begin", (2,), "INT32"),
        FileTensor("size", (2,), "INT32"),
        constant("step", np.array([1, 1], np.int32)),
        FileTensor("y", (2, 1)),
    ]
    take = [FileOperator("STRIDED_SLICE", [0, 1, 2, 3], [4], "StridedSliceOptions", {"Offset": 1})]
    x, begin, size = floats(3, 4), np.array([-2, -3], np.int32), np.array([2, 1], np.int32)
    (y,) = run_file(tensors, take, [4], tmp_path, x, begin, size)
    np.testing.assert_array_equal(y, x[1:, 1:2])


def test_a_result_of_quantised_int32_is_refused(tmp_path: Path) -> None:
    tensors = [
        FileTensor("x", (3, 2), "INT16", scale=0.5),
        FileTensor("y", (3, 2), "INT32", scale=0.25),
    ]
    quantise = [FileOperator("QUANTIZE", [0], [1], "QuantizeOptions")]
    with pytest.raises(UnsupportedError, match="'y' is quantised as INT32; convert with results"):
        run_file(tensors, quantise, [1], tmp_path, TABLE.astype(np.int16))


def test_a_result_that_is_left_out_does_not_move_the_next(tmp_path: Path) -> None:
    tensors = [
        FileTensor("x", (1, 4)),
        constant("count", np.array(2, np.int32)),
        FileTensor("places", (1, 2), "INT32"),
    ]
    top = [FileOperator("TOPK_V2", [0, 1], [-1, 2], "TopKV2Options")]
    (places,) = run_file(tensors, top, [2], tmp_path, np.array([[1, 5, 3, 2]], np.float32))
    np.testing.assert_array_equal(places, [[1, 2]])


@pytest.mark.parametrize(("data", "bias"), [("INT8", "INT32"), ("INT16", "INT64")])
@pytest.mark.parametrize("operator", ["FULLY_CONNECTED", "CONV_2D"])
def test_the_unit_of_an_integer_bias(operator: str, data: str, bias: str, tmp_path: Path) -> None:
    """It is the product of the scales of data and weights, and the file may leave it out."""
    scales, numbers = np.array([0.5, 0.25, 2], np.float32), np.array([[2, 1], [3, 4], [-1, 1]])
    is_conv = operator == "CONV_2D"
    inner = (1, 1) if is_conv else ()
    weights = numbers.reshape(3, *inner, 2).astype(np.int8)
    numpy_type = np.dtype(bias.lower())
    tensors = [
        FileTensor("x", (1, *inner, 2), data, scale=0.5),
        constant("w", weights, scale=scales, zero=[0] * 3),
        constant("b", np.array([8, -80, 3]).astype(numpy_type)),
        FileTensor("y", (1, *inner, 3), data, scale=0.25),
    ]
    options = {"StrideW": 1, "StrideH": 1} if is_conv else {}
    kind = "Conv2DOptions" if is_conv else "FullyConnectedOptions"
    product = [FileOperator(operator, [0, 1, 2], [3], kind, options)]
    x = np.array([6, -4]).astype(np.dtype(data.lower()))
    (y,) = run_file(tensors, product, [3], tmp_path, x.reshape(1, *inner, 2))
    expected = (numbers @ x.astype(int) + [8, -80, 3]) * (0.5 * scales) / 0.25
    np.testing.assert_array_equal(y.reshape(-1), expected)


def test_many_equal_names_are_numbered() -> None:
    names = unique_names(["x", "x_2", *["x"] * 50000])
    assert [names[i] for i in (0, 1, 2, 3, 50001)] == ["x", "x_2", "x_3", "x_4", "x_50002"]


@pytest.mark.parametrize("is_computed", [False, True])
def test_a_transposed_convolution_of_any_batch(is_computed: bool, tmp_path: Path) -> None:
    """Keras packs the batch of the input with constants. If the sizes of the output are computed,
    the tensor of the output has them.
    """
    tensors = [
        FileTensor("x", (1, 4, 4, 1), sizes=(-1, 4, 4, 1)),
        FileTensor("shape", (4,), "INT32"),
        *(constant(f"[{i}]", np.array([i], np.int32)) for i in (0, 1)),
        FileTensor("batch", (), "INT32"),
        *(constant(f"{i}", np.array(i, np.int32)) for i in (8, 1)),
        FileTensor("packed", (4,), "INT32"),
        constant("filters", np.ones((1, 2, 2, 1), np.float32)),
        FileTensor("y", (1, 8, 8, 1), sizes=(-1, 8, 8, 1) if is_computed else (-1, -1, -1, 1)),
        FileTensor("size", (), "INT32"),
    ]
    shrink, strides = {"ShrinkAxisMask": 1}, {"StrideH": 2, "StrideW": 2}
    size = 10 if is_computed else 5
    operators = [
        FileOperator("SHAPE", [0], [1], "ShapeOptions", {"OutType": 2}),
        FileOperator("STRIDED_SLICE", [1, 2, 3, 3], [4], "StridedSliceOptions", shrink),
        FileOperator("MUL", [5, 6], [10], "MulOptions"),
        FileOperator("PACK", [4, size, size, 6], [7], "PackOptions", {"ValuesCount": 4}),
        FileOperator("TRANSPOSE_CONV", [7, 8, 0], [9], "TransposeConvOptions", strides),
    ]
    x = floats(3, 4, 4, 1)
    (y,) = run_file(tensors, operators, [9], tmp_path, x)
    np.testing.assert_allclose(y, x.repeat(2, 1).repeat(2, 2), 1e-6)


def test_every_builtin_row_has_a_case_and_no_refused_operator_has_a_row() -> None:
    builtin = {name for name in ROWS if name.isupper()}
    spectra = {"RFFT2D", "REAL", "IMAG", "COMPLEX_ABS"}
    tested = {case.operator for case in CASES.values()} | {"DENSIFY", "QUANTIZE"} | spectra
    assert builtin <= tested
    assert not set(ROWS) & set(REFUSED)


def small_network() -> bytes:
    """A convolution by sparse weights of halves, quantised afterwards, and a layer of bytes."""
    halves = floats(8, 1, 1, 4).astype(np.float16)
    order = {"order": [0, 1, 2, 3], "blocks": None, "levels": [8, 1, 1, 4]}
    weights = np.random.default_rng(0).integers(-100, 100, (3, 8)).astype(np.int8)
    scales = [0.01, 0.02, 0.015]
    tensors = [
        FileTensor("image:0", (1, 6, 6, 4), sizes=(-1, 6, 6, 4)),
        constant("halves", halves, sparsity=order),
        FileTensor("dense", (8, 1, 1, 4), "FLOAT16"),
        FileTensor("filters", (8, 1, 1, 4)),
        FileTensor("features", (1, 6, 6, 8)),
        FileTensor("bytes", (1, 6, 6, 8), "INT8", scale=0.03, zero=-5),
        FileTensor("pooled", (1, 1, 1, 8), "INT8", scale=0.03, zero=-5),
        constant("weights", weights, scale=scales, zero=[0, 0, 0], axis=0),
        constant("bias", np.array([5, -7, 100], np.int32), scale=np.array(scales) * 0.03,
                 zero=[0, 0, 0]),
        FileTensor("scores", (1, 3), "INT8", scale=0.05, zero=3),
        FileTensor("StatefulPartitionedCall:0", (1, 3)),
    ]  # fmt: skip
    conv = {"StrideW": 1, "StrideH": 1, "FusedActivationFunction": 3}
    pool = {"FilterHeight": 6, "FilterWidth": 6, "StrideW": 1, "StrideH": 1, "Padding": 1}
    operators = [
        FileOperator("DENSIFY", [1], [2], "DensifyOptions"),
        FileOperator("DEQUANTIZE", [2], [3], "DequantizeOptions"),
        FileOperator("CONV_2D", [0, 3], [4], "Conv2DOptions", conv),
        FileOperator("QUANTIZE", [4], [5], "QuantizeOptions"),
        FileOperator("AVERAGE_POOL_2D", [5], [6], "Pool2DOptions", pool),
        FileOperator("FULLY_CONNECTED", [6, 7, 8], [9], "FullyConnectedOptions"),
        FileOperator("DEQUANTIZE", [9], [10], "DequantizeOptions"),
    ]
    graph = FileGraph(tensors, operators, [0], [10])
    return tflite_file([graph], ([(0, "image")], [(10, "scores")]))


@pytest.mark.parametrize("device", ["wasm", "webgpu"])
def test_a_quantised_network_of_any_batch(device: Any, tmp_path: Path) -> None:
    path = tmp_path / "network.tflite"
    path.write_bytes(small_network())
    images = floats(3, 6, 6, 4)
    model = export_source(path)
    assert [port.name for port in model.graph.input] == ["image"]
    assert model.graph.input[0].type.tensor_type.shape.dim[0].dim_param == "batch"
    (expected,) = run(model, {"image": images})
    webmlc.build(path, tmp_path / "package", target=device)
    package = webmlc.load(tmp_path / "package", device=device)
    try:
        actual = package.run({"image": images})["scores"]
    finally:
        package.dispose()
    np.testing.assert_allclose(actual, expected, atol=0.051)


def test_all_operators_that_cannot_be_read_are_listed(tmp_path: Path) -> None:
    tensors = [FileTensor(name, (2,)) for name in "abcd"]
    operators = [
        FileOperator("RANDOM_UNIFORM", [0], [1], "RandomOptions"),
        FileOperator("FlexErf", [1], [2], custom=b"\0"),
        FileOperator("TANH", [2], [3]),
    ]
    content = tflite_file([FileGraph(tensors, operators, [0], [3])])
    with pytest.raises(UnsupportedError) as error:
        export(content, tmp_path)
    message = str(error.value)
    assert "2 nodes of this model cannot be compiled" in message
    assert "RANDOM_UNIFORM (node 'b'): its results are random" in message
    assert "FlexErf (node 'c'): it is an operator of TensorFlow" in message


NEGATE = FileOperator("NEG", [0], [1], "NegOptions")


@pytest.mark.parametrize(
    ("texts", "outputs", "names", "expected"),
    [
        ("xy", [1, 1], None, ["y", "y_2"]),
        ("xy", [0, 1], None, ["x_2", "y"]),
        ("xx", [1], None, ["x_2"]),
        (("x", ":0"), [1], None, ["tensor_1"]),
        ("xy", [1, 1], ([(0, "image")], [(1, "a"), (1, "b")]), ["a", "b"]),
        ("xy", [1], ([(0, "image")], [(1, "image")]), ["image_2"]),
        ("xy", [1], ([(0, "image")], [(1, "")]), ["y"]),
    ],
)
def test_a_tensor_may_be_several_outputs(
    texts: Any, outputs: list[int], names: Any, expected: list[str], tmp_path: Path
) -> None:
    graph = FileGraph([FileTensor(text, (2,)) for text in texts], [NEGATE], [0], outputs)
    model = export(tflite_file([graph], names), tmp_path)
    assert [port.name for port in model.graph.output] == expected
    x = np.array([1, -2], np.float32)
    source = "x" if names is None else "image"
    wanted = [-x if index else x for index in (*outputs, 1)[: len(expected)]]
    np.testing.assert_array_equal(run(model, {source: x}), wanted)


@pytest.mark.parametrize(
    ("operators", "inputs", "outputs", "message"),
    [
        ([NEGATE], [-1], [1], "tensor -1 of 3 as an input or output"),
        ([NEGATE], [0], [2], "no operator writes the output 'z'"),
        ([NEGATE], [2], [1], "input 'x' has no value yet"),
    ],
)
def test_a_graph_with_loose_ends_is_refused(
    operators: Any, inputs: Any, outputs: Any, message: str, tmp_path: Path
) -> None:
    content = tflite_file(
        [FileGraph([FileTensor(text, (2,)) for text in "xyz"], operators, inputs, outputs)]
    )
    with pytest.raises((ModelError, UnsupportedError), match=message):
        export(content, tmp_path)


def test_a_table_in_many_places_is_read_once(tmp_path: Path) -> None:
    writer = FileWriter()
    count = 30000
    table = writer.tensor(constant("table", np.ones(4, np.float32)))
    negate = writer.operator(FileOperator("NEG", [0] * 100, [1]))
    one = writer.numbers([0])
    tables = {"Tensors": writer.places([table] * count), "Inputs": one, "Outputs": one}
    graph = writer.table("SubGraph", **tables)
    path = tmp_path / "model.tflite"
    path.write_bytes(writer.finish([graph] * count))
    assert len({id(tensor) for tensor in open_tflite(path).subgraph.tensors}) == 1
    tables["Operators"] = writer.places([negate] * count)
    path.write_bytes(writer.finish([writer.table("SubGraph", **tables)]))
    with pytest.raises(ModelError, match="the operands of all operators do not fit"):
        open_tflite(path)


def test_strides_of_zero_are_refused_and_other_options_have_defaults(tmp_path: Path) -> None:
    tensors = [FileTensor("x", (1, 4, 4, 1)), FileTensor("y", (1, 4, 4, 1))]
    pool = [FileOperator("MAX_POOL_2D", [0], [1], "Pool2DOptions")]
    x = floats(1, 4, 4, 1)
    with pytest.raises(UnsupportedError, match=r"the strides are \(0, 0\)"):
        run_file(tensors, pool, [1], tmp_path, x)
    tensors.append(constant("axes", np.array([1, 2], np.int32)))
    (y,) = run_file(tensors, [FileOperator("SUM", [0, 2], [1])], [1], tmp_path, x)
    np.testing.assert_allclose(y, x.sum((1, 2)), 1e-5)


@pytest.mark.parametrize("part", [0.1, 0.4, 0.7, 0.95])
def test_a_truncated_file_is_named(part: float, tmp_path: Path) -> None:
    content = small_network()
    with pytest.raises((ModelError, UnsupportedError), match=r"model\.tflite|cannot be compiled"):
        export(content[: int(len(content) * part)], tmp_path)


def test_a_spectrum_of_real_numbers(tmp_path: Path) -> None:
    """Complex numbers are pairs, and only inside of a model."""
    tensors = [
        FileTensor("x", (2, 6, 8)),
        constant("length", np.array([4, 10], np.int32)),
        FileTensor("spectrum", (2, 4, 6), "COMPLEX64"),
        *(FileTensor(name, (2, 4, 6)) for name in ("real", "imaginary", "size")),
    ]
    operators = [
        FileOperator("RFFT2D", [0, 1], [2], "Rfft2dOptions"),
        FileOperator("REAL", [2], [3]),
        FileOperator("IMAG", [2], [4]),
        FileOperator("COMPLEX_ABS", [2], [5]),
    ]
    x = floats(2, 6, 8)
    results = run_file(tensors, operators, [3, 4, 5], tmp_path, x)
    expected = np.fft.rfft2(x[:, :4], (4, 10))
    for actual, wanted in zip(results, (expected.real, expected.imag, abs(expected)), strict=True):
        np.testing.assert_allclose(actual, wanted, 1e-4, 1e-4)
    with pytest.raises(UnsupportedError, match="'spectrum' has complex numbers"):
        run_file(tensors, [operators[0], FileOperator("ABS", [2], [3])], [3], tmp_path, x)


@pytest.mark.parametrize("device", ["wasm", "webgpu"])
def test_a_session_keeps_the_features_of_earlier_steps(device: Any, tmp_path: Path) -> None:
    """SVDF is a convolution over time of features that are kept in a state."""
    case = CASES["SVDF"]
    x, features, times, bias = (getattr(i, "array", i) for i in case.inputs[:4])
    path = tmp_path / "model.tflite"
    path.write_bytes(case.content(((2, 3),)))
    webmlc.build(path, tmp_path / "package", target=device)
    model = webmlc.load(tmp_path / "package", device=device)
    steps = [x, -x, x * 2]
    try:
        session = model.session()
        results = [session.run({"x0": step})["y0"] for step in steps]
    finally:
        model.dispose()
    for last in range(3):
        columns = [steps[n] @ features.T * times[:, 3 - last + n] for n in range(last + 1)]
        totals = sum(columns).reshape(2, 3, 2).sum(2) + bias
        np.testing.assert_allclose(results[last], np.maximum(totals, 0), 1e-4, 1e-5)


def two_signatures() -> bytes:
    graphs = [
        FileGraph([FileTensor("x", (2,)), FileTensor("y", (2,))], [operator], [0], [1])
        for operator in (NEGATE, FileOperator("SQUARE", [0], [1]))
    ]
    return tflite_file(
        graphs, ([(0, "a")], [(1, "negated")]), square=([(0, "b")], [(1, "squared")])
    )


def test_a_signature_is_chosen_by_its_name(tmp_path: Path) -> None:
    path, x = tmp_path / "two.tflite", np.array([3, -2], np.float32)
    path.write_bytes(two_signatures())
    for name, port, expected in ((None, "a", -x), ("square", "b", x * x)):
        model = export_source(path, signature=name)
        np.testing.assert_array_equal(run(model, {port: x})[0], expected)
    with pytest.raises(ModelError, match=r"is named 'cube'\. It has: serving_default, square\."):
        export_source(path, signature="cube")
    onnx_path = tmp_path / "model.onnx"
    onnx_path.write_bytes(export_source(path).SerializeToString())
    with pytest.raises(UserError, match="A signature names a part of a TensorFlow Lite file"):
        export_source(onnx_path, signature="square")


def test_a_model_of_a_bundle(tmp_path: Path) -> None:
    """A bundle is an archive of models and bundles. Its only model needs no name."""
    inner, path, x = tmp_path / "inner.task", tmp_path / "hand.task", np.ones(2, np.float32)
    with ZipFile(inner, "w") as archive:
        archive.writestr("detector.tflite", two_signatures())
    assert run(export_source(inner), {"a": x})[0].tolist() == [-1, -1]
    with ZipFile(path, "w") as archive:
        archive.writestr("landmarks.tflite", small_network())
        archive.write(inner, "inner.task")
    model = export_source(path, signature="inner.task/detector.tflite")
    assert (model.graph.name, model.graph.input[0].name) == ("detector", "a")
    with pytest.raises(ModelError, match=r"landmarks\.tflite, inner\.task/detector\.tflite\."):
        export_source(path)
    path.write_bytes(path.read_bytes()[:200])
    with pytest.raises(ModelError, match="damaged or truncated"):
        export_source(path, signature="landmarks.tflite")

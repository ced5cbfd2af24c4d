"""Reading ONNX: what becomes of a model's parts, and how bad files are refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import webmlc
from webmlc.core.errors import ModelError, UnsupportedError
from webmlc.core.expr import Var, const
from webmlc.frontend.expand_functions import FUNCTIONS
from webmlc.frontend.read_model import read_model
from webmlc.graph.infer.normalise import normalise
from webmlc.graph.ir import Function
from webmlc.graph.table import OPS

RELU = '<ir_version: 8, opset_import: ["" : 17]> g (float[n, 3] x) => (float[n, 3] y) '


def parse(text: str) -> onnx.ModelProto:
    return onnx.parser.parse_model(text)


def external(location: str, length: int | None = None) -> onnx.ModelProto:
    """A model whose weight lies in a file."""
    weight = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[3])
    weight.data_location = TensorProto.EXTERNAL
    weight.external_data.add(key="location", value=location)
    if length is not None:
        weight.external_data.add(key="length", value=str(length))
    model = parse(RELU + "{ y = Add(x, w) }")
    model.graph.initializer.append(weight)
    return model


def test_parts_of_a_model() -> None:
    nodes = "{ k = Constant<value_floats = [1.0, 2.0, 3.0]>()  a = Mul(x, k)  y = Relu(a) }"
    model = parse(RELU + nodes)
    model.graph.node[1].name = "first"
    main = read_model(model).main
    assert main.inputs == ("x",)
    assert main.outputs == ("y",)
    assert [(n.op, n.origin) for n in main.nodes] == [("Mul", ("first",)), ("Relu", ("y",))]
    assert main.constants["k"].tolist() == [1, 2, 3]
    assert main.types["x"].shape == (Var("n"), const(3))


def test_symbols_are_unique_identifiers() -> None:
    model = parse(RELU + "{ y = Relu(x) }")
    dims = model.graph.input[0].type.tensor_type.shape.dim
    dims[0].dim_param = "batch.size 0"
    dims[1].dim_param = "batch-size 0"
    shape = read_model(model).main.types["x"].shape
    assert [str(d) for d in shape] == ["batch_size_0", "batch_size_0_2"]


def test_unnamed_dimensions_are_named_by_their_place() -> None:
    model = parse(RELU + "{ y = Relu(x) }")
    dims = model.graph.input[0].type.tensor_type.shape.dim
    dims[0].dim_param = "?"
    dims[1].Clear()
    assert [str(d) for d in read_model(model).main.types["x"].shape] == ["x_0", "x_1"]


def test_an_initialiser_is_not_an_input() -> None:
    model = parse(RELU + "{ y = Add(x, w) }")
    model.graph.input.append(helper.make_tensor_value_info("w", TensorProto.FLOAT, [3]))
    model.graph.initializer.append(numpy_helper.from_array(np.ones(3, np.float32), "w"))
    assert read_model(model).main.inputs == ("x",)


def test_local_functions_are_inlined() -> None:
    model = parse(
        """<ir_version: 8, opset_import: ["" : 17, "mine" : 1]>
        g (float[n, 3] x) => (float[n, 3] y) { y = mine.twice(x) }
        <domain: "mine", opset_import: ["" : 17]>
        twice (a) => (b) { b = Add(a, a) }"""
    )
    assert [n.op for n in read_model(model).main.nodes] == ["Add"]


def test_sub_graphs_are_functions() -> None:
    model = parse(
        """<ir_version: 8, opset_import: ["" : 17]>
        g (float[3] x, bool c) => (float[3] y) {
            y = If(c) <then_branch = a () => (float[3] t) { t = Relu(x) },
                       else_branch = b () => (float[3] e) { e = Neg(x) }>
        }"""
    )
    branch = read_model(model).main.nodes[0].attributes["then_branch"]
    assert isinstance(branch, Function)
    assert [n.op for n in branch.nodes] == ["Relu"]


@pytest.mark.parametrize(
    "call",
    [
        'Erf(x, "")',
        'Mul(x, x, "")',
        'Clip(x, "", "")',
        'Sum(x, x, "")',
        'ReduceSum(x, "", "")',
        'Softmax(x, "", "")',
        'com.microsoft.BiasGelu(x, w, "")',
        'com.microsoft.FastGelu(x, "", "")',
    ],
)
def test_an_absent_input_at_the_end_may_be_written(call: str, tmp_path: Path) -> None:
    text = '<ir_version: 8, opset_import: ["" : 17, "com.microsoft" : 1]> g (float[2,4] x)'
    model = parse(text + f" => (float[a,b] y) <float[4] w = {{1, 2, 3, 4}}> {{ y = {call} }}")
    model.graph.output[0].type.tensor_type.ClearField("shape")
    assert "" not in read_model(model).main.nodes[0].inputs
    webmlc.build(model, tmp_path)


def test_function_operators_are_expanded() -> None:
    model = parse(RELU.replace("17", "28") + "{ y = SwiGLU(x, x) }")
    module = read_model(model)
    assert "SwiGLU" not in [n.op for n in module.main.nodes]
    assert len(module.main.nodes) > 1


def test_function_operators_of_initialisers_are_expanded() -> None:
    """Bodies of an older opset are converted, for which the types of all inputs must be known."""
    text = '<ir_version: 8, opset_import: ["" : 20]> g (float[4,5] x) => (float[a,b] y)'
    model = parse(text + "<int64[2] size = {3, 3}> { y = CenterCropPad (x, size) }")
    assert "CenterCropPad" not in {node.op for node in read_model(model).main.nodes}


def test_function_operators_have_no_row() -> None:
    assert [
        key for domain, names in FUNCTIONS.items() for n in names if (key := (domain, n)) in OPS
    ] == []


def test_external_data_is_read(tmp_path: Path) -> None:
    np.array([1, 2, 3], np.float32).tofile(tmp_path / "weights.bin")
    onnx.save(external("weights.bin"), tmp_path / "model.onnx")
    assert read_model(tmp_path / "model.onnx").main.constants["w"].tolist() == [1, 2, 3]


@pytest.mark.parametrize("location", ["../secret.bin", "/etc/hostname", "folder/../../secret.bin"])
def test_external_data_outside_the_folder_is_refused(tmp_path: Path, location: str) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    (tmp_path / "secret.bin").write_bytes(bytes(12))
    (folder / "model.onnx").write_bytes(external(location).SerializeToString())
    with pytest.raises(ModelError, match="outside the model's folder"):
        read_model(folder / "model.onnx")


def test_external_data_behind_a_link_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    (tmp_path / "secret.bin").write_bytes(bytes(12))
    (folder / "inside.bin").symlink_to(tmp_path / "secret.bin")
    (folder / "model.onnx").write_bytes(external("inside.bin").SerializeToString())
    with pytest.raises(ModelError, match="outside the model's folder"):
        read_model(folder / "model.onnx")


@pytest.mark.parametrize("key", ["offset", "length"])
@pytest.mark.parametrize("text", ["x", "", "-1", "1e3", "0x10", " 4", "\u0663", "9" * 30])
def test_external_data_at_a_place_that_is_no_number(key: str, text: str, tmp_path: Path) -> None:
    (tmp_path / "weights.bin").write_bytes(bytes(64))
    model = external("weights.bin")
    model.graph.initializer[0].external_data.add(key=key, value=text)
    (tmp_path / "model.onnx").write_bytes(model.SerializeToString())
    with pytest.raises(ModelError, match=f"its {key} is .*, which is no number of bytes"):
        read_model(tmp_path / "model.onnx")


@pytest.mark.parametrize("location", ["a\0b", "x" * 5000, "", "."])
def test_external_data_in_no_file(location: str, tmp_path: Path) -> None:
    (tmp_path / "model.onnx").write_bytes(external(location).SerializeToString())
    with pytest.raises(ModelError, match="which"):
        read_model(tmp_path / "model.onnx")


def test_external_data_without_a_length_ends_with_the_tensor(tmp_path: Path) -> None:
    (tmp_path / "weights.bin").write_bytes(np.arange(9, dtype=np.float32).tobytes())
    model = external("weights.bin")
    model.graph.initializer[0].external_data.add(key="offset", value="4")
    (tmp_path / "model.onnx").write_bytes(model.SerializeToString())
    assert read_model(tmp_path / "model.onnx").main.constants["w"].tolist() == [1, 2, 3]


def test_external_data_that_is_missing_or_short(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(external("none.bin").SerializeToString())
    with pytest.raises(ModelError, match="does not exist"):
        read_model(path)
    (tmp_path / "short.bin").write_bytes(bytes(4))
    path.write_bytes(external("short.bin", length=12).SerializeToString())
    with pytest.raises(ModelError, match="it has only 4"):
        read_model(path)


def test_not_a_file(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="no such file"):
        read_model(tmp_path / "none.onnx")


@pytest.mark.parametrize(
    "content", [b"\x89PN is no model", b"\x00" * 64, b"\x08\x08hello world\n" * 9]
)
def test_not_onnx(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "bad.onnx"
    path.write_bytes(content)
    with pytest.raises(ModelError, match="not an ONNX model"):
        read_model(path)


@pytest.mark.parametrize("part", [0.1, 0.5, 0.9, 0.99])
def test_truncated(tmp_path: Path, part: float) -> None:
    model = parse(RELU + "{ y = Add(x, w) }")
    weight = numpy_helper.from_array(np.ones((64, 3), np.float32), "w")
    model.graph.initializer.append(weight)
    data = model.SerializeToString()
    path = tmp_path / "cut.onnx"
    path.write_bytes(data[: int(len(data) * part)])
    with pytest.raises(ModelError):
        read_model(path)


@pytest.mark.parametrize("version", [0, 99])
def test_opsets_out_of_range(version: int) -> None:
    model = parse(RELU + "{ y = Relu(x) }")
    model.opset_import[0].version = version
    with pytest.raises(ModelError, match="webmlc reads 1 to 28"):
        read_model(model)


def test_models_of_before_numpy_broadcasting_are_converted() -> None:
    text = """<ir_version: 3, opset_import: ["" : 6]>
        g (float[2, 3] x, float[2] b) => (float[2, 3] y) {
            y = Add<axis = 0, broadcast = 1>(x, b)
        }"""
    module = read_model(onnx.parser.parse_model(text))
    assert module.opsets[""] == 7
    assert [node.op for node in module.main.nodes] == ["Unsqueeze", "Add"]


@pytest.mark.parametrize("shape", ["2, 3, 4", "2, 3"])
def test_slopes_of_before_numpy_broadcasting_are_one_a_channel(shape: str) -> None:
    text = f"""<ir_version: 3, opset_import: ["" : 6]>
        g (float[{shape}] x, float[3] s) => (float[{shape}] y) {{ a = Relu(x)  y = PRelu(a, s) }}"""
    module = read_model(onnx.parser.parse_model(text))
    nodes = {node.op: node for node in module.main.nodes}
    assert list(nodes) == (["Relu", "PRelu"] if shape == "2, 3" else ["Relu", "Unsqueeze", "PRelu"])
    if "Unsqueeze" in nodes:
        assert nodes["Unsqueeze"].attributes["axes"] == (1,)


def test_a_value_that_nothing_makes() -> None:
    with pytest.raises(ModelError, match="node 'y' reads 'z', but no node writes a value"):
        read_model(parse(RELU + "{ y = Relu(z) }"))


def test_unknown_operators_are_named_all_at_once() -> None:
    model = parse(RELU + "{ a = Frobnicate(x)  y = Grobnicate(a) }")
    with pytest.raises(UnsupportedError, match="2 nodes") as caught:
        normalise(read_model(model))
    assert "Frobnicate (node 'a')" in str(caught.value)


def test_an_input_of_unknown_rank_says_what_to_do() -> None:
    model = parse(RELU + "{ y = Relu(x) }")
    model.graph.input[0].type.tensor_type.ClearField("shape")
    with pytest.raises(UnsupportedError, match="it is of unknown rank; declare its shape, with a"):
        read_model(model)
    assert read_model(model, {"x": np.ones(3, np.float32)}).main.inputs == ()


def with_weight(weight: TensorProto) -> onnx.ModelProto:
    """A model that adds a weight of 40,000 numbers."""
    text = '<ir_version: 8, opset_import: ["" : 17]> g (float[200, 200] x) => (float[200, 200] y) '
    model = parse(text + "{ y = Add(x, w) }")
    model.graph.initializer.append(weight)
    return model


@pytest.mark.parametrize("dtype", ["float32", "float16", "int64", "uint8"])
def test_a_large_weight_is_read(dtype: str) -> None:
    array = np.arange(40_000).reshape(200, 200).astype(dtype)
    model = with_weight(numpy_helper.from_array(array, "w"))
    main = read_model(model).main
    assert np.array_equal(main.constants["w"], array)
    assert model.graph.initializer[0].dims == [200, 200]


@pytest.mark.parametrize("defect", ["too short", "no type"])
def test_a_malformed_large_weight(defect: str) -> None:
    weight = numpy_helper.from_array(np.ones((200, 200), np.float32), "w")
    if defect == "too short":
        weight.raw_data = weight.raw_data[:-4]
    else:
        weight.data_type = TensorProto.UNDEFINED
    with pytest.raises(ModelError, match="malformed"):
        read_model(with_weight(weight))

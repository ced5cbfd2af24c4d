"""Rows leave nothing of a node out in silence: unknown texts, attributes, inputs and numbers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper
from onnxruntime.capi.onnxruntime_pybind11_state import get_all_operator_schema

from tests.graph.ops.test_rows import make_model
from webmlc.build_options import BuildOptions
from webmlc.core.errors import ModelError, UnsupportedError
from webmlc.frontend.expand_functions import FUNCTIONS
from webmlc.frontend.read_model import read_model
from webmlc.graph.infer.evaluate import evaluate_module
from webmlc.graph.infer.infer_shapes import infer_shapes
from webmlc.graph.infer.normalise import normalise
from webmlc.graph.ir import Array
from webmlc.graph.ops.refused import REFUSED
from webmlc.graph.table import OPS
from webmlc.pipeline import compile_model

NOT_READ = {
    "GroupQueryAttention": {"k_norm_epsilon", "kv_cache_bit_width", "q_norm_epsilon"}
    | {"qk_norm_epsilon"},
}
"""The attributes that no row reads: with them, a node is refused."""
TEXTS = ("STRING", "STRINGS")
EXTENSIONS = """AddSharedInput AudioDecoder BasicTokenizer BertTokenizer BertTokenizerDecoder
BlingFireSentenceBreaker BpeDecoder CLIPTokenizer DecodeImage DrawBoundingBoxes EncodeImage FastGelu
GPT2Tokenizer GaussianBlur HfBertTokenizer HfJsonTokenizer ImageDecoder ImageReader Inverse
MaskedFill MaskedScatterNDOfShape MergeSignalSegments MulMulSigmoid MulSharedInput MulSigmoid NegPos
NegXPlus1 RaggedTensorToDense RaggedTensorToSparse ReplaceZero RobertaTokenizer ScatterNDOfShape
SegmentExtraction SegmentSum SentencepieceDecoder SentencepieceTokenizer SplitSignalSegments
SpmTokenizer StftNorm StringConcat StringECMARegexReplace StringECMARegexSplitWithOffsets
StringEqual StringJoin StringLength StringLower StringMapping StringRaggedTensorToDense
StringRegexReplace StringRegexSplitWithOffsets StringSplit StringStrip StringToHashBucket
StringToHashBucketFast StringToVector StringUpper Transpose2DCastFP16 Transpose2DCastFP32
TrieDetokenizer TrieTokenizer VectorToString WordpieceTokenizer"""
"""The operators of onnxruntime-extensions 0.15, with those of its builds with CUDA."""


@cache
def schemas() -> dict[tuple[str, str], Any]:
    """The newest schemas of onnxruntime, which has those of ONNX and its own."""
    newest: dict[tuple[str, str], Any] = {}
    for schema in get_all_operator_schema():
        domain = "" if schema.domain == "ai.onnx" else schema.domain
        old = newest.get((domain, schema.name))
        if old is None or schema.since_version > old.since_version:
            newest[domain, schema.name] = schema
    return newest


def test_the_account_holds_each_schema_of_onnxruntime_once() -> None:
    """An operator has a row, or a definition in ONNX, or a reason why it is refused."""
    rows = {f"{domain}.{name}".lstrip(".") for domain, name in OPS}
    defined = {f"{domain}.{n}".lstrip(".") for domain, names in FUNCTIONS.items() for n in names}
    with_schema = {f"{domain}.{name}".lstrip(".") for domain, name in schemas()}
    assert with_schema - rows - defined - REFUSED.keys() == {"Constant"}  # the reader has these
    assert not REFUSED.keys() & (rows | defined)
    extensions = {f"ai.onnx.contrib.{name}" for name in EXTENSIONS.split()}
    assert REFUSED.keys() <= with_schema | extensions
    assert extensions <= rows | REFUSED.keys()


def kind_of(attribute: Any) -> str:
    return str(attribute.type).rpartition(".")[2]


def text_attributes() -> Iterator[object]:
    for (domain, name), row in OPS.items():
        if row.cases and (domain, name) in schemas():
            for attribute, formal in schemas()[domain, name].attributes.items():
                if kind_of(formal) in TEXTS:
                    yield pytest.param(domain, name, attribute, id=f"{name}-{attribute}")


def infer(model: onnx.ModelProto) -> None:
    infer_shapes(normalise(read_model(model)))


def first_case(domain: str, name: str) -> onnx.ModelProto:
    return make_model(domain, name, OPS[domain, name].cases[0])[0]


def without(model: onnx.ModelProto, attribute: str) -> onnx.ModelProto:
    """The model of one node without an attribute."""
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    attributes = copy.graph.node[0].attribute
    for place in [i for i, a in enumerate(attributes) if a.name == attribute]:
        del attributes[place]
    return copy


def same_results(models: Sequence[onnx.ModelProto], feeds: dict[str, Array]) -> bool:
    """True if two models expand to the same nodes and constants, or else to equal results. A case
    may need the attribute: then both models are refused.
    """
    try:
        modules = [infer_shapes(normalise(read_model(models[0])))]
    except (ModelError, UnsupportedError):
        with pytest.raises((ModelError, UnsupportedError)):
            infer(models[1])
        return True
    left, right = modules = [*modules, infer_shapes(normalise(read_model(models[1])))]
    constants = [{k: v.tobytes() for k, v in m.main.constants.items()} for m in modules]
    if left.main.nodes == right.main.nodes and constants[0] == constants[1]:
        return True
    a, b = (evaluate_module(module, feeds) for module in modules)
    return all(np.array_equal(a[o], b[o], equal_nan=True) for o in left.main.outputs)


@pytest.mark.parametrize(
    "name", [n for (domain, n), row in OPS.items() if domain == "com.microsoft" and row.cases]
)
def test_a_left_out_attribute_has_the_default_of_the_schema(name: str) -> None:
    for attribute, formal in schemas()["com.microsoft", name].attributes.items():
        if not formal._default_value or attribute in NOT_READ.get(name, ()):
            continue
        case_model, feeds = make_model("com.microsoft", name, OPS["com.microsoft", name].cases[0])
        model = without(case_model, attribute)
        explicit = without(case_model, attribute)
        default = onnx.AttributeProto.FromString(formal._default_value)
        explicit.graph.node[0].attribute.append(default)
        assert same_results((model, explicit), feeds), attribute


@pytest.mark.parametrize(("domain", "name", "attribute"), list(text_attributes()))
def test_an_unknown_text_is_refused(domain: str, name: str, attribute: str) -> None:
    model = first_case(domain, name)
    node = model.graph.node[0]
    is_list = kind_of(schemas()[domain, name].attributes[attribute]) == "STRINGS"
    old = [a for a in node.attribute if a.name == attribute]
    for a in old:
        node.attribute.remove(a)
    texts = ["x"] * max([len(a.strings) for a in old] + [1])
    node.attribute.append(helper.make_attribute(attribute, texts if is_list else "x"))
    with pytest.raises((UnsupportedError, ModelError)):
        infer(model)


@pytest.mark.parametrize(
    ("domain", "name", "attribute"),
    [(*k, attribute) for k, row in OPS.items() if k in schemas() for attribute in row.choices],
)
def test_the_first_choice_is_the_default(domain: str, name: str, attribute: str) -> None:
    choices = OPS[domain, name].choices[attribute]
    default = onnx.AttributeProto()
    default.ParseFromString(schemas()[domain, name].attributes[attribute]._default_value)
    assert default.s.decode() in (choices[0], "")


@pytest.mark.parametrize("text", ["NOTSET", ""])
def test_no_padding_mode_is_explicit_padding(text: str) -> None:
    model = make_model("", "Conv", OPS["", "Conv"].cases[1])[0]
    module = infer_shapes(normalise(read_model(model)))
    model.graph.node[0].attribute.append(helper.make_attribute("auto_pad", text))
    same = infer_shapes(normalise(read_model(model)))
    assert same.main.types["y0"] == module.main.types["y0"]


MICROSOFT = [key for key, row in OPS.items() if row.signature is not None]
WITH_CASES = [key for key in MICROSOFT if key[0] and OPS[key].cases]


@pytest.mark.parametrize(("domain", "name"), [key for key in MICROSOFT if key in schemas()])
def test_a_signature_is_that_of_onnxruntime(domain: str, name: str) -> None:
    signature, schema = OPS[domain, name].signature, schemas()[domain, name]
    assert signature is not None
    assert signature.attributes == schema.attributes.keys() - NOT_READ.get(name, set())
    if signature.inputs is None:
        assert schema.max_input == 2**31 - 1  # any number of inputs
    else:
        assert signature.inputs <= schema.max_input + 1


@pytest.mark.parametrize(("domain", "name"), WITH_CASES)
def test_an_unknown_attribute_is_refused(domain: str, name: str) -> None:
    model = first_case(domain, name)
    infer(model)
    model.graph.node[0].attribute.append(helper.make_attribute("of_a_newer_version", 1))
    with pytest.raises(UnsupportedError, match="the attribute 'of_a_newer_version' is not"):
        infer(model)


@pytest.mark.parametrize(
    ("domain", "name"),
    [key for key in WITH_CASES if key[1] not in ("QLinearConcat", "IsAllFinite")],
)
def test_an_unknown_input_is_refused(domain: str, name: str) -> None:
    model = first_case(domain, name)
    inputs = model.graph.node[0].input
    signature = OPS[domain, name].signature
    assert signature is not None and signature.inputs is not None
    inputs.extend([""] * (signature.inputs - len(inputs)))
    infer(model)
    inputs.append("more")
    more = numpy_helper.from_array(np.ones(1, np.float32), "more")
    model.graph.initializer.append(more)
    with pytest.raises(UnsupportedError, match=f"input {signature.inputs}, 'more', is not"):
        infer(model)


@pytest.mark.parametrize(
    ("operator", "operands", "attributes"),
    [
        ("Tile", [[1, 2**40]], {}),
        ("Pad", [[0, 0, 0, 2**63 - 1]], {}),
        ("Pad", [[2**40, 0, -(2**40), 0]], {}),
        ("MaxPool", [], {"kernel_shape": [2**40]}),
        ("AveragePool", [], {"kernel_shape": [2], "strides": [2**31]}),
        ("LpPool", [], {"kernel_shape": [2], "pads": [2**40, 2**40]}),
        ("ConvTranspose", [np.ones((3, 2, 2))], {"strides": [2**40]}),
        ("SpaceToDepth", [], {"blocksize": 2**20}),
        ("Trilu", [2**40], {}),
        ("EyeLike", [], {"k": 2**40}),
    ],
    ids=str,
)
@pytest.mark.parametrize("target", ["wasm", "webgpu"])
def test_a_number_beyond_32_bits_is_refused(
    operator: str, operands: list[Any], attributes: dict[str, Any], target: Any
) -> None:
    """Sizes are symbols, so that no result is too large before a run."""
    arrays = [np.asarray(o, np.float32 if isinstance(o, np.ndarray) else None) for o in operands]
    names = [f"w{i}" for i in range(len(arrays))]
    node = helper.make_node(operator, ["x", *names], ["y"], **attributes)
    rank = {"Pad": 2, "Tile": 2, "Trilu": 2, "EyeLike": 2, "SpaceToDepth": 4}.get(operator, 3)
    shape = ["n", 3, "w"] if rank == 3 else ["n", "w", "h", "k"][:rank]
    graph = helper.make_graph(
        [node],
        "g",
        [helper.make_tensor_value_info("x", 1, shape)],
        [helper.make_tensor_value_info("y", 1, None)],
        [numpy_helper.from_array(a, n) for a, n in zip(arrays, names, strict=True)],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    with pytest.raises(UnsupportedError, match="in a size or a position; they are at most 2147"):
        compile_model(model, BuildOptions(target=target))


@pytest.mark.parametrize(
    ("domain", "name", "flag"),
    [
        ("", "AveragePool", "count_include_pad"),
        ("", "Cast", "saturate"),
        ("", "Gemm", "transA"),
        ("", "Mod", "fmod"),
        ("", "TopK", "largest"),
        ("com.microsoft", "RotaryEmbedding", "interleaved"),
    ],
)
def test_a_flag_is_0_or_1(domain: str, name: str, flag: str) -> None:
    """onnxruntime compares some flags with 0, and others with 1."""
    model = first_case(domain, name)
    model.graph.node[0].attribute.append(helper.make_attribute(flag, 17))
    with pytest.raises(UnsupportedError, match=f"{flag} is 17; it must be 0 or 1"):
        infer(model)


def test_a_split_has_as_many_outputs_as_parts() -> None:
    model = first_case("", "Split")
    (attribute,) = (a for a in model.graph.node[0].attribute if a.name == "num_outputs")
    attribute.i = 2**63 - 1
    with pytest.raises(UnsupportedError, match="num_outputs is 9223372036854775807, for 2 out"):
        infer(model)

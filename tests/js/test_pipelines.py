"""Pipelines with transformers.js's names, and the adapter with ONNX Runtime Web's, under Node."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import numpy_helper, parser
from tokenizers import Tokenizer
from tokenizers.models import WordPiece
from tokenizers.normalizers import BertNormalizer
from tokenizers.pre_tokenizers import BertPreTokenizer
from tokenizers.processors import TemplateProcessing

from tests.graph.typed.test_typed_values import LABELS, MEAN, STD, classifier, picture
from tests.node import answer_once
from tests.packages import expected, scaled
from webmlc.host.load import load
from webmlc.pipeline import build

pytestmark = pytest.mark.xdist_group("pipelines")  # one worker builds what the tests share

SCRIPT = Path(__file__).parent / "run_pipelines.mjs"
WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "a", "cat", "sat", "on", "the", "mat", "##s", "dog"]
TEXTS = ["A cat sat on the mats", "dogs", "The unknown dog sat on the cat the dog the mat"]
LIMIT = 8


def tokenizer() -> Tokenizer:
    """A tokenizer of twelve words, like BERT's."""
    vocabulary = {word: i for i, word in enumerate(WORDS)}
    result = Tokenizer(WordPiece(vocabulary, unk_token="[UNK]"))
    result.normalizer = BertNormalizer(lowercase=True)
    result.pre_tokenizer = BertPreTokenizer()
    result.post_processor = TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    result.enable_truncation(LIMIT)
    return result


def encoder() -> onnx.ModelProto:
    """A model whose output for a token depends on the token, its place and the mask."""
    model = parser.parse_model(
        """<ir_version: 8, opset_import: ["" : 17]>
        g (int64[batch, tokens] input_ids, int64[batch, tokens] attention_mask,
           int64[batch, tokens] token_type_ids) => (float[batch, tokens, 5] last_hidden_state) {
            sum = Add(input_ids, token_type_ids)
            embedded = Gather(table, sum)
            mask = Cast<to = 1>(attention_mask)
            axes = Constant<value_ints = [2]>()
            column = Unsqueeze(mask, axes)
            masked = Mul(embedded, column)
            axis = Constant<value_int = 1>()
            sums = CumSum(masked, axis)
            last_hidden_state = Add(sums, embedded)
        }"""
    )
    table = np.random.default_rng(0).standard_normal((len(WORDS), 5)).astype(np.float32)
    model.graph.initializer.append(numpy_helper.from_array(table, "table"))
    return model


def embeddings(texts: list[str], pooling: str, *, normalize: bool) -> Any:
    """The embeddings of sentence-transformers, by the tokenizers library, onnxruntime and numpy."""
    tokens = tokenizer()
    tokens.enable_padding(pad_id=0)
    encodings = tokens.encode_batch(texts)
    feeds = {
        "input_ids": np.array([e.ids for e in encodings]),
        "attention_mask": np.array([e.attention_mask for e in encodings]),
        "token_type_ids": np.array([e.type_ids for e in encodings]),
    }
    session = onnxruntime.InferenceSession(encoder().SerializeToString())
    (states,) = session.run(None, feeds)
    mask = feeds["attention_mask"][..., None]
    lasts = feeds["attention_mask"].sum(1) - 1
    pooled = {
        "none": states,
        "cls": states[:, 0],
        "mean": (states * mask).sum(1) / mask.sum(1),
        "last_token": states[np.arange(len(texts)), lasts],
    }[pooling]
    return pooled / np.linalg.norm(pooled, axis=-1, keepdims=True) if normalize else pooled


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """An encoder with its tokenizer, a classifier of pictures, and a model without both."""
    root = tmp_path_factory.mktemp("pipelines")
    tokenizer().save(str(root / "tokenizer.json"))
    build(encoder(), root / "encoder", "wasm", tokenizer=root / "tokenizer.json")
    inputs = {"image": f"pixels=rgb,resize=32,crop=center,mean={list(MEAN)},std={list(STD)}"}
    outputs = {"logits": {"topk": 3, "labels": LABELS}}
    build(classifier(), root / "classifier", "wasm", inputs=inputs, outputs=outputs)
    scaled(root / "plain")
    return {name: root / name for name in ("encoder", "classifier", "plain")}


@pytest.fixture(scope="module")
def results(folders: dict[str, Path]) -> dict[str, Any]:
    """The results of the script."""
    pixels = picture(50, 70)[..., :3]
    job = {name: str(folder) for name, folder in folders.items()}
    job |= {
        "texts": TEXTS,
        "picture": {"width": 70, "height": 50, "channels": 3, "data": pixels.ravel().tolist()},
    }
    return dict(answer_once(SCRIPT, job))


def check(tensor: dict[str, Any], values: Any) -> None:
    assert (tensor["type"], tensor["dims"]) == ("float32", list(values.shape))
    np.testing.assert_allclose(np.reshape(tensor["data"], values.shape), values, atol=1e-5)


def test_features_are_those_of_the_tokenizers_library_and_onnxruntime(
    results: dict[str, Any],
) -> None:
    check(results["none"], embeddings(TEXTS[:1], "none", normalize=False))
    for pooling in ("mean", "cls", "last_token"):
        check(results[pooling], embeddings(TEXTS, pooling, normalize=True))
    check(results["fromSource"], embeddings(TEXTS, "mean", normalize=True))
    assert results["first"] == 5
    assert results["wrong"] == (
        "InputError: pooling is max, expected none, mean, cls, first_token, last_token, eos"
    )


def test_progress_has_the_events_of_transformers_js(results: dict[str, Any]) -> None:
    assert results["events"] == ["initiate", "download", "progress", "done", "ready"]


def test_options_without_effect_are_named(results: dict[str, Any]) -> None:
    assert results["warnings"] == [
        "webmlc: pipeline ignores `dtype`: webmlc build decides it: --quantise int8 or int4",
        "webmlc: pipeline ignores `num_beams`: text-generation does not have it",
    ]


def test_pictures_are_classified(results: dict[str, Any], folders: dict[str, Path]) -> None:
    outputs = load(folders["classifier"], "wasm").run({"image": picture(50, 70)})
    names = [LABELS[i] for i in outputs["logits_classes"][0]]
    assert [item["label"] for item in results["classes"]] == names[:2]
    scores = [item["score"] for item in results["classes"]]
    # Node's module rounds products that Python's does not, so that a byte may differ by one.
    np.testing.assert_allclose(scores, outputs["logits_scores"][0][:2], atol=5e-3)
    assert results["lists"] == [3, 3]


def test_text_is_generated_after_the_prompt(results: dict[str, Any]) -> None:
    assert results["text"] == [{"generated_text": 'Say {"max_new_tokens":3}'}]
    assert results["pieces"] == ["piece"]
    (chat,) = results["chat"]
    assert chat["generated_text"] == [
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": ' {"stop":["x"]}'},
    ]
    assert results["answer"] == [[{"generated_text": " {}"}]] * 2


def test_the_adapter_has_the_names_of_onnxruntime_web(results: dict[str, Any]) -> None:
    x = np.array([[1, 2, 3, 4]], np.float32)
    assert results["ort"] == {
        "inputs": ["x"], "outputs": ["y"], "type": "float32", "dims": [1, 4],
        "data": expected(x).ravel().tolist(),
    }  # fmt: skip
    assert results["metadata"] == [
        {"name": "x", "isTensor": True, "type": "float32", "shape": ["n", 4]}
    ]
    assert results["fetched"] == ["y"]


def test_mistakes_are_explained(results: dict[str, Any]) -> None:
    assert results["errors"] == [
        "InputError: input x is Array, expected a Tensor",
        "InputError: the model has no output z; its outputs: y",
        "InputError: pass the URL of a package: `webmlc build model.onnx` compiles a model, pages"
        " do not",
        "InputError: a tensor of shape [3] has 3 elements, but its data has 2",
        'InputError: there is no pipeline for "fill-mask"; there are'
        " automatic-speech-recognition, feature-extraction, image-classification,"
        " object-detection, text-generation",
        "PackageError: scaled takes no pictures: build it with --input x:pixels=rgb",
        "PackageError: scaled has no tokenizer: build it with --tokenizer tokenizer.json",
    ]

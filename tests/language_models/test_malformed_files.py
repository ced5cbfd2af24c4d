"""Files that cannot be read: one clear `ModelError` for each defect."""

from __future__ import annotations

import struct
import sys
from contextlib import suppress
from dataclasses import replace
from math import nan
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf import GGMLQuantizationType as Type
from gguf import GGUFReader

from tests.language_models.small_models import LLAMA, QWEN2, SmallModel, write_model
from webmlc.core.errors import InputError, ModelError, UserError
from webmlc.frontend.gguf import read_gguf as reader
from webmlc.frontend.gguf.architectures import sizes_of
from webmlc.frontend.gguf.file import open_gguf
from webmlc.frontend.read_model import read_model
from webmlc.host.check import check_model
from webmlc.host.check_options import CheckOptions
from webmlc.pipeline import build_package

SMALL = replace(LLAMA, layers=1)


def error_of(path: Path) -> str:
    """The message of the error, which is a single line."""
    with pytest.raises(ModelError) as caught:
        read_model(path)
    message = str(caught.value)
    assert "\n" not in message and str(path) in message
    return message


def written(folder: Path, model: SmallModel = SMALL) -> Path:
    path = folder / "model.gguf"
    write_model(path, model)
    return path


@pytest.mark.parametrize("length", [4, 20, 500, 20_000])
def test_truncated_file(length: int, tmp_path: Path) -> None:
    path = written(tmp_path)
    path.write_bytes(path.read_bytes()[:length])
    assert "not a GGUF model, or a truncated one" in error_of(path)


def test_changed_bytes(tmp_path: Path) -> None:
    """Any file either is a model or has a `ModelError`, within seconds."""
    path = written(tmp_path)
    original = path.read_bytes()
    metadata = original.index(b"rope_freqs.weight")
    rng = np.random.default_rng(5)
    for _ in range(100):
        data = bytearray(original)
        for position in rng.integers(0, metadata, 2):
            data[position] = rng.choice([0, 1, 128, 255])
        path.write_bytes(data)
        with suppress(ModelError), np.errstate(all="ignore"):
            read_model(path)


def test_other_content(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(b"PK" + bytes(1000))
    assert "not a GGUF model" in error_of(path)
    assert "no such file" in error_of(tmp_path / "missing.gguf")


def test_file_is_recognised_by_its_first_bytes(tmp_path: Path) -> None:
    path = written(tmp_path).rename(tmp_path / "model.bin")
    assert read_model(path).main.inputs == ("input_ids",)


def with_type(path: Path, name: str, type_: int) -> None:
    """Change the type of a tensor: it follows the name, and the count and sizes of dimensions."""
    data = bytearray(path.read_bytes())
    position = data.index(struct.pack("<Q", len(name)) + name.encode()) + 8 + len(name)
    (dimensions,) = struct.unpack_from("<I", data, position)
    struct.pack_into("<I", data, position + 4 + 8 * dimensions, type_)
    path.write_bytes(data)


def test_unknown_quantisation_type(tmp_path: Path) -> None:
    path = written(tmp_path)
    with_type(path, "blk.0.attn_q.weight", 9999)
    assert "the unknown quantisation type 9999. webmlc reads F32, F16" in error_of(path)


def test_quantisation_type_without_reader(tmp_path: Path) -> None:
    path = written(tmp_path)
    with_type(path, "blk.0.attn_norm.weight", Type.I32.value)
    message = error_of(path)
    assert "'blk.0.attn_norm.weight' has the quantisation type I32" in message
    assert "Convert the model with llama-quantize." in message


def test_unknown_architecture(tmp_path: Path) -> None:
    message = error_of(written(tmp_path, replace(SMALL, architecture="rwkv7")))
    assert "the architecture 'rwkv7' is not supported" in message
    assert "llama, qwen2, qwen3" in message


def test_missing_tensor(tmp_path: Path) -> None:
    message = error_of(written(tmp_path, replace(QWEN2, biases=False)))
    assert "the tensor 'blk.0.attn_k.bias' is missing" in message


def test_tensor_that_no_node_reads(tmp_path: Path) -> None:
    message = error_of(written(tmp_path, replace(SMALL, head_norms=True)))
    assert "has the tensor 'blk.0.attn_k_norm.weight'" in message
    assert "a variant that is not supported" in message


@pytest.mark.parametrize(
    ("metadata", "expected"),
    [
        ({"llama.rope.scaling.type": "yarn"}, "the rotary scaling 'yarn' is not supported"),
        ({"llama.expert_count": 8}, "mixtures of experts are not supported"),
        ({"llama.attention.key_length": 24}, "of different lengths"),
        ({"llama.attention.key_length": 32, "llama.attention.value_length": 32}, "has the shape"),
        ({"llama.rope.dimension_count": 7}, "cannot have 7 rotated"),
        ({"llama.attention.causal": False}, "asks for tokens that see later ones"),
        ({"llama.pooling_type": 3}, "asks for embeddings of texts"),
        ({"llama.final_logit_softcapping": 30.0}, "asks for a soft cap of logits"),
        ({"llama.residual_scale": 0.2}, "is 0.2"),
        ({"llama.logit_scale": nan}, "llama.logit_scale is nan"),
        ({"llama.attention.sliding_window": 32}, "Build with --context 32"),
        ({"llama.rope.dimension_sections": [8, 8]}, "does not know what this changes"),
        ({"llama.attention.something_new": "x" * 99}, "something_new is 'xxx"),
        ({"llama.rope.scaling.attn_factor": 1.2}, "asks for a scale of rotated queries"),
        ({"llama.attention.scale": -1.0}, "must be above 0"),
        ({"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": 0.0}, "above 0"),
        ({"llama.rope.scaling.type": 3}, "is 3, not a text"),
        ({"tokenizer.ggml.add_bos_token": "yes"}, "neither true nor false"),
        ({"tokenizer.ggml.eot_token_id": 96}, "has 96 tokens, which are numbered from 0"),
        ({"tokenizer.ggml.padding_token_id": -1}, "is -1"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_metadata(metadata: dict[str, Any], expected: str, tmp_path: Path) -> None:
    assert expected in error_of(written(tmp_path, replace(SMALL, metadata=metadata)))


@pytest.mark.parametrize(
    ("replaced", "expected"),
    [
        ({"llama.rope.freq_base": -10000.0}, "freq_base is -10000.0. It must be above 0"),
        ({"llama.rope.freq_base": nan}, "'llama.rope.freq_base' is nan, not a finite number"),
        ({"llama.rope.freq_base": 0.0}, "freq_base is 0.0"),
        ({"llama.rope.freq_base": True}, "is True, not a finite number"),
        ({"llama.attention.layer_norm_rms_epsilon": nan}, "is nan"),
        ({"llama.attention.layer_norm_rms_epsilon": -1e-5}, "must be above 0"),
        ({"llama.attention.head_count": 3}, "no 'llama.attention.key_length'"),
        ({"llama.attention.head_count_kv": 3}, "4 heads of queries cannot share 3"),
        ({"llama.attention.head_count": [4, 4]}, "Layers that differ"),
        ({"llama.embedding_length": "wide"}, "is 'wide', not a finite number"),
        ({"tokenizer.ggml.tokens": "none"}, "is 'none', not a list of str elements"),
        ({"tokenizer.ggml.merges": [3]}, "is [3], not a list of str elements"),
        ({"tokenizer.ggml.token_type": [1.5] * 96}, "not a list of int elements"),
        ({"tokenizer.ggml.bos_token_id": 999_999}, "bos_token_id' is 999999"),
        ({"tokenizer.chat_template": "{% for m in %}"}, "cannot be parsed: Expected an expression"),
        ({"tokenizer.chat_template": ["{{ m }}"]}, "not a text"),
        ({"general.architecture": 7}, "is 7, not a text"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_replaced_metadata(
    replaced: dict[str, Any], expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Values that the writer of the small models writes itself."""
    path = written(tmp_path)
    file = open_gguf(path)
    changed = replace(file, metadata={**file.metadata, **replaced})
    monkeypatch.setattr(reader, "open_gguf", lambda _: changed)
    assert expected in error_of(path)


def test_metadata_that_changes_nothing(tmp_path: Path) -> None:
    neutral = {"llama.attention.causal": True, "llama.logit_scale": 0.0, "llama.vocab_size": 96}
    neutral |= {"llama.attention.sliding_window": SMALL.positions, "other.pooling_type": 3}
    read_model(written(tmp_path, replace(SMALL, metadata=neutral)))


@pytest.mark.parametrize("name", ["output_norm.weight", "blk.0.attn_q.weight", "token_embd.weight"])
@pytest.mark.parametrize("types", [(Type.F32,), (Type.F16,), (Type.Q8_0,), (Type.Q4_1,)])
def test_weights_that_are_not_finite(name: str, types: tuple[Type, ...], tmp_path: Path) -> None:
    path = written(tmp_path, replace(SMALL, types=types))
    (tensor,) = (t for t in GGUFReader(path).tensors if t.name == name)
    data = bytearray(path.read_bytes())
    half = tensor.data_offset  # of quantised blocks: the scale
    width = 4 if tensor.tensor_type == Type.F32 else 2
    data[half : half + width] = struct.pack("<f" if width == 4 else "<e", nan)
    path.write_bytes(data)
    assert f"the tensor '{name}' has numbers that are not finite" in error_of(path)


def test_a_factor_alone_is_a_linear_scaling(tmp_path: Path) -> None:
    """As in llama.cpp, whose default for the type is "linear"."""
    factor, frequencies = {"llama.rope.scaling.factor": 4.0}, []
    for kind in ({}, {"llama.rope.scaling.type": "linear"}, {"llama.rope.scaling.type": "none"}):
        path = written(tmp_path, replace(SMALL, metadata=factor | kind))
        frequencies.append(sizes_of(open_gguf(path), None).frequencies)
    alone, linear, none = frequencies
    np.testing.assert_array_equal(alone, linear)
    np.testing.assert_allclose(none, 4 * linear)


def test_package_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = written(tmp_path)
    monkeypatch.setitem(sys.modules, "gguf", None)
    assert "pip install 'webmlc[gguf]'" in error_of(path)


def test_constants_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="'input_ids'"):
        read_model(written(tmp_path), {"input_ids": np.zeros((1, 3), np.int64)})


def test_check_has_no_reference(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="onnxruntime, which does not read GGUF files"):
        check_model(written(tmp_path), build_package, CheckOptions())

"""Files that cannot be read: one clear `ModelError` for each defect."""

from __future__ import annotations

import struct
import sys
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf import GGMLQuantizationType as Type

from tests.language_models.small_models import LLAMA, QWEN2, SmallModel, write_model
from webmlc.compile import build_package
from webmlc.core.errors import InputError, ModelError, UserError
from webmlc.frontend.read_model import read_model
from webmlc.host.check import check_model

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
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_metadata(metadata: dict[str, Any], expected: str, tmp_path: Path) -> None:
    assert expected in error_of(written(tmp_path, replace(SMALL, metadata=metadata)))


def test_package_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = written(tmp_path)
    monkeypatch.setitem(sys.modules, "gguf", None)
    assert "pip install 'webmlc[gguf]'" in error_of(path)


def test_constants_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="'input_ids'"):
        read_model(written(tmp_path), {"input_ids": np.zeros((1, 3), np.int64)})


def test_check_has_no_reference(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="onnxruntime, which does not read GGUF files"):
        check_model(written(tmp_path), build_package, "wasm")

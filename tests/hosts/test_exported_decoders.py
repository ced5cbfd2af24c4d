"""Exported decoders through sessions, against onnxruntime, where `shared/models` is beside the
project's folder: a prompt, and then single tokens.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest

import webmlc
from tests.hosts.test_architectures import SHARED, materialise

TOKENS = 64
PROMPT = 7
DECODERS: Mapping[str, tuple[Any, int]] = {
    "light/llama_15m.onnx": (np.int64, 32000),
    "real/tiny_gpt2_past_fp32_genai.onnx": (np.int32, 1000),
}
"""The dtype of the integers of a decoder, and the size of its vocabulary."""


def model_of(file: str) -> onnx.ModelProto:
    model = onnx.load(SHARED / file)
    return materialise(model) if file.startswith("light/") else model


def feeds_of(rng: np.random.Generator, dtype: Any, vocabulary: int, past: int, count: int) -> Any:
    """Random tokens after `past` others."""
    return {
        "input_ids": rng.integers(0, vocabulary, (1, count)).astype(dtype),
        "attention_mask": np.ones((1, past + count), dtype),
        "position_ids": np.arange(past, past + count, dtype=dtype)[None],
    }


if SHARED.is_dir():

    @pytest.mark.parametrize("file", DECODERS)
    def test_logits_are_those_of_onnxruntime(file: str, tmp_path: Path) -> None:
        model = model_of(file)
        webmlc.build(model, tmp_path, target="wasm")
        loaded = webmlc.load(tmp_path, device="wasm")
        session = loaded.session(capacity=PROMPT + TOKENS)
        reference = onnxruntime.InferenceSession(model.SerializeToString())
        pasts = {
            port.name: np.zeros([size if isinstance(size, int) else 1 for size in port.shape])
            for port in reference.get_inputs()
            if port.name.startswith("past")
        }
        axis = 3 if "gpt2" in file else 2  # a pair of keys and values, or one of them
        pasts = {name: past.take([], axis).astype(np.float32) for name, past in pasts.items()}
        rng = np.random.default_rng(0)
        for count in (PROMPT, *[1] * TOKENS):
            feeds = feeds_of(rng, *DECODERS[file], session.length, count)
            expected, *presents = reference.run(None, {**feeds, **pasts})
            pasts = dict(zip(pasts, presents, strict=True))
            logits = session.run(feeds)["logits"]
            np.testing.assert_allclose(logits, expected, rtol=1e-3, atol=1e-4)
        assert session.length == PROMPT + TOKENS
        loaded.dispose()

    def test_a_decoder_without_a_past_runs(tmp_path: Path) -> None:
        model = model_of("real/llama_tiny_torchscript_randw.onnx")
        webmlc.build(model, tmp_path, target="wasm")
        loaded = webmlc.load(tmp_path, device="wasm")
        tokens = np.random.default_rng(0).integers(0, 16, (2, 8))
        feeds = {"input.1": tokens, "attention_mask": np.ones((2, 8), np.float32)}
        names = [port.name for port in loaded.outputs]
        reference = onnxruntime.InferenceSession(model.SerializeToString())
        outputs = loaded.run(feeds)
        for name, expected in zip(names, reference.run(names, feeds), strict=True):
            np.testing.assert_allclose(outputs[name], expected, rtol=1e-3, atol=1e-4)
        loaded.dispose()

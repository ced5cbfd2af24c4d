"""Variants of the small models, interpreted with numpy: what one row of the table or one key of the
metadata changes.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from gguf import GGMLQuantizationType as Type

from tests.language_models.reference import logits_of
from tests.language_models.small_models import LLAMA, QWEN2, QWEN3, SmallModel, write_model
from webmlc.frontend.gguf.read_gguf import read_gguf
from webmlc.graph.infer.evaluate import evaluate_module
from webmlc.graph.infer.infer_shapes import infer_shapes
from webmlc.graph.infer.normalise import normalise
from webmlc.graph.quantise.exactness import compute_exactly

IDS = [int(i) for i in np.random.default_rng(2).integers(0, LLAMA.vocabulary, 7)]


@pytest.mark.parametrize(
    "model",
    [
        pytest.param(replace(LLAMA, tied=True), id="llama, tied"),
        pytest.param(replace(LLAMA, biases=True), id="llama with biases"),
        pytest.param(replace(LLAMA, frequency_factors=False), id="llama 2"),
        pytest.param(replace(LLAMA, groups=4), id="a head of keys for each of queries"),
        pytest.param(replace(LLAMA, groups=1), id="one head of keys"),
        pytest.param(replace(QWEN2, tied=False), id="qwen2, untied"),
        pytest.param(replace(QWEN3, tied=False), id="qwen3, untied"),
        pytest.param(replace(LLAMA, types=(Type.F32, Type.F16, Type.BF16)), id="unquantised"),
        pytest.param(replace(LLAMA, types=(Type.Q5_0, Type.Q5_1, Type.Q4_0)), id="q5"),
        pytest.param(replace(LLAMA, frequency_scale=4.0), id="linear scaling"),
        pytest.param(replace(LLAMA, rotated=8), id="heads that rotate in part"),
        pytest.param(replace(QWEN2, rotated=8), id="halves that rotate in part"),
    ],
)
def test_logits_equal_reference(model: SmallModel, tmp_path: Path) -> None:
    path = tmp_path / "small.gguf"
    tensors = write_model(path, model)
    outputs = evaluated(path, model, IDS)
    np.testing.assert_allclose(outputs, logits_of(model, tensors, IDS), atol=2e-5)


def test_quantised_data_gives_near_logits(tmp_path: Path) -> None:
    path = tmp_path / "small.gguf"
    expected = logits_of(LLAMA, write_model(path, LLAMA), IDS)
    errors = evaluated(path, LLAMA, IDS, is_exact=False) - expected
    assert np.sqrt((errors**2).mean()) < 0.03 * np.sqrt((expected**2).mean())


def evaluated(path: Path, model: SmallModel, ids: list[int], is_exact: bool = True) -> np.ndarray:
    """The logits of every token, without a past."""
    module = read_gguf(path, every_row=True, has_cache_inputs=True)
    module = infer_shapes(normalise(compute_exactly(module) if is_exact else module))
    empty = np.zeros((0, model.groups, model.size), np.float32)
    caches = dict.fromkeys(module.main.inputs[1:], empty)
    return evaluate_module(module, {"input_ids": np.array([ids]), **caches})["logits"]

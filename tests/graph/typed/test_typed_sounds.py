"""Sounds as inputs: channels are mixed by the model, rates are changed by the runtime."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import parser

from tests.node import answer_once
from webmlc.core.errors import InputError
from webmlc.core.machine import Device
from webmlc.host.load import load
from webmlc.pipeline import build

HEADER = '<ir_version: 8, opset_import: ["" : 17]>\n'
SCRIPT = Path(__file__).parents[2] / "js" / "run_sounds.mjs"
RATE = 16000
EDGE = 100
"""Outputs at each end that silence before and after the sound changes."""


def copier(shape: str, dtype: str = "float") -> onnx.ModelProto:
    """A model that returns its input, so that a test sees what is made of the sound."""
    return parser.parse_model(
        HEADER + f"g ({dtype}[{shape}] audio) => ({dtype}[{shape}] y) {{ y = Identity(audio) }}"
    )


@pytest.mark.parametrize("device", ["wasm", "webgpu"])
@pytest.mark.parametrize(
    ("shape", "result", "dtype"),
    [
        ("n", (50,), "float"),
        ("batch, n", (1, 50), "float"),
        ("batch, 1, n", (1, 1, 50), "float"),
        ("1, 50", (1, 50), "float16"),
    ],
)
def test_the_mean_of_the_channels_has_the_shape_of_the_input(
    tmp_path: Path, shape: str, result: tuple[int, ...], dtype: str, device: Device
) -> None:
    options = f"samples={RATE},scale=2"
    build(copier(shape, dtype), tmp_path, device, inputs={"audio": options})
    model = load(tmp_path, device)
    for channels in (1, 2):
        sound = np.random.default_rng(channels).uniform(-1, 1, (channels, 50)).astype(np.float32)
        y = model.run({"audio": sound})["y"]
        assert y.shape == result
        tolerance = 2e-3 if dtype == "float16" else 1e-6
        np.testing.assert_allclose(y.ravel(), 2 * sound.mean(0), atol=tolerance)
    model.dispose()


@pytest.mark.parametrize("device", ["wasm", "webgpu"])
def test_a_sound_is_normalised(tmp_path: Path, device: Device) -> None:
    """As in transformers; silence stays silence."""
    build(copier("batch, n"), tmp_path, device, inputs={"audio": "samples=16000,normalise"})
    model = load(tmp_path, device)
    sound = np.random.default_rng(0).uniform(-0.2, 0.5, (2, 900)).astype(np.float32)
    mean = sound.mean(0)
    expected = (mean - mean.mean()) / np.sqrt(mean.var() + 1e-7)
    np.testing.assert_allclose(model.run({"audio": sound})["y"][0], expected, atol=1e-4)
    assert not model.run({"audio": np.zeros_like(sound)})["y"].any()
    model.dispose()


def tone(rate: int, frequency: float, seconds: float = 0.1) -> np.ndarray[Any, Any]:
    return np.sin(2 * np.pi * frequency * np.arange(round(rate * seconds)) / rate)


def test_sounds_of_other_rates_are_resampled(tmp_path: Path) -> None:
    """A tone below the Nyquist frequencies stays what it is. Above them it vanishes."""
    build(copier("n"), tmp_path, "wasm", inputs={"audio": f"samples={RATE}"})
    sounds = [
        (rate, [tone(rate, 440), tone(rate, 3000)]) for rate in (16000, 44100, 48000, 8000, 11025)
    ]
    sounds.append((44100, [tone(44100, 12000)]))
    arg = {
        "package": str(tmp_path),
        "sounds": [
            {"sampleRate": rate, "channels": [c.tolist() for c in channels]}
            for rate, channels in sounds
        ],
    }
    results = answer_once(SCRIPT, arg)
    expected = (tone(RATE, 440) + tone(RATE, 3000)) / 2
    for (rate, _), output in zip(sounds[:-1], results["outputs"], strict=False):
        assert abs(len(output) - len(expected)) <= 1, rate
        inner = slice(EDGE, len(expected) - EDGE)
        np.testing.assert_allclose(output[inner], expected[inner], atol=2e-3, err_msg=str(rate))
    assert np.abs(results["outputs"][-1][EDGE:-EDGE]).max() < 2e-3
    np.testing.assert_allclose(results["mono"], tone(RATE, 440), atol=1e-6)
    assert results["tensor"] == [2, 3]
    message = 'InputError: input "audio" takes a sound: an AudioBuffer, or { sampleRate, data }'
    assert all(error.startswith(message) for error in results["errors"])
    assert len(results["errors"]) == 3


@pytest.mark.parametrize(
    ("model", "options", "message"),
    [
        (copier("batch, 3, n"), "samples=16000", "a sound is"),
        (copier("2, n"), "samples=16000", "a sound is"),
        (copier("n", "int64"), "samples=16000", "holds no sound"),
        (copier("n"), "samples=0", "a number of samples per second"),
        (copier("n"), "rate=16000", "samples=16000 for a sound"),
        (copier("n"), "samples=16000,crop=center", "no option 'crop'"),
    ],
)
def test_mistakes_are_errors(
    tmp_path: Path, model: onnx.ModelProto, options: str, message: str
) -> None:
    with pytest.raises(InputError, match=message):
        build(model, tmp_path, "wasm", inputs={"audio": options})

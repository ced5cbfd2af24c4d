"""The pipeline of speech recognition under Node, against onnxruntime, numpy and the chunks of
transformers' Python pipeline.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import numpy_helper, parser

from tests.graph.typed.test_transcripts import Token, tokens_of
from tests.node import answer_once
from tests.packages import scaled
from webmlc.pipeline import build

RATE, HOP, WINDOW = 1000, 4, 6
BLANK, LABELS = 0, ["<pad>", "a", "b", "c", "|"]
SCRIPT = Path(__file__).parent / "run_speech.mjs"


def recogniser() -> onnx.ModelProto:
    """A model whose frames see six samples, four apart from those of the frame before."""
    model = parser.parse_model(
        f"""<ir_version: 8, opset_import: ["" : 17]>
        g (float[batch, n] audio) => (float[batch, frames, {len(LABELS)}] logits) {{
            axis = Constant<value_ints = [1]>()
            row = Unsqueeze(audio, axis)
            scores = Conv<strides = [{HOP}]>(row, weights, bias)
            logits = Transpose<perm = [0, 2, 1]>(scores)
        }}"""
    )
    rng = np.random.default_rng(2)
    arrays = {
        "weights": 4 * rng.standard_normal((len(LABELS), 1, WINDOW)),
        "bias": 4 * rng.standard_normal(len(LABELS)),
    }
    for name, array in arrays.items():
        tensor = numpy_helper.from_array(array.astype(np.float32), name)
        model.graph.initializer.append(tensor)
    return model


def logits_of(samples: Any) -> Any:
    session = onnxruntime.InferenceSession(recogniser().SerializeToString())
    return session.run(None, {"audio": samples[None].astype(np.float32)})[0][0]


def sound(rate: int) -> Any:
    """Tones that a rate of 1000 samples per second can hold, 0.9 s."""
    time = np.arange(round(0.9 * rate)) / rate
    return sum(np.sin(2 * np.pi * f * time) for f in (5, 13, 31, 47)) / 2


def text_of(tokens: list[Token]) -> str:
    return "".join(LABELS[token[0]] for token in tokens).replace("|", " ").strip()


def chunked_logits(samples: Any, size: int, left: int, right: int) -> Any:
    """The frames that chunks keep, as `AutomaticSpeechRecognitionPipeline` cuts and joins them."""
    parts = []
    for start in range(0, len(samples), size - left - right):
        end = start + size
        is_last = end >= len(samples)
        first = (left if start else 0) // HOP
        last = None if is_last else (size - right) // HOP
        chunk = samples[start:end]
        if len(chunk) > first * HOP:
            parts.append(logits_of(chunk)[first:last])
        if is_last:
            break
    return np.concatenate(parts)


def words_of(tokens: list[Token]) -> list[tuple[str, float, float]]:
    words: list[tuple[str, float, float]] = []
    is_open = False
    for kind, first, end, _ in tokens:
        if LABELS[kind] == "|":
            is_open = False
            continue
        text, start, _ = words.pop() if is_open else ("", first, 0)
        words.append((text + LABELS[kind], start, end))
        is_open = True
    return words


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The results of the script."""
    root = tmp_path_factory.mktemp("speech")
    options = {"ctc": True, "labels": LABELS, "space": "|"}
    build(recogniser(), root / "model", "wasm", inputs={"audio": f"samples={RATE}"},
          outputs={"logits": options})  # fmt: skip
    scaled(root / "plain")
    job = {
        "package": str(root / "model"), "plain": str(root / "plain"), "rate": RATE,
        "samples": sound(RATE).tolist(), "other": sound(2 * RATE).tolist(),
    }  # fmt: skip
    return dict(answer_once(SCRIPT, job))


def test_the_text_is_that_of_numpy(results: dict[str, Any]) -> None:
    text = text_of(tokens_of(logits_of(sound(RATE)), BLANK))
    assert len(text) > 20 and " " in text
    assert results["text"] == {"text": text}
    assert results["list"] == [{"text": text}] * 2


def test_sounds_of_another_rate_are_resampled(results: dict[str, Any]) -> None:
    """The ends differ: before and after a sound there is silence."""
    text = text_of(tokens_of(logits_of(sound(RATE)), BLANK))
    assert text[8:-8] in results["resampled"]["text"]


def check_times(chunks: Any, expected: list[tuple[str, float, float]]) -> None:
    assert [chunk["text"] for chunk in chunks] == [text for text, *_ in expected]
    times = [[start * HOP / RATE, end * HOP / RATE] for _, start, end in expected]
    np.testing.assert_allclose([chunk["timestamp"] for chunk in chunks], times, atol=1e-9)


def test_words_and_letters_have_times(results: dict[str, Any]) -> None:
    tokens = tokens_of(logits_of(sound(RATE)), BLANK)
    check_times(results["words"]["chunks"], words_of(tokens))
    letters = [(LABELS[kind].replace("|", " "), *frames) for kind, *frames, _ in tokens]
    check_times(results["letters"]["chunks"], letters)
    assert results["letters"]["text"] == results["text"]["text"]


def test_chunks_are_joined_as_in_python(results: dict[str, Any]) -> None:
    tokens = tokens_of(chunked_logits(sound(RATE), 200, 40, 20), BLANK)
    assert results["chunked"]["text"] == text_of(tokens)
    letters = [(LABELS[kind].replace("|", " "), *frames) for kind, *frames, _ in tokens]
    check_times(results["chunked"]["chunks"], letters)
    stride = round(0.05 * RATE / HOP) * HOP  # a sixth of a chunk
    halves = tokens_of(chunked_logits(sound(RATE), 300, stride, stride), BLANK)
    assert results["halves"] == {"text": text_of(halves)}


def test_options_and_mistakes_are_named(results: dict[str, Any]) -> None:
    ignored = "webmlc: pipeline ignores `{}`: automatic-speech-recognition does not have it"
    assert results["warnings"] == [ignored.format("language"), ignored.format("task")]
    assert results["errors"] == [
        "InputError: return_timestamps is line, expected true, word or char",
        "InputError: chunk_length_s is 0.1: it must be more than both strides",
        f"InputError: this host decodes no sounds: pass a Float32Array of {RATE} samples per"
        " second",
        "PackageError: scaled takes no sounds: build it with --input x:samples=16000",
    ]

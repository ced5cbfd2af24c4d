"""Searches around a decoder give the tokens of onnxruntime, on both devices, with numbers and with
symbols as sizes.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import numpy as np
import onnx
import onnxruntime
import pytest

import webmlc
from tests.against_onnxruntime import ERRORS_ONLY
from tests.conformance import search_models as models
from webmlc.core.errors import UnsupportedError

RNG = np.random.default_rng(3)
DEVICES: tuple[Literal["wasm", "webgpu"], ...] = ("wasm", "webgpu")
EMPTY = '""'
"""An input that is left out, in ONNX's text form."""
IDS = np.array([[3, 5, 1, 7], [0, 0, 9, 4]], np.int32)
"""Two prompts. The second begins with padding."""


def number(value: int) -> Any:
    return np.array([value], np.int32)


def real(value: float) -> Any:
    return np.array([value], np.float32)


def greedy(attributes: str = "", **constants: Any) -> onnx.ModelProto:
    """A model of GreedySearch. An input of the operator is a constant, or left out."""
    names = ("least", "penalty", "mask", "first_mask", "attended")
    inputs = ", ".join(name if name in constants else EMPTY for name in names)
    return models.model(
        f"""sequences = com.microsoft.GreedySearch <{models.GPT}, eos_token_id = 2,
            pad_token_id = 0 {attributes}> (ids, most, {inputs})""",
        "int32[B, S] ids, int32[1] most",
        "int32[B, L] sequences",
        constants,
    )


def beams(
    graphs: str = models.GPT,
    attributes: str = "",
    operator: str = "BeamSearch",
    outputs: int = 3,
    **constants: Any,
) -> onnx.ModelProto:
    """A model of BeamSearch. Numbers that are not constants are inputs of the model."""
    defaults = {"least": number(1), "count": number(3), "returned": number(2), "power": real(1)}
    names = ("most", "least", "count", "returned", "power", "penalty", "mask", "first_mask",
             "attended", "start", "processor")  # fmt: skip
    values = defaults | constants
    is_input = {name for name, value in values.items() if value is None}
    inputs = ", ".join(n if n in values or n == "most" else EMPTY for n in names)
    kinds = {"power": "float", "penalty": "float"}
    features = "float[B, 3, S]" if graphs == models.WHISPER else "int32[B, S]"
    return models.model(
        f"""{", ".join(("sequences", "best", "scores")[:outputs])} = com.microsoft.{operator}
            <{graphs}, eos_token_id = 2, pad_token_id = 0 {attributes}> (ids, {inputs})""",
        ", ".join(
            [f"{features} ids", "int32[1] most"]
            + [f"{kinds.get(name, 'int32')}[1] {name}" for name in sorted(is_input)]
        ),
        ", ".join(
            ("int32[B, R, L] sequences", "float[B, R] best", "float[T, B, K, V] scores")[:outputs]
        ),
        {name: value for name, value in values.items() if value is not None},
    )


def session_of(model: onnx.ModelProto) -> Any:
    """A session of onnxruntime."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = ERRORS_ONLY
    return onnxruntime.InferenceSession(model.SerializeToString(), options)


def check(model: onnx.ModelProto, folder: Path, *runs: dict[str, Any]) -> list[Any]:
    """Check that a package gives the results of onnxruntime on both devices. Return the sequences.
    Rows of the scores after the last step are not compared: onnxruntime does not write them.
    """
    session = session_of(model)
    webmlc.build(model, folder)
    results = []
    for device in DEVICES:
        loaded = webmlc.load(folder, device=device)
        for feeds in runs:
            expected = dict(
                zip((o.name for o in model.graph.output), session.run(None, feeds), strict=True)
            )
            actual = loaded.run(feeds)
            for name, want in expected.items():
                got = actual[name]
                assert (got.shape, got.dtype) == (want.shape, want.dtype)
                if name == "scores":
                    is_written = got.reshape(len(got), -1).any(axis=1)
                    got, want = got[is_written], want[is_written]
                np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)
            results.append(actual["sequences"])
        loaded.dispose()
    return results


def feeds(ids: Any = IDS, most: int = 16, **more: Any) -> dict[str, Any]:
    return {"ids": ids, "most": number(most), **more}


MASK = np.array([1] * 5 + [0] + [1] * 7, np.int32)
GREEDY: dict[str, onnx.ModelProto] = {
    "plain": greedy(),
    "rules": greedy(least=number(9), penalty=real(1.7), mask=MASK),
    "first": greedy(first_mask=np.stack([MASK, 1 - MASK])),
    "attends": greedy(attended=np.array([[0, 1, 1, 1], [1, 1, 0, 1]], np.int32)),
}


@pytest.mark.parametrize("name", GREEDY)
def test_greedy_searches(name: str, tmp_path: Path) -> None:
    runs = [feeds(), feeds(most=5)]
    if name in ("plain", "rules"):
        runs.append(feeds(ids=np.array([[8], [1], [2]], np.int32), most=20))
    sequences = check(GREEDY[name], tmp_path, *runs)
    assert len(np.unique(sequences[0])) > 3  # the steps depend on each other


BEAM: dict[str, onnx.ModelProto] = {
    "plain": beams(),
    "run-time": beams(count=None, returned=None, least=None, power=None),
    "rules": beams(attributes=", no_repeat_ngram_size = 2, early_stopping = 1",
                   penalty=real(1.3), mask=MASK, power=real(0.4), outputs=2),
    "one": beams(count=number(1), returned=number(1), outputs=1),
}  # fmt: skip
NUMBERS = {"count": number(4), "returned": number(3), "least": number(7), "power": real(-0.5)}


@pytest.mark.parametrize("name", BEAM)
def test_beam_searches(name: str, tmp_path: Path) -> None:
    runs = [feeds(), feeds(ids=IDS[:1, :2], most=9)]
    if name == "run-time":
        runs = [run | NUMBERS for run in runs] + [feeds() | NUMBERS | {"count": number(3)}]
    sequences = check(BEAM[name], tmp_path, *runs)
    assert len(np.unique(sequences[0])) > 3


SOUND = RNG.standard_normal((2, 3, 6)).astype(np.float32)
START = np.array([[4, 7, 1], [4, 8, 1]], np.int32)
STAMPS = (
    ", model_type = 2, decoder_start_token_id = 3, beginning_timestamp_token_id = 8,"
    " no_timestamps_token_id = 7, start_of_lm_token_id = 6, translate_token_id = 4,"
    " transcribe_token_id = 5"
)
ENCODED: dict[str, tuple[onnx.ModelProto, dict[str, Any]]] = {
    "t5": (
        beams(models.T5, ", model_type = 1, decoder_start_token_id = 5"),
        feeds(),
    ),
    "newer-t5": (
        beams(models.NEWER_T5, ", model_type = 1, decoder_start_token_id = 5", outputs=2),
        feeds(),
    ),
    "whisper": (
        beams(models.WHISPER, ", model_type = 2, decoder_start_token_id = 5",
              "WhisperBeamSearch", outputs=2),
        feeds(SOUND),
    ),
    "timestamps": (
        beams(models.WHISPER, STAMPS, "WhisperBeamSearch", outputs=2, processor=None),
        feeds(SOUND, processor=number(1)),
    ),
    "whisper-start": (
        beams(models.WHISPER, ", model_type = 2", start=START, outputs=2),
        feeds(SOUND),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", ENCODED)
def test_searches_of_decoders_with_encoders(name: str, tmp_path: Path) -> None:
    model, run = ENCODED[name]
    sequences = check(model, tmp_path, run)
    assert len(np.unique(sequences[0])) > 3


def test_a_search_that_ends_early_is_padded(tmp_path: Path) -> None:
    # onnxruntime leaves the rest of its result as the memory was: ask it for the tokens before.
    model, end = greedy(penalty=real(1.5)), 11
    run = feeds(np.array([[12, 8, 9, 11], [7, 10, 11, 3]], np.int32), most=end)
    sequences = check(model, tmp_path, run)
    assert (sequences[0][0, 4:-1] != 0).any()
    for device in DEVICES:
        loaded = webmlc.load(tmp_path, device=device)
        longer = loaded.run(run | {"most": number(end + 5)})["sequences"]
        assert np.array_equal(longer, np.pad(sequences[0], ((0, 0), (0, 5))))
        loaded.dispose()


def sampling(attributes: str, graph: str = models.GPT, **constants: Any) -> onnx.ModelProto:
    """A model of Sampling, whose seed is an input."""
    names = ("least", "penalty", "mask", "first_mask", "attended", "presence")
    inputs = ", ".join(name if name in constants else EMPTY for name in names)
    return models.model(
        f"""sequences = com.microsoft.Sampling <{graph}, eos_token_id = 2,
            pad_token_id = 0 {attributes}> (ids, most, {inputs}, seed)""",
        "int32[B, S] ids, int32[1] most, int32[1] seed",
        "int32[B, L] sequences",
        constants,
    )


NARROW = ", top_p = 1e-6, min_tokens_to_keep = 1, temperature = 0.7"


@pytest.mark.parametrize("custom", [0, 1])
def test_a_narrow_nucleus_leaves_one_token(custom: int, tmp_path: Path) -> None:
    model = sampling(f"{NARROW}, custom = {custom}", penalty=real(1.5))
    sequences = check(model, tmp_path, feeds(seed=number(1)), feeds(seed=number(2)))
    assert len(np.unique(sequences[0])) > 3


def test_present_tokens_are_penalised(tmp_path: Path) -> None:
    # onnxruntime deducts all penalties from the first score of the first row, so that a decoder
    # that deducts them itself is the reference.
    presence = np.random.default_rng(5).integers(0, 2, (2, models.TOKENS)).astype(np.int32)
    deduction = (0.7 * 50 * presence[:, None]).astype(np.float32)
    graph = models.GPT.replace(
        "logits = MatMul(h, head)", "plain = MatMul(h, head)\n logits = Sub(plain, deduction)"
    )
    reference = session_of(sampling(NARROW, graph, deduction=deduction))
    webmlc.build(sampling(NARROW + ", presence_penalty = 50.0", presence=presence), tmp_path)
    run = feeds(seed=number(1))
    (expected,) = reference.run(None, run)
    (without,) = session_of(sampling(NARROW)).run(None, run)
    assert not np.array_equal(expected, without)
    for device in DEVICES:
        loaded = webmlc.load(tmp_path, device=device)
        assert np.array_equal(loaded.run(run)["sequences"], expected)
        loaded.dispose()


def test_samples_have_the_distribution_of_onnxruntime(tmp_path: Path) -> None:
    model, count = sampling(", top_p = 0.9, temperature = 2.0"), 2000
    webmlc.build(model, tmp_path)
    run = feeds(np.repeat(IDS[:1], count, 0), 6, seed=number(5))
    (expected,) = session_of(model).run(None, run)
    for device in DEVICES:
        loaded = webmlc.load(tmp_path, device=device)
        drawn = loaded.run(run)["sequences"]
        for column in (-2, -1):
            shares = [
                np.bincount(tokens[:, column], minlength=models.TOKENS) / count
                for tokens in (expected, drawn)
            ]
            assert np.abs(shares[0] - shares[1]).max() < 0.05
        assert (drawn[:, -2] != drawn[:, -1]).any()  # each step has noise of its own
        assert np.array_equal(drawn, loaded.run(run)["sequences"])
        assert not np.array_equal(drawn, loaded.run(run | {"seed": number(6)})["sequences"])
        loaded.dispose()


def test_graphs_for_cuda_are_refused(tmp_path: Path) -> None:
    graph = models.GPT.replace("4] past_0)", "4] past_0, int32[1] past_sequence_length)")
    assert graph != models.GPT
    with pytest.raises(UnsupportedError, match="convert the model for the CPU"):
        webmlc.build(beams(graph), tmp_path)


def test_an_unknown_attribute_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match="the attribute 'newer' is not supported"):
        webmlc.build(beams(attributes=", newer = 1"), tmp_path)

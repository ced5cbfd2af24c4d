"""Texts read by CTC in the package, against numpy and the grouping of `itertools`."""

from __future__ import annotations

import json
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import parser

from tests.node import answer_once
from webmlc.core.errors import InputError
from webmlc.core.machine import Device
from webmlc.graph.typed.options import read_output
from webmlc.host.load import load
from webmlc.pipeline import build

CLASSES = 5
LABELS = ["<s>", "a", "b", "|", "<pad>"]
SCRIPT = Path(__file__).parents[2] / "js" / "run_transcripts.mjs"


def copier(shape: str) -> onnx.ModelProto:
    """A model that returns its input, so that a test chooses the scores."""
    return parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 17]>\n'
        f"g (float[{shape}] x) => (float[{shape}] logits) {{ logits = Identity(x) }}"
    )


def scores_of(seed: int, batch: int, time: int) -> Any:
    """Scores [batch, time, classes] whose best class often repeats."""
    rng = np.random.default_rng(seed)
    path = np.repeat(rng.integers(0, CLASSES, (batch, time)), rng.integers(1, 4, time), axis=1)
    noise = rng.uniform(-1, 1, (batch, time, CLASSES))
    return (3 * np.eye(CLASSES)[path[:, :time]] + noise).astype(np.float32)


Token = tuple[int, int, int, float]


def tokens_of(scores: Any, blank: int) -> list[Token]:
    """The class, the first step, the step after the last, and the score of each token."""
    probabilities = np.exp(scores) / np.exp(scores).sum(-1, keepdims=True)
    steps = enumerate(scores.argmax(-1).tolist())
    tokens = []
    for kind, group in groupby(steps, key=lambda step: step[1]):
        numbers = [number for number, _ in group]
        if kind != blank:
            score = float(probabilities[numbers[0], kind])
            tokens.append((kind, numbers[0], numbers[-1] + 1, score))
    return tokens


def check(outputs: Any, scores: Any, blank: int) -> None:
    """Compare the outputs with the tokens of each row, and with what follows them."""
    for row, line in enumerate(scores):
        tokens = tokens_of(line, blank)
        unused = len(line) - len(tokens)
        assert outputs["logits_tokens"][row].tolist() == [t[0] for t in tokens] + [-1] * unused
        frames = [[t[1], t[2]] for t in tokens] + [[-1, -1]] * unused
        assert outputs["logits_frames"][row].tolist() == frames
        expected = [t[3] for t in tokens] + [0] * unused
        np.testing.assert_allclose(outputs["logits_scores"][row], expected, atol=1e-6)


@pytest.mark.parametrize("device", ["wasm", "webgpu"])
def test_repetitions_and_blanks_are_dropped(tmp_path: Path, device: Device) -> None:
    """One package for batches and times of any size."""
    build(copier(f"batch, time, {CLASSES}"), tmp_path, device, outputs={"logits": "ctc,blank=4"})
    model = load(tmp_path, device)
    for seed, (batch, time) in enumerate([(1, 1), (3, 40), (2, 300)]):
        scores = scores_of(seed, batch, time)
        check(model.run({"x": scores}), scores, blank=4)
    blanks = np.zeros((1, 7, CLASSES), np.float32)
    blanks[..., 4] = 1
    check(model.run({"x": blanks}), blanks, blank=4)
    model.dispose()


@pytest.mark.parametrize(
    ("shape", "axes", "place"),
    [
        ("9, 2, 5", "tbc", lambda x: x.transpose(1, 0, 2)),
        ("2, 5, 9", "bct", lambda x: x.transpose(0, 2, 1)),
        ("9, 5", "btc", lambda x: x[0]),
        ("9, 5", "tbc", lambda x: x[0]),
        ("5, 9", "bct", lambda x: x[0].T),
    ],
)
def test_the_axes_may_have_another_order(tmp_path: Path, shape: str, axes: str, place: Any) -> None:
    scores = scores_of(5, 2 if shape.count(",") == 2 else 1, 9)
    build(copier(shape), tmp_path, "wasm", outputs={"logits": f"ctc,axes={axes}"})
    x = np.ascontiguousarray(place(scores))
    check(load(tmp_path, "wasm").run({"x": x}), scores, blank=0)


@pytest.mark.parametrize(
    ("scores", "function"), [("none", lambda x: x), ("sigmoid", lambda x: 1 / (1 + np.exp(-x)))]
)
def test_scores_are_those_of_the_option(tmp_path: Path, scores: str, function: Any) -> None:
    x = scores_of(2, 1, 12)
    build(copier("1, 12, 5"), tmp_path, "wasm", outputs={"logits": f"ctc,scores={scores}"})
    actual = load(tmp_path, "wasm").run({"x": x})["logits_scores"][0]
    expected = [function(x[0, first, kind]) for kind, first, *_ in tokens_of(x[0], 0)]
    np.testing.assert_allclose(actual[: len(expected)], expected, atol=1e-6)


def text_of(tokens: list[Token]) -> str:
    return "".join(LABELS[t[0]] for t in tokens).replace("<s>", "").replace("|", " ")


@pytest.mark.parametrize("labels", [LABELS, LABELS[:-1]])
def test_the_runtime_returns_texts(tmp_path: Path, labels: list[str]) -> None:
    """The labels are those of all classes, or of all but the blank."""
    (tmp_path / "vocab.json").write_text(json.dumps({label: i for i, label in enumerate(labels)}))
    options = f"ctc,blank=4,labels={tmp_path / 'vocab.json'},space=|,skip=[<s>,<pad>]"
    folder = tmp_path / "package"
    build(copier("batch, time, classes" if len(labels) == CLASSES else "batch, time, 5"), folder,
          "wasm", outputs={"logits": options})  # fmt: skip
    batches = [scores_of(7, 1, 30), scores_of(8, 2, 30)]
    job = {
        "package": str(folder),
        "batches": [{"shape": b.shape, "data": b.ravel().tolist()} for b in batches],
    }
    results = answer_once(SCRIPT, job)
    one, two = results["texts"]
    for result, scores in zip([one, *two], [*batches[0], *batches[1]], strict=True):
        tokens = tokens_of(scores, 4)
        assert result["text"] == text_of(tokens)
        assert [t["frames"] for t in result["tokens"]] == [[t[1], t[2]] for t in tokens]
        assert "".join(t["label"] for t in result["tokens"]) == result["text"]
        assert result["score"] == pytest.approx(np.mean([t[3] for t in tokens]), abs=1e-6)
    assert results["tensors"] == ["logits_tokens", "logits_scores"]
    types = (folder / "model.d.ts").read_text()
    assert "  logits: Transcript | Transcript[];\n" in types


def test_options_without_a_value_are_true() -> None:
    options = read_output("y", "ctc,blank=2,space=|")
    assert options == read_output("y", {"ctc": True, "blank": 2, "space": "|"})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("ctc,labels=LABELS", "output 'logits': 2 labels for 5 classes"),
        ("ctc,axes=cbt", "axes is btc or tbc or bct, not 'cbt'"),
        ("ctc,blank=5", "output 'logits': blank=5, but there are 5 classes"),
        ("ctc=false", "'logits': ctc=false: leave it out"),
        ("ctc,topk=5", "no option 'topk'; there are ctc, blank, axes, scores, labels, space"),
        ("ctc,greedy", "'logits': 'greedy' is no option; write key=value"),
    ],
)
def test_mistakes_are_explained(tmp_path: Path, options: str, message: str) -> None:
    (tmp_path / "labels.txt").write_text("a\nb\n")
    options = options.replace("LABELS", str(tmp_path / "labels.txt"))
    with pytest.raises(InputError) as error:
        build(copier("1, 9, 5"), tmp_path, "wasm", outputs={"logits": options})
    assert message in str(error.value)


def test_an_output_of_other_axes_has_no_text(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"ctc reads \[batch, time, classes\]"):
        build(copier("1, 1, 9, 5"), tmp_path, "wasm", outputs={"logits": "ctc"})

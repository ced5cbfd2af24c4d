"""Mutants of models are right, or refused by one clear error; and the judge notices what is not.

`python -m tests.users.mutations` judges any number of others.
"""

from __future__ import annotations

from pathlib import Path
from unittest.mock import patch

import numpy as np
import pytest

from tests.users.mutations.__main__ import devices
from tests.users.mutations.family import Mutant
from tests.users.mutations.onnx_bases import GRAPHS, graph_base
from tests.users.mutations.onnx_family import OnnxFamily
from tests.users.mutations.outcome import Kind, outcome_of_error
from tests.users.mutations.worker import Worker, draw
from webmlc.core.errors import InternalError, ModelError

SEED, COUNT, SHARE = 0, 300, 100


@pytest.mark.parametrize("first", range(0, COUNT, SHARE))
def test_onnx_models(first: int) -> None:
    worker, failures = Worker("onnx"), []
    for number in range(first, first + SHARE):
        for device in devices(number, "both"):
            outcome = worker.judge(SEED, number, device)
            if not outcome.is_allowed:
                failures.append((number, device, draw("onnx", SEED, number).title, outcome))
    worker.close()
    assert not failures, f"python -m tests.users.mutations --seed {SEED} --only NUMBER"


@pytest.mark.parametrize("title", GRAPHS)
def test_valid_models(title: str, tmp_path: Path) -> None:
    model, feeds = graph_base(title)
    mutant = Mutant(title, "model.onnx", {"model.onnx": model.SerializeToString()}, feeds)
    assert OnnxFamily().judge(mutant, tmp_path, "wasm", lambda _: None).kind == "right"


def test_a_wrong_result_is_noticed(tmp_path: Path) -> None:
    model, feeds = graph_base("quantised")
    mutant = Mutant("", "model.onnx", {"model.onnx": model.SerializeToString()}, feeds)
    results = {"y": np.full((2, 3), 0.5, np.float32)}
    with patch("tests.users.mutations.onnx_family._run", lambda *_: results):
        outcome = OnnxFamily().judge(mutant, tmp_path, "wasm", lambda _: None)
    assert outcome.kind == "wrong"
    assert "y: " in outcome.message


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (ModelError("the model has no graph"), "refused"),
        (ModelError(""), "unclear"),
        (ModelError("Traceback (most recent call last)"), "unclear"),
        (ModelError("node\n" * 4000), "unclear"),
        (InternalError("verify: kernel relu"), "internal"),
        (IndexError("list index out of range"), "traceback"),
        (MemoryError(), "memory"),
    ],
)
def test_errors_have_outcomes(error: Exception, kind: Kind) -> None:
    assert outcome_of_error(error).kind == kind


def test_a_number_decides_a_mutant() -> None:
    first, second = (draw("onnx", 5, 17) for _ in range(2))
    assert (first.title, first.files) == (second.title, second.files)
    assert draw("onnx", 5, 18).files != first.files

"""The command line takes the files of other frameworks, with the cache on, as users do."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow
import torch
from keras import layers

import webmlc
from tests.command_line import run

FEATURES = np.random.default_rng(0).standard_normal((3, 8)).astype(np.float32)


def network() -> keras.Model:
    features = keras.Input((8,), name="features")
    hidden = layers.Dense(8, activation="relu")(features)
    return keras.Model(features, layers.Dense(3, name="scores")(hidden), name="network")


def write_keras(path: Path) -> Any:
    model = network()
    model.save(path)
    return model.predict(FEATURES, verbose=0)


def write_tflite(path: Path) -> Any:
    model = network()
    path.write_bytes(tensorflow.lite.TFLiteConverter.from_keras_model(model).convert())
    return model.predict(FEATURES, verbose=0)


def write_saved_model(path: Path) -> Any:
    model = network()
    model.export(path, verbose=False)
    return model.predict(FEATURES, verbose=0)


def write_program(path: Path) -> Any:
    module = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3))
    batch = torch.export.Dim("batch")
    program = torch.export.export(module, (torch.zeros(2, 8),), dynamic_shapes=({0: batch},))
    torch.export.save(program, path)
    return module(torch.from_numpy(FEATURES)).detach().numpy()


WRITERS: dict[str, Callable[[Path], Any]] = {
    "model.keras": write_keras,
    "model.tflite": write_tflite,
    "a model": write_saved_model,
    "model.pt2": write_program,
    "renamed.keras.bin": lambda path: renamed(path, write_keras, ".keras"),
    "renamed.bin": lambda path: renamed(path, write_program, ".pt2"),
}


def renamed(path: Path, write: Callable[[Path], Any], suffix: str) -> Any:
    original = path.with_name(f"original{suffix}")
    result = write(original)
    original.rename(path)
    return result


@pytest.mark.parametrize("name", WRITERS)
def test_a_file_goes_through_every_command(
    name: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("WEBMLC_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    expected = WRITERS[name](tmp_path / name)
    capsys.readouterr()  # what the framework says

    def command(*arguments: object) -> Any:
        result = run(monkeypatch, capsys, *arguments)
        assert result.code == 0, result.err
        return result.out

    fresh = json.loads(command("build", name, "--json"))
    warm = json.loads(command("build", name, "--json"))
    assert fresh == warm
    model = webmlc.load(fresh["folder"], "wasm")
    (port,) = model.inputs
    (output,) = model.run({port.name: FEATURES}).values()
    model.dispose()
    np.testing.assert_allclose(output, expected, 1e-4, 1e-5)
    assert "passed" in command("check", name)
    assert json.loads(command("run", name, "--json"))
    command("report", name, "-o", "report.html")
    assert (tmp_path / "report.html").stat().st_size > 10_000

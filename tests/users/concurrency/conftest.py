"""The packages that the tests of concurrency use, on every device."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import webmlc
from tests.against_onnxruntime import SETTINGS
from tests.decoders import DECODER
from tests.users.concurrency.model import CLASSIFIER
from webmlc.host.load import Model


@pytest.fixture(scope="session")
def classifier(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("classifier")
    webmlc.build(CLASSIFIER, folder)
    return folder


@pytest.fixture(scope="session")
def decoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("decoder")
    webmlc.build(DECODER, folder)
    return folder


@pytest.fixture(params=SETTINGS, ids=str)
def load(request: pytest.FixtureRequest) -> Iterator[Callable[[Path], Model]]:
    """A function that loads packages on a device, and disposes of them after the test."""
    device, threads = request.param
    models: list[Model] = []

    def open_model(folder: Path) -> Model:
        models.append(webmlc.load(folder, device, threads))
        return models[-1]

    yield open_model
    for model in models:
        model.dispose()

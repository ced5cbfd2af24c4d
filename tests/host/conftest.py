"""What the tests of the hosts share: the package of a test on every device, and a folder for the
sockets of a GPU driver without a display.
"""

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

import webmlc
from tests.against_onnxruntime import SETTINGS
from webmlc.host.load import Model

os.environ.setdefault("XDG_RUNTIME_DIR", tempfile.gettempdir())


@pytest.fixture(scope="module", params=SETTINGS, ids=str)
def model(request: pytest.FixtureRequest, package: Path) -> Iterator[Model]:
    """The package of the test's module, loaded once on each device."""
    device, threads = request.param
    loaded = webmlc.load(package, device=device, threads=threads)
    yield loaded
    loaded.dispose()

"""Small models on WebGPU in Chromium; `tests/hosts/test_architectures.py` runs real ones."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import onnx
import pytest

from tests.browser.gpu_models import Inputs, check
from tests.small_models import SMALL_MODELS


@pytest.mark.parametrize("make", SMALL_MODELS, ids=lambda make: make.__name__)
def test_small_models_match_onnxruntime(
    make: Callable[[], tuple[onnx.ModelProto, Inputs]], tmp_path: Path
) -> None:
    check(*make(), tmp_path)

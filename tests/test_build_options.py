"""The options of a build are one record, which decides the key of its package in the cache."""

from __future__ import annotations

import inspect
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import webmlc
from webmlc.build_options import DEFAULTS, BuildOptions
from webmlc.cached_build import CachedBuild
from webmlc.core.disk_cache import DiskCache

VALUES: dict[str, Any] = {
    "target": "wasm",
    "constants": {"sr": 16000},
    "dims": {"batch": 1},
    "inputs": {"image": "pixels=rgb"},
    "outputs": {"logits": "topk=5"},
    "emit_text": True,
    "exact": True,
    "state": "off",
    "quantise": "int8",
    "context": 64,
    "signature": "decode",
    "adapter": "software",
    "algorithms": {"wasm": {"conv": "winograd"}},
    "choose": len,
    "example_inputs": (1,),
    "dynamic_shapes": {"x": {0: "n"}},
    "output_names": ["scores"],
    "operators": (len,),
    "force": True,
    "on_stage": print,
    "progress": False,
    "jobs": 7,
    "cache": False,
}
"""A value of each option that is not its default; the tokenizer is a file of the test."""


@pytest.mark.parametrize("field", fields(BuildOptions), ids=lambda field: field.name)
def test_the_key_of_a_package_holds_each_option_that_decides_it(field: Any, tmp_path: Path) -> None:
    (tmp_path / "model.onnx").write_bytes(b"model")
    (tmp_path / "tokenizer.json").write_bytes(b"{}")
    values = {**VALUES, "tokenizer": tmp_path / "tokenizer.json"}

    def key(options: BuildOptions) -> str:
        return CachedBuild(DiskCache(tmp_path), tmp_path / "model.onnx", options).key

    changed = replace(DEFAULTS, **{field.name: values[field.name]})
    assert (key(changed) != key(DEFAULTS)) == field.metadata.get("decides", True)


def test_equal_options_have_one_key(tmp_path: Path) -> None:
    options = BuildOptions(constants={}, algorithms={}, tokenizer="tokenizer.json")
    assert options.deciding() == BuildOptions(tokenizer=Path("tokenizer.json")).deciding()
    one, other = ({"w": np.zeros(size, np.float32)} for size in (2, 3))
    (tmp_path / "model.onnx").write_bytes(b"model")
    builds = [
        CachedBuild(DiskCache(tmp_path), tmp_path / "model.onnx", BuildOptions(constants=c)).key
        for c in (one, other, dict(one))
    ]
    assert builds[0] == builds[2] != builds[1]


def test_a_build_takes_every_option_as_a_keyword() -> None:
    parameters = list(inspect.signature(webmlc.build).parameters)
    assert parameters == ["model", "out", *(field.name for field in fields(BuildOptions))]
    with pytest.raises(TypeError, match="exakt"):
        webmlc.build("model.onnx", "out", exakt=True)  # type: ignore[call-arg]

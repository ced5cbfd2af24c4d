"""Operators of one model that take indices, one index or many: they are counted in one kernel."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import webmlc
from tests.against_onnxruntime import SETTINGS, check, parse
from webmlc.core.errors import InputError

INDICES: dict[str, tuple[str, Any]] = {
    "one": ("[1]", np.array([3])),
    "many": ("[n]", np.array([0, -1, 4])),
    "matrix": ("[n, m]", np.array([[1, -5]] * 3)),
    "single": ("", np.array(2)),
}
"""The shape and the value of each input of indices into five elements."""


@pytest.mark.parametrize(
    "names",
    [("one", "many"), ("one", "matrix"), ("one", "many", "single"), ("one", "many", "matrix")],
    ids=" ".join,
)
def test_one_index_is_counted_beside_many(names: tuple[str, ...], tmp_path: Path) -> None:
    inputs = ", ".join(f"int64{INDICES[n][0]} {n}" for n in names)
    outputs = ", ".join(f"float{INDICES[n][0]} y_{n}" for n in names)
    nodes = " ".join(f"y_{n} = Gather(x, {n})" for n in names)
    model = parse(f"g (float[5] x, {inputs}) => ({outputs}) {{ {nodes} }}")
    feeds = {"x": np.arange(5, dtype=np.float32), **{n: INDICES[n][1] for n in names}}
    check(model, tmp_path, feeds)
    for device, threads in SETTINGS:
        loaded = webmlc.load(tmp_path, device=device, threads=threads)
        for name in names:
            with pytest.raises(InputError, match=rf"node 'y_{name}'"):
                loaded.run({**feeds, name: np.full_like(INDICES[name][1], 5)})
        loaded.dispose()

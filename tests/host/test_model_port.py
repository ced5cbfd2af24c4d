"""The ports of a loaded model: records that numpy takes, and that people read."""

from __future__ import annotations

from pathlib import Path

import numpy as np

import webmlc
from tests.against_onnxruntime import parse


def test_ports_have_numbers_and_names_as_sizes(tmp_path: Path) -> None:
    model = parse(
        "g (float[batch,4] x, int64[2] i, bfloat16[3] h) => (float[?,4] y, int64[2] j, float[3] w)"
        " { y = Concat<axis=0>(x, x) j = Neg(i) w = Cast<to=1>(h) }"
    )
    webmlc.build(model, tmp_path, "wasm")
    loaded = webmlc.load(tmp_path, "wasm")
    assert [port.shape for port in loaded.inputs] == [("batch", 4), (2,), (3,)]
    assert [type(size) for size in loaded.inputs[0].shape] == [str, int]
    assert loaded.outputs[0].shape == ("batch * 2", 4)
    assert repr(loaded.inputs) == "(x: float32[batch, 4], i: int64[2], h: bfloat16[3])"
    assert (
        repr(loaded)
        == """\
<webmlc.Model 'g' on wasm
  input  x: float32[batch, 4]
  input  i: int64[2]
  input  h: bfloat16[3]
  output y: float32[batch * 2, 4]
  output j: int64[2]
  output w: float32[3]>"""
    )
    sizes = {"batch": 3}
    feeds = {
        port.name: np.zeros(
            [sizes.get(n, n) if isinstance(n, str) else n for n in port.shape], port.dtype
        )
        for port in loaded.inputs
    }
    results = loaded.run(feeds)
    assert [results[port.name].dtype.name for port in loaded.outputs] == [
        port.dtype for port in loaded.outputs
    ]
    loaded.dispose()

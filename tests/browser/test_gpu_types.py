"""The shaders of types that WGSL lacks, in Chromium: Tint accepts them and computes what the CPU
does.
"""

import base64
from pathlib import Path
from typing import Any

import numpy as np
import onnx.parser

from tests.browser.pages import Page, open_pages
from webmlc import build, load

MODEL = """<ir_version: 10, opset_import: ["" : 21]>
types (int64[9] a, int64[9] b, uint8[7] u, int8[7] i, float16[6] h, bool[9] m, float[6] f)
  => (int64[9] quotient, int64[9] product, bool[9] less, int64[9] top, int64[9] chosen,
      uint8[7] sum,
      int8[7] wrapped, float16[6] scaled, float16[6] narrow, float[6] wide, uint8[6] bytes,
      bfloat16[6] brain, int64[6] whole, int64 place, float mean, bool[6] odd)
{
  quotient = Div(a, b)
  product = Mul(a, b)
  less = Less(a, b)
  top = Max(a, b)
  chosen = Where(m, a, b)
  sum = Add(u, u)
  wrapped = Mul(i, i)
  scaled = Mul(h, h)
  narrow = Cast <to = 10> (f)
  wide = Cast <to = 1> (h)
  bytes = Cast <to = 2> (f)
  brain = Cast <to = 16> (f)
  whole = Cast <to = 7> (f)
  place = ArgMax <axis = 0, keepdims = 0> (f)
  mean = ReduceMean <keepdims = 0> (f)
  odd = IsNaN(h)
}"""

RUN = """async ({ inputs }) => {
  const { load } = await import("/types/webmlc.js");
  const { arrayOf } = await import("/types/shared.js");
  const model = await load("/types/", { device: "webgpu" });
  const feeds = {};
  for (const { name, dtype, shape } of model.inputs) {
    const bytes = Uint8Array.from(atob(inputs[name]), (c) => c.charCodeAt(0));
    feeds[name] = { dtype, shape, data: new (arrayOf(dtype))(bytes.buffer) };
  }
  const outputs = await model.run(feeds);
  const text = ({ data: { buffer } }) => btoa(String.fromCharCode(...new Uint8Array(buffer)));
  return Object.fromEntries(Object.entries(outputs).map(([name, tensor]) => [name, text(tensor)]));
}"""

INPUTS: dict[str, np.ndarray[Any, Any]] = {
    "a": np.array([0, 7, -7, 2**40, -(2**40) - 3, 2**62, -(2**63), 5, 123456789012345]),
    "b": np.array([3, 2, -2, 3, 12345, 2**33 + 1, 1, -9, 1000003]),
    "u": np.array([0, 1, 127, 128, 200, 255, 3], np.uint8),
    "i": np.array([0, -1, 127, -128, 100, 12, 3], np.int8),
    "h": np.array([0.5, -1.75, 6e-8, 300.0, np.nan, np.inf], np.float16),
    "m": np.array([1, 0, 1, 1, 0, 0, 1, 0, 1], bool),
    "f": np.array([0.1, 255.0, 3.99, 6e-6, 250.5, 17.0], np.float32),
}


def test_every_type_is_computed_on_the_gpu_as_on_the_cpu(tmp_path: Path) -> None:
    (tmp_path / "index.html").write_text('<!doctype html><link rel="icon" href="data:,">')
    manifest = build(onnx.parser.parse_model(MODEL), tmp_path / "types")
    assert {step.device for step in manifest.programs["webgpu"].steps} == {"webgpu"}
    on_cpu = load(tmp_path / "types", device="wasm").run(INPUTS)
    encoded = {name: base64.b64encode(a.tobytes()).decode() for name, a in INPUTS.items()}
    mounts = {"/": tmp_path, "/types": tmp_path / "types"}
    [report] = open_pages(mounts, Page("/", RUN, arg={"inputs": encoded}))
    for name, expected in on_cpu.items():
        actual = np.frombuffer(base64.b64decode(report.value[name]), expected.dtype).reshape(
            expected.shape
        )
        np.testing.assert_array_equal(
            actual.astype(np.float64), expected.astype(np.float64), err_msg=name
        )

"""Control flow in a real Chromium, on the CPU with threads and on the GPU."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx.parser
import pytest

import webmlc
from tests.browser.pages import Page, open_pages

BLANK = '<!doctype html><meta charset="utf-8"><link rel="icon" href="data:,"><title>blank</title>'
MODEL = """<ir_version: 8, opset_import: ["" : 17]>
g (float[n] x, float[t] w, float limit) => (float[n] y, float[t, n] s) {
    y, s = Scan<num_scan_inputs = 1,
        body = b (float[n] p, float v) => (float[n] q, float[n] o) {
            large = Greater(v, limit)
            q = If(large) <
                then_branch = a () => (float[n] h) { h = Add(p, v) },
                else_branch = e () => (float[n] k) { k = Mul(p, x) }
            >
            o = Neg(q)
        }
    >(x, w)
}"""
RUN = """async ({ device, threads, lengths }) => {
  const { load } = await import("/model/webmlc.js");
  const model = await load("/model/", { device, threads });
  const results = [];
  for (const t of lengths) {
    const x = { dtype: "float32", shape: [3], data: new Float32Array([1.5, -0.5, 0.25]) };
    const waves = Float32Array.from({ length: t }, (_, i) => Math.sin(i));
    const w = { dtype: "float32", shape: [t], data: waves };
    const limit = { dtype: "float32", shape: [], data: new Float32Array([0.2]) };
    const { y, s } = await model.run({ x, w, limit });
    results.push({ y: Array.from(y.data), s: Array.from(s.data) });
  }
  model.dispose();
  return results;
}"""
LENGTHS = [5, 1, 40, 0, 7]


@pytest.mark.parametrize(("device", "threads"), [("wasm", 1), ("wasm", 2), ("webgpu", 1)])
def test_loops_and_branches_run_in_a_page(tmp_path: Path, device: str, threads: int) -> None:
    (tmp_path / "index.html").write_text(BLANK)
    webmlc.build(onnx.parser.parse_model(MODEL), tmp_path / "model")
    arg = {"device": device, "threads": threads, "lengths": LENGTHS}
    (report,) = open_pages({"/": tmp_path}, Page("/", RUN, arg=arg))
    x = np.array([1.5, -0.5, 0.25], np.float32)
    for length, result in zip(LENGTHS, report.value, strict=True):
        p, rows = x, []
        for v in np.sin(np.arange(length)).astype(np.float32):
            p = p + v if v > 0.2 else p * x
            rows.append(-p)
        np.testing.assert_allclose(result["y"], p, rtol=1e-5)
        np.testing.assert_allclose(
            np.reshape(result["s"], (length, 3)), np.reshape(rows, (length, 3)), rtol=1e-5
        )


BRANCHES = """<ir_version: 8, opset_import: ["" : 17]>
g (float[3] x, float limit) => (float[3] y) {
    total = ReduceSum<keepdims = 0>(x)
    large = Greater(total, limit)
    z = If(large) <
        then_branch = a () => (float[3] h) { h = Add(x, x) },
        else_branch = e () => (float[3] k) { s = Softmax(x)  k = Add(s, s) }
    >
    y = Neg(z)
}"""
RUN_BRANCHES = """async () => {
  const { load } = await import("/model/webmlc.js");
  let compiled = 0;
  const onProgress = ({ pipelines }) => void (compiled = pipelines?.total ?? compiled);
  const model = await load("/model/", { device: "webgpu", onProgress });
  const x = { dtype: "float32", shape: [3], data: new Float32Array([1.5, -0.5, 0.25]) };
  const results = [];
  for (const value of [0, 9, 0]) {
    const limit = { dtype: "float32", shape: [], data: new Float32Array([value]) };
    results.push(Array.from((await model.run({ x, limit })).y.data));
  }
  model.dispose();
  return { compiled, results };
}"""


def test_the_kernels_of_a_branch_are_compiled_when_a_run_reaches_it(tmp_path: Path) -> None:
    (tmp_path / "index.html").write_text(BLANK)
    manifest = webmlc.build(onnx.parser.parse_model(BRANCHES), tmp_path / "model")
    steps = manifest.programs["webgpu"].steps
    first = next(i for i, s in enumerate(steps) if s.control and s.control.kind == "if")
    end = steps[steps[first].control.target - 1].control.target
    certain = {step.kernel for step in (*steps[:first], *steps[end:])}
    (report,) = open_pages({"/": tmp_path}, Page("/", RUN_BRANCHES))
    x = np.array([1.5, -0.5, 0.25], np.float32)
    weights = np.exp(x) / np.exp(x).sum()
    assert (
        report.value["compiled"] == len(certain) < len({s.kernel for s in steps if not s.control})
    )
    for result, expected in zip(
        report.value["results"], [-2 * x, -2 * weights, -2 * x], strict=True
    ):
        np.testing.assert_allclose(result, expected, rtol=1e-5)


GROWS = """<ir_version: 8, opset_import: ["" : 17]>
g (float[n] x, int64 count) => (float[k] y, float[n] z) {
    w = Exp(x)
    y = Loop(count, , w) <
        body = b (int64 i, bool go, float[p] a) => (bool on, float[q] c) {
            on = Identity(go)
            c = Concat<axis = 0>(a, w)
        }
    >
    z = Neg(w)
}"""
RUN_GROWS = """async ({ device, threads, counts }) => {
  const { load } = await import("/model/webmlc.js");
  const model = await load("/model/", { device, threads });
  const results = [];
  for (const number of counts) {
    const x = { dtype: "float32", shape: [3], data: new Float32Array([1.5, -0.5, 0.25]) };
    const count = { dtype: "int64", shape: [], data: BigInt64Array.of(BigInt(number)) };
    const { y, z } = await model.run({ x, count });
    results.push({ y: Array.from(y.data), z: Array.from(z.data) });
  }
  model.dispose();
  return results;
}"""
COUNTS = [3, 0, 30, 1, 60]


@pytest.mark.parametrize(("device", "threads"), [("wasm", 2), ("webgpu", 1)])
def test_a_loop_of_the_host_grows_in_a_page(tmp_path: Path, device: str, threads: int) -> None:
    """Memory grows in the middle of a run, and `w` stays where it is."""
    (tmp_path / "index.html").write_text(BLANK)
    webmlc.build(onnx.parser.parse_model(GROWS), tmp_path / "model")
    arg = {"device": device, "threads": threads, "counts": COUNTS}
    (report,) = open_pages({"/": tmp_path}, Page("/", RUN_GROWS, arg=arg))
    w = np.exp(np.array([1.5, -0.5, 0.25], np.float32))
    for count, result in zip(COUNTS, report.value, strict=True):
        np.testing.assert_allclose(result["y"], np.tile(w, count + 1), rtol=1e-5)
        np.testing.assert_allclose(result["z"], -w, rtol=1e-5)

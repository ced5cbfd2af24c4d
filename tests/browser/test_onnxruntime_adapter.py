"""Tensors of the adapter in pages: pictures as ONNX Runtime Web reads them, and data on the GPU."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.browser.pages import ROOT, Page, open_pages
from tests.packages import expected, scaled

PICTURES = """async () => {
  const ours = await import("/runtime/onnxruntime/onnxruntime.js");
  const theirs = await import("/ort/ort.wasm.min.mjs");
  const canvas = Object.assign(document.createElement("canvas"), { width: 6, height: 4 });
  const context = canvas.getContext("2d");
  const pixels = context.createImageData(6, 4);
  pixels.data.forEach((_, i, data) => (data[i] = i % 4 === 3 ? 255 : (i * 37) % 256));
  context.putImageData(pixels, 0, 0);
  const url = canvas.toDataURL();
  const element = new Image();
  element.src = url;
  await element.decode();
  const bitmap = await createImageBitmap(canvas);
  const means = { norm: { mean: [127.5, 64, 32], bias: [-10, 0, 5] } };
  const cases = {
    pixels: [pixels, undefined],
    bgr: [pixels, { tensorFormat: "BGR", norm: { mean: 255, bias: 0 } }],
    normalised: [pixels, means],
    element: [element, undefined],
    address: [url, {}],
    bitmap: [bitmap, { norm: { mean: 127.5, bias: -127.5 } }],
    alpha: [bitmap, { tensorFormat: "RGBA", norm: { mean: 1, bias: 0 } }],
  };
  const plain = ({ type, dims, data }) => ({ type, dims: [...dims], data: Array.from(data) });
  const results = {};
  for (const [name, [image, options]] of Object.entries(cases)) {
    const fresh = () => options && structuredClone(options); // the other library changes them
    const read = async ({ Tensor }) => plain(await Tensor.fromImage(image, fresh()));
    results[name] = [await read(ours), await read(theirs)];
  }
  const back = async ({ Tensor }, format) => {
    const norm = { mean: 255, bias: 0 };
    const tensor = await Tensor.fromImage(pixels, { tensorFormat: format, norm });
    return Array.from(tensor.toImageData({ format }).data);
  };
  results.back = [await back(ours, "RGB"), await back(theirs, "RGB"), Array.from(pixels.data)];
  const bytes = await ours.Tensor.fromImage(pixels, { dataType: "uint8", tensorLayout: "NHWC" });
  results.bytes = plain(bytes);
  const half = { resizedWidth: 3, resizedHeight: 2 };
  results.resized = (await ours.Tensor.fromImage(pixels, half)).dims;
  const flat = new ours.Tensor("float32", new Float32Array(48).fill(0.5), [1, 3, 4, 4]);
  results.address = flat.toDataURL().slice(0, 22);
  results.wrong = await ours.Tensor.fromImage({}).then(String, String);
  return results;
}"""
GPU = """async () => {
  const { default: ort } = await import("/runtime/onnxruntime/onnxruntime.js");
  const { Tensor, InferenceSession } = ort;
  const options = { executionProviders: ["webgpu"], preferredOutputLocation: { y: "gpu-buffer" } };
  const session = await InferenceSession.create("/scaled/", options);
  const x = new Tensor("float32", Float32Array.of(1, 2, 3, 4), [1, 4]);
  const { y } = await session.run({ x });
  const story = [y.location, y.dims, Array.from(await y.getData())];
  const reading = await (async () => y.data)().then(String, String);
  const device = await ort.env.webgpu.device;
  // A result is an input again, on the same device, and a buffer of the page receives one.
  const place = { dataType: "float32", dims: [1, 4] };
  const again = await session.run({ x: Tensor.fromGpuBuffer(y.gpuBuffer, place) });
  story.push(Array.from(await again.y.getData()));
  const usage = GPUBufferUsage.COPY_DST | GPUBufferUsage.COPY_SRC | GPUBufferUsage.STORAGE;
  const gpuBuffer = device.createBuffer({ size: 16, usage });
  const receiver = Tensor.fromGpuBuffer(gpuBuffer, place);
  const { y: received } = await session.run({ x }, { y: receiver });
  story.push(received === receiver, await receiver.getData().then(String, String));
  y.dispose();
  again.y.dispose();
  const gone = await y.getData().then(String, String);
  await session.release();
  const late = await session.run({ x }).then(String, String);
  return { story, reading, gone, late };
}"""


@pytest.fixture(scope="module")
def mounts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    site = tmp_path_factory.mktemp("site")
    (site / "index.html").write_text('<!doctype html><link rel="icon" href="data:,">')
    scaled(site / "scaled")
    runtime, other = ROOT / "runtime_js", ROOT / "node_modules" / "onnxruntime-web" / "dist"
    return {"/runtime": runtime, "/ort": other, "/": site}


def check(ours: dict[str, Any], theirs: dict[str, Any]) -> None:
    assert (ours["type"], ours["dims"]) == (theirs["type"], theirs["dims"])
    np.testing.assert_allclose(ours["data"], theirs["data"], rtol=1e-5, atol=1e-5)


def test_pictures_become_the_tensors_of_onnxruntime_web(mounts: dict[str, Path]) -> None:
    [report] = open_pages(mounts, Page("/", PICTURES))
    value = report.value
    for name in ("pixels", "bgr", "normalised", "element", "bitmap", "alpha"):
        check(*value[name])
    ours, theirs, pixels = value["back"]
    assert ours == theirs == pixels
    assert value["bytes"]["dims"] == [1, 4, 6, 3]
    rgba = np.reshape(pixels, (4, 6, 4))
    assert value["bytes"]["data"] == rgba[..., :3].ravel().tolist()
    assert value["resized"] == [1, 3, 2, 3]
    assert value["address"] == "data:image/png;base64,"
    assert value["wrong"].startswith('InputError: input "image" takes a picture')


def test_tensors_stay_on_the_gpu(mounts: dict[str, Path]) -> None:
    [report] = open_pages(mounts, Page("/", GPU))
    value = report.value
    once = expected(np.array([[1, 2, 3, 4]], np.float32))
    location, dims, first, second, is_receiver, unread = value["story"]
    assert (location, dims) == ("gpu-buffer", [1, 4])
    assert first == once.ravel().tolist()
    assert second == expected(once).ravel().tolist()
    assert is_receiver is True
    assert "without `download`" in unread
    assert value["reading"] == "InputError: the data are on the GPU: await getData()"
    assert value["gone"] == "DisposedError: this tensor was disposed of"
    assert value["late"].startswith("DisposedError: this model was disposed of")

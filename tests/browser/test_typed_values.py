"""A package that takes pictures, in a real Chromium: what pages have, and what they show."""

from __future__ import annotations

import base64
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.browser.pages import Page, open_pages
from tests.graph.typed.test_masks import segmenter
from tests.graph.typed.test_transcripts import tokens_of
from tests.graph.typed.test_typed_sounds import EDGE, RATE, copier, tone
from tests.graph.typed.test_typed_values import LABELS, MEAN, STD, classifier
from tests.js.test_speech_pipeline import BLANK, logits_of, recogniser, sound, text_of
from tests.js.test_speech_pipeline import LABELS as SPEECH_LABELS
from webmlc.host.load import load
from webmlc.pipeline import build

WIDTH, HEIGHT = 70, 50
RUN = """async ([width, height, device]) => {
  let reads = 0; // of pixels by the CPU
  const { getImageData } = OffscreenCanvasRenderingContext2D.prototype;
  OffscreenCanvasRenderingContext2D.prototype.getImageData = function (...args) {
    reads++;
    return getImageData.apply(this, args);
  };
  let buffers = 0;
  const { createBuffer } = GPUDevice.prototype;
  GPUDevice.prototype.createBuffer = function (...args) {
    buffers++;
    return createBuffer.apply(this, args);
  };
  const { load } = await import("/classifier/webmlc.js");
  const model = await load("/classifier/", { device });
  const canvas = Object.assign(document.createElement("canvas"), { width, height });
  const context = canvas.getContext("2d");
  const image = context.createImageData(width, height);
  for (let i = 0; i < image.data.length; i++) image.data[i] = i % 4 === 3 ? 255 : (i * 7919) % 251;
  context.putImageData(image, 0, 0);
  const img = new Image();
  img.src = canvas.toDataURL();
  await img.decode();
  const frame = new VideoFrame(canvas, { timestamp: 0 });
  const sources = { image, canvas, img, frame, bitmap: await createImageBitmap(canvas) };
  const results = {};
  for (const [name, source] of Object.entries(sources)) {
    results[name] = (await model.run({ image: source })).logits;
  }
  const onCpu = reads;
  const before = buffers;
  for (let i = 0; i < 5; i++) await model.run({ image: i % 2 ? frame : canvas });
  const allocated = buffers - before;
  const input = { image: canvas };
  const scores = { outputs: ["logits_scores"], results: "gpu" };
  const { dtype, shape } =
    device === "webgpu" ? (await model.run(input, scores)).logits_scores : {};
  const read = await model.run(input, { results: "gpu" }).catch(({ message }) => message);
  frame.close();
  const closed = await model.run({ image: frame }).catch(({ name }) => name);
  const foreign = new Image();
  const error = await model.run({ image: foreign }).catch(({ name }) => name);
  model.dispose();
  return { results, error, closed, onCpu, allocated, kept: [dtype, shape], read };
}"""
USE = """
export default async ({ page }) => {
  const picture = await page.evaluate(() => {
    const canvas = Object.assign(document.createElement("canvas"), { width: 40, height: 40 });
    canvas.getContext("2d").fillRect(0, 0, 40, 40);
    return canvas.toDataURL().split(",")[1];
  });
  const file = { name: "black.png", mimeType: "image/png", buffer: Buffer.from(picture, "base64") };
  await page.setInputFiles("input[type=file]", file);
  await page.click("button");
  await page.waitForSelector("#outputs figure");
  return page.locator("#outputs li").allTextContents();
};
"""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A blank page beside a classifier of pictures."""
    root = tmp_path_factory.mktemp("site")
    (root / "index.html").write_text('<!doctype html><link rel="icon" href="data:,">')
    (root / "use.mjs").write_text(USE)
    options = f"pixels=rgb,resize=32,crop=center,mean={list(MEAN)},std={list(STD)}"
    outputs = {"logits": {"topk": 3, "labels": LABELS}}
    build(classifier(), root / "classifier", inputs={"image": options}, outputs=outputs)
    return root


LISTEN = """async () => {
  const { load } = await import("/copier/webmlc.js");
  const model = await load("/copier/", { device: "wasm", threads: 1 });
  const length = 4410;
  const audio = new AudioBuffer({ length, numberOfChannels: 2, sampleRate: 44100 });
  const tone = (_, i) => Math.sin((2 * Math.PI * 440 * i) / 44100);
  audio.copyToChannel(Float32Array.from({ length }, tone), 0);
  const { y } = await model.run({ audio });
  model.dispose();
  return Array.from(y.data);
}"""


def test_pages_pass_sounds(tmp_path: Path) -> None:
    """The second channel is silent."""
    (tmp_path / "index.html").write_text('<!doctype html><link rel="icon" href="data:,">')
    build(copier("n"), tmp_path / "copier", "wasm", inputs={"audio": "samples=16000"})
    (report,) = open_pages({"/": tmp_path}, Page("/", LISTEN))
    np.testing.assert_allclose(report.value[EDGE:-EDGE], tone(RATE, 440)[EDGE:-EDGE] / 2, atol=2e-3)
    assert report.errors == []


def expected(site: Path, pixels: np.ndarray[Any, Any]) -> list[tuple[str, float]]:
    outputs = load(site / "classifier", "wasm").run({"image": pixels})
    classes = outputs["logits_classes"][0].tolist()
    return [
        (LABELS[i], s) for i, s in zip(classes, outputs["logits_scores"][0].tolist(), strict=True)
    ]


def test_pages_pass_pictures_and_see_labels(site: Path) -> None:
    script = str(site / "use.mjs")
    reports = open_pages(
        {"/": site},
        Page("/", RUN, arg=[WIDTH, HEIGHT, "wasm"]),
        Page("/classifier/index.html?device=wasm", script=script),
        Page("/", RUN, arg=[WIDTH, HEIGHT, "webgpu"]),
    )
    assert all(report.errors == [] for report in reports)
    numbers = np.arange(HEIGHT * WIDTH * 4)
    pixels = np.where(numbers % 4 == 3, 255, numbers * 7919 % 251).astype(np.uint8)
    pairs = expected(site, pixels.reshape(HEIGHT, WIDTH, 4))
    for report in (reports[0], reports[2]):
        results = report.value["results"]
        assert set(results) == {"image", "canvas", "img", "frame", "bitmap"}
        for name, items in results.items():
            assert [item["label"] for item in items] == [label for label, _ in pairs], name
            # A video frame may pass through YUV, which rounds.
            tolerance = 0.05 if name == "frame" else 1e-5
            scores = [item["score"] for item in items]
            np.testing.assert_allclose(scores, [s for _, s in pairs], atol=tolerance, err_msg=name)
        assert report.value["error"] == report.value["closed"] == "InputError"
    on_cpu, on_gpu = reports[0].value, reports[2].value
    # On the GPU, an image element; and video frames, which Chromium does not pass to SwiftShader.
    assert on_cpu["onCpu"] == 4 and on_gpu["onCpu"] in (1, 2)
    assert on_gpu["allocated"] == 0
    assert on_gpu["kept"] == ["float32", [1, 3]]
    for value in (on_cpu, on_gpu):
        assert value["read"].startswith('the page reads "logits"; to keep its tensors on the GPU')
    black = expected(site, np.full((40, 40, 4), [0, 0, 0, 255], np.uint8))
    shown = [f"{label} {100 * score:.1f} %" for label, score in black]
    assert reports[1].value == shown


ANSWER = """async (samples) => {
  const { pipeline } = await import("/speech/pipeline.js");
  const options = { device: "wasm", threads: 1 };
  const recognise = await pipeline("automatic-speech-recognition", "/speech/", options);
  const { length } = samples;
  const audio = new AudioBuffer({ length, numberOfChannels: 1, sampleRate: 8000 });
  audio.copyToChannel(Float32Array.from(samples), 0);
  const { text } = await recognise(audio);
  await recognise.dispose();
  const { load } = await import("/segmenter/webmlc.js");
  const canvas = Object.assign(document.createElement("canvas"), { width: 40, height: 30 });
  canvas.getContext("2d").fillRect(0, 0, 40, 20);
  const masks = [];
  for (const device of ["wasm", "webgpu"]) {
    const model = await load("/segmenter/", { device });
    const { scores } = await model.run({ image: canvas });
    masks.push([scores.constructor.name, scores.width, scores.height, scores.data[3]]);
    model.dispose();
  }
  return { text, masks };
}"""
SHOW = USE.replace(
    'locator("#outputs li").allTextContents()',
    'locator("#outputs canvas").evaluate(({ width, height }) => [width, height])',
)


HEAR = """
export default async ({ page, arg }) => {
  const file = { name: "speech.wav", mimeType: "audio/wav", buffer: Buffer.from(arg, "base64") };
  await page.setInputFiles("input[type=file]", file);
  await page.getByText("speech.wav").waitFor();
  await page.click("button");
  return page.locator("#outputs .text").textContent();
};
"""


def wave_file(samples: np.ndarray, rate: int) -> str:
    """A sound as a WAV file of float32, in base64."""
    data = samples.astype("<f4").tobytes()
    form = struct.pack("<IHHIIHH", 16, 3, 1, rate, 4 * rate, 4, 32)
    size = struct.pack("<I", len(data))
    head = b"RIFF" + struct.pack("<I", 36 + len(data)) + b"WAVEfmt " + form + b"data" + size
    return base64.b64encode(head + data).decode()


def test_pages_hear_texts_and_see_masks(tmp_path: Path) -> None:
    """The model of speech has no filter that depends on the rate: it hears 8000 samples a second
    as it hears 1000.
    """
    (tmp_path / "index.html").write_text('<!doctype html><link rel="icon" href="data:,">')
    (tmp_path / "show.mjs").write_text(SHOW)
    labels = {"ctc": True, "labels": SPEECH_LABELS, "space": "|"}
    build(recogniser(), tmp_path / "speech", "wasm", inputs={"audio": "samples=8000"},
          outputs={"logits": labels})  # fmt: skip
    build(segmenter(), tmp_path / "segmenter", inputs={"image": "pixels=rgb"},
          outputs={"scores": "alpha,foreground=0,result=pixels"})  # fmt: skip
    samples = sound(8000)
    (tmp_path / "hear.mjs").write_text(HEAR)
    heard = Page(
        "/speech/?device=wasm", script=str(tmp_path / "hear.mjs"), arg=wave_file(samples, 8000)
    )
    answer, page, speech = open_pages(
        {"/": tmp_path},
        Page("/", ANSWER, arg=samples.tolist()),
        Page("/segmenter/index.html?device=wasm", script=str(tmp_path / "show.mjs")),
        heard,
    )
    assert answer.errors == page.errors == speech.errors == []
    assert speech.value == answer.value["text"]
    assert answer.value["text"] == text_of(tokens_of(logits_of(samples), BLANK))
    assert answer.value["masks"] == [["ImageData", 40, 30, 0]] * 2  # black has no red
    assert page.value == [40, 40]

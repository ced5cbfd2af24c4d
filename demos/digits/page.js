// The page around the pad and the model: it shows which digit the network reads in a drawing.
//
// The package that `webmlc build` wrote is the folder `model/` beside this file.

import { downloadedBytes } from "./downloads.js";
import { load } from "./model/webmlc.js";
import { createPad } from "./pad.js";
import { imageOfStrokes, SIDE } from "./preprocess.js";
import { workOffline } from "./work_offline.js";

const PACKAGE = new URL("model/", import.meta.url).href;
const DEVICE_NAMES = { wasm: "CPU (WebAssembly)", webgpu: "GPU (WebGPU)" };
const ANNOUNCE_AFTER_MS = 700;
const MODEL_DATA = /\.(deflate|safetensors)$/;

const pad = element("pad", HTMLCanvasElement);
const inputCanvas = element("seen", HTMLCanvasElement);
const deviceChoice = element("device", HTMLSelectElement);
const progress = element("progress", HTMLProgressElement);
const bars = Array.from({ length: 10 }, (_, digit) => createBar(digit));

/** @type {Awaited<ReturnType<typeof load>> | null} */
let model = null;
let modelBytes = 0; // of the model's code and weights, which the browser caches
let loads = 0; // counts the choices of a device: only the latest load is used
let strokes = /** @type {import("./preprocess.js").Point[][]} */ ([]);
let reading = false;
let outdated = false;
let announcement = 0;

/**
 * @template {HTMLElement} T
 * @param {string} id
 * @param {{ new (): T }} type
 * @returns {T}
 */
function element(id, type) {
  const node = document.getElementById(id);
  if (!(node instanceof type)) throw new Error(`no ${type.name} named ${id}`);
  return node;
}

function say(/** @type {string} */ id, /** @type {string} */ words) {
  element(id, HTMLElement).textContent = words;
}

function createBar(/** @type {number} */ digit) {
  const item = document.createElement("li");
  const [name, track, bar, percent] = ["span", "span", "div", "span"].map((tag) => document.createElement(tag));
  name.textContent = String(digit);
  track.className = "track";
  bar.className = "bar";
  percent.className = "percent";
  percent.textContent = "–";
  track.append(bar);
  item.append(name, track, percent);
  element("bars", HTMLOListElement).append(item);
  return { item, bar, percent };
}

async function start() {
  const loadNumber = ++loads;
  const device = /** @type {"auto" | "wasm" | "webgpu"} */ (deviceChoice.value);
  model?.dispose();
  model = null;
  say("problem", "");
  say("fact-device", "loading…");
  progress.hidden = false;
  progress.value = 0;
  const onProgress = (/** @type {{ loaded: number, total: number }} */ { loaded, total }) => {
    if (loadNumber === loads) progress.value = total ? loaded / total : 0;
  };
  try {
    // One thread: a digit is so little work that waking a second thread would cost more than it saves.
    const loaded = await load(PACKAGE, { device, threads: 1, onProgress });
    if (loadNumber !== loads) return loaded.dispose();
    modelBytes = loaded.resources.download;
    // Engines compile some code lazily, in the first run: the page shows the time of later runs.
    await loaded.run({ image: { dtype: "float32", shape: [1, 1, SIDE, SIDE], data: new Float32Array(SIDE * SIDE) } });
    model = loaded;
    const threads = model.device === "wasm" ? `, ${model.threads} thread${model.threads === 1 ? "" : "s"}` : "";
    say("fact-device", DEVICE_NAMES[model.device] + threads);
    element("fact-device", HTMLElement).title = model.device === "wasm" ? model.threadsReason : model.deviceReason;
    say("fact-bytes", kilobytes(await downloaded()));
    say("fact-time", "draw to see");
    await read();
  } catch (error) {
    if (loadNumber !== loads) return;
    say("fact-device", "none");
    say("problem", error instanceof Error ? error.message : String(error));
  } finally {
    if (loadNumber === loads) progress.hidden = true;
  }
}

/** Run the model on the drawing. While it runs, only the newest drawing waits. */
async function read() {
  if (!model) return;
  if (reading) {
    outdated = true;
    return;
  }
  reading = true;
  try {
    do {
      outdated = false;
      await readOnce();
    } while (outdated);
  } catch (error) {
    say("problem", error instanceof Error ? error.message : String(error));
  } finally {
    reading = false;
  }
}

async function readOnce() {
  const image = imageOfStrokes(strokes);
  showInput(image);
  if (!model || strokes.length === 0) return showNothing();
  const begin = performance.now();
  const { probabilities } = await model.run({ image: { dtype: "float32", shape: [1, 1, SIDE, SIDE], data: image } });
  const elapsed = performance.now() - begin;
  if (strokes.length === 0) return showNothing();
  showReading(Array.from(/** @type {Float32Array} */ (probabilities.data)));
  say("fact-time", `${elapsed.toFixed(elapsed < 10 ? 2 : 0)} ms`);
}

function showNothing() {
  clearTimeout(announcement);
  say("digit", "–");
  for (const { item, bar, percent } of bars) {
    item.className = "";
    bar.style.transform = "scaleX(0)";
    percent.textContent = "–";
  }
}

function showReading(/** @type {number[]} */ probabilities) {
  const best = probabilities.indexOf(Math.max(...probabilities));
  say("digit", String(best));
  bars.forEach(({ item, bar, percent }, digit) => {
    item.className = digit === best ? "best" : "";
    bar.style.transform = `scaleX(${probabilities[digit].toFixed(4)})`;
    percent.textContent = `${Math.round(100 * probabilities[digit])} %`;
  });
  // A screen reader announces the result when drawing pauses, not at every point of a line.
  clearTimeout(announcement);
  announcement = window.setTimeout(() => {
    say("announcement", `Reads ${best}, ${Math.round(100 * probabilities[best])} percent`);
  }, ANNOUNCE_AFTER_MS);
}

/** Show the 8×8 image that the model receives, in the colours of the page. */
function showInput(/** @type {Float32Array} */ image) {
  const context = inputCanvas.getContext("2d");
  if (!context) return;
  const pixels = context.createImageData(SIDE, SIDE);
  const [red, green, blue] = getComputedStyle(pad).color.match(/\d+/g)?.map(Number) ?? [0, 0, 0];
  image.forEach((intensity, index) => {
    pixels.data.set([red, green, blue, Math.round((intensity * 255) / 16)], 4 * index);
  });
  context.putImageData(pixels, 0, 0);
}

/**
 * The bytes that this page has fetched, as sent. The browser lists the page and the runtime. The model's code and
 * weights go straight to a worker, so their bytes come from the model itself.
 */
async function downloaded() {
  return modelBytes + (await downloadedBytes((url) => !MODEL_DATA.test(url)));
}

function kilobytes(/** @type {number} */ bytes) {
  return `${(bytes / 1000).toFixed(0)} KB`;
}

const { clear } = createPad(pad, {
  onChange(drawn) {
    strokes = drawn;
    element("hint", HTMLElement).classList.toggle("gone", drawn.length > 0);
    void read();
    if (!model) showInput(imageOfStrokes(strokes));
  },
  onSay: (words) => say("announcement", words),
});
element("clear", HTMLButtonElement).addEventListener("click", () => {
  clear();
  say("announcement", "Cleared");
});
deviceChoice.addEventListener("change", () => void start());
await workOffline("./offline.js"); // before the model is loaded: the worker keeps what passes through it
await start();

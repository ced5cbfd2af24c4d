// The page of a package with typed values: choose a picture or a sound, and see what the model says. Other inputs are zeros.
// `?device=wasm|webgpu&threads=2` choose the device and the threads.

import { element, fact, item, openPage, showError, showFailure } from "../page.js";
import { load } from "../webmlc.js";

/** @typedef {import("./typed.d.ts").TypedModel<any, any>} Model */
/** @typedef {import("../webmlc.js").Port} Port */

/** The files that a field takes, by the kind of the input. @type {Record<string, string>} */
const FILE_TYPES = { pixels: "image/*", samples: "audio/*" };

/** A file field for each input of pixels or samples. @param {Model} model @returns {HTMLInputElement[]} */
function fileFields({ inputs, typed }) {
  return inputs
    .filter(({ name }) => typed[name])
    .map(({ name }) => {
      const [label, field] = [document.createElement("label"), document.createElement("input")];
      Object.assign(field, { type: "file", accept: FILE_TYPES[typed[name].kind], name, required: true });
      label.append(`${name} `, field);
      element("symbols").append(label);
      return field;
    });
}

/** A tensor of zeros for an input; sizes that a run chooses are 1. @param {Port} port */
function zeros({ dtype, shape }) {
  const sizes = shape.map((size) => (typeof size === "number" ? size : 1));
  const count = sizes.reduce((a, b) => a * b, 1);
  const arrays = { int64: BigInt64Array, float32: Float32Array, int32: Int32Array, float64: Float64Array };
  return { dtype, shape: sizes, data: new (arrays[/** @type {"int64"} */ (dtype)] ?? Uint8Array)(count) };
}

/** Draw pixels, or the opacity of pixels in gray. @param {string} name @param {import("./typed.d.ts").AlphaMask} pixels */
function show(name, { width, height, data }) {
  const canvas = Object.assign(document.createElement("canvas"), { width, height });
  const isOpacity = data.length === width * height;
  const rgba = isOpacity ? Uint8ClampedArray.from({ length: 4 * data.length }, (_, i) => (i % 4 === 3 ? 255 : data[i >> 2])) : data;
  canvas.getContext("2d")?.putImageData(new ImageData(new Uint8ClampedArray(rgba), width, height), 0, 0);
  canvas.setAttribute("role", "img");
  canvas.setAttribute("aria-label", name);
  canvas.style.maxWidth = "100%";
  const row = document.createElement("li");
  row.append(canvas);
  element("outputs").append(row);
}

/** @param {Model} model @param {HTMLInputElement[]} fields */
async function run(model, fields) {
  /** @type {Record<string, any>} */
  const feeds = Object.fromEntries(model.inputs.map((port) => [port.name, zeros(port)]));
  for (const { name, files } of fields) {
    const [file] = /** @type {FileList} */ (files);
    const { kind, rate = 0 } = model.typed[name];
    const decode = async () => new OfflineAudioContext(1, 1, rate).decodeAudioData(await file.arrayBuffer());
    feeds[name] = kind === "samples" ? await decode() : await createImageBitmap(file);
  }
  const start = performance.now();
  const outputs = await model.run(feeds);
  const milliseconds = performance.now() - start;
  element("outputs").replaceChildren();
  for (const [name, value] of Object.entries(outputs)) {
    if (value.dtype) item("outputs", `${name}: ${value.dtype}[${value.shape.join(", ")}]`);
    else if (value.width) show(name, value);
    else if (model.typed[name].kind === "text") for (const { text } of [value].flat()) item("outputs", text);
    else for (const { label, score } of value.flat()) item("outputs", `${label}: ${(100 * score).toFixed(1)} %`);
  }
  element("status").textContent = `Ran in ${milliseconds.toFixed(2)} ms.`;
}

async function main() {
  const options = openPage();
  /** @type {any} */
  const model = await load("./", {
    ...options,
    onProgress: ({ loaded, total }) => Object.assign(element("progress"), { value: loaded, max: total }),
  });
  element("progress").hidden = element("integers").hidden = true;
  element("name").textContent = document.title = model.name;
  for (const { name, dtype, shape } of model.inputs) {
    const type = `${dtype}[${shape.join(", ")}]`;
    item("inputs", `${name}: ${model.typed[name]?.kind ?? type}`);
  }
  fact("Device", `${model.device} (${model.deviceReason})`);
  fact("Threads", `${model.threads} (${model.threadsReason})`);
  fact("Download", `${model.resources.download.toLocaleString("en")} bytes`);
  const fields = fileFields(model);
  element("status").textContent = fields.length ? "Choose a file." : "";
  element("form").querySelector("button").textContent = "Run";
  element("model").hidden = false;
  element("form").addEventListener("submit", (/** @type {SubmitEvent} */ event) => {
    event.preventDefault();
    element("status").className = "";
    element("status").textContent = "Running…";
    run(model, fields).catch(showError);
  });
}

main().catch(showFailure);

// The page of a package: load the model in the same folder, describe it, and run it on random inputs.
// `?device=wasm|webgpu&threads=2` choose the device and the threads.

import { element, fact, item, openPage, showError, showFailure } from "./page.js";
import { load } from "./webmlc.js";

/** @typedef {import("./webmlc.js").Model} Model */
/** @typedef {import("./webmlc.js").Size} Size */

/** @param {number | null | undefined} bytes */
function byteText(bytes) {
  return bytes === null || bytes === undefined ? "depends on the input" : `${bytes.toLocaleString("en")} bytes`;
}

/** @param {Size} size @param {Record<string, number>} symbols @returns {number} */
function evaluate(size, symbols) {
  if (typeof size === "number") return size;
  if (typeof size === "string") return symbols[size];
  throw new Error("an input's dimension is an expression: run this model from your own page");
}

/**
 * Random values for an input: floats between -1 and 1, integers from 0 to below `limit`. All elements of a mask are 1.
 * @param {string} name @param {string} dtype @param {number} count @param {number} limit
 * @returns {any}
 */
function randomData(name, dtype, count, limit) {
  const float = () => Math.random() * 2 - 1;
  if (dtype === "float32") return Float32Array.from({ length: count }, float);
  if (dtype === "float64") return Float64Array.from({ length: count }, float);
  const end = dtype === "bool" || /type/.test(name) ? 2 : limit;
  const integer = () => (/mask/.test(name) ? 1 : Math.floor(Math.random() * end));
  if (dtype === "int64") return BigInt64Array.from({ length: count }, () => BigInt(integer()));
  if (dtype === "uint64") return BigUint64Array.from({ length: count }, () => BigInt(integer()));
  const arrays = { int8: Int8Array, int16: Int16Array, uint16: Uint16Array, int32: Int32Array, uint32: Uint32Array };
  const bits = dtype.endsWith("float16") ? Uint16Array : Uint8Array;
  const data = new (arrays[/** @type {keyof typeof arrays} */ (dtype)] ?? bits)(count);
  return /float/.test(dtype) ? data : data.map(integer);
}

/** Show the model's inputs and facts. @param {Model} model */
function describe(model) {
  element("name").textContent = document.title = model.name;
  for (const { name, dtype, shape } of model.inputs) item("inputs", `${name}: ${dtype}[${shape.join(", ")}]`);
  const symbols = new Set(model.inputs.flatMap((port) => port.shape).filter((size) => typeof size === "string"));
  for (const symbol of symbols) {
    const label = document.createElement("label");
    const input = document.createElement("input");
    Object.assign(input, { type: "number", min: "1", value: "1", name: symbol });
    label.append(`${symbol} `, input);
    element("symbols").append(label);
  }
  element("integers").hidden = model.inputs.every(({ name, dtype }) => !/^u?int/.test(dtype) || /mask/.test(name));
  const { weights, arena, memory, download } = model.resources;
  fact("Device", `${model.device} (${model.deviceReason})`);
  if (model.variant) fact("WebAssembly", model.variant);
  if (model.shaders) fact("Shaders", model.shaders);
  fact("Threads", `${model.threads} (${model.threadsReason})`);
  fact("Weights", byteText(weights));
  for (const [device, bytes] of Object.entries(arena)) fact(`Arena, ${device}`, byteText(bytes));
  if (arena.wasm !== undefined) fact("Memory, one thread", byteText(memory));
  fact("Download", byteText(download));
}

const WARM_RUNS = 20;
const WARM_MILLISECONDS = 1000; // no further run starts after this time

/** Run the model several times, because first results take longer. Show the outputs and the times. @param {Model} model */
async function run(model) {
  /** @type {Record<string, number>} */
  const symbols = {};
  for (const [name, value] of new FormData(element("form"))) symbols[name] = Number(value);
  const inputs = model.inputs.map(({ name, dtype, shape }) => {
    const sizes = shape.map((size) => evaluate(size, symbols));
    const count = sizes.reduce((a, b) => a * b, 1);
    return [name, { dtype, shape: sizes, data: randomData(name, dtype, count, symbols["#integers"]) }];
  });
  const feeds = Object.fromEntries(inputs);
  const times = [];
  /** @type {Record<string, import("./webmlc.js").Tensor>} */
  let outputs = {};
  for (const begin = performance.now(); times.length <= WARM_RUNS && !(performance.now() - begin > WARM_MILLISECONDS); ) {
    const start = performance.now();
    outputs = await model.run(feeds);
    times.push(performance.now() - start);
  }
  element("outputs").replaceChildren();
  for (const [name, { dtype, shape, data }] of Object.entries(outputs)) {
    const values = Array.from(/** @type {ArrayLike<any>} */ (data).length > 6 ? /** @type {any} */ (data).slice(0, 6) : data, String);
    item("outputs", `${name}: ${dtype}[${shape.join(", ")}] = ${values.join(", ")}${data.length > 6 ? ", …" : ""}`);
  }
  const [first, ...warm] = times;
  const median = warm.sort((a, b) => a - b)[warm.length >> 1];
  const repeats = warm.length ? `, then in ${median.toFixed(2)} ms (median of ${warm.length})` : "";
  element("status").textContent = `Ran in ${first.toFixed(2)} ms${repeats}.`;
}

async function main() {
  const options = openPage();
  const start = performance.now();
  const model = await load("./", {
    ...options,
    onProgress: ({ loaded, total }) => Object.assign(element("progress"), { value: loaded, max: total }),
  });
  element("status").textContent = `Loaded in ${(performance.now() - start).toFixed(0)} ms.`;
  element("progress").hidden = true;
  describe(model);
  element("model").hidden = false;
  element("form").addEventListener("submit", (/** @type {SubmitEvent} */ event) => {
    event.preventDefault();
    element("status").className = "";
    element("status").textContent = "Running…";
    event.submitter?.toggleAttribute("disabled", true);
    run(model)
      .catch(showError)
      .finally(() => event.submitter?.toggleAttribute("disabled", false));
  });
}

main().catch(showFailure);

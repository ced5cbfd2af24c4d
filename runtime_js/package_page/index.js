// The page of a package: load the model in the same folder, take values for its inputs, and show its outputs.
// `?device=wasm|webgpu&threads=2` choose the device and the threads.

import { create, element, fact, openPage, showError, showFailure } from "../page.js";
import { load } from "../webmlc.js";
import { inputField } from "./input_fields.js";
import { outputView } from "./output_views.js";

/** @typedef {import("../typed/typed.d.ts").TypedModel<any, any>} Model */
/** @import { Field } from "./input_fields.js" */

/** @param {number | null | undefined} bytes */
function byteText(bytes) {
  return bytes === null || bytes === undefined ? "depends on the input" : `${bytes.toLocaleString("en")} bytes`;
}

/** Show what the model is, and what it takes. @param {Model} model @returns {Field[]} a field for each input */
function describe(model) {
  element("name").textContent = document.title = model.name;
  const tensors = model.inputs.filter(({ name }) => !model.typed[name]);
  const symbols = new Set(tensors.flatMap((port) => port.shape).filter((size) => typeof size === "string"));
  const fields = model.inputs.map((port) => inputField(port, model.typed[port.name]));
  element("inputs").append(...fields.map(({ node }) => node));
  for (const symbol of symbols) {
    const input = Object.assign(create("input"), { type: "number", min: "1", value: "1", name: symbol });
    const label = create("label", `${symbol} `);
    label.append(input);
    element("symbols").append(label);
  }
  const { weights, arena, memory, download } = model.resources;
  fact("Device", `${model.device} (${model.deviceReason})`);
  if (model.variant) fact("WebAssembly", model.variant);
  if (model.shaders) fact("Shaders", model.shaders);
  fact("Threads", `${model.threads} (${model.threadsReason})`);
  fact("Weights", byteText(weights));
  for (const [device, bytes] of Object.entries(arena)) fact(`Arena, ${device}`, byteText(bytes));
  if (arena.wasm !== undefined) fact("Memory, one thread", byteText(memory));
  fact("Download", byteText(download));
  return fields;
}

const WARM_RUNS = 20;
const WARM_MILLISECONDS = 1000; // no further run starts after this time

/** Run the model several times, because first results take longer. Show the outputs and the times. @param {Model} model @param {Field[]} fields */
async function run(model, fields) {
  const symbols = Object.fromEntries(Array.from(element("symbols").querySelectorAll("input"), (input) => [input.name, Number(input.value)]));
  /** @type {Record<string, any>} */
  const feeds = {};
  for (const [i, { name }] of model.inputs.entries()) feeds[name] = await fields[i].read(symbols);
  for (const input of element("symbols").querySelectorAll("input")) input.value = String(symbols[input.name]); // a field may know it
  const times = [];
  /** @type {Record<string, any>} */
  let outputs = {};
  for (const begin = performance.now(); times.length <= WARM_RUNS && !(performance.now() - begin > WARM_MILLISECONDS); ) {
    const start = performance.now();
    outputs = await model.run(feeds);
    times.push(performance.now() - start);
  }
  element("outputs").replaceChildren(...Object.entries(outputs).map(([name, value]) => outputView(name, value, model.typed[name]?.kind)));
  const [first, ...warm] = times;
  const median = warm.sort((a, b) => a - b)[warm.length >> 1];
  const repeats = warm.length ? `, then in ${median.toFixed(2)} ms (median of ${warm.length})` : "";
  element("status").textContent = `Ran in ${first.toFixed(2)} ms${repeats}.`;
}

async function main() {
  const options = openPage();
  const start = performance.now();
  /** @type {any} */
  const model = await load("./", {
    ...options,
    onProgress: ({ loaded, total }) => Object.assign(element("progress"), { value: loaded, max: total }),
  });
  element("status").textContent = `Loaded in ${(performance.now() - start).toFixed(0)} ms.`;
  element("progress").hidden = true;
  const fields = describe(model);
  element("model").hidden = false;
  element("form").addEventListener("submit", (/** @type {SubmitEvent} */ event) => {
    event.preventDefault();
    element("status").className = "";
    element("status").textContent = "Running…";
    event.submitter?.toggleAttribute("disabled", true);
    run(model, fields)
      .catch(showError)
      .finally(() => event.submitter?.toggleAttribute("disabled", false));
  });
}

main().catch(showFailure);

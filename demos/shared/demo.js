// The parts that the pages of the demos share: loading packages, and the table of device, time and download.
//
//   const demo = await openDemo(load, { model: "./model/" }, "one file");
//   const outputs = await demo.run("model", inputs);       // shows the time of the run
//   await demo.task(async () => { ... });                  // shows the sum of the times of all runs inside
//
// A page has an element #facts for the table. The table's button runs the inputs of the last task with ONNX Runtime Web, too.
// It loads that from ../onnxruntime/ and the original models from ./original/, at the first click and not before.

import { downloadedBytes } from "./downloads.js";
import { element } from "./elements.js";
import { median, relativeDifference, showBytes, showTime } from "./figures.js";
import { Facts } from "./facts.js";
import { openOriginals } from "./onnxruntime.js";
import { workOffline } from "./work_offline.js";

/** @typedef {import("../../runtime_js/webmlc.js").Model} Model */
/** @typedef {import("../../runtime_js/webmlc.js").Outputs} Outputs */
/** @typedef {Record<string, import("../../runtime_js/webmlc.js").Tensor>} Feeds */
/** @typedef {Record<string, ArrayLike<number | bigint>>} Values */
/** @typedef {(outputs: any, original: Values) => Values[]} Comparable  what to compare of the outputs of both engines */
/** @typedef {{ name: string, inputs: Feeds, outputs: any, comparable: Comparable }} Run */

const WORKER = new URL("../offline.js", import.meta.url);
const COMPARISON = { rounds: 7, milliseconds: 6000 }; // the comparison ends after the rounds, or after the time
const PACKAGE_DATA = /\.(deflate|safetensors)$/; // fetched by workers, and therefore counted by the models

/** The bytes of the scripts and other files in the folders of the packages. @param {string[]} folders */
function scriptBytes(folders) {
  const bases = folders.map((folder) => new URL(folder, location.href).href);
  return downloadedBytes((url) => bases.some((base) => url.startsWith(base)) && !PACKAGE_DATA.test(url));
}

/** The values of each output. @type {Comparable} */
const allValues = (/** @type {Outputs} */ outputs, original) => [Object.fromEntries(Object.entries(outputs).map(([name, { data }]) => [name, data])), original];

export class Demo {
  /** @type {Run[]} Of the last task. */
  #runs = [];
  #milliseconds = 0;
  #isInTask = false;

  /** @param {Record<string, Model>} models @param {Facts} facts @param {string} unit */
  constructor(models, facts, unit) {
    this.models = models;
    this.facts = facts;
    this.unit = unit;
  }

  /** Run a model, and measure it. @param {string} name @param {Feeds} inputs @param {Comparable} comparable @returns {Promise<any>} */
  async run(name, inputs, comparable = allValues) {
    if (!this.#isInTask) this.#begin();
    const begin = performance.now();
    const outputs = await this.models[name].run(inputs);
    this.#milliseconds += performance.now() - begin;
    this.#runs.push({ name, inputs, outputs, comparable });
    if (!this.#isInTask) this.#end();
    return outputs;
  }

  /** Measure all runs of some work as one. @template T @param {() => Promise<T>} work @returns {Promise<T>} */
  async task(work) {
    this.#begin();
    this.#isInTask = true;
    try {
      return await work();
    } finally {
      this.#isInTask = false;
      this.#end();
    }
  }

  #begin() {
    this.#runs = [];
    this.#milliseconds = 0;
  }

  #end() {
    if (!this.#runs.length) return;
    this.facts.showRow(0, { time: showTime(this.#milliseconds) });
    this.facts.allowComparison();
  }

  /** Run the last task with both engines in turns, and show the medians of the times. */
  async compare() {
    const runs = this.#runs;
    const { device, threads } = Object.values(this.models)[0];
    const originals = await openOriginals(Object.keys(this.models), device, threads);
    const engines = [(/** @type {Run} */ { name, inputs }) => this.models[name].run(inputs), originals.run];
    /** @type {number[][]} */
    const times = [[], []];
    const start = performance.now();
    let difference = 0;
    for (let round = 0; round <= COMPARISON.rounds; round++) {
      for (const [index, execute] of engines.entries()) {
        const begin = performance.now();
        for (const run of runs) {
          const outputs = await execute(run);
          if (round > 0 || index === 0) continue;
          const [values, references] = run.comparable(run.outputs, /** @type {Values} */ (outputs));
          difference = Math.max(difference, relativeDifference(values, references));
        }
        if (round > 0) times[index].push(performance.now() - begin); // the first round is slower: engines compile lazily
      }
      if (round > 0 && performance.now() - start > COMPARISON.milliseconds) break;
    }
    times.forEach((values, index) => this.facts.showRow(index, { time: showTime(median(values)) }));
    this.facts.showRow(1, { device: originals.device, download: showBytes(originals.bytes) });
    const agreement = difference ? `The results differ by at most ${difference.toPrecision(1)} of the largest value.` : "The results are equal.";
    const rounds = times[0].length;
    this.facts.say(`${rounds === 1 ? "One run" : `Medians of ${rounds} runs`} of ${this.unit}, in turns. ${agreement} ${originals.note}`);
  }
}

/**
 * Load the packages of a page, and fill its table. The address may hold `?device=wasm|webgpu&threads=2`.
 * @param {(url: string, options: import("../../runtime_js/webmlc.js").LoadOptions) => Promise<Model>} load  of any package's webmlc.js
 * @param {Record<string, string>} packages  folders by name
 * @param {string} unit  what a time is measured for, such as "one file"
 * @param {"auto" | "wasm" | "webgpu"} preference  the device, unless the address names one
 */
export async function openDemo(load, packages, unit, preference = "auto") {
  const query = new URLSearchParams(location.search);
  const device = /** @type {typeof preference} */ (query.get("device") ?? preference);
  const threads = query.has("threads") ? Number(query.get("threads")) : undefined;
  const facts = new Facts(element("facts"), device, unit);
  try {
    const offline = await workOffline(WORKER);
    /** @type {Record<string, Model>} */
    const models = {};
    for (const [name, folder] of Object.entries(packages)) {
      const url = new URL(folder, location.href).href;
      models[name] = await load(url, { device, threads, onProgress: ({ loaded, total }) => facts.showProgress(loaded, total) });
    }
    const first = Object.values(models)[0];
    const cpu = `CPU, ${first.threads} ${first.threads === 1 ? "thread" : "threads"}`;
    const data = Object.values(models).reduce((sum, { resources }) => sum + resources.download, 0);
    facts.showRow(0, {
      device: first.device === "webgpu" ? "GPU (WebGPU)" : cpu,
      download: showBytes(data + (await scriptBytes(Object.values(packages)))),
    });
    if (first.device === "webgpu") facts.showReasons("Device", first.deviceReason, offline);
    else facts.showReasons("Threads", first.threadsReason, offline);
    const demo = new Demo(models, facts, unit);
    facts.onCompare = () => demo.compare();
    return demo;
  } catch (error) {
    facts.fail(error);
    throw error;
  }
}

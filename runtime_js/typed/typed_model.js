// Let a model take what pages have, and return what pages show.
//
//   in:  a loaded model, whose `typed` says which inputs and outputs are values of the page (webmlc/graph/typed)
//   out: the same model; `run` takes pictures and sounds, and returns what pages show for outputs, such as labels with scores
//
// Only models with typed values import this module.

import { InputError, PackageError } from "../errors.js";
import { readPixels, sizeOf } from "./pixels.js";
import { RESULTS } from "./results.js";

/** @import { Kind } from "./typed.d.ts" */
/** @import { RunOptions } from "../webmlc.js" */
/** @typedef {Pick<import("../types.d.ts").Base, "gpuPixels" | "samples">} Parts */
/** @typedef {(values: Record<string, any>, ...more: any[]) => Promise<Record<string, any>>} Run */

/**
 * The functions that make tensors of the page's values, by kind.
 * @type {Record<string, (base: Parts) => Promise<(name: string, value: any, kind: Kind) => any>>}
 */
const READERS = { pixels: async () => readPixels, samples: async (base) => (await base.samples()).readSamples };

/**
 * Change `run` and `profile` of a model. Throws PackageError if this runtime does not know a kind, or if the labels cannot be read.
 * @template {{ typed: Record<string, Kind>, gpuDevice: GPUDevice | null, run: any, profile: any, file: (path: string) => Promise<ArrayBuffer> }} M
 * @param {M} model
 * @param {Parts} base
 * @returns {Promise<M>}
 */
export async function withTypedValues(model, base) {
  const kinds = Object.entries(model.typed);
  const unknown = kinds.find(([, { kind, values }]) => !(values ? RESULTS : READERS)[kind]);
  if (unknown) throw new PackageError(`manifest.json: this runtime knows no values of kind ${unknown[1].kind}: rebuild the package`);
  /** @type {Record<string, string[]>} */
  const labels = {};
  const read = async (/** @type {[string, Kind]} */ [name, { labels: path }]) => {
    if (path) labels[name] = JSON.parse(new TextDecoder().decode(await model.file(path)));
  };
  /** @type {Record<string, (name: string, value: any, kind: Kind) => any>} */
  const readers = {};
  const findReader = async (/** @type {[string, Kind]} */ [name, { kind, values }]) => {
    if (!values) readers[name] = await READERS[kind](base);
  };
  await Promise.all([...kinds.map(read), ...kinds.map(findReader)]);
  /** @type {Run} */
  const run = model.run.bind(model);
  const profile = model.profile.bind(model);
  const feedsOf = (/** @type {Record<string, any>} */ inputs) => {
    const feeds = { ...inputs };
    for (const [name, kind] of kinds) if (name in readers && name in feeds) feeds[name] = readers[name](name, feeds[name], kind);
    return feeds;
  };
  const GpuPictures = model.gpuDevice && kinds.some(([, { kind }]) => kind === "pixels") ? (await base.gpuPixels()).GpuPictures : null;
  /** @type {import("./gpu_pixels.js").GpuPictures | undefined} */
  let pictures;
  // The values are read before this returns, as inputs are.
  model.run = async (/** @type {Record<string, any>} */ inputs, /** @type {RunOptions} */ options = {}, /** @type {any[]} */ ...more) => {
    checkResults(kinds, options);
    const { gpuDevice } = model;
    if (gpuDevice && GpuPictures && pictures?.device !== gpuDevice) pictures = new GpuPictures(gpuDevice);
    const reader = gpuDevice ? pictures : undefined; // another device may follow, while this run needs its buffers
    const onGpu = kinds.flatMap(([name, { kind }]) => {
      const pixels = kind === "pixels" ? reader?.read(inputs?.[name], ...sizeOf(inputs?.[name])) : null;
      return pixels ? [{ name, pixels }] : [];
    });
    try {
      const feeds = feedsOf({ ...inputs, ...Object.fromEntries(onGpu.map(({ name, pixels }) => [name, pixels])) });
      const tensors = await run(feeds, withTensors(model.typed, options), ...more);
      return withResults(kinds, tensors, labels, options.outputs);
    } finally {
      for (const { pixels } of onGpu) reader?.release(pixels);
    }
  };
  model.profile = async (/** @type {Record<string, any>} */ inputs) => profile(feedsOf(inputs));
  return model;
}

/**
 * The options of a run that returns tensors: the name of a typed output stands for all of its tensors.
 * @param {Record<string, Kind>} typed
 * @param {RunOptions} options
 */
function withTensors(typed, options) {
  if (!Array.isArray(options.outputs)) return options;
  return { ...options, outputs: options.outputs.flatMap((name) => typed[name]?.values ?? name) };
}

/**
 * Throw InputError if a typed output is to stay on the GPU: its values are read to make labels or texts of them.
 * @param {[string, Kind][]} kinds
 * @param {RunOptions} options
 */
function checkResults(kinds, { outputs, results = {} }) {
  const isKept = (/** @type {string} */ value) => results === "gpu" || (value in results && !ArrayBuffer.isView(results[value]));
  const [name] = kinds.find(([each, { values }]) => values?.some(isKept) && (outputs?.includes(each) ?? true)) ?? [];
  if (name === undefined) return;
  throw new InputError(`the page reads "${name}"; to keep its tensors on the GPU, name them in outputs`);
}

/**
 * Put the typed outputs in place of their tensors, but for tensors that were chosen by their own names.
 * @param {[string, Kind][]} kinds
 * @param {Record<string, any>} tensors
 * @param {Record<string, string[]>} labels
 * @param {readonly string[] | undefined} chosen  the names of the outputs; undefined for all
 */
function withResults(kinds, tensors, labels, chosen) {
  const outputs = { ...tensors };
  for (const [name, { kind, values }] of kinds) {
    if (!values || (chosen && !chosen.includes(name))) continue;
    for (const value of values) if (!chosen?.includes(value)) delete outputs[value];
    outputs[name] = RESULTS[kind](values.map((value) => tensors[value]), labels[name]);
  }
  return outputs;
}

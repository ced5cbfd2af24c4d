// Let a model take what pages have, and return what pages show.
//
//   in:  a loaded model, whose `typed` says which inputs and outputs are values of the page (webmlc/graph/typed)
//   out: the same model; `run` takes pictures for inputs of pixels, and returns labels with scores for outputs of classes

import { PackageError } from "../errors.js";
import { readPixels } from "./pixels.js";
import { RESULTS } from "./results.js";

/** @typedef {import("./typed.d.ts").Kind} Kind */
/** @typedef {(values: Record<string, any>, ...more: any[]) => Promise<Record<string, any>>} Run */

/** The functions that make tensors of the page's values. @type {Record<string, (name: string, value: any, kind: Kind) => any>} */
const READERS = { pixels: readPixels };

/** The models that were changed already. @type {WeakSet<object>} */
const typedModels = new WeakSet();

/**
 * Change `run` of a model, unless it has no typed values, or was changed already. Throws PackageError if this runtime does not
 * know a kind.
 * @template {{ typed: Record<string, Kind>, run: any, dispose: () => void, file: (path: string) => Promise<ArrayBuffer> }} M
 * @param {M} model
 * @returns {Promise<M>}
 */
export async function withTypedValues(model) {
  const kinds = Object.entries(model.typed);
  if (!kinds.length || typedModels.has(model)) return model;
  typedModels.add(model);
  const unknown = kinds.find(([, { kind, values }]) => !(values ? RESULTS : READERS)[kind]);
  if (unknown) throw new PackageError(`manifest.json: this runtime knows no values of kind ${unknown[1].kind}: rebuild the package`);
  /** @type {Record<string, string[]>} */
  const labels = {};
  const read = async (/** @type {[string, Kind]} */ [name, { labels: path }]) => {
    if (path) labels[name] = JSON.parse(new TextDecoder().decode(await model.file(path)));
  };
  try {
    await Promise.all(kinds.map(read));
  } catch (error) {
    model.dispose();
    throw error;
  }
  /** @type {Run} */
  const run = model.run.bind(model);
  // The values are read before this returns, as inputs are.
  model.run = async (/** @type {Record<string, any>} */ inputs, /** @type {any[]} */ ...more) => {
    const feeds = { ...inputs };
    for (const [name, kind] of kinds) if (!kind.values && name in feeds) feeds[name] = READERS[kind.kind](name, feeds[name], kind);
    const outputs = await run(feeds, ...more);
    for (const [name, kind] of kinds) if (kind.values) RESULTS[kind.kind](outputs, name, kind, labels[name]);
    return outputs;
  };
  return model;
}

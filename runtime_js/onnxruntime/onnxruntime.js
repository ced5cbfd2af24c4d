// The names of ONNX Runtime Web over packages:  import * as ort from "webmlc/onnxruntime";
//
//   const session = await ort.InferenceSession.create("./build/model/");
//   const { y } = await session.run({ x: new ort.Tensor("float32", data, [1, 3, 224, 224]) });
//
// docs/migrate.md lists what differs.

import { InputError } from "../errors.js";
import { load } from "../webmlc.js";
import { Tensor } from "../pipeline/tensor.js";

export { Tensor } from "../pipeline/tensor.js";

/** @typedef {import("../webmlc.js").Model} Model */
/** @typedef {import("./onnxruntime.js").SessionOptions} SessionOptions */
/** @typedef {string[] | Record<string, Tensor | null>} Fetches */

/** Settings of ONNX Runtime Web. `env.wasm.numThreads` is the number of CPU threads; the others have no effect. */
export const env = { wasm: { /** @type {number | undefined} */ numThreads: undefined }, webgpu: {}, logLevel: "warning" };

/** The devices of execution providers. @type {Record<string, "wasm" | "webgpu">} */
const PROVIDERS = { wasm: "wasm", cpu: "wasm", webgpu: "webgpu" };

export class InferenceSession {
  #model;

  /**
   * Load the package in the folder at `url`. Throws InputError for bytes: a package is compiled from them before.
   * @param {string | URL} url
   * @param {SessionOptions} [options]
   */
  static async create(url, options = {}) {
    if (typeof url !== "string" && !(url instanceof URL)) {
      throw new InputError("pass the URL of a package: `webmlc build model.onnx` compiles a model, pages do not");
    }
    return new InferenceSession(await load(url, { device: deviceOf(options.executionProviders), threads: env.wasm.numThreads }));
  }

  /** @param {Model} model  a loaded package */
  constructor(model) {
    this.#model = model;
    this.inputNames = model.inputs.map(({ name }) => name);
    this.outputNames = model.outputs.map(({ name }) => name);
    const metadata = (/** @type {import("../webmlc.js").Port} */ { name, dtype, shape }) => ({
      name,
      isTensor: true,
      type: dtype,
      shape: shape.map((size) => (Array.isArray(size) ? JSON.stringify(size) : size)),
    });
    this.inputMetadata = model.inputs.map(metadata);
    this.outputMetadata = model.outputs.map(metadata);
  }

  /**
   * Run the model. `fetches` are the names of the outputs to return, as an array or as the keys of an object.
   * @param {Record<string, Tensor>} feeds
   * @param {Fetches | object} [fetches]
   * @returns {Promise<Record<string, Tensor>>}
   */
  async run(feeds, fetches) {
    const names = this.#names(fetches);
    const inputs = Object.entries(feeds).map(([name, tensor]) => {
      if (!(tensor instanceof Tensor)) throw new InputError(`input ${name} is no Tensor`);
      return [name, tensor.forRuntime];
    });
    const outputs = await this.#model.run(Object.fromEntries(inputs), { outputs: names });
    return Object.fromEntries(names.map((name) => [name, Tensor.of(outputs[name])]));
  }

  /** The outputs to return. An object without names of outputs holds the options of a run. @param {any} fetches @returns {string[]} */
  #names(fetches) {
    if (!fetches) return this.outputNames;
    const names = Array.isArray(fetches) ? fetches : Object.keys(fetches);
    const unknown = names.find((name) => !this.outputNames.includes(name));
    if (unknown === undefined) return names.length ? names : this.outputNames;
    if (!Array.isArray(fetches) && names.every((name) => !this.outputNames.includes(name))) return this.outputNames;
    throw new InputError(`the model has no output ${unknown}; its outputs: ${this.outputNames.join(", ")}`);
  }

  /** Free the memory of the model. */
  async release() {
    this.#model.dispose();
  }

  startProfiling() {
    console.warn("webmlc: use `profile` of a model that `load` returned");
  }

  endProfiling() {}
}

/**
 * The device of the first provider that a package has; without providers, ONNX Runtime Web's default.
 * @param {SessionOptions["executionProviders"]} [providers]
 * @returns {"auto" | "wasm" | "webgpu"}
 */
function deviceOf(providers) {
  const names = (providers ?? ["wasm"]).map((provider) => (typeof provider === "string" ? provider : provider.name));
  const devices = names.flatMap((name) => PROVIDERS[name] ?? []);
  if (devices.length < names.length) console.warn(`webmlc: of the execution providers ${names.join(", ")}, there are wasm, cpu and webgpu`);
  return devices[0] === "webgpu" && devices.includes("wasm") ? "auto" : (devices[0] ?? "auto");
}

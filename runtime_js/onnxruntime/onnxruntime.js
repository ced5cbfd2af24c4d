// The names of ONNX Runtime Web over packages:  import * as ort from "webmlc/onnxruntime";
//
//   const session = await ort.InferenceSession.create("./build/model/");
//   const { y } = await session.run({ x: new ort.Tensor("float32", data, [1, 3, 224, 224]) });
//
// docs/migrate.md lists what differs.

import { InputError } from "../errors.js";
import { arrayKind, described, kindOf } from "../kinds.js";
import { bindMembers } from "../members.js";
import { RUNTIME_VERSION } from "../platform.js";
import { load } from "../webmlc.js";
import { Tensor } from "./tensor.js";

export { Tensor } from "./tensor.js";

/** @import { Model } from "../webmlc.js" */
/** @typedef {import("./onnxruntime.js").InferenceSession.SessionOptions} SessionOptions */
/** @typedef {readonly string[] | Record<string, Tensor | null>} Fetches */

/** The devices of execution providers. @type {Record<string, "wasm" | "webgpu">} */
const PROVIDERS = { wasm: "wasm", cpu: "wasm", webgpu: "webgpu" };

/** The device that the page chose for models on the GPU, and that of the first session. @type {{ chosen: any, first: any }} */
const gpuDevices = { chosen: null, first: null };

/** Settings of ONNX Runtime Web. `env.wasm.numThreads` and `env.webgpu.device` have an effect; the others need none. */
export const env = {
  wasm: { /** @type {number | undefined} */ numThreads: undefined },
  webgl: {},
  webgpu: {
    profiling: {},
    get device() {
      return Promise.resolve(gpuDevices.chosen ?? gpuDevices.first);
    },
    set device(/** @type {any} */ device) {
      gpuDevices.chosen = device;
    },
  },
  logLevel: "warning",
  versions: { common: RUNTIME_VERSION, web: RUNTIME_VERSION },
};

export class InferenceSession {
  #model;
  #locations;

  /**
   * Load the package in the folder at `url`. Throws InputError for bytes: a package is compiled from them before.
   * @param {string | URL} url
   * @param {SessionOptions} [options]
   */
  static async create(url, options = {}) {
    if (arrayKind(url) || ["ArrayBuffer", "SharedArrayBuffer", "Blob", "File"].includes(kindOf(url))) {
      throw new InputError("pass the URL of a package: `webmlc build model.onnx` compiles a model, pages do not");
    }
    const threads = env.wasm.numThreads || options.intraOpNumThreads || undefined; // 0 is the default of ONNX Runtime Web
    const model = await load(url, { device: deviceOf(options.executionProviders), threads });
    gpuDevices.first ??= model.gpuDevice;
    return new InferenceSession(model, options);
  }

  /** @param {Model} model  a loaded package @param {SessionOptions} [options] */
  constructor(model, { preferredOutputLocation } = {}) {
    this.#model = model;
    this.#locations = preferredOutputLocation;
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
    bindMembers(this);
  }

  /**
   * Run the model. `fetches` are the names of the outputs to return, as an array or as the keys of an object, whose tensors receive them.
   * @param {Record<string, any>} feeds
   * @param {Fetches | object} [fetches]
   * @returns {Promise<Record<string, any>>}
   */
  async run(feeds, fetches) {
    const names = this.#names(fetches);
    const inputs = Object.entries(feeds).map(([name, tensor]) => [name, inputOf(name, tensor)]);
    const results = Object.fromEntries(names.flatMap((name) => this.#receiver(name, fetches)));
    const outputs = await this.#model.run(Object.fromEntries(inputs), { outputs: names, results });
    return Object.fromEntries(names.map((name) => [name, this.#tensorOf(outputs[name], /** @type {any} */ (fetches)?.[name])]));
  }

  /** The outputs to return. An object without names of outputs holds the options of a run. @param {any} fetches @returns {readonly string[]} */
  #names(fetches) {
    if (!fetches) return this.outputNames;
    const names = Array.isArray(fetches) ? fetches : Object.keys(fetches);
    const unknown = names.find((name) => !this.outputNames.includes(name));
    if (unknown === undefined) return names.length ? names : this.outputNames;
    if (!Array.isArray(fetches) && names.every((name) => !this.outputNames.includes(name))) return this.outputNames;
    throw new InputError(`the model has no output ${unknown}; its outputs: ${this.outputNames.join(", ")}`);
  }

  /** The entry of `results` for an output: the caller's array or buffer, or "gpu"; none for a new array. @param {string} name @param {any} fetches */
  #receiver(name, fetches) {
    const tensor = Array.isArray(fetches) ? null : fetches?.[name];
    if (tensor) return [[name, inputOf(name, tensor).data]];
    const location = typeof this.#locations === "string" ? this.#locations : this.#locations?.[name];
    return location === "gpu-buffer" ? [[name, "gpu"]] : [];
  }

  /** A result as a tensor: the caller's, if that received it. @param {any} result @param {any} [receiver] @returns {Tensor} */
  #tensorOf({ dtype, shape, data, read, dispose }, receiver) {
    if (receiver && `${receiver.dims}` === `${shape}`) return receiver;
    if (!read) return Tensor.of({ dtype, shape, data });
    return Tensor.fromGpuBuffer(data, { dataType: dtype, dims: shape, download: async () => (await read()).data, dispose });
  }

  /** Free the memory of the model. */
  async release() {
    await this.#model.dispose();
  }

  startProfiling() {
    console.warn("webmlc: use `profile` of a model that `load` returned");
  }

  endProfiling() {}
}

/**
 * A tensor as the runtime takes it. It may be of another copy of this module, of ONNX Runtime Web, or cloned by a worker.
 * @param {string} name  of the input
 * @param {any} tensor
 */
function inputOf(name, tensor) {
  if (tensor?.forRuntime) return tensor.forRuntime;
  const { type, dims, location = "cpu" } = tensor ?? {};
  if (typeof type !== "string" || !Array.isArray(dims)) throw new InputError(`input ${name} is ${described(tensor)}, expected a Tensor`);
  return { dtype: type, shape: [...dims], data: location === "gpu-buffer" ? tensor.gpuBuffer : tensor.data };
}

/**
 * The device of the first provider that a package has; without providers, ONNX Runtime Web's default.
 * @param {SessionOptions["executionProviders"]} [providers]
 * @returns {any}
 */
function deviceOf(providers) {
  const options = (providers ?? ["wasm"]).map((provider) => (typeof provider === "string" ? { name: provider } : provider));
  const names = options.map(({ name }) => name);
  const devices = names.flatMap((name) => PROVIDERS[name] ?? []);
  if (devices.length < names.length) console.warn(`webmlc: of the execution providers ${names.join(", ")}, there are wasm, cpu and webgpu`);
  const pageDevice = options.map((provider) => /** @type {any} */ (provider).device).find(Boolean) ?? gpuDevices.chosen;
  if (devices[0] === "webgpu" && pageDevice) return pageDevice;
  return devices[0] === "webgpu" && devices.includes("wasm") ? "auto" : (devices[0] ?? "auto");
}

/** Execution providers are devices of a package: there is nothing to register. @param {string} name */
export function registerBackend(name) {
  console.warn(`webmlc: the backend ${name} is not used: packages run on wasm and webgpu`);
}

// ONNX Runtime Web records its own work. Packages are measured by `profile`.
export const TRACE = () => {};
export const TRACE_FUNC_BEGIN = () => {};
export const TRACE_FUNC_END = () => {};
export const TRACE_EVENT_BEGIN = () => {};
export const TRACE_EVENT_END = () => {};

export default { env, InferenceSession, registerBackend, Tensor, TRACE, TRACE_EVENT_BEGIN, TRACE_EVENT_END, TRACE_FUNC_BEGIN, TRACE_FUNC_END };

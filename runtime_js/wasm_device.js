// The page's side of the CPU: a worker that runs the model's WebAssembly, so that the page is not blocked. Whatever can be
// done asynchronously is done here, while the worker comes up and then computes: the module and the weights are fetched,
// the helpers opened.
//
//   in:  a stage's number, the symbols' values, bytes of uploaded buffers
//   out: bytes of the stage's downloads, after one message there and one back, or what repeats.js and short_runs.js do instead

import { fromData, HostError, InternalError, missingFeature, PackageError, toData } from "./errors.js";
import { usedOn } from "./memory_plan.js";
import { canShareMemory } from "./platform.js";
import { FAILURE, MESSAGE, repeat, repeatWords, ring } from "./repeats.js";
import { instantiateHere, Pace } from "./short_runs.js";
import { neededFiles } from "./sizes.js";
import { controlWords, withHelpers } from "./threads.js";
import { fetchFile, streamWeights } from "./weights.js";
import { Workers } from "./workers.js";

/** @typedef {import("./types.d.ts").Device} Device */
/** @typedef {import("./types.d.ts").Manifest} Manifest */
/** @typedef {import("./types.d.ts").ModuleRun} ModuleRun */
/** @typedef {import("./types.d.ts").Program} Program */
/** @typedef {import("./types.d.ts").Run} Run */
/** @typedef {import("./types.d.ts").Stage} Stage */
/** @typedef {import("./types.d.ts").Symbols} Symbols */
/** @typedef {import("./types.d.ts").Transfers} Transfers */
/** @typedef {import("./types.d.ts").Way} Way */
/** @typedef {import("./types.d.ts").WorkerDoor} WorkerDoor */
/** @typedef {"dot" | "relaxed" | "simd128"} Variant */
/** A request that can be made again. `binding`: the symbols, for which the memory must be bound. */
/** @typedef {{ slot: number, binding: string, downloads: Transfers, places: Map<string, Uint8Array>, pace: Pace }} Made */

/** @param {string} base64 */
function bytesOf(base64) {
  return Uint8Array.from(atob(base64), (character) => character.charCodeAt(0));
}

// (module (func (param v128 v128 v128) (result v128) (f32x4.relaxed_madd (local.get 0) (local.get 1) (local.get 2))))
const RELAXED_PROBE = bytesOf("AGFzbQEAAAABCAFgA3t7ewF7AwIBAAoNAQsAIAAgASAC/YUCCw==");

// (module (func (result v128) (i8x16.splat (i32.const 0))))
const SIMD_PROBE = bytesOf("AGFzbQEAAAABBQFgAAF7AwIBAAoIAQYAQQD9Dws=");

// (module (func (export "f") (result i32) (i32x4.extract_lane 0 (i32x4.relaxed_dot_i8x16_i7x16_add_s
//   (i8x16.splat (i32.const -128)) (i8x16.splat (i32.const 255)) (v128.const i32x4 0 0 0 0)))))
const DOT_PROBE = bytesOf("AGFzbQEAAAABBQFgAAF/AwIBAAcFAQFmAAAKJgEkAEGAf/0PQf8B/Q/9DAAAAAAAAAAAAAAAAAAAAAD9kwL9GwAL");

/** True where relaxed dot products take all eight bits of the second operand as unsigned, and add without saturating. */
function hasExactDot() {
  try {
    const { f } = /** @type {{ f: () => number }} */ (new WebAssembly.Instance(new WebAssembly.Module(DOT_PROBE)).exports);
    return f() === 4 * -128 * 255;
  } catch {
    return false; // a policy forbids it: so it will be said of the package's module
  }
}

/** True where this engine has WebAssembly and what the module uses. @param {BufferSource} module */
function validates(module) {
  return globalThis.WebAssembly?.validate(module) ?? false;
}

/** @type {Record<Variant, () => boolean>} The variants, the fastest first, and whether this engine runs them. */
const VARIANTS = {
  dot: () => VARIANTS.relaxed() && hasExactDot(),
  relaxed: () => validates(RELAXED_PROBE),
  simd128: () => validates(SIMD_PROBE),
};

/**
 * The variant of the module to run: the wanted one, or the fastest that the package has and the engine runs. Null for a
 * program without steps: it has no module; its outputs are inputs or constants.
 * @param {Record<string, string>} modules
 * @param {Variant | null} [wanted]
 * @returns {Variant | null}
 */
export function chooseVariant(modules, wanted) {
  if (!Object.keys(modules).length) return null;
  const names = wanted ? [wanted] : /** @type {Variant[]} */ (Object.keys(VARIANTS));
  const variant = names.find((name) => modules[name] && VARIANTS[name]());
  if (variant) return variant;
  if (!VARIANTS.simd128()) throw missingFeature(globalThis.WebAssembly ? "WebAssembly SIMD" : "WebAssembly (lockdown modes remove it)");
  if (wanted) throw new PackageError(`this engine cannot run the package's ${wanted} module`);
  throw new PackageError("the package has no WebAssembly module that this engine can run");
}

/**
 * The package's module of that path.
 * @param {URL} base
 * @param {Manifest} manifest
 * @param {string} path
 * @param {(bytes: number) => void} onBytes
 */
async function compile(base, manifest, path, onBytes) {
  const code = await fetchFile(base, manifest, path, onBytes);
  return WebAssembly.compile(code).catch((error) => {
    throw new HostError(`${path}: cannot be compiled (${error.message}); a Content-Security-Policy must allow 'wasm-unsafe-eval'`);
  });
}

const MAX_REQUESTS = 16;
const CALLER_DELAY_MS = 100; // between runs in a row helpers do not sleep
const HELPERS_DELAY_MS = 30; // most first runs are mostly compilation, which uses the other cores
const PAGE_BYTES = 4096; // of the operating system's memory, or a part of one
const LEAST_SPARE = 16 * PAGE_BYTES; // less is soon there

/** As many bytes of each, touched: to be given memory takes longer than to fill it. @param {Transfers} transfers @returns {Transfers} */
function roomFor(transfers) {
  return transfers.map(([name, { length }]) => {
    const bytes = new Uint8Array(length);
    for (let i = 0; i < length; i += PAGE_BYTES) bytes[i] = 0;
    return [name, bytes];
  });
}

/** A view of the model's own memory holds until the next stage: what is handed on is a copy. @param {Transfers} room @param {Transfers} views */
function fill(room, views) {
  for (const [i, [, bytes]] of room.entries()) bytes.set(views[i][1]);
  return room;
}

export class WasmDevice {
  /** @type {Stage[]} */
  stages = [];
  next = 0;
  /** @type {Map<number, { resolve: (result: any) => void, reject: (error: Error) => void }>} */
  pending = new Map();
  words = repeatWords();
  /** @type {Map<string, Made>} */
  made = new Map();
  slots = 0;
  threads = 1;
  inlineMilliseconds = 0; // see short_runs.js
  /** @type {Int32Array | null} Of the worker and its helpers. */
  control = null;
  /** @type {MessagePort[]} Of helpers that are not open yet. */
  ports = [];
  /** @type {WorkerDoor[]} */
  helpers = [];
  /** @type {WorkerDoor | null} */
  caller = null;
  bound = ""; // for which symbols the memory is
  /** @type {WebAssembly.Module | null} */
  module = null;
  /** @type {WebAssembly.Memory | null} The worker's, where it may be shared. */
  memory = null;
  /** @type {{ request: Made, room: Transfers } | null} For its next results. */
  spare = null;
  /** @type {ModuleRun | null} The module on the shared memory, for this thread. */
  here = null;
  /** @type {Error | null} */
  failure = null;

  /** Starts the worker at once: it comes up while the manifest is on its way. @param {URL} base the package's folder */
  constructor(base) {
    this.workers = new Workers(base);
    /** @type {WorkerDoor} */
    this.worker = this.workers.open(
      ({ id, result, error }) => {
        const call = this.pending.get(id);
        this.pending.delete(id);
        if (error) call?.reject(fromData(error));
        else call?.resolve(result);
      },
      (error) => this.#fail(error),
    );
  }

  /**
   * Download and compile; resolves when the model can run.
   * @param {URL} base
   * @param {Manifest} manifest
   * @param {Device} own
   * @param {number} threads
   * @param {string} path of the module; empty where there is none
   * @param {(bytes: number) => void} onBytes
   */
  async load(base, manifest, own, threads, path, onBytes) {
    const program = /** @type {Program} */ (manifest.programs[own]);
    const here = usedOn(program, "wasm", own);
    const files = neededFiles(manifest, program.buffers.filter(({ name }) => here.has(name)));
    const { words } = this;
    this.threads = threads;
    const control = threads > 1 ? controlWords() : null;
    const channels = Array.from({ length: path ? threads - 1 : 0 }, () => new MessageChannel());
    const ports = channels.map(({ port1 }) => port1);
    // Counted in shared memory: the worker's messages wait while the page has something to receive.
    const taken = canShareMemory ? new Int32Array(new SharedArrayBuffer(4)) : null;
    let handed = 0;
    const backlog = () => (taken ? handed - Atomics.load(taken, 0) : 0);
    const opened = this.#call({ type: "open", manifest, own, threads, files, ports, words, control, taken }, ports);
    const compiled = path ? compile(base, manifest, path, onBytes) : null; // first, so that weights are used as they come
    const downloads = files.map((file, i) => {
      const take = (/** @type {Uint8Array<ArrayBuffer>} */ chunk, /** @type {number} */ begin, /** @type {boolean} */ verified) => {
        handed++;
        return this.#call({ type: "take", file: i, chunk, begin, verified }, [chunk.buffer]);
      };
      return streamWeights(base, file, take, onBytes, compiled, backlog);
    });
    const started = compiled?.then((module) => this.#call({ type: "start", module }));
    [this.stages, this.module] = await Promise.all([opened, compiled, started, ...downloads]);
    this.control = control;
    this.ports = channels.map(({ port2 }) => port2);
  }

  /**
   * The downloads, the caller's own: by message the first time; later the bytes are put in their places, and the request is
   * repeated.
   * @param {number} stage
   * @param {Symbols} symbols
   * @param {Transfers} uploads
   * @returns {Promise<Transfers>}
   */
  async execute(stage, symbols, uploads) {
    const { words, made } = this;
    const binding = JSON.stringify(symbols);
    const key = `${stage} ${binding}`;
    const request = made.get(key);
    try {
      if (words && request && !this.failure) {
        return await this.#again(stage, request, words, uploads);
      }
      const slot = this.slots++ % MAX_REQUESTS;
      if (this.ports.length) setTimeout(() => this.#openHelpers(), HELPERS_DELAY_MS);
      const copies = uploads.map(([name, bytes]) => /** @type {const} */ ([name, bytes.slice()]));
      const transfer = copies.map(([, { buffer }]) => buffer);
      const { downloads, places, memory, moved } = await this.#call({ type: "execute", slot, stage, symbols, uploads: copies }, transfer);
      this.bound = binding;
      if (moved || made.size === MAX_REQUESTS) made.clear();
      if (moved || !this.memory) {
        this.memory = memory;
        this.here = null;
      }
      if (this.control && !this.caller) setTimeout(() => this.#openCaller(), CALLER_DELAY_MS);
      if (words) made.set(key, { slot, binding, downloads, places: new Map(places), pace: new Pace(this.threads, this.inlineMilliseconds) });
      return canShareMemory ? fill(roomFor(downloads), downloads) : downloads;
    } catch (error) {
      made.clear(); // the model's memory may have moved
      throw error;
    }
  }

  /**
   * Make a request again, in the worker or, where that is sooner, here. Who is to take part wakes up while the inputs are
   * copied.
   * @param {number} stage
   * @param {Made} request
   * @param {Int32Array} words
   * @param {Transfers} uploads
   * @returns {Promise<Transfers>}
   */
  async #again(stage, request, words, uploads) {
    const { binding, downloads, places, pace } = request;
    const { module, memory, control, threads } = this;
    const upload = () => {
      for (const [name, bytes] of uploads) places.get(name)?.set(bytes);
      uploads = [];
    };
    let room = this.#takeSpare(request);
    const way = module && memory && this.bound === binding ? pace.way : "there";
    if (module && memory && way !== "there" && !this.here) {
      upload(); // before this waits
      this.here = await instantiateHere(module, memory);
    }
    const run = way === "there" ? null : this.here;
    if (this.failure) throw this.failure;
    const begin = performance.now();
    if (run && memory) {
      const { module_first: first = 0, module_last: last = 0 } = /** @type {Run} */ (this.stages[stage].segment);
      const work = (/** @type {number} */ count) => {
        upload();
        run(first, last, 0, count);
      };
      try {
        if (control && way === "together") withHelpers(memory, control, true, () => work(threads));
        else work(1);
      } catch (error) {
        throw fromData(toData(error));
      }
    } else {
      upload();
      const repeated = repeat(words, request.slot, this.#answer(FAILURE));
      room ??= roomFor(downloads); // while the worker runs
      await repeated;
      this.pending.delete(FAILURE);
      this.bound = binding;
    }
    pace.took(way, performance.now() - begin);
    this.#makeSpare(request);
    return fill(room ?? roomFor(downloads), downloads);
  }

  /** Workers beside this device's: not opened before there is work for them, and those that make the model ready are done. */
  #openHelpers() {
    for (const port of this.ports.splice(0)) {
      if (this.failure) return;
      const fail = (/** @type {Error} */ error) => this.#fail(error);
      const helper = this.workers.open(({ error }) => error && fail(fromData(error)), fail);
      helper.post({ type: "help", port }, [port]).catch(fail);
      this.helpers.push(helper);
    }
  }

  /** The thread that wakes the helpers: not opened before a first result is there, and those that follow at once. */
  #openCaller() {
    if (this.failure || this.caller) return;
    const nobody = () => {}; // the leader wakes helpers itself where there is no caller
    this.caller = this.workers.open(nobody, nobody);
    this.caller.post({ type: "wake", control: this.control }).catch(nobody);
  }

  /** Make room for the next results between two runs, when no thread of the model has anything to do. @param {Made} request */
  #makeSpare(request) {
    const { downloads } = request;
    if (!downloads.some(([, { length }]) => length >= LEAST_SPARE)) return;
    setTimeout(() => {
      if (!this.failure) this.spare ??= { request, room: roomFor(downloads) };
    });
  }

  /** The room that was made for these results, if any. @param {Made} request @returns {Transfers | null} */
  #takeSpare(request) {
    const { spare } = this;
    this.spare = null;
    return spare?.request === request ? spare.room : null;
  }

  /**
   * Milliseconds of each step of a stage.
   * @param {number} stage
   * @param {Symbols} symbols
   * @param {Transfers} uploads
   * @returns {Promise<number[]>}
   */
  profile(stage, symbols, uploads) {
    this.bound = JSON.stringify(symbols);
    return this.#call({ type: "profile", stage, symbols, uploads });
  }

  dispose() {
    this.#fail(new InternalError("the model was disposed of"));
  }

  /** @param {Record<string, any>} message @param {Transferable[]} [transfer] @returns {Promise<any>} */
  #call(message, transfer = []) {
    if (this.failure) return Promise.reject(this.failure);
    const id = this.next++;
    const answer = this.#answer(id);
    const bell = this.words && ring(this.words, MESSAGE);
    this.worker.post({ ...message, id, bell }, transfer).catch((error) => this.pending.get(id)?.reject(error));
    return answer;
  }

  /** @param {number} id @returns {Promise<any>} */
  #answer(id) {
    return new Promise((resolve, reject) => this.pending.set(id, { resolve, reject }));
  }

  /** @param {Error} error */
  #fail(error) {
    this.failure ??= error;
    for (const worker of [this.worker, this.caller, ...this.helpers]) worker?.terminate();
    for (const { reject } of this.pending.values()) reject(error);
    this.pending.clear();
  }
}

// Run a model on the CPU. A worker runs the model's WebAssembly, so that the page is not blocked.
//
// This is the page's part. While the worker starts and computes, the page downloads the module and the weights, and starts the
// helpers.
//
//   in:  a stage, the values of the symbols, the bytes of uploads
//   out: the bytes of the stage's downloads
//
// The first time, a message to the worker requests the stage, and a message answers it. See repeats.js and short_runs.js for
// later times.

import { fromData, HostError, InternalError, toData } from "./errors.js";
import { LENGTH, usedOn } from "./memory_plan.js";
import { canShareMemory } from "./platform.js";
import { FAILURE, MESSAGE, repeat, repeatWords, ring } from "./repeats.js";
import { instantiateHere, Pace } from "./short_runs.js";
import { lengthOf, neededFiles } from "./sizes.js";
import { controlWords, withHelpers } from "./threads.js";
import { fetchFile, streamWeights } from "./weights.js";
import { Workers } from "./workers.js";

/** @typedef {import("./types.d.ts").Base} Base */
/** @typedef {import("./types.d.ts").Device} Device */
/** @typedef {import("./types.d.ts").Manifest} Manifest */
/** @typedef {import("./types.d.ts").ModuleRun} ModuleRun */
/** @typedef {import("./types.d.ts").Program} Program */
/** @typedef {import("./types.d.ts").Run} Run */
/** @typedef {import("./types.d.ts").Stage} Stage */
/** @typedef {import("./types.d.ts").States} States */
/** @typedef {import("./types.d.ts").Symbols} Symbols */
/** @typedef {import("./types.d.ts").Transfers} Transfers */
/** @typedef {import("./types.d.ts").Way} Way */
/** @typedef {import("./types.d.ts").WorkerDoor} WorkerDoor */
/** A request that can be repeated. `binding` is the symbols for which memory must be bound. */
/** @typedef {{ slot: number, binding: string, downloads: Transfers, places: Map<string, Uint8Array>, pace: Pace }} Repeatable */

/**
 * Download and compile a module.
 * @param {Base} base
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
const CALLER_DELAY_MS = 100; // after the first run: helpers do not sleep between runs that follow at once
const HELPERS_DELAY_MS = 30; // into the first run, which is mostly compilation and uses the other cores
const PAGE_BYTES = 4096; // bytes of the operating system's smallest page
const MIN_SPARE = 16 * PAGE_BYTES; // smaller results are allocated quickly

/**
 * Allocate arrays for copies. One byte of each page is written, because page faults cost more than the copy.
 * @param {Transfers} transfers
 * @returns {Transfers}
 */
function roomFor(transfers) {
  return transfers.map(([name, { length }]) => {
    const bytes = new Uint8Array(length);
    for (let i = 0; i < length; i += PAGE_BYTES) bytes[i] = 0;
    return [name, bytes];
  });
}

/** Copy views of the model's memory, which the next stage may overwrite. @param {Transfers} room @param {Transfers} views */
function fill(room, views) {
  for (const [i, [, bytes]] of room.entries()) bytes.set(views[i][1]);
  return room;
}

export class WasmDevice {
  /** @type {Stage[]} */
  stages = [];
  /** @type {Map<Stage, number>} The numbers of stages in the keys of requests. */
  numbers = new Map();
  nextId = 0;
  /** @type {Map<number, { resolve: (result: any) => void, reject: (error: Error) => void }>} By id of the message. */
  pending = new Map();
  /** @type {Int32Array | null} */
  words;
  /** @type {Map<string, Repeatable>} */
  requests = new Map();
  slots = 0; // counts requests by message
  threads = 1;
  hasLength = false; // of sessions
  inlineMilliseconds = 0; // see short_runs.js
  /** @type {Int32Array | null} The control words of the worker and its helpers. */
  control = null;
  /** @type {MessagePort[]} The ports of helpers that are not open yet. */
  ports = [];
  /** @type {WorkerDoor[]} */
  helpers = [];
  /** @type {WorkerDoor | null} */
  caller = null;
  binding = ""; // the symbols for which memory is bound
  /** @type {WebAssembly.Module | null} */
  module = null;
  /** @type {WebAssembly.Memory | null} The memory of the worker, if it can be shared. */
  memory = null;
  /** @type {{ request: Repeatable, room: Transfers } | null} Arrays for the next results of a request. */
  spare = null;
  /** @type {ModuleRun | null} The module's function, instantiated in this thread. */
  pageRun = null;
  /** @type {Error | null} */
  failure = null;

  /** Start the worker. @param {Base} base */
  constructor({ workers }) {
    this.words = workers.areThisThread ? null : repeatWords();
    this.workers = new Workers(workers);
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
   * Download and compile the program. Resolves when the model can run.
   * @param {Base} base
   * @param {Manifest} manifest
   * @param {Device} target
   * @param {number} threads
   * @param {string} path  of the module, or "" for a program without one
   * @param {(bytes: number) => void} onBytes
   */
  async load(base, manifest, target, threads, path, onBytes) {
    const program = /** @type {Program} */ (manifest.programs[target]);
    const names = usedOn(program, "wasm", target);
    const files = neededFiles(manifest, program.buffers.filter(({ name }) => names.has(name)));
    const { words } = this;
    this.threads = threads;
    this.hasLength = lengthOf(manifest) !== "";
    const control = threads > 1 ? controlWords() : null;
    const channels = Array.from({ length: path ? threads - 1 : 0 }, () => new MessageChannel());
    const ports = channels.map(({ port1 }) => port1);
    // The worker counts the chunks it took in shared memory, because its messages wait while the page receives data.
    const counter = canShareMemory ? new Int32Array(new SharedArrayBuffer(4)) : null;
    let chunks = 0;
    const backlog = () => (counter ? chunks - Atomics.load(counter, 0) : 0);
    const opening = this.#call({ type: "open", manifest, target, threads, files, ports, words, control, counter }, ports);
    // The module is requested before the weights, so that derived buffers are computed while weights arrive.
    const compilation = path ? compile(base, manifest, path, onBytes) : null;
    const downloads = files.map((file, i) => {
      const take = (/** @type {Uint8Array<ArrayBuffer>} */ chunk, /** @type {number} */ begin, /** @type {boolean} */ verified) => {
        chunks++;
        return this.#call({ type: "take", file: i, chunk, begin, verified }, [chunk.buffer]);
      };
      return streamWeights(base, file, take, onBytes, compilation, backlog);
    });
    const start = compilation?.then((module) => this.#call({ type: "start", module }));
    [this.stages, this.module] = await Promise.all([opening, compilation, start, ...downloads]);
    this.control = control;
    this.ports = channels.map(({ port2 }) => port2);
  }

  /**
   * Run a stage, and return copies of its downloads. The first time, a message requests the stage. Later the page writes the
   * uploads to their places in memory, and the request is repeated.
   * @param {Stage} stage
   * @param {Symbols} symbols
   * @param {Transfers} uploads
   * @param {States} [states]
   * @returns {Promise<Transfers>}
   */
  async execute(stage, symbols, uploads, states) {
    const { words, requests } = this;
    const binding = JSON.stringify([symbols, states?.id]);
    const number = this.numbers.get(stage) ?? this.numbers.size;
    this.numbers.set(stage, number);
    const key = `${number} ${binding}`;
    if (states && this.hasLength) uploads = [...uploads, [LENGTH, new Uint8Array(new Int32Array([states.length]).buffer)]];
    const request = requests.get(key);
    try {
      if (words && request && !this.failure) {
        return await this.#repeat(stage, request, words, uploads);
      }
      const slot = this.slots++ % MAX_REQUESTS;
      if (this.ports.length) setTimeout(() => this.#openHelpers(), HELPERS_DELAY_MS);
      const copies = uploads.map(([name, bytes]) => /** @type {const} */ ([name, bytes.slice()]));
      const transfer = copies.map(([, { buffer }]) => buffer);
      const { downloads, places, memory, isNew } = await this.#call({ type: "execute", slot, stage, symbols, uploads: copies, states }, transfer);
      this.binding = binding;
      if (isNew || requests.size === MAX_REQUESTS) requests.clear();
      if (isNew || !this.memory) {
        this.memory = memory;
        this.pageRun = null;
      }
      if (this.control && !this.caller) setTimeout(() => this.#openCaller(), CALLER_DELAY_MS);
      if (words) requests.set(key, { slot, binding, downloads, places: new Map(places), pace: new Pace(this.threads, this.inlineMilliseconds) });
      return canShareMemory ? fill(roomFor(downloads), downloads) : downloads;
    } catch (error) {
      requests.clear(); // the model's memory may be another now
      throw error;
    }
  }

  /**
   * Repeat a request, in the worker or in the page, whichever is faster. While the inputs are copied, the threads that take part
   * wake up.
   * @param {Stage} stage
   * @param {Repeatable} request
   * @param {Int32Array} words
   * @param {Transfers} uploads
   * @returns {Promise<Transfers>}
   */
  async #repeat(stage, request, words, uploads) {
    const { binding, downloads, places, pace } = request;
    const { module, memory, control, threads } = this;
    const upload = () => {
      for (const [name, bytes] of uploads) places.get(name)?.set(bytes);
      uploads = [];
    };
    let room = this.#takeSpare(request);
    const way = module && memory && this.binding === binding ? pace.way : "there";
    if (module && memory && way !== "there" && !this.pageRun) {
      upload(); // before `await`, after which the caller may change its inputs
      this.pageRun = await instantiateHere(module, memory);
    }
    const run = way === "there" ? null : this.pageRun;
    if (this.failure) throw this.failure;
    const begin = performance.now();
    if (run && memory) {
      const { module_first: first = 0, module_last: last = 0 } = /** @type {Run} */ (stage.segment);
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
      this.binding = binding;
    }
    pace.took(way, performance.now() - begin);
    this.#makeSpare(request);
    return fill(room ?? roomFor(downloads), downloads);
  }

  /** Start the helpers. They start late, to leave the cores to compilation and to the first run. */
  #openHelpers() {
    for (const port of this.ports.splice(0)) {
      if (this.failure) return;
      const fail = (/** @type {Error} */ error) => this.#fail(error);
      const helper = this.workers.open(({ error }) => error && fail(fromData(error)), fail);
      helper.post({ type: "help", port }, [port]).catch(fail);
      this.helpers.push(helper);
    }
  }

  /** Start the caller, which wakes the helpers. It starts late, because helpers do not sleep between runs that follow at once. */
  #openCaller() {
    if (this.failure || this.caller) return;
    const ignore = () => {}; // without a caller the leader wakes the helpers itself
    this.caller = this.workers.open(ignore, ignore);
    this.caller.post({ type: "wake", control: this.control }).catch(ignore);
  }

  /**
   * Allocate arrays for the next results between two runs, when all threads of the model are idle.
   * @param {Repeatable} request
   */
  #makeSpare(request) {
    const { downloads } = request;
    if (!downloads.some(([, { length }]) => length >= MIN_SPARE)) return;
    setTimeout(() => {
      if (!this.failure) this.spare ??= { request, room: roomFor(downloads) };
    });
  }

  /**
   * The arrays that were allocated for the results of a request, or null.
   * @param {Repeatable} request
   * @returns {Transfers | null}
   */
  #takeSpare(request) {
    const { spare } = this;
    this.spare = null;
    return spare?.request === request ? spare.room : null;
  }

  /**
   * Measure the milliseconds of each step of a stage.
   * @param {Stage} stage
   * @param {Symbols} symbols
   * @param {Transfers} uploads
   * @param {States} [states]
   * @returns {Promise<number[]>}
   */
  profile(stage, symbols, uploads, states) {
    this.binding = JSON.stringify([symbols, states?.id]);
    return this.#call({ type: "profile", stage, symbols, uploads, states });
  }

  /** Copies of the valid rows of each state. @param {States} states @returns {Promise<Transfers>} */
  readStates(states) {
    return this.#call({ type: "readStates", states });
  }

  /** Replace the rows of the states of a session. @param {Symbols} symbols @param {States} states @param {Transfers} rows */
  async writeStates(symbols, states, rows) {
    this.requests.clear(); // the memory of states may move
    await this.#call({ type: "writeStates", symbols, states, rows });
  }

  /** Free the states of a session. @param {States} states */
  release(states) {
    if (this.failure) return;
    this.requests.clear();
    this.#call({ type: "release", states }).catch(() => {});
  }

  /** Bytes, also of the rows that sessions have not filled. 0 before the first run, or if the memory cannot be shared. */
  get memoryBytes() {
    return this.memory?.buffer.byteLength ?? 0;
  }

  dispose() {
    this.#fail(new InternalError("the model was disposed of"));
  }

  /**
   * Post a message, and return its answer.
   * @param {Record<string, any>} message
   * @param {Transferable[]} [transfer]
   * @returns {Promise<any>}
   */
  #call(message, transfer = []) {
    if (this.failure) return Promise.reject(this.failure);
    const id = this.nextId++;
    const answer = this.#answer(id);
    const bell = this.words && ring(this.words, MESSAGE);
    this.worker.post({ ...message, id, bell }, transfer).catch((error) => this.pending.get(id)?.reject(error));
    return answer;
  }

  /** The answer to a message. @param {number} id @returns {Promise<any>} */
  #answer(id) {
    return new Promise((resolve, reject) => this.pending.set(id, { resolve, reject }));
  }

  /** End all workers and reject all requests. @param {Error} error */
  #fail(error) {
    this.failure ??= error;
    for (const worker of [this.worker, this.caller, ...this.helpers]) worker?.terminate();
    for (const { reject } of this.pending.values()) reject(error);
    this.pending.clear();
  }
}

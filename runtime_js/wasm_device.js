// Run a model on the CPU. A worker runs the model's WebAssembly, so that the page is not blocked.
//
// This is the page's part. While the worker starts and computes, the page downloads the module and the weights, and starts the
// helpers.
//
//   in:  a segment, the values of the symbols, the bytes of uploads
//   out: the bytes of the segment's downloads
//
// The first time, a message to the worker requests the segment, and a message answers it. See repeats.js and short_runs.js for
// later times.

import { fromData, HostError, modelDisposed, toData } from "./errors.js";
import { PAGE, PAGE_BYTES } from "./manifest_records.js";
import { buffersOf, LENGTH, memoryOf, moduleLast } from "./memory_plan.js";
import { canShareMemory } from "./platform.js";
import { abandon, FAILURE, MESSAGE, repeat, repeatWords, ring } from "./repeats.js";
import { instantiateHere, Pace } from "./short_runs.js";
import { lengthOf, neededFiles } from "./sizes.js";
import { controlWords, withHelpers } from "./threads.js";
import { fetchFile, streamWeights } from "./weights.js";
import { Workers } from "./workers.js";

/** @import { Base, Loading, ModuleRun, Run, States, Symbols, Transfers, Way, WorkerDoor } from "./types.d.ts" */
/** The symbols and the session for which memory is bound. @typedef {{ symbols: Symbols, session: number | undefined }} Bound */
/**
 * A request that can be repeated. `places` are those of the uploads, in order. `isLarge` says that results are slow to allocate.
 * @typedef {Bound & { slot: number, segment: Run, downloads: Transfers, places: Transfers, isLarge: boolean, pace: Pace }} Repeatable
 */

/** Download and compile the module of a program. @param {Loading} loading */
async function compile(loading) {
  const code = await fetchFile(loading, loading.module);
  return WebAssembly.compile(code).catch((error) => {
    throw new HostError(`${loading.module}: cannot be compiled (${error.message}); a Content-Security-Policy must allow 'wasm-unsafe-eval'`);
  });
}

const MAX_REQUESTS = 16;
const CALLER_DELAY_MS = 100; // after the first run: helpers do not sleep between runs that follow at once
const HELPERS_DELAY_MS = 30; // into the first run, which is mostly compilation and uses the other cores
const MOST_COUNTED = 1 << 26; // bytes after which V8 collects garbage, whatever else it has allocated
const COUNTED_PER_BYTE = 8; // so that at most 8 MB of small models wait for the collector
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

/** Copy bytes to places. @param {Transfers} places @param {Transfers} contents  in the order of the places */
function fill(places, contents) {
  for (let i = 0; i < contents.length; i++) places[i][1].set(contents[i][1]);
  return places;
}

/**
 * Let V8's collector of garbage count a memory that this thread has let go of: the views of the first run refer to it, too. V8
 * does not count shared memory, but it counts other memory, even if that was never written and takes no room.
 * @param {number} bytes
 */
function countMemory(bytes) {
  if (!bytes) return;
  try {
    new WebAssembly.Memory({ initial: Math.ceil(Math.min(COUNTED_PER_BYTE * bytes, MOST_COUNTED) / PAGE) });
  } catch {
    // There are no addresses left: that starts the collector, too.
  }
}

/** True if two requests need the same binding of memory. @param {Bound} a @param {Bound} b */
function areAlike(a, b) {
  return a.symbols === b.symbols && a.session === b.session;
}

export class WasmDevice {
  nextId = 0;
  /** @type {Map<number, { resolve: (result: any) => void, reject: (error: Error) => void }>} By id of the message. */
  pending = new Map();
  /** @type {Int32Array | null} */
  words;
  /** @type {Repeatable[]} */
  requests = [];
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
  /** @type {Bound | null} */
  bound = null;
  /** @type {WebAssembly.Module | null} */
  module = null;
  /**
   * The memory of the worker, if this thread has asked for it, to execute runs itself. Engines do not count shared memory when they
   * decide to collect garbage, so each object that refers to it may keep all of it for long.
   * @type {WebAssembly.Memory | null}
   */
  memory = null;
  /** The size of the memory after the last run, also of the rows that sessions have not filled. 0 if it cannot be shared. */
  memoryBytes = 0;
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

  /** Download and compile the program. Resolves when the model can run. @param {Loading} loading */
  async load(loading) {
    const { manifest, threads, module: path } = loading;
    const { program } = manifest;
    const files = neededFiles(manifest, buffersOf(memoryOf(program, "wasm")).map((number) => program.buffers[number]));
    const { words } = this;
    this.threads = threads;
    this.hasLength = lengthOf(manifest) !== "";
    const control = threads > 1 ? controlWords() : null;
    const channels = Array.from({ length: path ? threads - 1 : 0 }, () => new MessageChannel());
    const ports = channels.map(({ port1 }) => port1);
    this.ports = channels.map(({ port2 }) => port2);
    // The worker counts the chunks it took in shared memory, because its messages wait while the page receives data.
    const counter = canShareMemory ? new Int32Array(new SharedArrayBuffer(4)) : null;
    let chunks = 0;
    const backlog = () => (counter ? chunks - Atomics.load(counter, 0) : 0);
    const opening = this.#call({ type: "open", manifest, threads, files, ports, words, control, counter }, ports);
    // The module is requested before the weights, so that derived buffers are computed while weights arrive.
    const compilation = path ? compile(loading) : null;
    const downloads = files.map((file, i) => {
      const take = (/** @type {Uint8Array<ArrayBuffer>} */ chunk, /** @type {number} */ begin, /** @type {boolean} */ isHashed) => {
        chunks++;
        return this.#call({ type: "take", file: i, chunk, begin, isHashed }, [chunk.buffer]);
      };
      return streamWeights(loading, file, take, compilation, backlog);
    });
    const start = compilation?.then((module) => this.#call({ type: "start", module }));
    [this.module] = await Promise.all([compilation, opening, start, ...downloads]);
    this.control = control;
  }

  /**
   * Run a segment, and return copies of its downloads. The first time, a message requests it. Later the page writes the
   * uploads to their places in memory, and the request is repeated, in the worker or in the page, whichever is faster.
   * @param {Run} segment
   * @param {Symbols} symbols  an object that stands for all equal symbols
   * @param {Transfers} uploads
   * @param {States} [states]
   * @returns {Promise<Transfers> | Transfers}
   */
  execute(segment, symbols, uploads, states) {
    const session = states?.id;
    if (states && this.hasLength) uploads = [...uploads, [LENGTH, new Uint8Array(new Int32Array([states.length]).buffer)]];
    const request = this.failure ? undefined : this.requests.find((r) => r.segment === segment && r.symbols === symbols && r.session === session);
    if (!request) return this.#request(segment, symbols, uploads, states);
    const { way } = request.pace;
    if (way === "there" || !this.module || !this.bound || !areAlike(this.bound, request)) return this.#repeatThere(request, uploads);
    return this.pageRun ? this.#repeatHere(request, way, this.pageRun, uploads) : this.#repeatHereFirst(request, way, uploads);
  }

  /**
   * Request a segment by message.
   * @param {Run} segment
   * @param {Symbols} symbols
   * @param {Transfers} uploads
   * @param {States} [states]
   * @returns {Promise<Transfers>}
   */
  async #request(segment, symbols, uploads, states) {
    const { words, requests } = this;
    try {
      const slot = this.slots++ % MAX_REQUESTS;
      if (this.ports.length) setTimeout(() => this.#openHelpers(), HELPERS_DELAY_MS);
      const copies = uploads.map(([name, bytes]) => /** @type {const} */ ([name, bytes.slice()]));
      const transfer = copies.map(([, { buffer }]) => buffer);
      const { downloads, places, memoryBytes, isNew, haveMoved } = await this.#call({ type: "execute", slot, segment, symbols, uploads: copies, states }, transfer);
      this.bound = { symbols, session: states?.id };
      if (isNew || haveMoved || requests.length === MAX_REQUESTS) requests.length = 0;
      if (isNew) {
        countMemory(this.memoryBytes);
        this.memory = this.pageRun = null;
      }
      this.memoryBytes = memoryBytes;
      if (this.control && !this.caller) setTimeout(() => this.#openCaller(), CALLER_DELAY_MS);
      if (words) {
        const isLarge = downloads.some((/** @type {Transfers[number]} */ [, { length }]) => length >= MIN_SPARE);
        requests.push({ ...this.bound, slot, segment, downloads, places, isLarge, pace: new Pace(this.threads, this.inlineMilliseconds) });
      }
      return canShareMemory ? fill(roomFor(downloads), downloads) : downloads;
    } catch (error) {
      requests.length = 0; // the model's memory may be another now
      throw error;
    }
  }

  /** Repeat a request in the worker. While the inputs are copied, its helpers wake up. @param {Repeatable} request @param {Transfers} uploads */
  async #repeatThere(request, uploads) {
    const { downloads, places, isLarge, pace, slot, symbols, session } = request;
    const begin = performance.now();
    fill(places, uploads);
    try {
      const repeated = repeat(/** @type {Int32Array} */ (this.words), slot, this.#answer(FAILURE));
      const room = (isLarge && this.#takeSpare(request)) || roomFor(downloads); // while the worker runs
      await repeated;
      this.pending.delete(FAILURE);
      this.bound = { symbols, session };
      pace.took("there", performance.now() - begin);
      if (isLarge) this.#makeSpare(request);
      return fill(room, downloads);
    } catch (error) {
      this.requests.length = 0;
      throw error;
    }
  }

  /** Repeat a request in the page, which has no instance of the module yet. @param {Repeatable} request @param {Way} way @param {Transfers} uploads */
  async #repeatHereFirst(request, way, uploads) {
    fill(request.places, uploads); // before `await`, after which the caller may change its inputs
    this.memory = /** @type {WebAssembly.Memory} */ (await this.#call({ type: "memory" }));
    this.pageRun = await instantiateHere(/** @type {WebAssembly.Module} */ (this.module), this.memory);
    return this.#repeatHere(request, way, this.pageRun, []);
  }

  /**
   * Repeat a request in the page. While the inputs are copied, its helpers wake up.
   * @param {Repeatable} request
   * @param {Way} way
   * @param {ModuleRun} run
   * @param {Transfers} uploads
   * @returns {Transfers}
   */
  #repeatHere(request, way, run, uploads) {
    const { segment, downloads, places, isLarge, pace } = request;
    const { memory, control, threads } = this;
    if (this.failure) throw this.failure;
    const begin = performance.now();
    const work = (/** @type {number} */ count) => {
      fill(places, uploads);
      run(segment.module_first, moduleLast(segment), 0, count);
    };
    try {
      if (memory && control && way === "together") withHelpers(memory, control, true, () => work(threads));
      else work(1);
    } catch (error) {
      this.requests.length = 0;
      throw fromData(toData(error));
    }
    pace.took(way, performance.now() - begin);
    if (!isLarge) return downloads.map(([name, view]) => [name, view.slice()]);
    const room = this.#takeSpare(request) ?? roomFor(downloads);
    this.#makeSpare(request);
    return fill(room, downloads);
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
    setTimeout(() => {
      if (!this.failure) this.spare ??= { request, room: roomFor(request.downloads) };
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
   * Measure the milliseconds of each step of a segment.
   * @param {Run} segment
   * @param {Symbols} symbols
   * @param {Transfers} uploads
   * @param {States} [states]
   * @returns {Promise<number[]>}
   */
  profile(segment, symbols, uploads, states) {
    this.bound = { symbols, session: states?.id };
    return this.#call({ type: "profile", segment, symbols, uploads, states });
  }

  /** Copies of the valid rows of each state. @param {States} states @returns {Promise<Transfers>} */
  readStates(states) {
    return this.#call({ type: "readStates", states });
  }

  /** Replace the rows of the states of a session. @param {Symbols} symbols @param {States} states @param {Transfers} rows */
  async writeStates(symbols, states, rows) {
    this.requests.length = 0; // the memory of states may move, and the model's may be another
    this.memory = this.pageRun = null;
    this.memoryBytes = await this.#call({ type: "writeStates", symbols, states, rows });
  }

  /** Free the states of a session. @param {States} states */
  release(states) {
    if (this.failure) return;
    this.requests.length = 0;
    this.#call({ type: "release", states }).catch(() => {});
  }

  /** End the workers, and free the memory. Resolves when the workers have ended. */
  dispose() {
    return this.#fail(modelDisposed());
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

  /** End all workers, reject all requests, and let go of the memory. Resolves when the workers have ended. @param {Error} error */
  async #fail(error) {
    this.failure ??= error;
    for (const port of this.ports.splice(0)) port.close(); // it holds the memory, in a message that no helper reads
    for (const { reject } of this.pending.values()) reject(error);
    this.pending.clear();
    this.requests.length = 0;
    countMemory(this.memoryBytes);
    this.memoryBytes = 0;
    this.bound = this.spare = this.module = this.memory = this.pageRun = null;
    const ends = [this.worker, this.caller, ...this.helpers].map((worker) => worker?.terminate());
    if (this.words) abandon(this.words);
    await Promise.all(ends);
  }
}

// The worker in which a model's WebAssembly runs. The first one leads: it downloads, owns the memory and answers the
// page. For more threads it starts copies of itself, which share the memory and run the same program (SPMD).
//
//   in:  { id, type: "load" | "execute" | "profile", ... } from wasm_device.js
//   out: { id, result } or { id, error }, and { bytes } while downloading
//
// Between runs a helper thread spins briefly, then sleeps on the control words; no message is posted per run.

import { InternalError, PackageError, toData } from "./errors.js";
import { evaluate } from "./manifest.js";
import { layout, PAGE, SCRATCH_BASE, scratchStride, SLOT_TABLE, stages } from "./memory_plan.js";
import { parentPort, startWorker } from "./platform.js";
import { fetchFile, neededFiles, streamWeights } from "./weights.js";

/** @typedef {import("./manifest.js").Manifest} Manifest */
/** @typedef {import("./manifest.js").Program} Program */
/** @typedef {import("./manifest.js").Symbols} Symbols */
/** @typedef {import("./memory_plan.js").Layout} Layout */
/** @typedef {(first: number, last: number, tid: number, threads: number) => void} Run */
/** @typedef {{ base: string, manifest: Manifest, own: import("./manifest.js").Device, threads: number, module: string, ports: MessagePort[] }} Load */
/** @typedef {{ stage: number, symbols: Symbols, uploads: [string, Uint8Array][] }} Execute */
/** @typedef {{ tid: number, threads: number, module: WebAssembly.Module, memory: WebAssembly.Memory, control: Int32Array, seen: number, port: MessagePort }} Help */

// Control words shared by all threads.
const GENERATION = 0; // counts commands
const COMMAND = 1;
const FIRST = 2;
const LAST = 3;
const DONE = 4; // helpers that have finished the command
const RUN = 1;
const NEW_MEMORY = 2; // go back to the event loop: a message brings it

const SPINS = 4000; // some tens of microseconds: a pause between two runs, not between two frames
const MAX_PAGES = 65536;
const GROWTH = 1.5; // a symbolic model's memory that must grow again grows by this much at least

const parent = parentPort();

/** @param {WebAssembly.Module} module @param {WebAssembly.Memory} memory @returns {Run} */
function instantiate(module, memory) {
  return /** @type {Run} */ (new WebAssembly.Instance(module, { env: { memory } }).exports.run);
}

/** Wait until a control word is no longer `seen`. @param {Int32Array} control @param {number} word @param {number} seen */
function waitForChange(control, word, seen) {
  for (let i = 0; i < SPINS; i++) if (Atomics.load(control, word) !== seen) return;
  while (Atomics.load(control, word) === seen) Atomics.wait(control, word, seen);
}

/** A helper thread: run what the control words say until a message is announced. @param {Help} help */
function help({ tid, threads, module, memory, control, seen, port }) {
  try {
    const run = instantiate(module, memory);
    for (;;) {
      waitForChange(control, GENERATION, seen);
      seen++;
      if (Atomics.load(control, COMMAND) === NEW_MEMORY) return;
      run(Atomics.load(control, FIRST), Atomics.load(control, LAST), tid, threads);
      Atomics.add(control, DONE, 1);
      Atomics.notify(control, DONE);
    }
  } catch (error) {
    port.postMessage(toData(error)); // straight to the page: the leader waits in a barrier
  }
}

/** @param {Load} load @param {(bytes: number) => void} onBytes */
async function createLeader({ base, manifest, own, threads, module: path, ports }, onBytes) {
  const program = /** @type {Program} */ (manifest.programs[own]);
  const list = stages(manifest, own);
  const url = new URL(base);
  const code = fetchFile(url, manifest, path, onBytes).then((bytes) =>
    WebAssembly.compile(bytes).catch((error) => {
      throw new PackageError(`${path}: is no valid WebAssembly module here (${error.message})`);
    }),
  );
  code.catch(() => {}); // reported where it is awaited

  let memory = new WebAssembly.Memory({ initial: 0, maximum: 0, shared: true });
  let bytes = new Uint8Array(0);
  /** @type {Layout} */
  let plan;
  /** @type {Map<string, number>} */
  let sizes;
  let bound = "";
  /** @type {Run | undefined} */
  let run;
  const control = new Int32Array(threads > 1 ? new SharedArrayBuffer(64) : new ArrayBuffer(64));
  /** @type {import("./platform.js").WorkerPort[]} */
  const helpers = [];

  /** @param {number} total */
  function allocate(total) {
    const pages = Math.ceil(total / PAGE);
    if (pages > MAX_PAGES) throw new InternalError(`the model needs ${total} bytes: more than 32-bit memory holds`);
    try {
      memory = new WebAssembly.Memory({ initial: pages, maximum: pages, shared: true });
    } catch (error) {
      throw new InternalError(`cannot allocate ${pages * PAGE} bytes for the model (${toData(error).message})`);
    }
    bytes = new Uint8Array(memory.buffer);
  }

  /** @param {Symbols} symbols */
  function bind(symbols) {
    const key = JSON.stringify(symbols);
    if (key === bound) return;
    const next = layout(manifest, own, "wasm", symbols, threads);
    const stated = program.resources.arena.wasm ?? next.arena;
    if (next.arena !== stated) throw new InternalError(`the arena takes ${next.arena} bytes, the manifest says ${stated}`);
    if (next.total > bytes.length) grow(next);
    plan = next;
    sizes = new Map(program.buffers.map((b) => [b.name, evaluate(b.bytes, symbols)]));
    const words = new Int32Array(bytes.buffer);
    const slots = program.buffers.map((b) => plan.offsets.get(b.name) ?? plan.constants.get(b.name) ?? 0);
    words.set([...slots, ...manifest.symbols.map((s) => symbols[s.name])], SLOT_TABLE / 4);
    words.set([plan.scratch, scratchStride(program)], SCRATCH_BASE / 4);
    bound = key;
  }

  /** A larger memory with everything but the activations copied. @param {Layout} next */
  function grow(next) {
    const old = bytes;
    const kept = next.total - next.arena;
    const before = plan ? plan.arena : 0;
    allocate(plan && bound !== "" ? Math.max(next.total, kept + Math.ceil(before * GROWTH)) : next.total);
    bytes.set(old.subarray(0, kept));
    run = instantiate(compiled, memory);
    if (!helpers.length) return;
    command(NEW_MEMORY);
    const seen = Atomics.load(control, GENERATION);
    for (const helper of helpers) helper.post({ type: "memory", memory, seen });
  }

  /** @param {number} what */
  function command(what) {
    Atomics.store(control, COMMAND, what);
    Atomics.store(control, DONE, 0);
    Atomics.add(control, GENERATION, 1);
    Atomics.notify(control, GENERATION);
  }

  /** Module steps `first..last-1` on every thread. @param {number} first @param {number} last */
  function runSteps(first, last) {
    if (first === last) return;
    const main = /** @type {Run} */ (run);
    if (!helpers.length) return main(first, last, 0, 1);
    Atomics.store(control, FIRST, first);
    Atomics.store(control, LAST, last);
    command(RUN);
    main(first, last, 0, threads);
    for (let done = 0; done < helpers.length; done = Atomics.load(control, DONE)) waitForChange(control, DONE, done);
  }

  /** @param {string} name */
  function view(name) {
    const address = /** @type {number} */ (plan.offsets.get(name) ?? plan.constants.get(name));
    return bytes.subarray(address, address + (sizes.get(name) ?? 0));
  }

  /** @param {Execute} request */
  function start({ stage, symbols, uploads }) {
    bind(symbols);
    for (const [name, data] of uploads) view(name).set(data);
    return list[stage];
  }

  // Memory for the constants; for the activations too where their size is known.
  const smallest = Object.fromEntries(manifest.symbols.map((s) => [s.name, 0]));
  const first = layout(manifest, own, "wasm", smallest, threads);
  allocate(manifest.symbols.length ? first.total - first.arena : first.total);
  const addresses = new Map();
  for (const b of program.buffers) if (b.tensor && first.constants.has(b.name)) addresses.set(b.tensor, first.constants.get(b.name));
  const downloads = neededFiles(manifest, program).map((file) => {
    const destinations = Object.entries(file.tensors).flatMap(([tensor, [begin, end]]) => {
      const address = addresses.get(tensor);
      return address === undefined ? [] : [{ begin, end, view: bytes.subarray(address, address + end - begin) }];
    });
    return destinations.length ? streamWeights(url, file, destinations, onBytes) : undefined;
  });
  const weights = Promise.all(downloads);
  weights.catch(() => {}); // reported where it is awaited
  const compiled = await code;
  run = instantiate(compiled, memory);
  const ready = ports.map((port, i) => {
    const helper = startWorker();
    helpers.push(helper);
    const started = new Promise((resolve, reject) => {
      helper.listen(resolve);
      helper.onError((message) => reject(new InternalError(`a thread of the model failed: ${message}`)));
    });
    helper.post({ type: "help", tid: i + 1, threads, module: compiled, memory, control, seen: 0, port }, [port]);
    return started;
  });
  await Promise.all([weights, ...ready]);

  return {
    /** @param {Execute} request */
    execute(request) {
      const { segment, downloads: names } = start(request);
      runSteps(segment.module_first ?? 0, segment.module_last ?? 0);
      return names.map((name) => /** @type {[string, Uint8Array]} */ ([name, view(name).slice()]));
    },
    /** Milliseconds of each step. @param {Execute} request */
    profile(request) {
      const { segment } = start(request);
      const times = [];
      for (let step = segment.module_first ?? 0; step < (segment.module_last ?? 0); step++) {
        const before = performance.now();
        runSteps(step, step + 1);
        times.push(performance.now() - before);
      }
      return times;
    },
  };
}

/** @type {Awaited<ReturnType<typeof createLeader>>} */
let leader;
/** @type {Help} */
let helping;

parent.listen(async (message) => {
  if (message.type === "help") {
    helping = message;
    parent.post("ready");
    return help(helping);
  }
  if (message.type === "memory") {
    helping = { ...helping, memory: message.memory, seen: message.seen };
    return help(helping);
  }
  try {
    if (message.type === "load") {
      leader = await createLeader(message, (bytes) => parent.post({ bytes }));
      parent.post({ id: message.id, result: null });
    } else if (message.type === "profile") {
      parent.post({ id: message.id, result: leader.profile(message) });
    } else {
      const result = leader.execute(message);
      parent.post({ id: message.id, result }, result.map(([, data]) => data.buffer));
    }
  } catch (error) {
    parent.post({ id: message.id, error: toData(error) });
  }
});

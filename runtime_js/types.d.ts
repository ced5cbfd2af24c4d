// The types that modules of the runtime share. The types of the manifest are generated.

import type { BeginList, Bind, Collect, Jump, JumpUnless, Manifest, Measure, Move, Port, Program, Run, Stack, WeightFile } from "./manifest_types.d.ts";

export * from "./manifest_types.d.ts";

/** The unit of execution. */
export type Segment = Run | Bind | Measure | Move | BeginList | Collect | Stack | Jump | JumpUnless;

export type Device = "wasm" | "webgpu";
export type Symbols = Record<string, number>;

/** A manifest with one program, whose schedules and shaders were chosen for this host. */
export interface Chosen extends Omit<Manifest, "programs"> {
  program: Program;
  /** The device that the program was built for. */
  target: Device;
  /** The number of this CPU's class of machines, or 0. */
  machine: number;
}

/** A program that devices load, and what hears about their progress. */
export interface Loading {
  base: Base;
  manifest: Chosen;
  threads: number;
  /** The path of the WebAssembly module, or "". */
  module: string;
  onBytes(bytes: number): void;
  onPipeline(compiled: number, total: number): void;
}

/** Addresses in the memory of a device, and the bytes of buffers whose symbols are bound. */
export interface Layout {
  offsets: Map<string, number>;
  sizes: Map<string, number>;
  arena: number;
  constants: Map<string, number>;
  scratch: number;
  total: number;
  /** The offsets of the states in the block of a session, and the bytes of the block. */
  states: Map<string, number>;
  stateBytes: number;
  /** The states that do not grow. */
  replacedStates: Set<string>;
}

/**
 * The states of a session. Growing states have room for `capacity` rows, of which the first `length` are valid. The others are
 * zero at first. `symbols` are those of the last run. They are known when the session has begun.
 * Devices find the bytes by `id`.
 */
export interface States {
  id: number;
  capacity: number;
  length: number;
  symbols: Symbols | null;
}

/** The offset of a state in the block of a session, and the bytes of a row. A state that does not grow is one row. */
export interface StatePlace {
  offset: number;
  rowBytes: number;
  grows: boolean;
}
export type StatePlaces = Map<string, StatePlace>;

/** The bytes of buffers, with their names. */
export type Transfers = [string, Uint8Array][];

/** A value on the GPU: the first bytes of a buffer. */
export interface GpuSpan {
  buffer: GPUBuffer;
  bytes: number;
}

/** Values of buffers, with their names, some of which may be on the GPU. */
export type Uploads = [string, Uint8Array | GpuSpan][];

export interface Executor {
  /** The reason why it cannot run any more. */
  failure: Error | null;
  /** The size of the WebAssembly memory, if the executor has one that this thread can see. */
  memoryBytes?: number;
  /**
   * Reads the uploads before it returns. Equal symbols are one object (binder.js). With states, the symbol of their length has its largest value, for which memory is
   * planned; kernels see `states.length`. Only a GPU takes and returns values on it; `receivers` says where those go that stay.
   */
  execute(segment: Run, symbols: Symbols, uploads: Uploads, states?: States, receivers?: Map<string, GPUBuffer | null>): Promise<Uploads> | Uploads;
  profile(segment: Run, symbols: Symbols, uploads: Uploads, states?: States): Promise<number[]>;
  /** The bytes of the valid rows of each state on this device. */
  readStates(states: States): Promise<Transfers>;
  /** Replace the rows of the states of a session, whose length is the new one. */
  writeStates(symbols: Symbols, states: States, rows: Transfers): Promise<void>;
  /** Free the states of a session. */
  release(states: States): void;
  /** Resolves when its workers have ended. */
  dispose(): Promise<unknown> | void;
  /** Of a GPU. */
  device?: GPUDevice;
  valuesOf?(ports: Port[], results: any, inputs: Set<Uint8Array | GpuSpan>): import("./gpu_tensor.js").GpuValues;
}

/**
 * The base of a model: the files of its package, and the parts of the runtime that not every page needs. Each of the
 * runtime's main modules has its own way to find them.
 */
export interface Base {
  /** Of the package's folder. Ends in "/". */
  url: URL;
  /** The URL of the folder as the caller wrote it, for errors. */
  address: string;
  /** Fetch a file of the package: a path in its folder, or a URL. A signal may end the download. */
  open(path: string, signal?: AbortSignal): Promise<Response>;
  /** With the option `keepFiles`. */
  files?: KeptFiles;
  workers: WorkerSource;
  adapter(): Promise<Pick<typeof import("./adapter.js"), "findAdapter">>;
  webgpuDevice(): Promise<Pick<typeof import("./webgpu_device.js"), "WebGpuDevice">>;
  session(): Promise<Pick<typeof import("./session.js"), "openSession">>;
  runAlone(): Promise<Pick<typeof import("./run_alone.js"), "runAlone" | "statelessRuns" | "withStates">>;
  fileCache(): Promise<Pick<typeof import("./file_cache.js"), "withKeptFiles">>;
  fastestDevice(): Promise<Pick<typeof import("./fastest_device.js"), "openFastest">>;
  samples(): Promise<Pick<typeof import("./typed/samples.js"), "readSamples">>;
  gpuPixels(): Promise<Pick<typeof import("./typed/gpu_pixels.js"), "GpuPictures">>;
  texts(): Promise<Pick<typeof import("./texts.js"), "withTexts">>;
  typedValues(): Promise<Pick<typeof import("./typed/typed_model.js"), "withTypedValues">>;
}

/** The files of a package that the browser keeps. */
export interface KeptFiles {
  /** Where files came from, and which are kept. */
  readonly reason: string;
  use(manifest: Manifest): void;
}

/** How the workers of a model start. */
export interface WorkerSource {
  /** In the order in which they are tried. */
  ways: (() => any)[];
  /** True if the model runs in this thread, because it cannot start workers. There are no helpers then. */
  areThisThread: boolean;
  /** The name of the script, for errors. */
  script: string;
  /** The advice if no way works. */
  remedy: string;
}

/** A worker's connection to the page. */
export interface MessageDoor {
  post(message: any, transfer?: Transferable[]): void;
  listen(handler: (message: any) => void): void;
}

/** The page's connection to a worker. */
export interface WorkerDoor {
  /** Waits until the worker runs. Throws HostError if it does not start. */
  post(message: any, transfer?: Transferable[]): Promise<void>;
  /** Resolves when it has ended. */
  terminate(): Promise<unknown>;
}

/** Runs steps of a WebAssembly module. */
export type ModuleRun = (first: number, last: number, tid: number, threads: number) => void;

/** The exports of a WebAssembly module: see webmlc/target/wasm/emit_module.py. */
export interface ModuleExports {
  run: ModuleRun;
  /** Calls a parallel loop without iterations. Returns 0 if there is no such loop. */
  warm: (loop: number, calls: number) => number;
}

/** Who executes a run: the worker and its helpers, the page alone, or the page and those helpers. */
export type Way = "there" | "alone" | "together";

/** The data that a helper needs. */
export interface Help {
  module: WebAssembly.Module;
  memory: WebAssembly.Memory;
  tid: number;
  threads: number;
  control: Int32Array;
  /** The number of the memory, from 0. */
  generation: number;
}

/** The data that the leader needs. */
export interface Open {
  manifest: Chosen;
  threads: number;
  /** The weights files, in the order of their numbers in messages. */
  files: WeightFile[];
  /** The ports to the helpers. */
  ports: MessagePort[];
  control: Int32Array | null;
}

export interface Execute {
  segment: Run;
  symbols: Symbols;
  uploads: Transfers;
  states?: States;
}

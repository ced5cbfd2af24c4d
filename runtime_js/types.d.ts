// The types that modules of the runtime share. webmlc/package/manifest.py explains those of the manifest.

export type Device = "wasm" | "webgpu";
/** A dimension: an integer, a symbol's name, or [operator, Size, ...]. */
export type Size = number | string | [string, ...Size[]];
export type Symbols = Record<string, number>;

export interface Port {
  name: string;
  dtype: string;
  shape: Size[];
  buffer: string;
}

export interface Buffer {
  name: string;
  dtype: string;
  shape: Size[];
  kind: "input" | "constant" | "derived" | "state" | "scratch";
  /** The name of a constant in the weights. */
  tensor?: string;
}

/** The action of a step that calls no kernel. */
export interface Control {
  kind: "if" | "else" | "loop" | "next";
  target: number;
  symbol?: string;
  trips?: Size;
}

export interface Step {
  device: Device;
  kernel: string;
  arguments: string[];
  /** The number of arguments that are written: the last ones. */
  outputs: number;
  symbols?: string[];
  workgroups?: [Size, Size, Size];
  /** What the step launches instead on the machines of a class, by the number of the class. */
  alternatives?: Record<string, { kernel: string; workgroups: [Size, Size, Size] }>;
  /** The entry point on the GPU, if it does not have the name of the kernel. */
  entry?: string;
  /** What follows the symbols in the uniform. */
  integers?: number[];
  /** The workgroups of each section that a pipeline may leave out, in the order of the overrides of the shader. */
  sections?: Size[];
  /** What differs in variants of the shaders from the first one. */
  variants?: Record<string, Pick<Step, "workgroups" | "alternatives" | "entry" | "integers" | "sections">>;
  control?: Control;
  origin: string[];
}

/** Consecutive steps on one device. */
export interface Run {
  device: Device;
  first: number;
  last: number;
  module_first?: number;
  module_last?: number;
  /** True if it runs at load, and computes derived buffers. */
  once?: boolean;
}

/** Binds symbols during a run: `symbols[i]` is element `elements[i]` of the buffer `bind`. */
export interface Bind {
  bind: string;
  symbols: string[];
  elements: number[];
  origin: string[];
}

export type Segment = Run | Bind;

export interface Resources {
  weights: number;
  arena: Partial<Record<Device, number | null>>;
  memory: number | null;
  largest_binding: number | null;
  row?: { steps: number; bytes: number; bytes_per_row: number };
  scratch_per_thread: number;
  features: string[];
}

export interface Program {
  buffers: Buffer[];
  steps: Step[];
  segments: Segment[];
  resources: Resources;
  modules?: Record<string, string>;
  /** The files of the shaders by variant. The loader leaves one. */
  shaders?: Record<string, string>;
  /** The features that variants of the shaders need. The loader adds those of its variant to the resources. */
  shader_features?: Record<string, string[]>;
  /** The numbers of the float32 buffers that variants with `shader-f16` store as float16, and their arena. The loader applies them. */
  halves?: { buffers: number[]; arena: number | null };
  /** The number of this CPU's class of machines, or 0. The loader sets it. */
  machine?: number;
}

/** Machines with schedules of their own: see webmlc/core/machine_class.py. */
export interface MachineClass {
  device: Device;
  engine: string;
  adapter?: string;
  parallel?: boolean;
}

export interface WeightFile {
  path: string;
  bytes: number;
  chunk_bytes: number;
  /** The hash of the hashes of all chunks. */
  chunks_sha256: string;
  tensors: Record<string, [number, number]>;
}

export interface Manifest {
  format: string;
  version: number;
  name: string;
  compiler: string;
  symbols: { name: string; input: string; axis: number }[];
  inputs: Port[];
  outputs: Port[];
  sequences?: Record<string, string[] | null>;
  /** Inputs and outputs that are values of the page: see typed/typed.d.ts. */
  typed?: Record<string, { kind: string; rate?: number; values?: string[]; labels?: string }>;
  /** Conditions on symbols. The rules are in manifest.js. */
  requirements: [rule: string, left: Size, right: Size, node: string][];
  /** Each buffer holds an int32 per node: how many of its indices are out of range. */
  checks: [buffer: string, nodes: string[]][];
  /** Inputs and outputs of the model that states replace. */
  states?: StatePort[];
  /** The classes of machines for which some kernels have other schedules, numbered from 1. */
  machines?: MachineClass[];
  weights: { bytes: number; files: WeightFile[] };
  files: Record<string, { bytes: number; sha256: string }>;
  programs: Partial<Record<Device, Program>>;
}

/** A segment with its transfers: names of buffers. */
export interface Stage {
  segment: Segment;
  uploads: string[];
  downloads: string[];
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
 * The input and the output that the model had in place of a state. A past that is a buffer has an axis whose size is the symbol of
 * the capacity. A run writes at most `rows` rows to it, and the present has `size` rows.
 */
export interface StatePort {
  past: Port;
  present: string;
  rows?: Size;
  size?: Size;
}

/**
 * The states of a session. Those that grow have room for `capacity` rows, of which the first `length` are valid. The others are
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
  /** The stages of a run that returns all outputs. */
  stages: Stage[];
  /** The reason why it cannot run any more. */
  failure: Error | null;
  /** The size of the WebAssembly memory, if the executor has one that this thread can see. */
  memoryBytes?: number;
  /**
   * Reads the uploads before it returns. Equal symbols are one object (binder.js). With states, the symbol of their length has its largest value, for which memory is
   * planned; kernels see `states.length`. Only a GPU takes and returns values on it; `receivers` says where those go that stay.
   */
  execute(stage: Stage, symbols: Symbols, uploads: Uploads, states?: States, receivers?: Map<string, GPUBuffer | null>): Promise<Uploads> | Uploads;
  profile(stage: Stage, symbols: Symbols, uploads: Uploads, states?: States): Promise<number[]>;
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
 * What a model is loaded from: the files of its package, and the parts of the runtime that not every page needs. Each of the
 * runtime's main modules has its own way to find them.
 */
export interface Base {
  /** Of the package's folder. Ends in "/". */
  url: URL;
  /** The URL of the folder as the caller wrote it, for errors. */
  address: string;
  /** Fetch a file of the package: a path in its folder, or a URL. */
  open(path: string): Promise<Response>;
  /** With the option `keepFiles`. */
  files?: KeptFiles;
  workers: WorkerSource;
  adapter(): Promise<Pick<typeof import("./adapter.js"), "findAdapter">>;
  webgpuDevice(): Promise<Pick<typeof import("./webgpu_device.js"), "WebGpuDevice">>;
  session(): Promise<Pick<typeof import("./session.js"), "Session">>;
  runAlone(): Promise<Pick<typeof import("./run_alone.js"), "runAlone" | "statelessRuns" | "withStates">>;
  fileCache(): Promise<Pick<typeof import("./file_cache.js"), "withKeptFiles">>;
  fastestDevice(): Promise<Pick<typeof import("./fastest_device.js"), "openFastest">>;
  samples(): Promise<Pick<typeof import("./typed/samples.js"), "readSamples">>;
  gpuPixels(): Promise<Pick<typeof import("./typed/gpu_pixels.js"), "GpuPictures">>;
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
  /** What to do if no way works. */
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
  manifest: Manifest;
  target: Device;
  threads: number;
  /** The weights files, in the order of their numbers in messages. */
  files: WeightFile[];
  /** The ports to the helpers. */
  ports: MessagePort[];
  control: Int32Array | null;
}

export interface Execute {
  stage: Stage;
  symbols: Symbols;
  uploads: Transfers;
  states?: States;
}

// Types that the runtime's own files share; nothing here runs or is downloaded. The manifest is explained in
// webmlc/package/manifest.py.

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
  kind: "input" | "constant" | "derived" | "scratch";
  /** Of a constant: its name in the weights. */
  tensor?: string;
}

/** What a step that calls no kernel does instead: see webmlc/package/manifest.py. */
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
  /** How many of the last arguments are written. */
  outputs: number;
  symbols?: string[];
  workgroups?: [Size, Size, Size];
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
  /** Belongs to loading: it makes derived buffers. */
  once?: boolean;
}

/** Symbols that only a run knows: `symbols[i]` is element `elements[i]` of the buffer `bind`. */
export interface Bind {
  bind: string;
  symbols: string[];
  elements: number[];
  origin: string[];
}

/** What a host does next; a key of their own tells the kinds apart. */
export type Segment = Run | Bind;

export interface Resources {
  weights: number;
  arena: Partial<Record<Device, number | null>>;
  memory: number | null;
  largest_binding: number | null;
  scratch_per_thread: number;
  features: string[];
}

export interface Program {
  buffers: Buffer[];
  steps: Step[];
  segments: Segment[];
  resources: Resources;
  modules?: Record<string, string>;
  shaders?: string;
}

export interface WeightFile {
  path: string;
  bytes: number;
  chunk_bytes: number;
  chunks: string[];
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
  /** What symbols must fulfil: `left` is "equal" to `right`, "at most" as large, or equal unless one of them ("broadcast") or the left one ("stretch") is 1. */
  requirements: [rule: string, left: Size, right: Size, node: string][];
  /** Buffers of int32: for each node, how many of its indices are out of range. */
  checks: [buffer: string, nodes: string[]][];
  weights: { bytes: number; files: WeightFile[] };
  files: Record<string, { bytes: number; sha256: string }>;
  programs: Partial<Record<Device, Program>>;
}

/** A segment with its transfers. */
export interface Stage {
  segment: Segment;
  uploads: string[];
  downloads: string[];
}

/** Addresses in a device's memory, and the bytes of every buffer, as far as the symbols tell. */
export interface Layout {
  offsets: Map<string, number>;
  sizes: Map<string, number>;
  arena: number;
  constants: Map<string, number>;
  scratch: number;
  total: number;
}

/** Bytes of buffers by name. */
export type Transfers = [string, Uint8Array][];

export interface Executor {
  stages: Stage[];
  /** Why it runs no more. */
  failure: Error | null;
  /** Reads the uploads before it returns its promise. */
  execute(stage: number, symbols: Symbols, uploads: Transfers): Promise<Transfers>;
  profile(stage: number, symbols: Symbols, uploads: Transfers): Promise<number[]>;
  dispose(): void;
}

/** A worker's half of its conversation with the page. */
export interface MessageDoor {
  post(message: any, transfer?: Transferable[]): void;
  listen(handler: (message: any) => void): void;
}

/** The page's half. */
export interface WorkerDoor {
  /** Waits until the worker runs. Throws HostError if it did not start. */
  post(message: any, transfer?: Transferable[]): Promise<void>;
  terminate(): void;
}

/** Runs steps of a WebAssembly module. */
export type ModuleRun = (first: number, last: number, tid: number, threads: number) => void;

/** What a WebAssembly module exports: see webmlc/target/wasm/emit_module.py. */
export interface ModuleExports {
  run: ModuleRun;
  /** Calls a parallel loop for no iterations; 0 where there is no such loop. */
  warm: (loop: number, calls: number) => number;
}

/** Who makes a run: the worker and its helpers; the page alone; the page and those helpers. */
export type Way = "there" | "alone" | "together";

/** What a helper thread is started with. */
export interface Help {
  module: WebAssembly.Module;
  memory: WebAssembly.Memory;
  tid: number;
  threads: number;
  control: Int32Array;
  /** Which of the model's memories that is, from 0. */
  generation: number;
}

/** What the leading thread is started with. */
export interface Open {
  manifest: Manifest;
  own: Device;
  threads: number;
  /** Of weights, as they will come. */
  files: WeightFile[];
  /** To the helpers. */
  ports: MessagePort[];
  control: Int32Array | null;
}

export interface Execute {
  stage: number;
  symbols: Symbols;
  uploads: Transfers;
}

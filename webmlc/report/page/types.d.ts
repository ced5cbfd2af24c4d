// The data of a report, as `webmlc/report/write_report.py` writes them. Numbers refer to the arrays of nodes, steps, kernels and buffers.

export interface Node {
  name: string;
  op?: string;
  inputs?: string[];
  outputs?: string[];
  attributes?: string;
  types?: string[];
  parent?: number;
  /** A key of `Data.fates`; missing if a step computes the node. */
  fate?: string;
  /** The pass that decided the fate. */
  stage?: string;
}

export interface View {
  name: "layers" | "computation" | "model";
  items: { nodes: number[]; label?: string }[];
  /** The column and the row of each item. */
  places: [number, number][];
  edges: [number, number][];
}

export interface Step {
  kernel: number;
  device: "wasm" | "webgpu";
  nodes: number[];
  /** The names of nodes that the model does not list. */
  origin: string[];
  /** The nodes of each stage of the kernel, if stages compute different nodes. */
  stages?: number[][];
  reads: number[];
  writes: number[];
  /** Bytes that the step must read and write. */
  least: number;
  flops?: number;
  /** Bytes between registers and memory, caches included. */
  moved?: number;
  /** Of a step on the GPU. */
  dispatch?: Dispatch;
  once?: boolean;
  reason?: string;
  control?: string;
  /** The lines of the module that run it: the first, and the one after the last. */
  calls?: [number, number];
}

export interface Dispatch {
  workgroups: number;
  invocations: number;
  /** Bytes of workgroup memory of each workgroup. */
  shared_bytes: number;
  /** An estimate of the registers of each invocation. */
  registers: number;
  /** The bytes that loads and stores move, by level of memory. */
  bytes: { registers: number; workgroup: number; storage: number };
  /** The bound of the dispatch on each class of adapters, and the fewest microseconds that it takes. */
  bounds: Record<string, [string, number]>;
}

/** The code of a kernel in one text, and how it was made. */
export interface Code {
  /** The text that holds it: a key of `Data.texts`. */
  text: string;
  /** Its first line, and the line after its last one. */
  lines?: [number, number];
  /** Runs of lines that compute the same stages: the first line, counted from the kernel's first one, then the stages. */
  stages?: number[][];
  rule?: string;
  trace?: string[];
  loops?: string;
  tuning?: { changes: Record<string, unknown>; platform: string; ratio: number };
}

export interface Kernel extends Code {
  name: string;
  /** Its code in the other variants of the shaders. */
  others?: Code[];
}

export interface Memory {
  device: "wasm" | "webgpu";
  /** Buffer, first step, last step, offset, bytes. */
  boxes: [number, number, number, number, number][];
  bytes: number;
  scratch: number;
  states: number;
  total: number;
}

export interface Program {
  steps: Step[];
  kernels: Kernel[];
  /** Name, type, kind and bytes. */
  buffers: [string, string, string, number][];
  memory: Memory[];
  binds: number;
  weights: number;
  total: number | null;
  binding: number | null;
  arena: Record<string, number | null>;
}

/** The values and functions with which the page runs the CPU program, or the reason why it cannot. */
export interface Run {
  reason?: string;
  total: number;
  slots: number[];
  scratch: [number, number];
  /** Address and bytes of each real constant, in the order of the part "constants". */
  constants: [number, number][];
  /** Address, bytes and type of what is filled with random numbers. */
  fills: [number, number, string][];
  /** The number in the module of each step. */
  steps: number[];
  accumulators: number;
}

export interface Data {
  name: string;
  compiler: string;
  model: string;
  symbols: Record<string, number>;
  inputs: { name: string; type: string }[];
  outputs: { name: string; type: string }[];
  operators: { operator: string; nodes: number; from: string }[];
  fates: Record<string, string>;
  nodes: Node[];
  views: View[];
  programs: Partial<Record<"wasm" | "webgpu", Program>>;
  downloads: { path: string; bytes: number; kind: string; devices: string[] }[];
  tensors: { name: string; type: string; bytes: number }[];
  texts: Record<string, string>;
  run: Run;
}

/** The selection: any of a node, a step of the program and a line of its code. */
export interface Selection {
  node?: number;
  step?: number;
  line?: number;
}

/** Milliseconds of each step of a program, and how they were measured. */
export interface Times {
  steps: (number | undefined)[];
  total: number;
  whole: number;
  how: string;
  /** Operations and bytes per second, if they were measured. */
  peak?: { flops: number; bytes: number };
}

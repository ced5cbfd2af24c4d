// The data of webmlc/tune/trial.py, as JSON. Bytes are in base64.

export interface TrialBuffer {
  offset: number;
  size: number;
  dtype: string;
  pattern: string; // "" for an output
}

export interface Protocol {
  rounds: number;
  grace: number;
  sample_ms: number;
  warmup_ms: number;
  hopeless: number;
  max_repeats: number;
}

export interface Trial {
  device: "wasm" | "webgpu";
  threads: number;
  candidates: number;
  buffers: TrialBuffer[];
  calls: number[][];
  total_bytes: number;
  tolerance: number;
  protocol: Protocol;
  module: string;
  pages: number;
  steps: number;
  repeats_address: number;
  words: [number, number[]][];
  shaders: string[];
  entries: string[];
  read_only: boolean[];
  workgroups: [number, number, number][];
  uniform: number[];
}

export interface Measurement {
  milliseconds: number[][];
  reasons: string[];
}

/** The candidates of a trial, ready to run. */
export interface Runner {
  /** Poison the output buffers, run the candidate once, and return them, in order. */
  outputs(candidate: number): Uint8Array[] | Promise<Uint8Array[]>;
  /** The milliseconds that some repetitions of the candidate take. */
  sample(candidate: number, repeats: number): number | Promise<number>;
  stop(): void;
}

export interface Helper {
  help: () => void;
  stop: () => void;
}

export type StartHelper = (tid: number, module: WebAssembly.Module, memory: WebAssembly.Memory, threads: number) => Helper;

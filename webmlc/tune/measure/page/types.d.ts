// The data of webmlc/tune/measure/trial.py as JSON, where bytes are in base64, and the interfaces between the files of this folder.

export interface TrialBuffer {
  offset: number;
  size: number;
  dtype: string;
  pattern: string; // "" for an output
}

export interface Protocol {
  rounds: number;
  fewest: number;
  limit_ms: number;
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
  /** The milliseconds of a sample without repetitions, after `outputs(0)`. */
  overhead(): number | Promise<number>;
  /** True if an error leaves the other candidates without a device. */
  readonly isLost: boolean;
  stop(): void;
}

/** How far a measurement is: the share that is done, from 0 to 1, and the candidates that still take part. */
export interface Progress {
  done: number;
  candidates: number;
}

/** What a helper thread needs to take part in a trial (see helpers.js). */
export interface Help {
  tid: number;
  threads: number;
  module: WebAssembly.Module;
  memory: WebAssembly.Memory;
  control: Int32Array<SharedArrayBuffer>;
}

/** Let a thread take part in a trial. Resolves when it listens, and rejects if it does not start. */
export type StartHelper = (help: Help) => Promise<void>;

export type RunFunction = (first: number, last: number, tid: number, threads: number) => void;

/** The answer to a trial: what was measured, or why nothing was. */
export type Outcome = { measurement: Measurement } | { error: string };

export interface Adapter {
  vendor: string;
  architecture: string;
  device: string;
  description: string;
}

/** What an engine says of itself when it joins. */
export interface Platform {
  engine: string;
  cpu: { architecture: string; cores: number; features: string[] };
  adapter: Adapter | null;
  threads: boolean;
}

/** The best candidate of a kernel: how many times as fast as the control it is. */
export interface Gain {
  title: string;
  gain: number;
  candidates: number;
}

/** What a device does in a search. */
export interface State {
  phase: "joining" | "measuring" | "waiting" | "retrying" | "done" | "refused";
  title: string;
  progress: Progress;
  candidates: number;
  gains: Gain[];
  message: string; // of the last error
}

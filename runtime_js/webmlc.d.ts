// The types of webmlc.js.

export type TypedArray =
  | Int8Array
  | Uint8Array
  | Uint8ClampedArray
  | Int16Array
  | Uint16Array
  | Int32Array
  | Uint32Array
  | BigInt64Array
  | BigUint64Array
  | Float32Array
  | Float64Array;

/**
 * `data` is the typed array of the dtype: BigInt64Array for int64, Uint8Array for bool. A Uint16Array holds the bits of
 * 16-bit floats. A Uint8Array holds the bits of smaller floats and integers, one per byte. `dtypes.js` has the table.
 */
export interface Tensor {
  dtype: string;
  shape: number[];
  data: TypedArray;
}

/** A dimension: a number, a symbol's name, or `[operator, Size, ...]`. */
export type Size = number | string | [string, ...Size[]];

export interface Port {
  name: string;
  dtype: string;
  shape: Size[];
}

export interface StepTime {
  kernel: string;
  device: "wasm" | "webgpu";
  /** The ONNX nodes that the step computes. */
  origin: string[];
  milliseconds: number;
}

export interface LoadOptions {
  /** "auto" (the default) takes the GPU if its adapter is hardware and the model loads on it, else the CPU. */
  device?: "auto" | "wasm" | "webgpu";
  /** CPU threads. The default is the number of cores, up to 8. It is 1 if the page is not cross-origin isolated. */
  threads?: number;
  /** The WebAssembly module. The default is the fastest one that the engine runs. */
  variant?: "dot" | "relaxed" | "simd128";
  /**
   * Runs on the CPU that take at most this many milliseconds may execute in the page and block it, which is faster than in a
   * worker. The default is 5, less than a third of a frame. With 0, every run executes in a worker.
   */
  inlineMilliseconds?: number;
  /** Bytes. `loaded` starts again from 0 if `load` falls back to the CPU, and in `restore`. */
  onProgress?: (progress: { loaded: number; total: number }) => void;
}

export interface Model {
  readonly name: string;
  readonly inputs: Port[];
  readonly outputs: Port[];
  /** Outputs that are sequences, with the names of their elements in `outputs`. Null for an empty optional. */
  readonly sequences: Record<string, readonly string[] | null>;
  readonly device: "wasm" | "webgpu";
  /** Why `load` chose the device. */
  readonly deviceReason: string;
  /** The WebAssembly module, or null. "relaxed" uses relaxed SIMD, "dot" also its dot products of bytes, "simd128" neither. */
  readonly variant: "dot" | "relaxed" | "simd128" | null;
  readonly threads: number;
  readonly threadsReason: string;
  /** Exact bytes, computed when the package was built. Null if they depend on symbols. */
  readonly resources: {
    weights: number;
    arena: { wasm?: number | null; webgpu?: number | null };
    memory: number | null;
    largestBinding: number | null;
    features: string[];
    download: number;
  };
  /**
   * Run the model. The inputs are copied before this returns. If an input's shape is static, a typed array is enough. Throws
   * InputError, InternalError or DeviceLostError.
   */
  run(inputs: Record<string, Tensor | TypedArray>): Promise<Record<string, Tensor>>;
  /**
   * Load the model again after a run threw DeviceLostError or InternalError. Does nothing if the model is intact. With "auto"
   * the model may run on the CPU afterwards. Throws the errors of `load`, and may be called again.
   */
  restore(): Promise<void>;
  /**
   * Open a session of a model with states, with room for `capacity` rows (of a language model: tokens). Sessions share the
   * weights and the code. Throws InputError if the model has no states.
   */
  session(options: { capacity: number }): Promise<Session>;
  /** Measure each step. */
  profile(inputs: Record<string, Tensor | TypedArray>): Promise<StepTime[]>;
  /** Free all memory and end the workers. */
  dispose(): void;
}

/** One owner of the states of a model, which grow by the rows of each run. Memory is planned once, for its capacity. */
export interface Session {
  readonly capacity: number;
  /** The number of rows that the states hold. */
  readonly length: number;
  /** Run the model, and append to the states. Throws InputError if the capacity is exceeded; the session is unchanged then. */
  run(inputs: Record<string, Tensor | TypedArray>): Promise<Record<string, Tensor>>;
  /** Forget all rows after the first `length`. */
  truncate(length: number): void;
  /** The rows of all states, as a safetensors file. */
  save(): Promise<Uint8Array>;
  /** Replace the states by those that `save` returned, in any session of this model. */
  load(data: Uint8Array): Promise<void>;
  /** Free the memory of the states. */
  dispose(): Promise<void>;
}

/** Load the package in the folder at `url`. Throws PackageError, AdapterError, HostError or InputError. */
export function load(url: string | URL, options?: LoadOptions): Promise<Model>;

export class WebmlcError extends Error {
  /** "input", "package", "adapter", "device-lost", "host" or "internal". */
  readonly code: string;
}
export class InputError extends WebmlcError {}
export class PackageError extends WebmlcError {}
export class AdapterError extends WebmlcError {}
/** The GPU device was lost: a reset, a new driver or power saving. Call `restore`, then run again. */
export class DeviceLostError extends WebmlcError {}
/** The host lacks or forbids WebAssembly, SIMD or workers. */
export class HostError extends WebmlcError {}
export class InternalError extends WebmlcError {}

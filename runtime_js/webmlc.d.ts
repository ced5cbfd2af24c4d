// Types of webmlc.js.

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
 * `data` is the typed array of the dtype: BigInt64Array for int64, Uint8Array for bool. Floats of 16 bits are their bits
 * in a Uint16Array; floats of 8 bits or less and integers of less than 8 bits their bits in a Uint8Array, one a byte
 * (`dtypes.js` has the whole table).
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
  /** "auto" (default) takes the GPU where there is a hardware adapter and the model loads on it; else the CPU: `deviceReason` says why. */
  device?: "auto" | "wasm" | "webgpu";
  /** Threads of the CPU; by default as many as the machine has cores, up to 8. One where the page is not cross-origin isolated. */
  threads?: number;
  /** The WebAssembly module; by default the fastest that the package has and the engine runs. */
  variant?: "dot" | "relaxed" | "simd128";
  /**
   * Milliseconds that a run on the CPU may block the page: shorter runs are made in the page, which is faster than in a worker.
   * 5 by default: less than a third of a frame. 0: every run is made in a worker.
   */
  inlineMilliseconds?: number;
  /** Starts again from 0 where `load` falls back to the CPU, and in `restore`. */
  onProgress?: (progress: { loaded: number; total: number }) => void;
}

export interface Model {
  readonly name: string;
  readonly inputs: Port[];
  readonly outputs: Port[];
  /** The model's outputs that are sequences: the names of their elements among `outputs`; null for an empty optional. */
  readonly sequences: Record<string, readonly string[] | null>;
  readonly device: "wasm" | "webgpu";
  readonly deviceReason: string;
  /** The WebAssembly module that runs: "relaxed" uses relaxed SIMD, "dot" its products of bytes, too, "simd128" neither; null where none runs. */
  readonly variant: "dot" | "relaxed" | "simd128" | null;
  readonly threads: number;
  readonly threadsReason: string;
  /** Exact bytes, as stated when the package was built; null where they depend on symbols. */
  readonly resources: {
    weights: number;
    arena: { wasm?: number | null; webgpu?: number | null };
    memory: number | null;
    largestBinding: number | null;
    features: string[];
    download: number;
  };
  /** The inputs are copied before this returns. A bare typed array will do for one whose shape is static. Throws InputError, InternalError or DeviceLostError. */
  run(inputs: Record<string, Tensor | TypedArray>): Promise<Record<string, Tensor>>;
  /**
   * Make the model ready to run again, after runs that were rejected with DeviceLostError or InternalError: open the device
   * anew, compile, load the weights (from the browser's cache, where it has them). Resolves at once where nothing is wrong.
   * Chooses the device as `load` did: with "auto" it may be the CPU afterwards. Throws as `load` does; it may be called again.
   */
  restore(): Promise<void>;
  profile(inputs: Record<string, Tensor | TypedArray>): Promise<StepTime[]>;
  dispose(): void;
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
/** The GPU device was lost (a reset, a new driver, power saving): call `restore`, then run again. */
export class DeviceLostError extends WebmlcError {}
/** The browser, the page's policy or Node lacks or forbids what the runtime needs: WebAssembly, SIMD, workers. */
export class HostError extends WebmlcError {}
export class InternalError extends WebmlcError {}

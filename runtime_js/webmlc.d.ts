// The types of webmlc.js.

export type { AlphaMask, LabelledBox, LabelledScore, PixelSource, SoundSource, Transcript, TypedModel } from "./typed/typed.d.ts";

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
  | Float64Array
  | Float16Array;

/** The engine's Float16Array, where TypeScript's libraries know it. */
export type Float16Array = typeof globalThis extends { Float16Array: { prototype: infer T } } ? T : never;

/** A class of WebGPU; `any` where TypeScript's libraries do not know it. */
export type WebGpu<K extends string> = typeof globalThis extends { [name in K]: { prototype: infer T } } ? T : any;

/**
 * A tensor on a GPU. A run takes it, and with the option `results` returns it. `data` holds the elements from its start, as in a
 * typed array. Its size is a multiple of 4 bytes, and its usage has COPY_SRC. It belongs to the device of the model.
 */
export interface GpuInput {
  dtype: string;
  shape: number[];
  data: WebGpu<"GPUBuffer">;
}

/** A result on the GPU. Its buffer has the usages STORAGE, COPY_SRC and COPY_DST, if the run made it. */
export interface GpuTensor extends GpuInput {
  /** Copy it to the CPU. */
  read(): Promise<Tensor>;
  /** Destroy the buffer. A model that owns its device destroys it, too, when it is disposed of. */
  dispose(): void;
}

/**
 * `data` is the typed array of the dtype: BigInt64Array for int64, Uint8Array for bool. A Uint16Array holds the bits of
 * 16-bit floats; as an input, or among `results`, a Float16Array may hold them, too. A Uint8Array holds the bits of smaller floats and integers, one per byte. `dtypes.js` has the table.
 */
export interface Tensor {
  dtype: string;
  shape: number[];
  data: TypedArray;
}

/** A tensor of texts. */
export interface TextTensor {
  dtype: "string";
  shape: number[];
  data: string[];
}

/** A dimension: a number, a symbol's name, or `[operator, Size, ...]`. */
export type Size = number | string | [string, ...Size[]];

export interface Port {
  name: string;
  dtype: string;
  /** `["..."]` if the output has another rank in each run. */
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
  /**
   * "auto" (the default) takes the GPU if its adapter is hardware, the model loads on it, and it is faster than the CPU. The first
   * load measures that, and remembers it for the adapter and the build of the package. A GPUDevice of the page is used as it is: the model destroys only its own buffers. The device must have the features and limits in `resources`.
   */
  device?: "auto" | "wasm" | "webgpu" | WebGpu<"GPUDevice">;
  /** CPU threads. The default is the number of cores, up to 8. It is 1 if the page is not cross-origin isolated. */
  threads?: number;
  /** The WebAssembly module. The default is the fastest one that the engine runs. */
  variant?: "dot" | "pairs" | "relaxed" | "simd128";
  /** The shaders, of a package that was built with `--adapter all`. The default are those for the kind of the adapter and its features. */
  shaders?: "gpu" | "software" | "software-subgroups" | "subgroups" | "f16" | "f16-subgroups";
  /**
   * Runs on the CPU that take at most this many milliseconds may execute in the page and block it, which is faster than in a
   * worker. The default is 5, less than a third of a frame. With 0, every run executes in a worker.
   */
  inlineMilliseconds?: number;
  /**
   * Keep the package's files in the browser's Cache API, so that the next load needs no network. Each file is checked against its hash
   * whenever it is read. `filesReason` of the model says what is kept. The default is false: servers and browsers decide what they cache.
   */
  keepFiles?: boolean;
  /** Ends the load when it is aborted: `load` then rejects with the signal's reason. It has no effect on a model that is loaded. */
  signal?: AbortSignal;
  /**
   * Bytes. `loaded` starts again from 0 if `load` falls back to the CPU, and in `restore`. On a GPU, `pipelines` says how many of the
   * kernels are compiled, which happens beside the download. Kernels in branches are compiled when a run takes the branch, and some for
   * symbolic sizes, on software adapters, when a run needs them.
   */
  onProgress?: (progress: { loaded: number; total: number; pipelines?: { compiled: number; total: number } }) => void;
}

export type Inputs = Record<string, Tensor | TypedArray>;
export type Outputs = Record<string, Tensor>;

/**
 * A model with inputs or outputs of texts: `load<TextModel>(url)`. A list of texts alone is enough as an input if at most one size of
 * the input is symbolic.
 */
export type TextModel<I = Record<string, Tensor | TextTensor | TypedArray | readonly string[]>, O = Record<string, Tensor | TextTensor>> = Model<I, O>;

/** Inputs, each of which may be on the GPU. */
export type OnGpu<I> = { [name in keyof I]: I[name] | GpuInput };

export interface RunOptions<K extends string = string> {
  /** The names of the outputs to return. The default is all of them. Others are not downloaded, and not computed if they come last. */
  outputs?: readonly K[];
  /**
   * Arrays of the caller that receive outputs. They must have at least as many elements; `data` is the array, or the part of it
   * that the output fills. With "gpu", for all outputs or for one, the run returns a GpuTensor. A GPUBuffer receives an output, too;
   * its usage must have COPY_DST. If all outputs stay on the GPU, the run returns when it is submitted.
   */
  results?: "gpu" | { readonly [name in K]?: TypedArray | WebGpu<"GPUBuffer"> | "gpu" };
  /**
   * When it is aborted, the run rejects with its reason, an AbortError, if it has not started. A run of several segments also ends
   * between two of them, unless it replaces states. A session is unchanged then.
   */
  signal?: AbortSignal;
}

/** A package declares its own inputs and outputs: `import type { Model } from "./model/model.d.ts"`, then `load<Model>(url)`. */
export interface Model<I = Inputs, O = Outputs> {
  readonly name: string;
  readonly inputs: Port[];
  readonly outputs: Port[];
  /** Outputs that are sequences, with the names of their elements in `outputs`. Null for an empty optional. */
  readonly sequences: Record<string, readonly string[] | null>;
  /** Inputs and outputs that are values of the page, such as pixels: see TypedModel. */
  readonly typed: Record<string, { kind: string; rate?: number; values?: string[]; labels?: string }>;
  readonly device: "wasm" | "webgpu";
  /** The device on which the model runs, for buffers that it takes and returns. Null on the CPU. */
  readonly gpuDevice: WebGpu<"GPUDevice"> | null;
  /** Why `load` chose the device. */
  readonly deviceReason: string;
  /**
   * The WebAssembly module, or null. "relaxed" uses relaxed SIMD, "simd128" does not. "dot" and "pairs" are "relaxed" for engines
   * whose dot products of bytes, or the halves of these, are fast.
   */
  readonly variant: "dot" | "pairs" | "relaxed" | "simd128" | null;
  /** The kind of adapters that the shaders were made for, or null without shaders. "gpu" and "software" run on all adapters. */
  readonly shaders: "gpu" | "software" | "software-subgroups" | "subgroups" | "f16" | "f16-subgroups" | null;
  /** The names of the package's files. */
  readonly files: string[];
  /** With `keepFiles`: how many files came from the cache, which were kept, and why others were not. */
  readonly filesReason: string;
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
    /**
     * A run that appends one row to the states of a session (of a language model: a token): its kernels or dispatches, and the
     * least bytes that they read and write, which grow by `bytes_per_row` for each row of the session. Null without states.
     */
    row: { steps: number; bytes: number; bytes_per_row: number } | null;
  };
  /**
   * Bytes of the WebAssembly memory after the last run, with the states of all sessions. The system gives memory only to the part
   * that was written. 0 before the first run, if nothing runs on the CPU, or if the page is not cross-origin isolated.
   */
  readonly memoryBytes: number;
  /**
   * Run the model. The inputs are copied before this returns. If an input's shape is static, a typed array is enough. Runs that
   * overlap execute in order. On the GPU, the next run is submitted while the results of this one are read. Throws InputError, InternalError, DeviceLostError or DisposedError, or the reason of `signal`.
   */
  run<K extends keyof O & string = keyof O & string>(inputs: OnGpu<I>, options: RunOptions<K> & { results: "gpu" }): Promise<Record<K, GpuTensor>>;
  run<K extends keyof O & string = keyof O & string>(inputs: OnGpu<I>, options?: RunOptions<K>): Promise<Pick<O, K>>;
  /**
   * Load the model again after a run threw DeviceLostError or InternalError. After the latter, the next run does so by itself.
   * Does nothing if the model is intact. With "auto" the model may run on the CPU afterwards. Throws the errors of `load`, and
   * may be called again.
   */
  restore(): Promise<void>;
  /**
   * Open a session of a model with states. If they grow, it has room for `capacity` rows (of a language model: tokens), which
   * must be given then. Sessions share the weights and the code. Throws InputError if the model has no states.
   */
  session(options?: { capacity?: number }): Promise<Session<I, O>>;
  /** Fetch one of `files`, check it against its hash, and decompress it if its name ends in ".deflate". Throws PackageError. */
  file(path: string): Promise<ArrayBuffer>;
  /** Measure each step. */
  profile(inputs: I): Promise<StepTime[]>;
  /**
   * Free all memory and end the workers. Resolves when they have ended, which nobody needs to await. A run that waits or executes
   * rejects with DisposedError, and so does every later call but `dispose`.
   */
  dispose(): Promise<void>;
}

/**
 * One owner of the states of a model, which grow by the rows of each run, or are replaced by each run. Memory is planned once, for
 * its capacity. States that are replaced are zero at first.
 */
export interface Session<I = Inputs, O = Outputs> {
  /** The most rows. The session of a merged decoder needs none when it opens: 2³¹ - 1 is the default. */
  readonly capacity: number;
  /** The number of rows that the states hold which grow. */
  readonly length: number;
  /**
   * Run the model, and append to the states, or replace them. Throws InputError if the capacity is exceeded; the session is
   * unchanged then.
   */
  run<K extends keyof O & string = keyof O & string>(inputs: I, options?: RunOptions<K>): Promise<Pick<O, K>>;
  /** Forget all rows after the first `length`. Throws InputError if the model has states that do not grow. */
  truncate(length: number): void;
  /** Begin again: no rows in states that grow, and zeros in the others. */
  reset(): Promise<void>;
  /** The rows of all states, as a safetensors file. */
  save(): Promise<Uint8Array>;
  /** Replace the states by those that `save` returned, in any session of this model. */
  load(data: Uint8Array): Promise<void>;
  /** Free the memory of the states. */
  dispose(): Promise<void>;
}

export interface Message {
  /** "system", "user" or "assistant". */
  role: string;
  /** A text, or parts. A template that does not understand parts gets their texts as lines. */
  content: string | readonly { readonly type: string; readonly text?: string }[];
}

/** Messages, which the chat template of the model formats; a text; or tokens. */
export type Prompt = readonly Message[] | string | readonly number[] | BigInt64Array;

/** The names are those of Hugging Face's transformers. The defaults are those of the package, and then those of transformers. */
export interface GenerateOptions {
  /** The most tokens of the answer. The default is 512. */
  max_new_tokens?: number;
  /** Draw tokens at random, or take the most likely ones. A `temperature` turns it on, and the temperature 0 turns it off. */
  do_sample?: boolean;
  /** Above 1, unlikely tokens become more likely; below 1, less likely. */
  temperature?: number;
  /** Draw among so many tokens; 0 for all. The default is 50. */
  top_k?: number;
  /** Draw among the fewest tokens whose probabilities sum up to this. */
  top_p?: number;
  /** Draw among tokens that are at least this likely, relative to the most likely one. */
  min_p?: number;
  /** Above 1, tokens of the prompt and of the answer become less likely. */
  repetition_penalty?: number;
  /** The same seed, below 2³², draws the same tokens, in Python too. The default is random. */
  seed?: number;
  /** Strings that end the answer. The answer does not contain them. */
  stop?: string | string[];
  /** The tokens for which the session has memory. At most the model's context. By default, it grows when needed, up to that. */
  capacity?: number;
  /** More variables of the chat template, such as `enable_thinking`. */
  template_arguments?: Record<string, unknown>;
  /** Ends the answer when it is aborted. That is no error: `finish_reason` is "interrupted". */
  signal?: AbortSignal;
  /** Is called with every piece of text. */
  streamer?: (piece: string) => void;
}

/** The tokens and the time of a generation so far. */
export interface Usage {
  prompt_tokens: number;
  /** The tokens of the prompt that were in the session before. */
  cached_tokens: number;
  /** The tokens of the answer, with a token that ended it. */
  completion_tokens: number;
  /** The tokens in the session, of its `capacity`. */
  context_tokens: number;
  capacity: number;
  /** Up to the first token. */
  prompt_seconds: number;
  /** From the first token to the last. */
  completion_seconds: number;
  /** The speed of the answer after its first token. */
  tokens_per_second: number;
  seed: number;
  /** Null until the end. "context": the session is full. */
  finish_reason: "stop" | "length" | "context" | "interrupted" | null;
}

/** An answer while it is generated: iterate over its pieces with `for await`. The generator returns the usage. */
export interface Generation extends AsyncGenerator<string, Usage, void> {
  readonly usage: Usage;
  /** The pieces so far. */
  readonly text: string;
  /** Generate to the end, and return the whole text. */
  complete(): Promise<string>;
}

/** A model whose package holds a tokenizer: `load<LanguageModel>(url)`. */
export interface LanguageModel<I = Inputs, O = Outputs> extends Model<I, O> {
  /** False for a model that only completes texts. It continues the text of all messages. */
  readonly hasChatTemplate: boolean;
  /**
   * Answer a prompt. A new generation ends the one before. Throws InputError if an option is wrong, or if the prompt does not fit
   * the context.
   */
  generate(prompt: Prompt, options?: GenerateOptions): Generation;
}

/**
 * The fields that `load` requires of the type of a model. A package's types are of its own copy of this file. TypeScript does not match methods of
 * two copies that are generic in the names of outputs, so these are left out.
 */
type AnyModel = Omit<Model<any, any>, "run" | "session">;

/** Load the package in the folder at `url`. The model has the methods that fit its package. Throws PackageError, AdapterError, HostError or InputError. */
export function load<M extends AnyModel = Model>(url: string | URL, options?: LoadOptions): Promise<M>;

export class WebmlcError extends Error {
  /** "input", "package", "adapter", "device-lost", "host", "disposed" or "internal". */
  readonly code: string;
}
export class InputError extends WebmlcError {}
export class PackageError extends WebmlcError {}
export class AdapterError extends WebmlcError {}
/** The GPU device was lost: a reset, a new driver or power saving. Call `restore`, then run again. */
export class DeviceLostError extends WebmlcError {}
/** The host lacks or forbids WebAssembly, SIMD or workers. */
export class HostError extends WebmlcError {}
/** The model, the session or the tensor was disposed of before the call or during it. */
export class DisposedError extends WebmlcError {}
export class InternalError extends WebmlcError {}

// The types of pipeline.js. Names and results are those of transformers.js; docs/pipeline.md says which options have no effect.

import type { LabelledBox, LabelledScore, PixelSource, SoundSource } from "../typed/typed.d.ts";
import type { GenerateOptions, Message, Model, TypedArray } from "../webmlc.js";

export interface Progress {
  status: "initiate" | "download" | "progress" | "done" | "ready";
  name?: string;
  file?: string;
  /** Of a hundred. */
  progress?: number;
  loaded?: number;
  total?: number;
  task?: string;
  model?: string;
}

export interface PipelineOptions {
  device?: "auto" | "wasm" | "webgpu" | "cpu" | "gpu";
  /** Has no effect: `webmlc build --quantise` decides it. */
  dtype?: string | Record<string, string>;
  progress_callback?: (progress: Progress) => void;
  /** CPU threads, as in `load`. */
  threads?: number;
  [option: string]: unknown;
}

/** An index, a range without its end, or all: `tensor.slice(0, [1, 3], null)`. */
export type Slice = number | readonly [number | null, number | null] | null;

/**
 * A tensor. Methods whose name ends in "_" change it, and return it. `tensor[0]` is its first row, and a tensor, too; `for` loops over
 * rows, or over the numbers of a vector. Dimensions and indices may count from the end. Throws InputError.
 */
export class Tensor {
  constructor(type: string, data: TypedArray | readonly (number | bigint | boolean)[], dims?: readonly number[]);
  constructor(data: TypedArray | readonly boolean[], dims?: readonly number[]);
  static of(tensor: { dtype: string; shape: number[]; data: TypedArray }): Tensor;
  readonly type: string;
  /** The typed array. Where the host has no Float16Array, a Uint16Array holds the bits of float16. */
  readonly data: any;
  readonly dims: number[];
  readonly size: number;
  readonly location: string;
  readonly [row: number]: Tensor;
  readonly forRuntime: { dtype: string; shape: number[]; data: TypedArray };
  [Symbol.iterator](): IterableIterator<any>;
  getData(): Promise<any>;
  dispose(): void;
  item(): any;
  tolist(): any[];
  clone(): Tensor;
  to(type: string): Tensor;
  indexOf(item: number | bigint): number;
  /** The same data with other dims, of which one may be -1. */
  view(...dims: number[]): Tensor;
  reshape(dims: readonly number[]): Tensor;
  squeeze(dim?: number | number[] | null): Tensor;
  squeeze_(dim?: number | number[] | null): this;
  unsqueeze(dim: number): Tensor;
  unsqueeze_(dim: number): this;
  flatten(start?: number, end?: number): Tensor;
  stride(): number[];
  slice(...slices: Slice[]): Tensor;
  permute(...axes: number[]): Tensor;
  transpose(...axes: number[]): Tensor;
  repeat(...counts: number[]): Tensor;
  tile(...counts: number[]): Tensor;
  map(callback: (x: any, index: number, data: any) => any): Tensor;
  map_(callback: (x: any, index: number, data: any) => any): this;
  add(value: number | bigint): Tensor;
  add_(value: number | bigint): this;
  sub(value: number | bigint): Tensor;
  sub_(value: number | bigint): this;
  mul(value: number | bigint): Tensor;
  mul_(value: number | bigint): this;
  div(value: number | bigint): Tensor;
  div_(value: number | bigint): this;
  neg(): Tensor;
  neg_(): this;
  sigmoid(): Tensor;
  sigmoid_(): this;
  round(): Tensor;
  round_(): this;
  clamp(least: number, most: number): Tensor;
  clamp_(least: number, most: number): this;
  gt(value: number | bigint): Tensor;
  lt(value: number | bigint): Tensor;
  /** Along a dimension; without one, of all numbers. */
  sum(dim?: number | null, keepdim?: boolean): Tensor;
  mean(dim?: number | null, keepdim?: boolean): Tensor;
  min(dim?: number | null, keepdim?: boolean): Tensor;
  max(dim?: number | null, keepdim?: boolean): Tensor;
  argmin(dim?: number | null, keepdim?: boolean): Tensor;
  argmax(dim?: number | null, keepdim?: boolean): Tensor;
  norm(p?: number | "fro", dim?: number | null, keepdim?: boolean): Tensor;
  /** Divide each vector along a dimension, by default 1, by its norm. */
  normalize(p?: number, dim?: number): Tensor;
  normalize_(p?: number, dim?: number): this;
}

export class TextStreamer {
  constructor(tokenizer: unknown, options?: { callback_function?: (piece: string) => void; [option: string]: unknown });
  readonly tokenizer: any;
  callback_function: (piece: string) => void;
  /** Is called with each piece, and at the end with "". */
  on_finalized_text(text: string, isEnd: boolean): void;
}

/** A picture, its address, a file, a response, or a RawImage of transformers.js. */
export type ImageInput = PixelSource | string | URL | Blob | Response | { width: number; height: number; channels: number; data: Uint8Array };

/** A sound, its address, a file, a response, or samples of one channel at the model's rate. */
export type AudioInput = SoundSource | string | URL | Blob | Response | Float32Array | Float64Array;

interface Pipeline {
  readonly task: string;
  readonly model: Model;
  /** Why the model runs on its device, such as "measured: webgpu 3.1 ms, wasm 9.0 ms". */
  readonly deviceReason: string;
  dispose(): Promise<void>;
}

export interface SpeechOptions {
  /** Also return the times of words (`true` or "word") or of tokens ("char"). */
  return_timestamps?: boolean | "word" | "char" | null;
  /** Cut sounds into chunks of so many seconds. 0, the default, for none. */
  chunk_length_s?: number;
  /** The overlap of a chunk with its neighbours, in seconds: on each side, or on the left and the right. By default a sixth of a chunk. */
  stride_length_s?: number | [number, number];
}

/** A text. The times are in seconds. */
export interface SpeechText {
  text: string;
  chunks?: { text: string; timestamp: [number, number] }[];
}

export interface AutomaticSpeechRecognition extends Pipeline {
  (audio: AudioInput, options?: SpeechOptions): Promise<SpeechText>;
  (audios: AudioInput[], options?: SpeechOptions): Promise<SpeechText[]>;
}

export interface FeatureOptions {
  /** The vector of a text: the mean of its tokens, or its first or last token. By default, each token has one. */
  pooling?: "none" | "mean" | "cls" | "first_token" | "last_token" | "eos";
  normalize?: boolean;
}

export interface FeatureExtraction extends Pipeline {
  (texts: string | string[], options?: FeatureOptions): Promise<Tensor>;
}

export interface ImageClassification extends Pipeline {
  (image: ImageInput, options?: { top_k?: number | null }): Promise<LabelledScore[]>;
  (images: ImageInput[], options?: { top_k?: number | null }): Promise<LabelledScore[][]>;
}

export interface ObjectDetection extends Pipeline {
  (image: ImageInput, options?: { threshold?: number; percentage?: boolean }): Promise<LabelledBox[]>;
  (images: ImageInput[], options?: { threshold?: number; percentage?: boolean }): Promise<LabelledBox[][]>;
}

export type TextGenerationOptions = Omit<GenerateOptions, "streamer"> & {
  streamer?: TextStreamer | ((piece: string) => void);
  return_full_text?: boolean;
  stop_strings?: string | string[];
};

export interface TextGeneration extends Pipeline {
  (prompt: string | Message[], options?: TextGenerationOptions): Promise<{ generated_text: string | Message[] }[]>;
  (prompts: string[] | Message[][], options?: TextGenerationOptions): Promise<{ generated_text: string | Message[] }[][]>;
}

/** `model` is the URL of a package's folder, or a model that is loaded. Throws the errors of `load`. */
export function pipeline(
  task: "automatic-speech-recognition",
  model: string | URL | Model,
  options?: PipelineOptions,
): Promise<AutomaticSpeechRecognition>;
export function pipeline(task: "feature-extraction", model: string | URL | Model, options?: PipelineOptions): Promise<FeatureExtraction>;
export function pipeline(task: "image-classification", model: string | URL | Model, options?: PipelineOptions): Promise<ImageClassification>;
export function pipeline(task: "object-detection", model: string | URL | Model, options?: PipelineOptions): Promise<ObjectDetection>;
export function pipeline(task: "text-generation", model: string | URL | Model, options?: PipelineOptions): Promise<TextGeneration>;

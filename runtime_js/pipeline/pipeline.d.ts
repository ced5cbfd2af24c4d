// The types of pipeline.js. Names and results are those of transformers.js; docs/pipeline.md says which options have no effect.

import type { LabelledBox, LabelledScore, PixelSource } from "../typed/typed.d.ts";
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

export class Tensor {
  constructor(type: string, data: TypedArray | readonly (number | bigint)[], dims?: readonly number[]);
  constructor(data: TypedArray, dims?: readonly number[]);
  static of(tensor: { dtype: string; shape: number[]; data: TypedArray }): Tensor;
  readonly type: string;
  readonly data: any;
  readonly dims: number[];
  readonly size: number;
  readonly location: string;
  readonly forRuntime: { dtype: string; shape: number[]; data: TypedArray };
  getData(): Promise<any>;
  reshape(dims: readonly number[]): Tensor;
  tolist(): any[];
  dispose(): void;
}

export class TextStreamer {
  constructor(tokenizer: unknown, options?: { callback_function?: (piece: string) => void });
  callback_function: (piece: string) => void;
}

/** A picture, its address, a file, or a RawImage of transformers.js. */
export type ImageInput = PixelSource | string | URL | Blob | { width: number; height: number; channels: number; data: Uint8Array };

interface Pipeline {
  readonly task: string;
  readonly model: Model;
  /** Why the model runs on its device, such as "measured: webgpu 3.1 ms, wasm 9.0 ms". */
  readonly deviceReason: string;
  dispose(): Promise<void>;
}

export interface FeatureExtraction extends Pipeline {
  (texts: string | string[], options?: { pooling?: "none" | "mean" | "cls"; normalize?: boolean }): Promise<Tensor>;
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
export function pipeline(task: "feature-extraction", model: string | URL | Model, options?: PipelineOptions): Promise<FeatureExtraction>;
export function pipeline(task: "image-classification", model: string | URL | Model, options?: PipelineOptions): Promise<ImageClassification>;
export function pipeline(task: "object-detection", model: string | URL | Model, options?: PipelineOptions): Promise<ObjectDetection>;
export function pipeline(task: "text-generation", model: string | URL | Model, options?: PipelineOptions): Promise<TextGeneration>;

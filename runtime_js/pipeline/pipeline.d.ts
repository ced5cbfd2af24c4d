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

/** A sound, its address, a file, or samples of one channel at the model's rate. */
export type AudioInput = SoundSource | string | URL | Blob | Float32Array | Float64Array;

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
  /** What a chunk shares with its neighbours, in seconds: on each side, or on the left and the right. By default a sixth of a chunk. */
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
export function pipeline(
  task: "automatic-speech-recognition",
  model: string | URL | Model,
  options?: PipelineOptions,
): Promise<AutomaticSpeechRecognition>;
export function pipeline(task: "feature-extraction", model: string | URL | Model, options?: PipelineOptions): Promise<FeatureExtraction>;
export function pipeline(task: "image-classification", model: string | URL | Model, options?: PipelineOptions): Promise<ImageClassification>;
export function pipeline(task: "object-detection", model: string | URL | Model, options?: PipelineOptions): Promise<ObjectDetection>;
export function pipeline(task: "text-generation", model: string | URL | Model, options?: PipelineOptions): Promise<TextGeneration>;

// The types of values of the page: pictures in, labels with scores out.

import type { Model, Tensor, TypedArray } from "../webmlc.js";

/** How an input or output of the model looks to the page, from the manifest. */
export interface Kind {
  /** "pixels" or "samples" of inputs, "classes", "boxes", "text" or "mask" of outputs. */
  kind: string;
  /** Samples per second, of a sound. */
  rate?: number;
  /** The names of the tensors of an output. */
  values?: string[];
  /** The file of the labels. */
  labels?: string;
}

/** A picture, of any size. A tensor is uint8 [height, width, 4]. An image or a video must be loaded. */
export type PixelSource = CanvasImageSource | ImageData | { width: number; height: number; data: Uint8Array | Uint8ClampedArray } | Tensor;

/**
 * A sound of any rate and number of channels: an AudioBuffer, one channel with its rate, or a tensor float32 [channels, length] at the
 * model's rate.
 */
export type SoundSource = AudioBuffer | { sampleRate: number; data: Float32Array } | Tensor;

/** A class, and how likely it is. Without labels, the class 3 is "LABEL_3". */
export interface LabelledScore {
  label: string;
  score: number;
}

/** An object in a picture, and its sides in pixels of the picture. */
export interface LabelledBox extends LabelledScore {
  box: { xmin: number; ymin: number; xmax: number; ymax: number };
}

/** A text that a model reads, such as that of a sound or of a line in a picture. */
export interface Transcript {
  text: string;
  /** The mean of the tokens' scores. */
  score: number;
  /** The text of each token. `frames` are its first time step, and the one after its last. */
  tokens: { label: string; score: number; frames: [number, number] }[];
}

/** The opacity of each pixel of a picture, from 0 to 255. */
export interface AlphaMask {
  width: number;
  height: number;
  data: Uint8ClampedArray;
}

/** The result of a run for an output. */
export type TypedOutput = Tensor | LabelledScore[] | LabelledScore[][] | LabelledBox[] | Transcript | Transcript[] | AlphaMask | ImageData;

/**
 * A model whose runs take and return values of the page: `load<TypedModel>(url)`. A run whose option `outputs` names the tensors of
 * `outputs`, such as "logits_scores", returns these.
 */
export type TypedModel<I = Record<string, PixelSource | SoundSource | TypedArray>, O = Record<string, TypedOutput>> = Model<I, O>;

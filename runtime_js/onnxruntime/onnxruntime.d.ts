// The types of onnxruntime.js. Names are those of ONNX Runtime Web; docs/migrate.md says what differs.

import type { Model } from "../webmlc.js";
import { Tensor } from "../pipeline/pipeline.js";

export { Tensor };

export interface SessionOptions {
  /** "wasm", "cpu" or "webgpu". `["webgpu", "wasm"]` takes the GPU if it can. The default is `["wasm"]`. */
  executionProviders?: readonly (string | { name: string })[];
  [option: string]: unknown;
}

export interface ValueMetadata {
  name: string;
  isTensor: true;
  type: string;
  /** Numbers, and the names of symbolic dimensions. */
  shape: (number | string)[];
}

export const env: { wasm: { numThreads: number | undefined }; webgpu: object; logLevel: string };

export class InferenceSession {
  static create(url: string | URL, options?: SessionOptions): Promise<InferenceSession>;
  /** A session over a package that is loaded. */
  constructor(model: Model);
  readonly inputNames: string[];
  readonly outputNames: string[];
  readonly inputMetadata: ValueMetadata[];
  readonly outputMetadata: ValueMetadata[];
  run(feeds: Record<string, Tensor>, fetches?: readonly string[] | Record<string, Tensor | null> | object): Promise<Record<string, Tensor>>;
  release(): Promise<void>;
  startProfiling(): void;
  endProfiling(): void;
}

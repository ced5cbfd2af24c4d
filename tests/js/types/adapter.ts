// A program that is written against ONNX Runtime Web and transformers.js. tests/package/test_adapter_types.py compiles it.

import * as common from "onnxruntime-common";
import ort, * as ours from "webmlc/onnxruntime";
import { load, type Float16Array, type Model } from "webmlc";
import { pipeline, Tensor, TextStreamer, type FeatureExtraction } from "webmlc/pipeline";

/** Each value is what the other library's types say, too. */
type Fits<Ours extends Theirs, Theirs> = [Ours, Theirs];

export type Values = [
  Fits<typeof ours.Tensor, common.TensorConstructor>,
  Fits<typeof ours.env, common.Env>,
  Fits<typeof ours.InferenceSession, common.InferenceSessionFactory>,
  Fits<typeof ours.registerBackend, typeof common.registerBackend>,
  Fits<ours.InferenceSession, common.InferenceSession>,
  Fits<ours.Tensor, common.Tensor>,
  Fits<ours.TypedTensor<"float32">, common.TypedTensor<"float32">>,
  Fits<ours.TypedTensor<"int64">, common.TypedTensor<"int64">>,
  Fits<common.Tensor, ours.Tensor>, // a tensor of the other library may be an input
];

/** Each type of the other library has its counterpart, and takes the same values. */
export type Same<A, B> = [A] extends [B] ? ([B] extends [A] ? true : never) : never;
export const same: [
  Same<ours.InferenceSession.SessionOptions, common.InferenceSession.SessionOptions>,
  Same<ours.InferenceSession.RunOptions, common.InferenceSession.RunOptions>,
  Same<ours.InferenceSession.FeedsType, common.InferenceSession.FeedsType>,
  Same<ours.InferenceSession.FetchesType, common.InferenceSession.FetchesType>,
  Same<ours.InferenceSession.ReturnType, common.InferenceSession.ReturnType>,
  Same<ours.InferenceSession.NullableOnnxValueMapType, common.InferenceSession.NullableOnnxValueMapType>,
  Same<ours.InferenceSession.ExecutionProviderName, common.InferenceSession.ExecutionProviderName>,
  Same<ours.InferenceSession.ExecutionProviderConfig, common.InferenceSession.ExecutionProviderConfig>,
  Same<ours.InferenceSession.WebGpuExecutionProviderOption, common.InferenceSession.WebGpuExecutionProviderOption>,
  Same<ours.InferenceSession.ValueMetadata, common.InferenceSession.ValueMetadata>,
  Same<ours.Tensor.Type, common.Tensor.Type>,
  Same<ours.Tensor.DataTypeMap, common.Tensor.DataTypeMap>,
  Same<ours.Tensor.ElementTypeMap, common.Tensor.ElementTypeMap>,
  Same<ours.Tensor.DataLocation, common.Tensor.DataLocation>,
  Same<ours.Tensor.GpuBufferDataTypes, common.Tensor.GpuBufferDataTypes>,
  Same<ours.Env.WebAssemblyFlags, common.Env.WebAssemblyFlags>,
  Same<ours.Env.WebGpuProfilingData, common.Env.WebGpuProfilingData>,
  Same<ours.TensorFromImageDataOptions, common.TensorFromImageDataOptions>,
  Same<ours.TensorFromImageElementOptions, common.TensorFromImageElementOptions>,
  Same<ours.TensorFromImageBitmapOptions, common.TensorFromImageBitmapOptions>,
  Same<ours.TensorFromUrlOptions, common.TensorFromUrlOptions>,
  Same<ours.TensorFromGpuBufferOptions<"float32">, common.TensorFromGpuBufferOptions<"float32">>,
  Same<ours.TensorToDataUrlOptions, common.TensorToDataUrlOptions>,
  Same<ours.TensorToImageDataOptions, common.TensorToImageDataOptions>,
  Same<ours.CpuPinnedConstructorParameters, common.CpuPinnedConstructorParameters>,
  Same<ours.ExternalDataFileType, common.ExternalDataFileType>,
  Same<ours.OnnxModelOptions, common.OnnxModelOptions>,
  Same<ours.OnnxValueDataLocation, common.OnnxValueDataLocation>,
] = Array(28).fill(true) as any;

export async function run(): Promise<[Float32Array, ours.TypedTensor<"float32">]> {
  const options: ours.InferenceSession.SessionOptions = {
    executionProviders: ["webgpu", { name: "wasm" }],
    graphOptimizationLevel: "all",
    preferredOutputLocation: { y: "gpu-buffer" },
    freeDimensionOverrides: { batch: 1 },
  };
  ort.env.wasm.numThreads = 1;
  ort.env.wasm.wasmPaths = { wasm: "/a.wasm" };
  ort.env.logLevel = "error";
  const session: ours.InferenceSession = await ort.InferenceSession.create("./model/", options);
  const x: ours.Tensor = new ours.Tensor("float32", new Float32Array(4), [2, 2]);
  const outputs: ours.InferenceSession.OnnxValueMapType = await session.run({ x }, ["y"], { tag: "a" });
  await session.run({ x }, { y: null });
  await session.run({ x }, { terminate: false });
  const picture = await ours.Tensor.fromImage(new ImageData(2, 2), { tensorFormat: "RGB", norm: { mean: [1, 2, 3], bias: 0 } });
  const pixels: ImageData = picture.toImageData({ tensorLayout: "NCHW" });
  const mask = new ort.Tensor([true, false], [2]);
  const long: bigint = new ort.Tensor("int64", [1n, 2n]).data[0];
  const names: readonly string[] = [...session.inputNames, session.inputMetadata[0].name];
  const data = (await outputs.y.getData()) as Float32Array;
  outputs.y.dispose();
  await session.release();
  console.log(pixels.width, mask.dims, long, names, picture.reshape([-1 * -12]).size);
  return [data, outputs.y as ours.TypedTensor<"float32">];
}

export async function answer(): Promise<string> {
  const extract: FeatureExtraction = await pipeline("feature-extraction", "./encoder/", { device: "wasm", dtype: "q8" });
  const vectors: Tensor = await extract(["a", "b"], { pooling: "last_token", normalize: true });
  const rows: number[][] = vectors.tolist();
  const first: Tensor = vectors[0];
  const part: Tensor = vectors.slice(null, [0, 2]).mean(-1).normalize(2, 0).unsqueeze(0).squeeze().view(-1);
  for (const row of vectors) console.log((row as Tensor).dims, first.item(), part.max().item());
  class Collector extends TextStreamer {
    override on_finalized_text(text: string, isEnd: boolean): void {
      console.log(text, isEnd);
    }
  }
  const write = await pipeline("text-generation", "./chat/");
  const [{ generated_text }] = await write("a", { streamer: new Collector(write.model, { callback_function: () => {} }) });
  return `${rows} ${generated_text}`;
}

/** A half may be given as an array of numbers where TypeScript knows that array. */
export async function half(data: Float16Array): Promise<Model> {
  const model = await load("./model/");
  await model.run({ x: { dtype: "float16", shape: [1], data } }, { results: { y: data } });
  const { run, dispose } = model;
  await run({ x: { dtype: "float16", shape: [1], data: new Uint16Array(1) } });
  await dispose();
  return model;
}

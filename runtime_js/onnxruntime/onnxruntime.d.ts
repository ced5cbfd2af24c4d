// The types of onnxruntime.js. Names and types are those of ONNX Runtime Web; docs/migrate.md says what differs.

import type { Model, WebGpu } from "../webmlc.js";

export type OnnxValue = Tensor;
export type NonTensorType = never;
export type OnnxValueDataLocation = Tensor.DataLocation;

// Tensors

interface TypedTensorBase<T extends Tensor.Type> {
  readonly dims: readonly number[];
  readonly type: T;
  /** The elements. Where the host has no Float16Array, a Uint16Array holds the bits of float16. */
  readonly data: Tensor.DataTypeMap[T];
  readonly location: Tensor.DataLocation;
  readonly size: number;
  /** Throws InputError: tensors are on the CPU or in a GPUBuffer. */
  readonly texture: Tensor.TextureType;
  readonly mlTensor: Tensor.MLTensorType;
  readonly gpuBuffer: Tensor.GpuBufferType;
  getData(releaseData?: boolean): Promise<Tensor.DataTypeMap[T]>;
  dispose(): void;
  reshape(dims: readonly number[]): TypedTensor<T>;
  toDataURL(options?: TensorToDataUrlOptions): string;
  toImageData(options?: TensorToImageDataOptions): ImageData;
}

export namespace Tensor {
  interface DataTypeMap {
    float32: Float32Array;
    uint8: Uint8Array;
    int8: Int8Array;
    uint16: Uint16Array;
    int16: Int16Array;
    int32: Int32Array;
    int64: BigInt64Array;
    string: string[];
    bool: Uint8Array;
    float16: Uint16Array;
    float64: Float64Array;
    uint32: Uint32Array;
    uint64: BigUint64Array;
    uint4: Uint8Array;
    int4: Int8Array;
  }

  interface ElementTypeMap {
    float32: number;
    uint8: number;
    int8: number;
    uint16: number;
    int16: number;
    int32: number;
    int64: bigint;
    string: string;
    bool: boolean;
    float16: number;
    float64: number;
    uint32: number;
    uint64: bigint;
    uint4: number;
    int4: number;
  }

  type Type = keyof DataTypeMap;
  type DataType = DataTypeMap[Type];
  type ElementType = ElementTypeMap[Type];
  type CpuPinnedDataTypes = Exclude<Type, "string">;
  type TextureType = WebGLTexture;
  type TextureDataTypes = "float32";
  type GpuBufferType = WebGpu<"GPUBuffer">;
  type GpuBufferDataTypes = "float32" | "float16" | "int32" | "int64" | "uint32" | "uint8" | "bool";
  type MLTensorType = { destroy(): void };
  type MLTensorDataTypes = "float32" | "float16" | "int8" | "uint8" | "int32" | "uint32" | "int64" | "uint64" | "bool" | "uint4" | "int4";
  type DataLocation = "none" | "cpu" | "cpu-pinned" | "texture" | "gpu-buffer" | "ml-tensor";
}

export interface TypedTensor<T extends Tensor.Type> extends TypedTensorBase<T> {}
export interface Tensor extends TypedTensorBase<Tensor.Type> {}

export interface TensorConstructor extends TensorFactory {
  /** Throws InputError: models take numbers. */
  new (type: "string", data: Tensor.DataTypeMap["string"] | readonly string[], dims?: readonly number[]): TypedTensor<"string">;
  new (type: "bool", data: Tensor.DataTypeMap["bool"] | readonly boolean[], dims?: readonly number[]): TypedTensor<"bool">;
  new (type: "uint8", data: Uint8ClampedArray, dims?: readonly number[]): TypedTensor<"uint8">;
  new <T extends "uint64" | "int64">(type: T, data: Tensor.DataTypeMap[T] | readonly bigint[] | readonly number[], dims?: readonly number[]): TypedTensor<T>;
  new <T extends Exclude<Tensor.Type, "string" | "bool" | "uint64" | "int64">>(
    type: T,
    data: Tensor.DataTypeMap[T] | readonly number[],
    dims?: readonly number[],
  ): TypedTensor<T>;
  new (data: Float32Array, dims?: readonly number[]): TypedTensor<"float32">;
  new (data: Int8Array, dims?: readonly number[]): TypedTensor<"int8">;
  new (data: Uint8Array, dims?: readonly number[]): TypedTensor<"uint8">;
  new (data: Uint8ClampedArray, dims?: readonly number[]): TypedTensor<"uint8">;
  new (data: Uint16Array, dims?: readonly number[]): TypedTensor<"uint16">;
  new (data: Int16Array, dims?: readonly number[]): TypedTensor<"int16">;
  new (data: Int32Array, dims?: readonly number[]): TypedTensor<"int32">;
  new (data: BigInt64Array, dims?: readonly number[]): TypedTensor<"int64">;
  new (data: readonly string[], dims?: readonly number[]): TypedTensor<"string">;
  new (data: readonly boolean[], dims?: readonly number[]): TypedTensor<"bool">;
  new (data: Float64Array, dims?: readonly number[]): TypedTensor<"float64">;
  new (data: Uint32Array, dims?: readonly number[]): TypedTensor<"uint32">;
  new (data: BigUint64Array, dims?: readonly number[]): TypedTensor<"uint64">;
  new (
    type: Tensor.Type,
    data: Tensor.DataType | readonly number[] | readonly string[] | readonly bigint[] | readonly boolean[],
    dims?: readonly number[],
  ): Tensor;
  new (data: Tensor.DataType, dims?: readonly number[]): Tensor;
}

export const Tensor: TensorConstructor;

// Pictures and other sources of tensors

export type ImageFormat = "RGB" | "RGBA" | "BGR" | "RBG";
export type ImageTensorLayout = "NHWC" | "NCHW";

export interface OptionsFormat {
  format?: ImageFormat;
}

export interface OptionsTensorFormat {
  tensorFormat?: ImageFormat;
}

export interface OptionsTensorDataType {
  dataType?: "float32" | "uint8";
}

export interface OptionsTensorLayout {
  tensorLayout?: ImageTensorLayout;
}

export interface OptionsDimensions {
  height?: number;
  width?: number;
}

export interface OptionResizedDimensions {
  resizedHeight?: number;
  resizedWidth?: number;
}

export interface OptionsNormalizationParameters {
  norm?: {
    bias?: number | [number, number, number] | [number, number, number, number];
    mean?: number | [number, number, number] | [number, number, number, number];
  };
}

/** The options of the functions of pictures. */
export type ImageOptions = OptionsFormat &
  OptionsTensorFormat &
  OptionsTensorDataType &
  OptionsTensorLayout &
  OptionsDimensions &
  OptionResizedDimensions &
  OptionsNormalizationParameters;

interface TensorFromPictureOptions
  extends OptionResizedDimensions, OptionsTensorFormat, OptionsTensorLayout, OptionsTensorDataType, OptionsNormalizationParameters {}
export interface TensorFromImageDataOptions extends TensorFromPictureOptions {}
export interface TensorFromImageElementOptions extends TensorFromPictureOptions {}
export interface TensorFromImageBitmapOptions extends TensorFromPictureOptions {}
export interface TensorFromUrlOptions extends TensorFromPictureOptions, OptionsDimensions {}
export interface TensorToDataUrlOptions extends OptionsTensorLayout, OptionsFormat, OptionsNormalizationParameters {}
export interface TensorToImageDataOptions extends OptionsTensorLayout, OptionsFormat, OptionsNormalizationParameters {}
export interface ConversionUtils {
  toDataURL(options?: TensorToDataUrlOptions): string;
  toImageData(options?: TensorToImageDataOptions): ImageData;
}

interface GpuResource<T extends Tensor.Type> {
  /** Reads the tensor. */
  download?(): Promise<Tensor.DataTypeMap[T]>;
  dispose?(): void;
}

interface CommonParameters<T> {
  readonly dims: readonly number[];
  readonly type: T;
}

export interface CpuPinnedConstructorParameters<T extends Tensor.CpuPinnedDataTypes = Tensor.CpuPinnedDataTypes> extends CommonParameters<T> {
  readonly location: "cpu-pinned";
  readonly data: Tensor.DataTypeMap[T];
}
export interface TextureConstructorParameters<T extends Tensor.TextureDataTypes = Tensor.TextureDataTypes> extends CommonParameters<T>, GpuResource<T> {
  readonly location: "texture";
  readonly texture: Tensor.TextureType;
}
export interface GpuBufferConstructorParameters<T extends Tensor.GpuBufferDataTypes = Tensor.GpuBufferDataTypes>
  extends CommonParameters<T>, GpuResource<T> {
  readonly location: "gpu-buffer";
  readonly gpuBuffer: Tensor.GpuBufferType;
}
export interface MLTensorConstructorParameters<T extends Tensor.MLTensorDataTypes = Tensor.MLTensorDataTypes>
  extends CommonParameters<T>, GpuResource<T> {
  readonly location: "ml-tensor";
  readonly mlTensor: Tensor.MLTensorType;
}
export interface TensorFromTextureOptions<T extends Tensor.TextureDataTypes> extends Required<OptionsDimensions>, OptionsFormat, GpuResource<T> {}
export interface TensorFromGpuBufferOptions<T extends Tensor.GpuBufferDataTypes> extends GpuResource<T> {
  readonly dims: readonly number[];
  dataType?: T;
}
export interface TensorFromMLTensorOptions<T extends Tensor.MLTensorDataTypes> extends GpuResource<T> {
  readonly dims: readonly number[];
  dataType?: T;
}

export interface TensorFactory {
  /** The pixels of a picture, of one that is loaded. Throws InputError if the page may not read them. */
  fromImage(imageData: ImageData, options?: TensorFromImageDataOptions): Promise<TypedTensor<"float32"> | TypedTensor<"uint8">>;
  fromImage(imageElement: HTMLImageElement, options?: TensorFromImageElementOptions): Promise<TypedTensor<"float32"> | TypedTensor<"uint8">>;
  fromImage(urlSource: string, options?: TensorFromUrlOptions): Promise<TypedTensor<"float32"> | TypedTensor<"uint8">>;
  fromImage(bitmap: ImageBitmap, options?: TensorFromImageBitmapOptions): Promise<TypedTensor<"float32"> | TypedTensor<"uint8">>;
  fromGpuBuffer<T extends Tensor.GpuBufferDataTypes>(buffer: Tensor.GpuBufferType, options: TensorFromGpuBufferOptions<T>): TypedTensor<T>;
  fromPinnedBuffer<T extends Exclude<Tensor.Type, "string">>(type: T, buffer: Tensor.DataTypeMap[T], dims?: readonly number[]): TypedTensor<T>;
  /** Throws InputError. */
  fromTexture<T extends Tensor.TextureDataTypes = "float32">(texture: Tensor.TextureType, options: TensorFromTextureOptions<T>): TypedTensor<"float32">;
  /** Throws InputError. */
  fromMLTensor<T extends Tensor.MLTensorDataTypes>(tensor: Tensor.MLTensorType, options: TensorFromMLTensorOptions<T>): TypedTensor<T>;
}

/** A tensor on the GPU, for its constructor. */
export type GpuBufferParameters = { dims: readonly number[]; gpuBuffer: any; download?: () => Promise<any>; dispose?: () => void };

// Sessions

export type FileType = string | Blob | Uint8Array | ArrayBufferLike;
export type FileUrlOrPath = string;
export type FileBlob = Blob;
export type FileData = Uint8Array | ArrayBufferLike;
export interface ExternalDataFileDescription {
  data: FileType;
  path: string;
}
export type ExternalDataFileType = ExternalDataFileDescription | FileUrlOrPath;
export interface OnnxModelOptions {
  externalData?: readonly ExternalDataFileType[];
}

export namespace InferenceSession {
  type OnnxValueMapType = { readonly [name: string]: OnnxValue };
  type NullableOnnxValueMapType = { readonly [name: string]: OnnxValue | null };
  type FeedsType = OnnxValueMapType;
  type FetchesType = readonly string[] | NullableOnnxValueMapType;
  type ReturnType = OnnxValueMapType;

  /** `executionProviders`, `intraOpNumThreads` and `preferredOutputLocation` have an effect; `webmlc build` decides the others. */
  interface SessionOptions extends OnnxModelOptions {
    /** "wasm", "cpu" or "webgpu". `["webgpu", "wasm"]` takes the GPU if it can. The default is `["wasm"]`. */
    executionProviders?: readonly ExecutionProviderConfig[];
    /** CPU threads, unless `env.wasm.numThreads` says how many. */
    intraOpNumThreads?: number;
    interOpNumThreads?: number;
    freeDimensionOverrides?: { readonly [dimensionName: string]: number };
    graphOptimizationLevel?: "disabled" | "basic" | "extended" | "layout" | "all";
    enableCpuMemArena?: boolean;
    enableMemPattern?: boolean;
    executionMode?: "sequential" | "parallel";
    optimizedModelFilePath?: string;
    enableProfiling?: boolean;
    profileFilePrefix?: string;
    logId?: string;
    logSeverityLevel?: 0 | 1 | 2 | 3 | 4;
    logVerbosityLevel?: number;
    /** With "gpu-buffer", outputs stay on the GPU. */
    preferredOutputLocation?: OnnxValueDataLocation | { readonly [outputName: string]: OnnxValueDataLocation };
    enableGraphCapture?: boolean;
    extra?: Record<string, unknown>;
  }

  interface ExecutionProviderOption {
    readonly name: string;
  }
  interface CpuExecutionProviderOption extends ExecutionProviderOption {
    readonly name: "cpu";
    useArena?: boolean;
  }
  interface CudaExecutionProviderOption extends ExecutionProviderOption {
    readonly name: "cuda";
    deviceId?: number;
  }
  interface DmlExecutionProviderOption extends ExecutionProviderOption {
    readonly name: "dml";
    deviceId?: number;
  }
  interface TensorRtExecutionProviderOption extends ExecutionProviderOption {
    readonly name: "tensorrt";
    deviceId?: number;
  }
  interface WebAssemblyExecutionProviderOption extends ExecutionProviderOption {
    readonly name: "wasm";
  }
  interface WebGLExecutionProviderOption extends ExecutionProviderOption {
    readonly name: "webgl";
  }
  interface XnnpackExecutionProviderOption extends ExecutionProviderOption {
    readonly name: "xnnpack";
  }
  interface WebGpuExecutionProviderOption extends ExecutionProviderOption {
    readonly name: "webgpu";
    preferredLayout?: "NCHW" | "NHWC";
    forceCpuNodeNames?: readonly string[];
    validationMode?: "disabled" | "wgpuOnly" | "basic" | "full";
    enableRobustness?: boolean;
    storageBufferCacheMode?: "disabled" | "lazyRelease" | "simple" | "bucket";
    uniformBufferCacheMode?: "disabled" | "lazyRelease" | "simple" | "bucket";
    queryResolveBufferCacheMode?: "disabled" | "lazyRelease" | "simple" | "bucket";
    defaultBufferCacheMode?: "disabled" | "lazyRelease" | "simple" | "bucket";
    /** A device of the page. The session uses it, and destroys only its own buffers. */
    device?: WebGpu<"GPUDevice">;
  }
  interface WebNNContextOptions {
    deviceType?: "cpu" | "gpu" | "npu";
    numThreads?: number;
    powerPreference?: "default" | "low-power" | "high-performance";
  }
  interface WebNNExecutionProviderName extends ExecutionProviderOption {
    readonly name: "webnn";
  }
  interface WebNNOptionsWithoutMLContext extends WebNNExecutionProviderName, WebNNContextOptions {
    context?: never;
  }
  interface WebNNOptionsWithMLContext
    extends WebNNExecutionProviderName, Omit<WebNNContextOptions, "deviceType">, Required<Pick<WebNNContextOptions, "deviceType">> {
    context: unknown;
  }
  interface WebNNOptionsWebGpu extends WebNNExecutionProviderName {
    context: unknown;
    gpuDevice: WebGpu<"GPUDevice">;
  }
  type WebNNExecutionProviderOption = WebNNOptionsWithoutMLContext | WebNNOptionsWithMLContext | WebNNOptionsWebGpu;
  interface QnnExecutionProviderOption extends ExecutionProviderOption {
    readonly name: "qnn";
    backendType?: string;
    backendPath?: string;
    enableFp16Precision?: boolean;
  }
  interface CoreMLExecutionProviderOption extends ExecutionProviderOption {
    readonly name: "coreml";
    coreMlFlags?: number;
    useCPUOnly?: boolean;
    useCPUAndGPU?: boolean;
    enableOnSubgraph?: boolean;
    onlyEnableDeviceWithANE?: boolean;
  }
  interface NnapiExecutionProviderOption extends ExecutionProviderOption {
    readonly name: "nnapi";
    useFP16?: boolean;
    useNCHW?: boolean;
    cpuDisabled?: boolean;
    cpuOnly?: boolean;
  }
  interface ExecutionProviderOptionMap {
    coreml: CoreMLExecutionProviderOption;
    cpu: CpuExecutionProviderOption;
    cuda: CudaExecutionProviderOption;
    dml: DmlExecutionProviderOption;
    nnapi: NnapiExecutionProviderOption;
    tensorrt: TensorRtExecutionProviderOption;
    wasm: WebAssemblyExecutionProviderOption;
    webgl: WebGLExecutionProviderOption;
    webgpu: WebGpuExecutionProviderOption;
    webnn: WebNNExecutionProviderOption;
    qnn: QnnExecutionProviderOption;
    xnnpack: XnnpackExecutionProviderOption;
  }
  type ExecutionProviderName = keyof ExecutionProviderOptionMap;
  type ExecutionProviderConfig = ExecutionProviderOptionMap[ExecutionProviderName] | ExecutionProviderOption | ExecutionProviderName | string;

  /** They have no effect. */
  interface RunOptions {
    logSeverityLevel?: 0 | 1 | 2 | 3 | 4;
    logVerbosityLevel?: number;
    terminate?: boolean;
    tag?: string;
    extra?: Record<string, unknown>;
  }

  interface ValueMetadataBase {
    readonly name: string;
  }
  interface NonTensorValueMetadata extends ValueMetadataBase {
    readonly isTensor: false;
  }
  interface TensorValueMetadata extends ValueMetadataBase {
    readonly isTensor: true;
    readonly type: Tensor.Type;
    /** Numbers, and the names of symbolic dimensions. */
    readonly shape: ReadonlyArray<number | string>;
  }
  type ValueMetadata = NonTensorValueMetadata | TensorValueMetadata;
}

export interface InferenceSession {
  run(feeds: InferenceSession.FeedsType, options?: InferenceSession.RunOptions): Promise<InferenceSession.ReturnType>;
  run(
    feeds: InferenceSession.FeedsType,
    fetches: InferenceSession.FetchesType,
    options?: InferenceSession.RunOptions,
  ): Promise<InferenceSession.ReturnType>;
  release(): Promise<void>;
  startProfiling(): void;
  endProfiling(): void;
  readonly inputNames: readonly string[];
  readonly outputNames: readonly string[];
  readonly inputMetadata: readonly InferenceSession.ValueMetadata[];
  readonly outputMetadata: readonly InferenceSession.ValueMetadata[];
}

export interface InferenceSessionFactory {
  /** Load the package in a folder. */
  create(uri: string | URL, options?: InferenceSession.SessionOptions): Promise<InferenceSession>;
  /** Throws InputError: pages compile nothing. @deprecated */
  create(buffer: ArrayBufferLike, options?: InferenceSession.SessionOptions): Promise<InferenceSession>;
  /** @deprecated */
  create(buffer: ArrayBufferLike, byteOffset: number, byteLength?: number, options?: InferenceSession.SessionOptions): Promise<InferenceSession>;
  /** @deprecated */
  create(buffer: Uint8Array, options?: InferenceSession.SessionOptions): Promise<InferenceSession>;
  /** A session over a package that is loaded. */
  new (model: Model<any, any>, options?: InferenceSession.SessionOptions): InferenceSession;
}

export const InferenceSession: InferenceSessionFactory;

// Settings

export namespace Env {
  type WasmPathPrefix = string;
  interface WasmFilePaths {
    wasm?: URL | string;
    mjs?: URL | string;
  }
  type WasmPrefixOrFilePaths = WasmPathPrefix | WasmFilePaths;

  interface WebAssemblyFlags {
    /** CPU threads. */
    numThreads?: number;
    /** This and all that follow have no effect: a package knows its files, and long runs execute in a worker. */
    simd?: boolean | "fixed" | "relaxed";
    trace?: boolean;
    initTimeout?: number;
    wasmPaths?: WasmPrefixOrFilePaths;
    wasmBinary?: ArrayBufferLike | Uint8Array;
    proxy?: boolean;
  }

  /** They have no effect. */
  interface WebGLFlags {
    contextId?: "webgl" | "webgl2";
    readonly context: WebGLRenderingContext;
    matmulMaxBatchSize?: number;
    textureCacheMode?: "initializerOnly" | "full";
    pack?: boolean;
    async?: boolean;
  }

  interface WebGpuProfilingDataV1TensorMetadata {
    dims: readonly number[];
    dataType: string;
  }
  interface WebGpuProfilingDataV1 {
    version: 1;
    inputsMetadata: readonly WebGpuProfilingDataV1TensorMetadata[];
    outputsMetadata: readonly WebGpuProfilingDataV1TensorMetadata[];
    kernelId: number;
    kernelType: string;
    kernelName: string;
    programName: string;
    startTime: number;
    endTime: number;
  }
  type WebGpuProfilingData = WebGpuProfilingDataV1;

  interface WebGpuFlags {
    profilingMode?: "off" | "default";
    profiling: { mode?: "off" | "default"; ondata?: (data: WebGpuProfilingData) => void };
    powerPreference?: "low-power" | "high-performance";
    forceFallbackAdapter?: boolean;
    adapter: WebGpu<"GPUAdapter">;
    /** The device that the page chose, or that of the first session on the GPU. */
    get device(): Promise<WebGpu<"GPUDevice">>;
    set device(value: WebGpu<"GPUDevice">);
    validateInputContent?: boolean;
  }
}

export interface Env {
  logLevel?: "verbose" | "info" | "warning" | "error" | "fatal";
  debug?: boolean;
  trace?: boolean;
  readonly versions: { readonly common: string; readonly web?: string; readonly node?: string; readonly "react-native"?: string };
  readonly wasm: Env.WebAssemblyFlags;
  readonly webgl: Env.WebGLFlags;
  readonly webgpu: Env.WebGpuFlags;
  [name: string]: unknown;
}

export const env: Env;

// Backends, which packages do not have

export namespace SessionHandler {
  type FeedsType = { [name: string]: OnnxValue };
  type FetchesType = { [name: string]: OnnxValue | null };
  type ReturnType = { [name: string]: OnnxValue };
}

export interface InferenceSessionHandler {
  dispose(): Promise<void>;
  readonly inputNames: readonly string[];
  readonly outputNames: readonly string[];
  readonly inputMetadata: readonly InferenceSession.ValueMetadata[];
  readonly outputMetadata: readonly InferenceSession.ValueMetadata[];
  startProfiling(): void;
  endProfiling(): void;
  run(feeds: SessionHandler.FeedsType, fetches: SessionHandler.FetchesType, options: InferenceSession.RunOptions): Promise<SessionHandler.ReturnType>;
}

export interface Backend {
  init(backendName: string): Promise<void>;
  createInferenceSessionHandler(uriOrBuffer: string | Uint8Array, options?: InferenceSession.SessionOptions): Promise<InferenceSessionHandler>;
}

/** Warns: nothing is registered. */
export const registerBackend: (name: string, backend: Backend, priority: number) => void;

/** Tracing has no effect: `profile` of a model measures its steps. */
export const TRACE: (deviceType: string, label: string) => void;
export const TRACE_FUNC_BEGIN: (extraMsg?: string) => void;
export const TRACE_FUNC_END: (extraMsg?: string) => void;
export const TRACE_EVENT_BEGIN: (extraMsg?: string) => void;
export const TRACE_EVENT_END: (extraMsg?: string) => void;

declare const ort: {
  env: Env;
  InferenceSession: InferenceSessionFactory;
  Tensor: TensorConstructor;
  registerBackend: typeof registerBackend;
  TRACE: typeof TRACE;
  TRACE_FUNC_BEGIN: typeof TRACE_FUNC_BEGIN;
  TRACE_FUNC_END: typeof TRACE_FUNC_END;
  TRACE_EVENT_BEGIN: typeof TRACE_EVENT_BEGIN;
  TRACE_EVENT_END: typeof TRACE_EVENT_END;
};
export default ort;

// The records of manifests. Written by `python -m webmlc.package.manifest_schema`. Change webmlc/package/manifest.py. It documents the fields.

/** An integer, a symbol's name, or [operator, Size, ...]. */
export type Size = number | string | [string, ...Size[]];

/** All information about a package that a host needs. */
export interface Manifest {
  name: string;
  compiler: string;
  symbols: Symbol[];
  inputs: Port[];
  outputs: Port[];
  sequences: Record<string, string[] | null>;
  shapes: Record<string, string>;
  typed: Record<string, TypedValue>;
  texts: Texts | null;
  requirements: Requirement[];
  checks: Check[];
  states: StatePort[];
  carried: Carried[];
  operators: CustomOperator[];
  tuned: TunedKernel[];
  machines: MachineClass[];
  weights: WeightFile[];
  files: Record<string, File>;
  programs: Partial<Record<"wasm" | "webgpu", Program>>;
}

/** A symbolic dimension, which a run binds from one axis of one input. */
export interface Symbol {
  name: string;
  input: string;
  axis: number;
}

/** An input or output of the model: its public name, its type, and the buffer that holds it. */
export interface Port {
  name: string;
  dtype: DType;
  shape: Size[];
  buffer: string;
}

export type DType = "bfloat16" | "bool" | "float16" | "float32" | "float4_e2m1fn" | "float64" | "float6_e2m3fn" | "float6_e3m2fn" | "float8_e4m3fn" | "float8_e4m3fnuz" | "float8_e5m2" | "float8_e5m2fnuz" | "float8_e8m0fnu" | "int16" | "int2" | "int32" | "int4" | "int64" | "int8" | "uint16" | "uint2" | "uint32" | "uint4" | "uint64" | "uint8";

/** An input or output that is a value of the page (`graph/typed`), such as a picture. */
export interface TypedValue {
  kind: string;
  rate: number | null;
  values: string[] | null;
  labels: string | null;
}

/** The texts of a model, and the steps on them that hosts compute (`core/text_steps.py`). */
export interface Texts {
  words: string;
  inputs: TextPort[];
  outputs: TextPort[];
  before: (View | Take | Join | Normalise | Split | Tokenise | Append | Match | CountGrams | Parse | Print)[];
  after: (View | Take | Join | Normalise | Split | Tokenise | Append | Match | CountGrams | Parse | Print)[];
  constants: Record<string, TextTensor>;
  feeds: string[];
  reads: string[];
}

/** An input or output of the model that holds texts. */
export interface TextPort {
  name: string;
  shape: Size[];
  position: number;
}

/** Give texts another shape. */
export interface View {
  type: "view";
  value: string;
  result: string;
  shape: number[];
}

/** Take the elements `indices` along an axis. */
export interface Take {
  type: "take";
  value: string;
  result: string;
  axis: number;
  indices: number[];
}

/** Concatenate tensors of texts along an axis. */
export interface Join {
  type: "join";
  values: string[];
  result: string;
  axis: number;
}

/** Change the case of texts, and remove stop words (ONNX's StringNormalizer). */
export interface Normalise {
  type: "normalise";
  value: string;
  result: string;
  case: "lower" | "none" | "upper";
  stop_words: string[];
  folds: boolean;
}

/** Split texts at a delimiter, or at white space if the delimiter is empty (ONNX's StringSplit). */
export interface Split {
  type: "split";
  value: string;
  result: string;
  counts: string;
  delimiter: string;
  limit: number;
}

/** Split texts into tokens (onnxruntime's Tokenizer). */
export interface Tokenise {
  type: "tokenise";
  value: string;
  result: string;
  pattern: string;
  separators: string[];
  shortest: number;
  padding: string;
  marks: boolean;
}

/** Append to each text of `value` the text of `end` (ONNX's StringConcat). */
export interface Append {
  type: "append";
  value: string;
  end: string;
  result: string;
}

/** Say whether a pattern matches a whole text, as bool (ONNX's RegexFullMatch). */
export interface Match {
  type: "match";
  value: string;
  result: string;
  pattern: string;
}

/** Count the n-grams of each row of texts, as float32 (ONNX's TfIdfVectorizer). */
export interface CountGrams {
  type: "count_grams";
  value: string;
  result: string;
  grams: string;
  shortest: number;
  longest: number;
  width: number;
  skips: number;
  clips: boolean;
}

/** Read numbers (ONNX's Cast). */
export interface Parse {
  type: "parse";
  value: string;
  result: string;
  dtype: DType;
}

/** Write numbers as texts, floats as C's %.8g does (ONNX's Cast). */
export interface Print {
  type: "print";
  value: string;
  result: string;
}

/** Texts that a step reads, and that are the same in every run. */
export interface TextTensor {
  shape: number[];
  texts: string[];
}

/** A condition on two sizes that a run checks, as JSON `[rule, left, right, node]`. */
export type Requirement = ["at most" | "broadcast" | "equal" | "stretch" | "unequal", Size, Size, string];

/** A buffer that hosts read after a run, as JSON `[buffer, nodes]`. */
export type Check = [string, string[]];

/** The input and the output that the model had in place of a state, which is `past.buffer`. */
export interface StatePort {
  past: Port;
  present: string;
  rows: Size | null;
  size: Size | null;
}

/** An output that a session passes to its next run as an input. */
export interface Carried {
  input: string;
  output: string;
}

/** An operator that people defined, and the number of its nodes in the model. */
export interface CustomOperator {
  domain: string;
  name: string;
  nodes: number;
  origin: string;
}

/** A kernel whose schedule was found by measuring. */
export interface TunedKernel {
  kernel: string;
  variant: string;
  tuning: Tuning;
  machine: number;
}

/** The result of a search. */
export interface Tuning {
  changes: any;
  platform: string;
  ratio: number;
}

/** A loader's knowledge of the machine that it runs on. */
export interface MachineClass {
  device: "wasm" | "webgpu";
  engine: string;
  adapter: string;
  is_parallel: boolean;
}

/** One safetensors file. */
export interface WeightFile {
  path: string;
  bytes: number;
  sha256: string;
  chunk_bytes: number;
  chunks_sha256: string;
  tensors: Record<string, [number, number]>;
}

/** The size and hash of one file. */
export interface File {
  bytes: number;
  sha256: string;
}

/** The program that runs the model on one target: buffers, steps and code files. */
export interface Program {
  buffers: Buffer[];
  steps: Step[];
  segments: (Run | Bind | Measure | Move | BeginList | Collect | Stack | Jump | JumpUnless)[];
  resources: Resources;
  sizes: Record<string, Size>;
  memory: Partial<Record<"wasm" | "webgpu", Memory>>;
  modules: Record<string, string>;
  shaders: Record<string, string>;
  shader_features: Record<string, string[]>;
  halves: Halves | null;
}

/** A buffer of a program. */
export interface Buffer {
  name: string;
  shape: Size[];
  dtype: DType;
  kind: "constant" | "derived" | "input" | "scratch" | "state";
  tensor: string | null;
}

/** One kernel call, or with `control` a step that decides which step is next. */
export interface Step {
  device: "wasm" | "webgpu";
  kernel: string;
  arguments: string[];
  outputs: number;
  symbols: string[];
  launches: Record<string, Launch>;
  control: Control | null;
  reason: string;
  origin: string[];
}

/** One dispatch of a shader. */
export interface Launch {
  workgroups: [Size, Size, Size];
  entry: string;
  integers: number[];
  sections: Size[];
}

/** The action of a control step, which calls no kernel. */
export interface Control {
  kind: "else" | "if" | "loop" | "next";
  target: number;
  symbol: string;
  trips: Size | null;
}

/** Consecutive steps `first..last-1` on one device. */
export interface Run {
  type: "run";
  device: "wasm" | "webgpu";
  first: number;
  last: number;
  module_first: number;
  once: boolean;
  uploads: string[];
  downloads: string[];
}

/** Symbols known only at run time: `symbols[i]` is element `elements[i]` of `buffer`. */
export interface Bind {
  type: "bind";
  buffer: string;
  symbols: string[];
  elements: number[];
  origin: string[];
}

/** Symbols known only at run time: `symbols[i]` is the size of axis `axes[i]` of the value that a `Move` or a `Stack` left in `buffer`. */
export interface Measure {
  type: "measure";
  buffer: string;
  symbols: string[];
  axes: number[];
}

/** The host hands the values of `sources` on as `targets`, all at once. */
export interface Move {
  type: "move";
  sources: string[];
  targets: string[];
  shapes: Size[][];
}

/** The host makes the list `target` empty. */
export interface BeginList {
  type: "begin_list";
  target: string;
}

/** The host appends the value of `source`, of shape `shape`, to the list `target`. */
export interface Collect {
  type: "collect";
  target: string;
  source: string;
  shape: Size[];
}

/** The host joins the values in the list `target` along a new axis. */
export interface Stack {
  type: "stack";
  target: string;
  axis: number;
  shape: Size[];
}

/** The host continues at segment `target`. */
export interface Jump {
  type: "jump";
  target: number;
}

/** The host continues at segment `target`, or at the following segment if the boolean in `unless` is true. */
export interface JumpUnless {
  type: "jump_unless";
  target: number;
  unless: string;
}

/** The exact resources of a run, in bytes, which the hosts assert. */
export interface Resources {
  weights: number;
  arena: Partial<Record<"wasm" | "webgpu", number | null>>;
  memory: number | null;
  largest_binding: number | null;
  scratch_per_thread: number;
  features: string[];
  row: RowWork | null;
}

/** The work of a run that appends one row to the states of a session: a token of a language model. */
export interface RowWork {
  steps: number;
  bytes: number;
  bytes_per_row: number;
}

/** The buffers, by number, that a program keeps in the memory of a device. */
export interface Memory {
  constants: number[];
  temporary: number[];
  derived: number[];
  states: number[];
  arena: Place[];
}

/** The place of a buffer in an arena, as JSON `[buffer, below]`. */
export type Place = [number, number[]];

/** The numbers of the float32 buffers that variants of the shaders with `shader-f16` store as float16. */
export interface Halves {
  buffers: number[];
  arena: number | null;
}

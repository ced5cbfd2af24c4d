// The records of manifests. Written by `python -m webmlc.package.manifest_schema`. Change webmlc/package/manifest.py.

/** An integer, a symbol's name, or [operator, Size, ...]. */
export type Size = number | string | [string, ...Size[]];

/**
 * All information about a package that a host needs.
 *
 * - `symbols`: the symbols that every run binds at its start.
 * - `sequences`: for each output of the model that is a sequence, the outputs that are its
 *   elements. `None` stands for an empty optional.
 * - `typed`: which inputs and outputs are values of the page.
 * - `requirements`: conditions on the symbols of a run.
 * - `checks`: buffers that count indices out of range.
 * - `states`: the inputs and outputs that states replace.
 * - `tuned`: the kernels whose schedules are not the default schedules.
 * - `machines`: the classes of machines for which some kernels have other schedules, numbered
 *   from 1.
 * - `weights`, `files`: the files with constants, and all files.
 */
export interface Manifest {
  name: string;
  compiler: string;
  symbols: Symbol[];
  inputs: Port[];
  outputs: Port[];
  sequences: Record<string, string[] | null>;
  typed: Record<string, TypedValue>;
  requirements: Requirement[];
  checks: Check[];
  states: StatePort[];
  tuned: TunedKernel[];
  machines: MachineClass[];
  weights: WeightFile[];
  files: Record<string, File>;
  programs: Partial<Record<"wasm" | "webgpu", Program>>;
}

/**
 * A symbolic dimension, which a run binds from one axis of one input.
 *
 * A symbol without an input belongs to a session. If `axis` is 0, the symbol is the length: the
 * number of rows of the session's states before the run. If `axis` is 1, it is the capacity.
 */
export interface Symbol {
  name: string;
  input: string;
  axis: number;
}

/**
 * An input or output of the model: its public name, its type, and the buffer that holds it.
 */
export interface Port {
  name: string;
  dtype: DType;
  shape: Size[];
  buffer: string;
}

export type DType = "bfloat16" | "bool" | "float16" | "float32" | "float4_e2m1fn" | "float64" | "float6_e2m3fn" | "float6_e3m2fn" | "float8_e4m3fn" | "float8_e4m3fnuz" | "float8_e5m2" | "float8_e5m2fnuz" | "float8_e8m0fnu" | "int16" | "int2" | "int32" | "int4" | "int64" | "int8" | "uint16" | "uint2" | "uint32" | "uint4" | "uint64" | "uint8";

/**
 * An input or output that is a value of the page (`graph/typed`), such as a picture.
 *
 * - `kind`: the kind of the value, such as `pixels` or `classes`.
 * - `rate`: the samples per second of a sound.
 * - `values`: the outputs from which a typed output is made. An input has none.
 * - `labels`: the file with the names of the classes.
 */
export interface TypedValue {
  kind: string;
  rate: number | null;
  values: string[] | null;
  labels: string | null;
}

/**
 * A condition on two sizes that a run checks, as JSON `[rule, left, right, node]`. `node` is
 * the ONNX node that needs it.
 */
export type Requirement = ["at most" | "broadcast" | "equal" | "stretch" | "unequal", Size, Size, string];

/**
 * A buffer that hosts read after a run, as JSON `[buffer, nodes]`. For each of `nodes`, it
 * holds the number of indices that are out of range, as an int32.
 */
export type Check = [string, string[]];

/**
 * The input and the output that the model had in place of a state, which is `past.buffer`.
 *
 * A run without a session takes the past as an input and returns the present. A past may grow
 * along the axis whose size is the symbol of the length, which is the first axis of the state.
 * Otherwise each run replaces the past.
 *
 * A past that is a buffer has an axis whose size is the symbol of the capacity. A run writes at
 * most `rows` rows to this buffer, and the present has `size` rows.
 */
export interface StatePort {
  past: Port;
  present: string;
  rows: Size | null;
  size: Size | null;
}

/**
 * A kernel whose schedule was found by measuring. This record serves people: no host reads it.
 *
 * `variant` is the variant of the module (`relaxed`) or of the shaders (`gpu`). `machine` is the
 * number of the class of machines that use the schedule, or 0 for all other machines.
 */
export interface TunedKernel {
  kernel: string;
  variant: string;
  tuning: Tuning;
  machine: number;
}

/**
 * The result of a search.
 *
 * - `changes`: the parameters that differ from the default.
 * - `platform`: where the changes were measured.
 * - `ratio`: the measured time over the time of the default schedule.
 */
export interface Tuning {
  changes: any;
  platform: string;
  ratio: number;
}

/**
 * A loader's knowledge of the machine that it runs on.
 *
 * - `device`: the device that runs the kernels.
 * - `engine`: the name of the browser or of the library, such as "chromium" or "wasmtime".
 * - `adapter`: the vendor and the architecture of the GPU; "" on a CPU, which no browser names.
 * - `is_parallel`: several threads run a kernel on the CPU.
 */
export interface MachineClass {
  device: "wasm" | "webgpu";
  engine: string;
  adapter: string;
  is_parallel: boolean;
}

/**
 * One safetensors file.
 *
 * `tensors` gives the bytes `[begin, end)` of each tensor, from the start of the file.
 * `chunks_sha256` is the hash of a list: the hashes of consecutive chunks. A host that streams the
 * file hashes each chunk as it arrives, and verifies the list at the end.
 */
export interface WeightFile {
  path: string;
  bytes: number;
  sha256: string;
  chunk_bytes: number;
  chunks_sha256: string;
  tensors: Record<string, [number, number]>;
}

/**
 * The size and hash of one file.
 */
export interface File {
  bytes: number;
  sha256: string;
}

/**
 * The program that runs the model on one target: buffers, steps and code files.
 *
 * - `segments`: the segments, which cover the steps in order.
 * - `sizes`: sizes that other sizes name. A later size may name earlier sizes.
 * - `memory`: the plan of each device that the program uses.
 * - `modules`, `shaders`: files by variant. A host uses one module and one file of shaders.
 * - `shader_features`: by variant, the features of WebGPU that it needs. Variants that need no
 *   feature are left out.
 * - `halves`: present if some variants of the shaders need `shader-f16`.
 */
export interface Program {
  buffers: Buffer[];
  steps: Step[];
  segments: (Run | Bind)[];
  resources: Resources;
  sizes: Record<string, Size>;
  memory: Partial<Record<"wasm" | "webgpu", Memory>>;
  modules: Record<string, string>;
  shaders: Record<string, string>;
  shader_features: Record<string, string[]>;
  halves: Halves | null;
}

/**
 * A buffer of a program.
 *
 * `tensor` is the name of a constant in the weights. A buffer of kind `derived` holds values that
 * are computed from constants once, at load. A buffer of kind `state` belongs to a session. If its
 * size depends on the symbol of the length, the buffer grows, and has room for as many rows as the
 * session's capacity. Otherwise each run replaces its contents.
 */
export interface Buffer {
  name: string;
  shape: Size[];
  dtype: DType;
  kind: "constant" | "derived" | "input" | "scratch" | "state";
  tensor: string | null;
}

/**
 * One kernel call, or with `control` a step that decides which step is next.
 *
 * - `arguments`: buffers in the order of the kernel's parameters. The last `outputs` are written.
 * - `symbols`: the symbols of a webgpu step. A wasm module contains the symbols of its steps.
 * - `launches`: the launches of a webgpu step, by variant of the shaders. A missing variant has
 *   the launch of the first variant. The key `VARIANT@NUMBER` is for a class of machines.
 * - `origin`: the ONNX nodes that the step computes.
 * - `reason`: why a step of a webgpu program runs on the CPU.
 */
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

/**
 * One dispatch of a shader.
 *
 * - `entry`: the entry point, or "" if it has the name of the kernel.
 * - `integers`: the integers that follow the symbols in the uniform. A float is given by its bits.
 * - `sections`: the workgroups of the sections whose text a pipeline may leave out.
 */
export interface Launch {
  workgroups: [Size, Size, Size];
  entry: string;
  integers: number[];
  sections: Size[];
}

/**
 * The action of a control step, which calls no kernel. Its optional argument is a boolean.
 *
 * - `if`: jump to step `target` unless the argument is true.
 * - `else`: jump to `target`.
 * - `loop`: set `symbol` to 0. Jump to `target`, past the `next`, unless an iteration follows.
 * - `next`: increment `symbol`. Jump back to `target`, past the `loop`, if an iteration follows.
 *
 * An iteration follows if `symbol` is below `trips` and the argument, if there is one, is true.
 */
export interface Control {
  kind: "else" | "if" | "loop" | "next";
  target: number;
  symbol: string;
  trips: Size | null;
}

/**
 * Consecutive steps `first..last-1` on one device.
 *
 * The wasm module numbers them from `module_first`. A run with `once` is executed at load, where
 * it computes derived buffers. The host writes `uploads` to the device before the run, and reads
 * `downloads` after it: buffers whose newest values are on the other device, and results.
 */
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

/**
 * Symbols known only at run time: `symbols[i]` is element `elements[i]` of `buffer`.
 *
 * Earlier steps, or the caller, wrote the integers in `buffer`. The host reads them, then plans
 * memory for the buffers whose sizes are now known. `origin` names the ONNX nodes that need the
 * symbols.
 */
export interface Bind {
  type: "bind";
  buffer: string;
  symbols: string[];
  elements: number[];
  origin: string[];
}

/**
 * The exact resources of a run, in bytes, which the hosts assert.
 *
 * A resource that depends on symbols is `None`. `arena` is the memory of the activations per
 * device, `memory` the whole WebAssembly memory with one thread, and `largest_binding` the largest
 * buffer that a GPU binds. Models with states have `row`.
 */
export interface Resources {
  weights: number;
  arena: Partial<Record<"wasm" | "webgpu", number | null>>;
  memory: number | null;
  largest_binding: number | null;
  scratch_per_thread: number;
  features: string[];
  row: RowWork | null;
}

/**
 * The work of a run that appends one row to the states of a session: a token of a language
 * model.
 *
 * `steps` counts the kernels; on a GPU, each kernel is a dispatch. The kernels read and write at
 * least `bytes` bytes, and `bytes_per_row` more for each row that the session holds.
 */
export interface RowWork {
  steps: number;
  bytes: number;
  bytes_per_row: number;
}

/**
 * The buffers, by number, that a program keeps in the memory of a device.
 *
 * The constants of every run lie one after another. Then follows the arena, whose buffers share
 * bytes. On the CPU, the arena also holds the derived buffers and the constants that only loading
 * reads. On the GPU, the derived buffers and the constants of loading (`temporary`) have separate
 * memory, because one dispatch may not bind memory both for reading only and for writing.
 */
export interface Memory {
  constants: number[];
  temporary: number[];
  derived: number[];
  states: number[];
  arena: Place[];
}

/**
 * The place of a buffer in an arena, as JSON `[buffer, below]`.
 *
 * `buffer` is the number of the buffer. `below` lists the numbers of earlier places in the arena's
 * list. The place begins at the highest end of the places `below`.
 */
export type Place = [number, number[]];

/**
 * The numbers of the float32 buffers that variants of the shaders with `shader-f16` store as
 * float16. `arena` is the arena of such a variant in bytes, or `None` if it depends on symbols.
 */
export interface Halves {
  buffers: number[];
  arena: number | null;
}

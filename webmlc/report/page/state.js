// The report's data with its indices, and what is selected. Every view listens to it.

/** @import { Data, Program, Selection, Times } from "./types.d.ts" */

export const MODULE = "relaxed"; // the text of the WebAssembly module; all others are shaders

export class State {
  /** @type {"wasm" | "webgpu"} */
  device;
  /** @type {Selection} */
  selection = {};
  /** @type {Partial<Record<string, Times>>} By device. */
  times = {};
  /** @type {(() => void)[]} */
  #listeners = [];
  /** @type {Map<number, number[]>} The steps of each node. */
  #stepsOfNode = new Map();
  /** @type {number[][]} */
  #stepsOfKernel = [];
  /** @type {Map<string, { start: number, end: number, kernel: number }[]>} The lines of the kernels of each text, in order. */
  #lines = new Map();
  /** @type {Map<number, number>} The step that each line of the module runs. */
  #calls = new Map();

  /** @param {Data} data */
  constructor(data) {
    this.data = data;
    /** @type {Map<string, number>} The node that computes each value. */
    this.producers = new Map();
    /** @type {Map<string, number[]>} The nodes that read each value. */
    this.consumers = new Map();
    for (const [number, { inputs = [], outputs = [] }] of data.nodes.entries()) {
      for (const value of outputs) if (value) this.producers.set(value, number);
      for (const value of new Set(inputs)) if (value) this.consumers.set(value, [...(this.consumers.get(value) ?? []), number]);
    }
    this.device = data.programs.wasm ? "wasm" : "webgpu";
    /** The variants of the shaders. */
    this.shaders = Object.keys(data.texts).filter((name) => name !== MODULE);
    /** The variant whose code is shown. */
    this.variant = this.shaders[0] ?? "gpu";
    this.#index();
  }

  get program() {
    return /** @type {Program} */ (this.data.programs[this.device]);
  }

  /** The selected step, or undefined. */
  get step() {
    return this.selection.step === undefined ? undefined : this.program.steps[this.selection.step];
  }

  /** The kernel of the selected step, or undefined. */
  get kernel() {
    return this.step === undefined ? undefined : this.kernelOf(this.step.kernel);
  }

  /** A kernel, with its code in the variant of the shaders that is shown. Undefined for -1. @param {number} number */
  kernelOf(number) {
    const kernel = this.program.kernels[number];
    return kernel && { ...kernel, ...kernel.others?.find(({ text }) => text === this.variant) };
  }

  /** The measured times of the current program. */
  get measured() {
    return this.times[this.device];
  }

  /** Call a function after each change. @param {() => void} listener */
  listen(listener) {
    this.#listeners.push(listener);
  }

  changed() {
    for (const listener of this.#listeners) listener();
  }

  /** Show the program of a device. The node stays selected. @param {"wasm" | "webgpu"} device */
  choose(device) {
    this.device = device;
    this.#index();
    const { node } = this.selection;
    if (node === undefined) this.changed();
    else this.select({ node });
  }

  /** Show another variant of the shaders. The node and the step stay selected. @param {string} variant */
  showVariant(variant) {
    this.variant = variant;
    const { node, step } = this.selection;
    this.select({ node, step });
  }

  /** @param {number} node */
  stepsOfNode(node) {
    return this.#stepsOfNode.get(node) ?? [];
  }

  /** The step of a node that writes its result; else the one of most operations in a run. @param {number} node */
  mainStep(node) {
    const { steps, buffers } = this.program;
    const stepsHere = this.stepsOfNode(node);
    const outputs = this.data.nodes[node].outputs ?? [];
    const writer = stepsHere.find((step) => steps[step].writes.some((buffer) => outputs.includes(buffers[buffer][0])));
    const inRuns = stepsHere.filter((step) => !steps[step].once);
    inRuns.sort((a, b) => (steps[b].flops ?? 0) - (steps[a].flops ?? 0));
    return writer ?? inRuns[0] ?? stepsHere[0];
  }

  /** @param {number} kernel */
  stepsOfKernel(kernel) {
    return this.#stepsOfKernel[kernel] ?? [];
  }

  /** The kernel of a line, or undefined. @param {string} text @param {number} line */
  kernelOfLine(text, line) {
    const ranges = this.#lines.get(text) ?? [];
    let low = 0;
    for (let high = ranges.length; low < high; ) {
      const middle = (low + high) >> 1;
      if (ranges[middle].end <= line) low = middle + 1;
      else high = middle;
    }
    return low < ranges.length && ranges[low].start <= line ? ranges[low].kernel : undefined;
  }

  /** Select a node, a step, or both; what is missing follows from the other. @param {Selection} selection */
  select({ node, step, line }) {
    if (step === undefined && node !== undefined) step = this.mainStep(node);
    const nodes = step === undefined ? [] : this.program.steps[step].nodes;
    if (node === undefined) node = nodes.includes(this.selection.node ?? -1) ? this.selection.node : nodes[0];
    this.selection = { node, step, line };
    this.selection.line ??= this.lineOfNode() ?? this.kernel?.lines?.[0];
    this.changed();
  }

  /** Select the kernel of a line, or the step that it runs. Returns false if the line belongs to none. @param {string} text @param {number} line */
  selectLine(text, line) {
    const kernel = this.kernelOfLine(text, line);
    const step = text === MODULE ? this.#calls.get(line) : undefined;
    if (step !== undefined) this.select({ step, line });
    if (kernel === undefined) return step !== undefined;
    const steps = this.stepsOfKernel(kernel);
    const current = this.selection.step;
    const number = current !== undefined && steps.includes(current) ? current : steps[0];
    const nodes = this.nodesOfLine(line, number);
    const { node } = this.selection;
    this.select({ node: nodes.includes(node ?? -1) ? node : nodes[0], step: number, line });
    return true;
  }

  /** The nodes that a line of a step's kernel computes, as far as the build told. @param {number} line */
  nodesOfLine(line, number = this.selection.step) {
    const step = number === undefined ? undefined : this.program.steps[number];
    const { lines = [0, 0], stages = [] } = (step && this.kernelOf(step.kernel)) ?? {};
    if (!step?.stages || line < lines[0] || line >= lines[1]) return [];
    let numbers = /** @type {number[]} */ ([]);
    for (const [first, ...others] of stages) if (first <= line - lines[0]) numbers = others;
    return [...new Set(numbers.flatMap((stage) => step.stages?.[stage] ?? []))];
  }

  /** The first line of the selected kernel that computes the selected node and the fewest others, if one is known. */
  lineOfNode() {
    const { lines = [0, 0], stages = [] } = this.kernel ?? {};
    let [fewest, best] = [Infinity, /** @type {number | undefined} */ (undefined)];
    for (const [first] of stages) {
      const nodes = this.nodesOfLine(lines[0] + first);
      if (nodes.length < fewest && nodes.includes(this.selection.node ?? -1)) [fewest, best] = [nodes.length, lines[0] + first];
    }
    return best;
  }

  #index() {
    const { steps, kernels } = this.program;
    this.#stepsOfNode = new Map();
    this.#stepsOfKernel = kernels.map(() => []);
    for (const [number, { nodes, kernel }] of steps.entries()) {
      for (const node of nodes) this.#stepsOfNode.set(node, [...this.stepsOfNode(node), number]);
      this.#stepsOfKernel[kernel]?.push(number);
    }
    this.#calls = new Map();
    for (const [number, { calls: [first, end] = [0, 0] }] of steps.entries()) {
      for (let line = first; line < end; line++) this.#calls.set(line, number);
    }
    this.#lines = new Map();
    for (const [kernel, code] of kernels.entries()) {
      for (const { text, lines } of [code, ...(code.others ?? [])]) {
        if (!lines) continue;
        const ranges = this.#lines.get(text) ?? [];
        ranges.push({ start: lines[0], end: lines[1], kernel });
        this.#lines.set(text, ranges);
      }
    }
    for (const ranges of this.#lines.values()) ranges.sort((a, b) => a.start - b.start);
  }
}

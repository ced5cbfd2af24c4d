// Read the manifest, check the inputs of each run, and bind the symbols.
//
// The twin of webmlc/package/manifest.py and webmlc/host/bind.py.
//
//   in:  the package's URL; for each run `{ name: tensor }`, and the bytes of buffers from which segments bind symbols
//   out: the parsed manifest; for each run the value of each symbol and the bytes of each input

import { arrayOf, asStored, isArrayOf, isGpuBuffer } from "./dtypes.js";
import { InputError, PackageError } from "./errors.js";
import { described } from "./kinds.js";
import { fault } from "./manifest_faults.js";
import { CONSTANT_ALIGNMENT, FORMAT, VERSION } from "./manifest_records.js";
import { align, boundSymbols, buffersOf, readByHost, runs } from "./memory_plan.js";
import { RUNTIME_VERSION } from "./platform.js";
import { unfold, unfolded } from "./repetitions.js";
import { evaluate, loops, symbolsOf } from "./sizes.js";
import { request } from "./weights.js";
import { headOf, missingPackage, wrongFile, wrongManifest } from "./wrong_files.js";

/** @import { Base, Bind, GpuSpan, Manifest, Port, Program, Segment, Symbols } from "./types.d.ts" */
/** @import { Tensor, TypedArray } from "./webmlc.js" */
/** An input after its check, and the bytes of its data. @typedef {{ shape: readonly number[], data: TypedArray | GPUBuffer, bytes: number }} Input */

const LIMIT = 2 ** 31; // the first size that is too large: kernels have int32 indices

/**
 * Fetch and check the manifest.
 * @param {Base} base
 * @returns {Promise<Manifest>}
 */
export async function fetchManifest(base) {
  const url = new URL("manifest.json", base.url).href;
  const response = await request(base, url, missingPackage(base.address));
  const data = new Uint8Array(await response.arrayBuffer());
  let manifest;
  try {
    manifest = JSON.parse(new TextDecoder().decode(data));
  } catch (error) {
    const problem = wrongFile(headOf(data), base.address) || `is not JSON (${/** @type {Error} */ (error).message})`;
    throw new PackageError(`${url}: ${problem}`);
  }
  return complete(manifest, url);
}

/**
 * Read a parsed manifest: check its format and all its fields, and add what its JSON leaves out.
 * @param {any} json
 * @param {string} url
 * @returns {Manifest}
 */
export function complete(json, url) {
  if (json?.format !== FORMAT) throw new PackageError(`${url}: ${wrongManifest(json)}`);
  const { format: _, version, ...manifest } = json;
  if (version !== VERSION) {
    throw new PackageError(
      `${url}: is a package of format ${version}, which ${manifest.compiler} wrote. This runtime, of webmlc ${RUNTIME_VERSION}, reads format ` +
        `${VERSION}. Build the package again, or use the runtime of the version that wrote it`,
    );
  }
  let problem;
  try {
    unfoldAll(manifest);
    problem = fault(manifest, "Manifest") || misfit(manifest);
  } catch (error) {
    problem = ` is damaged (${/** @type {Error} */ (error).message})`;
  }
  if (problem) throw new PackageError(`${url}: ${problem.replace(/^\./, "")}. Build the package again`);
  return manifest;
}

/** Write out what the file says in a shorter form: see webmlc/package/manifest_json.py. @param {any} manifest */
function unfoldAll(manifest) {
  for (const file of manifest.weights ?? []) {
    let end = file.start;
    delete file.start;
    const tensors = unfold(file.tensors).map(([name, length]) => {
      const begin = align(end, CONSTANT_ALIGNMENT);
      return [name, [begin, (end = begin + length)]];
    });
    file.tensors = Object.fromEntries(tensors);
  }
  manifest.programs = unfolded(manifest.programs ?? {});
  for (const { steps, buffers, memory = {} } of Object.values(manifest.programs)) {
    for (const buffer of buffers) if (buffer.kind === "constant") buffer.tensor ??= buffer.name;
    let unused = 0; // the first buffer that no argument uses so far
    for (const step of steps) {
      step.arguments = step.arguments.map((/** @type {number} */ distance) => {
        const number = unused + distance;
        unused = Math.max(unused, number + 1);
        return buffers[number]?.name ?? number;
      });
    }
    for (const plan of Object.values(memory)) {
      for (const key of Object.keys(plan)) {
        let number = 0;
        if (key !== "arena") plan[key] = plan[key].map((/** @type {number} */ distance) => (number += distance));
      }
    }
  }
}

/** The values that a segment leaves on the host, with their ranks. @param {Segment} segment @returns {[string, number][]} */
function heldBy(segment) {
  if (segment.type === "move") return segment.targets.map((target, i) => [target, segment.shapes[i]?.length ?? 0]);
  return segment.type === "stack" ? [[segment.target, segment.shape.length + 1]] : [];
}

/** The fault of a segment that the host executes, or "". @param {Manifest} manifest @param {Program} program */
function hostFault({ symbols }, program) {
  const { buffers, segments, sizes } = program;
  const dtypes = new Map(buffers.map(({ name, dtype }) => [name, dtype]));
  /** @type {Map<string, number>} */
  const ranks = new Map();
  for (const [name, rank] of segments.flatMap(heldBy)) ranks.set(name, Math.min(rank, ranks.get(name) ?? rank));
  const lists = new Set(segments.flatMap((segment) => (segment.type === "begin_list" ? [segment.target] : [])));
  const inputs = buffers.filter(({ kind }) => kind === "input").map(({ name }) => name);
  const onHost = new Set([...inputs, ...ranks.keys(), ...lists, ...runs(program).flatMap(({ downloads }) => downloads)]);
  const bound = new Set([...symbols.map(({ name }) => name), ...boundSymbols(program), ...loops(program).map(({ symbol }) => symbol)]);
  const isPlace = (/** @type {number} */ place, /** @type {number} */ end) => place >= 0 && place < end;
  const faultOf = (/** @type {Segment} */ segment) => {
    const written = [...heldBy(segment).map(([name]) => name), ...(segment.type === "collect" || segment.type === "begin_list" ? [segment.target] : [])];
    const missing = [...readByHost(segment).filter((name) => !onHost.has(name)), ...written.filter((name) => !dtypes.has(name))];
    if (missing.length) return ` uses "${missing.join('", "')}", which the host does not have`;
    const shape = segment.type === "move" ? segment.shapes.flat() : segment.type === "collect" || segment.type === "stack" ? segment.shape : [];
    const unbound = [...symbolsOf(shape, sizes)].filter((name) => !bound.has(name));
    if (unbound.length) return ` binds no symbols "${unbound.join('", "')}"`;
    if (segment.type === "bind" || segment.type === "measure") {
      const [places, end] = segment.type === "bind" ? [segment.elements, LIMIT] : [segment.axes, ranks.get(segment.buffer) ?? 0];
      const fits = segment.symbols.length && segment.symbols.length === places.length && places.every((place) => isPlace(place, end));
      return fits ? "" : " does not have one element or axis per symbol";
    }
    if (segment.type === "move") {
      const [{ length }, { length: targets }, { length: shapes }] = [segment.sources, segment.targets, segment.shapes];
      return length === targets && length === shapes ? "" : " does not have one target and shape per source";
    }
    if (segment.type === "collect") return lists.has(segment.target) ? "" : ` appends to "${segment.target}", which is no list`;
    if (segment.type === "stack") {
      const isList = lists.has(segment.target) && isPlace(segment.axis, segment.shape.length + 1);
      return isList ? "" : ` joins "${segment.target}", which is no list with axis ${segment.axis}`;
    }
    if (segment.type === "jump_unless" && dtypes.get(segment.unless) !== "bool") return ` decides by "${segment.unless}", which is no boolean`;
    const jumps = segment.type === "jump" || segment.type === "jump_unless";
    return jumps && !isPlace(segment.target, segments.length + 1) ? " jumps to no segment" : "";
  };
  for (const [number, segment] of segments.entries()) {
    const problem = faultOf(segment);
    if (problem) return `.segments[${number}]${problem}`;
  }
  return "";
}

/** The fault of outputs that have shapes, or that sessions carry, or "". @param {Manifest} manifest */
function portFault({ inputs, outputs, shapes, carried, states }) {
  const port = (/** @type {Port[]} */ ports, /** @type {string} */ named) => ports.find(({ name }) => name === named);
  if (new Set(Object.entries(shapes).flat()).size < 2 * Object.keys(shapes).length) return ".shapes names an output twice";
  for (const [name, sizes] of Object.entries(shapes)) {
    const [output, shape] = [port(outputs, name), port(outputs, sizes)];
    if (!output || shape?.dtype !== "int64" || name === sizes) return `.shapes: output "${name}" has no shape "${sizes}"`;
    if (output.shape.length !== 1 || !shape.shape.length || shape.shape.length > 2) return `.shapes: output "${name}" has no single axis, or its shape more than two`;
  }
  if (carried.length && states.length) return ".carried has values, beside states";
  if (new Set(carried.map(({ input }) => input)).size < carried.length) return ".carried passes two outputs to one input";
  for (const pair of carried) {
    const [past, present] = [port(inputs, pair.input), port(outputs, pair.output)];
    if (!past || !present || past.dtype !== present.dtype || past.shape.length !== present.shape.length) {
      return `.carried passes "${pair.output}" to "${pair.input}", which has another type`;
    }
  }
  return "";
}

/** The fields that do not fit together in a manifest of the right types, or "". @param {Manifest} manifest */
function misfit(manifest) {
  const wrongPort = portFault(manifest);
  if (wrongPort) return wrongPort;
  for (const [device, program] of Object.entries(manifest.programs)) {
    const { buffers, steps, segments, memory } = program;
    const place = `.programs.${device}`;
    let next = 0;
    for (const segment of segments) if (segment.type === "run") next = segment.first === next && segment.last >= next ? segment.last : NaN;
    if (next !== steps.length) return `${place}.segments miss steps`;
    const problem = hostFault(manifest, program);
    if (problem) return place + problem;
    const index = steps.findIndex(({ device: on, control, launches }) => on === "webgpu" && !control && !Object.keys(launches).length);
    if (index >= 0) return `${place}.steps[${index}].launches are missing`;
    for (const [on, plan] of Object.entries(memory)) {
      const numbers = [...buffersOf(plan), ...plan.arena.flatMap(([, below]) => below)];
      if (numbers.some((number) => !buffers[number])) return `${place}.memory.${on} places a buffer that does not exist`;
    }
  }
  return "";
}

/**
 * Evaluate the shape of a port. Throws `InputError` if a size is negative.
 * @param {Port} port
 * @param {Symbols} symbols
 */
export function shapeOf(port, symbols) {
  /** @type {number[]} */
  const shape = [];
  for (const size of port.shape) {
    const value = evaluate(size, symbols);
    if (value < 0) throw new InputError(`with these inputs a size of "${port.name}" is ${value}: negative`);
    shape.push(value);
  }
  return shape;
}

/**
 * Check the inputs of a run, each on its own. Returns them in the order of the manifest.
 * @param {Manifest} manifest
 * @param {Record<string, Tensor | TypedArray>} inputs
 * @returns {Input[]}
 */
export function readInputs(manifest, inputs) {
  const ports = manifest.inputs;
  /** @type {Input[]} */
  const tensors = [];
  for (const port of ports) {
    const value = inputs?.[port.name];
    if (value === undefined) throw wrongNames(ports, inputs);
    tensors.push(checkTensor(port, value));
  }
  if (inputs && Object.keys(inputs).length > ports.length) throw wrongNames(ports, inputs);
  return tensors;
}

/** The error for inputs that have other names than the ports; undefined if the names are right. @param {readonly { name: string, dtype: string, shape: readonly any[] }[]} ports @param {Record<string, any>} inputs */
export function wrongNames(ports, inputs) {
  const unknown = Object.keys(inputs ?? {}).find((key) => !ports.some(({ name }) => name === key));
  const missing = ports.find(({ name }) => inputs?.[name] === undefined);
  if (unknown === undefined && !missing) return undefined;
  const problem = unknown === undefined ? `input "${missing?.name}" is missing` : `no input is named "${unknown}"`;
  const signature = ports.map(({ name, dtype, shape }) => `"${name}" (${dtype}${text(shape)})`).join(", ") || "none";
  return new InputError(`${problem}; the model takes ${signature}`);
}

/**
 * Bind the symbols from the shapes of the inputs, and check all shapes. `checkRequirements` checks the symbols.
 * @param {Manifest} manifest
 * @param {Input[]} tensors  in the order of the manifest
 * @param {number} [length]  of the session
 * @param {number} [capacity]  of the session; without one, its symbol is not bound
 * @returns {Symbols}
 */
export function bindSymbols(manifest, tensors, length = 0, capacity) {
  const shapes = new Map(manifest.inputs.map(({ name }, i) => [name, tensors[i].shape]));
  /** @type {Symbols} */
  const symbols = {};
  for (const { name, input, axis } of manifest.symbols) {
    if (input) symbols[name] = shapes.get(input)?.[axis] ?? 0;
    else if (axis === 0) symbols[name] = length;
    else if (capacity !== undefined) symbols[name] = capacity;
  }
  for (const [i, port] of manifest.inputs.entries()) {
    const { shape } = tensors[i];
    const expected = shapeOf(port, symbols);
    if (expected.every((d, axis) => d === shape[axis])) continue;
    const sources = origins(manifest, symbols);
    throw new InputError(
      `input "${port.name}" has shape ${text(shape)}, expected ${text(port.shape)} = ${text(expected)}` +
        (sources ? ` with ${sources}` : ""),
    );
  }
  return symbols;
}

/**
 * The condition on a pair of sizes that each rule stands for, and the words of the error.
 * @type {Record<string, [(a: number, b: number) => boolean, string]>}
 */
const RULES = {
  equal: [(a, b) => a === b, "they must be equal"],
  unequal: [(a, b) => a !== b, "they must differ, or the rank of the result changes: give the node its axes, or build for this size alone (--dim)"],
  "at most": [(a, b) => a <= b, "the first must not be larger"],
  broadcast: [(a, b) => a === b || a === 1 || b === 1, "they must be equal, or one of them 1"],
  stretch: [(a, b) => a === b || a === 1, "they must be equal, or the first 1"],
};

/**
 * Check the requirements of the model that depend on `fresh` symbols.
 * @param {Manifest} manifest
 * @param {Symbols} symbols
 * @param {Symbols} fresh
 */
export function checkRequirements(manifest, symbols, fresh) {
  for (const [rule, left, right, node] of manifest.requirements) {
    const names = symbolsOf([left, right]);
    if (![...names].every((name) => name in symbols) || ![...names].some((name) => name in fresh)) continue;
    const [a, b] = [left, right].map((size) => {
      try {
        return evaluate(size, symbols);
      } catch (error) {
        throw new InputError(`node "${node}": ${/** @type {Error} */ (error).message}`);
      }
    });
    const [holds, failure] = RULES[rule];
    if (holds(a, b)) continue;
    const sizes = [left, right].map((size, i) => (typeof size === "number" ? size : `${expression(size)} = ${[a, b][i]}`));
    const sources = origins(manifest, symbols, names);
    throw new InputError(`node "${node}": its sizes are ${sizes.join(" and ")}: ${failure}` + (sources ? `; ${sources}` : ""));
  }
}

/**
 * Throw an error that names the node and the sizes of the inputs, if a run counted indices out of range.
 * @param {Manifest} manifest
 * @param {Map<string, Uint8Array | GpuSpan>} values
 * @param {Symbols} symbols
 */
export function checkCounts(manifest, values, symbols) {
  for (const [buffer, nodes] of manifest.checks) {
    const bytes = /** @type {Uint8Array} */ (values.get(buffer));
    if (bytes.every((byte) => byte === 0)) continue;
    const counts = new Int32Array(bytes.slice().buffer);
    for (const [i, node] of nodes.entries()) {
      if (!counts[i]) continue;
      const verb = counts[i] === 1 ? "is" : "are";
      const sources = origins(manifest, symbols);
      throw new InputError(`node "${node}": with these inputs ${counts[i]} of its indices or sizes ${verb} out of range` + (sources ? `; ${sources}` : ""));
    }
  }
}

/**
 * Describe the inputs that bind the symbols, or only the symbols of these names.
 * @param {Manifest} manifest
 * @param {Symbols} symbols
 * @param {Set<string>} [names]
 */
function origins(manifest, symbols, names) {
  const sources = manifest.symbols.filter(({ name }) => names?.has(name) ?? true);
  const from = (/** @type {Manifest["symbols"][number]} */ { axis, input }) => (input ? `axis ${axis} of "${input}"` : `the ${axis ? "capacity" : "length"} of the session`);
  return sources.map((symbol) => `${symbol.name} = ${symbols[symbol.name]} from ${from(symbol)}`).join(", ");
}

/**
 * Read the symbols of a bind from the bytes of its buffer.
 * @param {Program} program
 * @param {Bind} segment
 * @param {Uint8Array} bytes
 * @returns {Symbols}
 */
export function bindFromMemory(program, segment, bytes) {
  const type = arrayOf(program.buffers.find((b) => b.name === segment.buffer)?.dtype ?? "");
  const values = new type(bytes.slice().buffer);
  /** @type {Symbols} */
  const symbols = {};
  segment.symbols.forEach((name, i) => {
    const size = Number(values[segment.elements[i]]);
    if (!(size >= 0 && size < LIMIT)) {
      const nodes = segment.origin.map((node) => `"${node}"`).join(", ");
      const reason = size < 0 ? "negative" : `more than ${LIMIT - 1}`;
      throw new InputError(`node ${nodes}: with these inputs a size is ${values[segment.elements[i]]}: ${reason}`);
    }
    symbols[name] = size;
  });
  return symbols;
}

/**
 * Check that a value is a tensor of the port's dtype and rank, and that it has as many elements as its shape says.
 * @param {Port} port
 * @param {any} value
 * @returns {Input}
 */
export function checkTensor(port, value) {
  const type = arrayOf(port.dtype);
  const isBare = ArrayBuffer.isView(value);
  const data = /** @type {any} */ (isBare ? value : value?.data);
  if (!isBare && value?.dtype !== undefined && value.dtype !== port.dtype) {
    throw wrongInput(port, `has dtype ${value.dtype}, expected ${port.dtype}`);
  }
  const isArray = isArrayOf(data, port.dtype);
  if (!isArray && !isGpuBuffer(data)) throw wrongInput(port, `holds ${described(data)}, expected ${port.dtype} as ${type.name}`);
  if (isBare && port.shape.some((d) => typeof d !== "number")) {
    throw wrongInput(port, `has the symbolic shape ${text(port.shape)}: pass { dtype, shape, data }, not a bare array`);
  }
  const shape = isBare ? /** @type {number[]} */ (port.shape) : value.shape;
  const count = Array.isArray(shape) && shape.length === port.shape.length ? elementCount(shape) : NaN;
  if (Number.isNaN(count)) throw wrongInput(port, `has shape ${text(shape)}, expected ${text(port.shape)}`);
  if (isArray && data.length !== count) {
    throw wrongInput(port, `has ${data.length} elements, expected ${count} for shape ${text(shape)}`);
  }
  return { shape, data: isArray ? asStored(data, port.dtype) : data, bytes: count * type.BYTES_PER_ELEMENT };
}

/** The number of elements of a shape, or NaN if it is none. @param {readonly number[]} shape */
export function elementCount(shape) {
  let count = 1;
  for (const size of shape) count *= Number.isInteger(size) && size >= 0 ? size : NaN;
  return count;
}

/** @param {Port} port @param {string} problem */
function wrongInput({ name }, problem) {
  return new InputError(`input "${name}" ${problem}`);
}

/** A shape in the words of an error. @param {any} shape */
function text(shape) {
  return Array.isArray(shape) ? `[${shape.map((d) => (Array.isArray(d) ? expression(d) : d)).join(", ")}]` : String(shape);
}

/** How errors spell operators. @type {Record<string, string>} */
const SPELLING = { add: "+", sub: "-", mul: "*", floordiv: "//", floormod: "%" };

/** A size in the words of an error. @param {any} size @returns {string} */
function expression(size) {
  if (!Array.isArray(size)) return String(size);
  const [op, ...operands] = size;
  const parts = operands.map(expression);
  const [opening, separator] = op in SPELLING ? ["(", ` ${SPELLING[op]} `] : [`${op}(`, ", "];
  return `${opening}${parts.join(separator)})`;
}

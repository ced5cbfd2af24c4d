// The manifest, read and evaluated: the twin of webmlc/package/manifest.py and webmlc/host/bind.py.
//
//   in:  the package's URL;  then `{ name: tensor }` of a run, and what it wrote where a segment binds symbols
//   out: the parsed manifest; then the value of each symbol and the bytes of each input

import { arrayOf } from "./dtypes.js";
import { InputError, PackageError } from "./errors.js";
import { align, CONSTANT_ALIGNMENT } from "./memory_plan.js";
import { evaluate, symbolsOf } from "./sizes.js";
import { request } from "./weights.js";

/** @typedef {import("./types.d.ts").Manifest} Manifest */
/** @typedef {import("./types.d.ts").Bind} Bind */
/** @typedef {import("./types.d.ts").Port} Port */
/** @typedef {import("./types.d.ts").Program} Program */
/** @typedef {import("./types.d.ts").Symbols} Symbols */
/** @typedef {import("./webmlc.js").Tensor} Tensor */
/** @typedef {import("./webmlc.js").TypedArray} TypedArray */

const VERSION = 5;
const LIMIT = 2 ** 31;

/**
 * Fetch and check the manifest. `base` is the package folder's URL, ending in "/".
 * @param {URL} base
 * @returns {Promise<Manifest>}
 */
export async function fetchManifest(base) {
  const url = new URL("manifest.json", base).href;
  const response = await request(base, url, "is the package's URL right?");
  const manifest = await response.json().catch((error) => {
    throw new PackageError(`${url}: is no JSON (${error.message})`);
  });
  return checked(manifest, url);
}

/**
 * Parsed JSON as a complete manifest.
 * @param {any} manifest
 * @param {string} url
 * @returns {Manifest}
 */
export function checked(manifest, url) {
  if (manifest?.format !== "webmlc") throw new PackageError(`${url}: not a webmlc package`);
  if (manifest.version !== VERSION) {
    throw new PackageError(`${url}: package version ${manifest.version}, this runtime reads ${VERSION}: rebuild it`);
  }
  for (const file of manifest.weights.files) file.tensors = spans(file);
  const tensors = new Set(manifest.weights.files.flatMap((/** @type {any} */ file) => Object.keys(file.tensors)));
  for (const [device, program] of Object.entries(manifest.programs)) fillIn(device, program, tensors);
  return manifest;
}

/** Where each tensor of a weights file is: one after the other, aligned. @param {{ start: number, tensors: [string, number][] }} file */
function spans({ start, tensors }) {
  let end = start;
  return Object.fromEntries(
    tensors.map(([name, length]) => {
      const begin = align(end, CONSTANT_ALIGNMENT);
      end = begin + length;
      return [name, [begin, end]];
    }),
  );
}

/**
 * What the manifest leaves out because it can be derived; see webmlc/package/manifest_json.py.
 * @param {string} device
 * @param {{ sizes?: Record<string, any>, buffers: any[], steps: any[] }} program
 * @param {Set<string>} tensors
 */
function fillIn(device, program, tensors) {
  for (const buffer of program.buffers) {
    buffer.kind ??= tensors.has(buffer.name) ? "constant" : "scratch";
    buffer.dtype ??= "float32";
    if (buffer.kind === "constant") buffer.tensor ??= buffer.name;
    buffer.shape = buffer.shape.map((/** @type {any} */ size) => program.sizes?.[size] ?? size);
  }
  for (const step of program.steps) {
    step.arguments = step.arguments.map((/** @type {number} */ place) => program.buffers[place].name);
    step.device ??= device;
    step.outputs ??= 1;
    step.origin ??= [];
  }
}

/**
 * The shape of a port in numbers; an error where one is negative.
 * @param {Port} port
 * @param {Symbols} symbols
 */
export function shapeOf(port, symbols) {
  const shape = port.shape.map((size) => evaluate(size, symbols));
  const size = shape.find((n) => n < 0);
  if (size === undefined) return shape;
  throw new InputError(`with these inputs a size of "${port.name}" is ${size}: negative`);
}

/**
 * Check a run's inputs and bind the symbols from their shapes; `checkRequirements` checks these.
 * @param {Manifest} manifest
 * @param {Record<string, Tensor | TypedArray>} inputs
 * @returns {{ symbols: Symbols, values: Map<string, Uint8Array> }} `values` by buffer name
 */
export function bind(manifest, inputs) {
  const known = () => manifest.inputs.map((p) => `"${p.name}" (${p.dtype}${text(p.shape)})`).join(", ") || "none";
  for (const name of Object.keys(inputs ?? {})) {
    if (!manifest.inputs.some((p) => p.name === name)) {
      throw new InputError(`no input is named "${name}"; the model takes ${known()}`);
    }
  }
  /** @type {Map<string, { shape: readonly number[], data: TypedArray }>} */
  const tensors = new Map();
  for (const port of manifest.inputs) {
    const value = inputs?.[port.name];
    if (value === undefined) throw new InputError(`input "${port.name}" is missing; the model takes ${known()}`);
    tensors.set(port.name, checkTensor(port, value));
  }
  /** @type {Symbols} */
  const symbols = {};
  for (const { name, input, axis } of manifest.symbols) symbols[name] = tensors.get(input)?.shape[axis] ?? 0;
  const values = new Map();
  for (const port of manifest.inputs) {
    const { shape, data } = /** @type {{ shape: number[], data: TypedArray }} */ (tensors.get(port.name));
    const expected = shapeOf(port, symbols);
    if (expected.some((d, axis) => d !== shape[axis])) {
      const bound = origins(manifest, symbols);
      throw new InputError(
        `input "${port.name}" has shape ${text(shape)}, expected ${text(port.shape)} = ${text(expected)}` +
          (bound ? ` with ${bound}` : ""),
      );
    }
    values.set(port.buffer, new Uint8Array(data.buffer, data.byteOffset, data.byteLength));
  }
  return { symbols, values };
}

/** What a pair of sizes must fulfil: whether it does, and in the words of an error. @type {Record<string, [(a: number, b: number) => boolean, string]>} */
const RULES = {
  equal: [(a, b) => a === b, "they must be equal"],
  "at most": [(a, b) => a <= b, "the first must not be larger"],
  broadcast: [(a, b) => a === b || a === 1 || b === 1, "they must be equal, or one of them 1"],
  stretch: [(a, b) => a === b || a === 1, "they must be equal, or the first 1"],
};

/**
 * Check what the model assumes of its symbols, as far as it depends on `fresh` ones.
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
    const bound = origins(manifest, symbols, names);
    throw new InputError(`node "${node}": its sizes are ${sizes.join(" and ")}: ${failure}` + (bound ? `; ${bound}` : ""));
  }
}

/**
 * An error, with the node, where a run counted indices out of range.
 * @param {Manifest} manifest
 * @param {Map<string, Uint8Array>} values
 */
export function checkCounts(manifest, values) {
  for (const [buffer, nodes] of manifest.checks) {
    const counts = new Int32Array(/** @type {Uint8Array} */ (values.get(buffer)).slice().buffer);
    for (const [i, node] of nodes.entries()) {
      const are = counts[i] === 1 ? "is" : "are";
      if (counts[i]) throw new InputError(`node "${node}": with these inputs ${counts[i]} of its indices or sizes ${are} out of range`);
    }
  }
}

/** Where the symbols come from, or those of these names. @param {Manifest} manifest @param {Symbols} symbols @param {Set<string>} [names] */
function origins(manifest, symbols, names) {
  const chosen = manifest.symbols.filter(({ name }) => names?.has(name) ?? true);
  return chosen.map(({ name, axis, input }) => `${name} = ${symbols[name]} from axis ${axis} of "${input}"`).join(", ");
}

/**
 * The symbols of a segment that binds, given the bytes of its buffer.
 * @param {Program} program
 * @param {Bind} segment
 * @param {Uint8Array} bytes
 * @returns {Symbols}
 */
export function bindFromMemory(program, segment, bytes) {
  const type = arrayOf(program.buffers.find((b) => b.name === segment.bind)?.dtype ?? "");
  const values = new type(bytes.slice().buffer);
  /** @type {Symbols} */
  const symbols = {};
  segment.symbols.forEach((name, i) => {
    const size = Number(values[segment.elements[i]]);
    if (!(size >= 0 && size < LIMIT)) {
      const nodes = segment.origin.map((node) => `"${node}"`).join(", ");
      const what = size < 0 ? "negative" : `more than ${LIMIT - 1}`;
      throw new InputError(`node ${nodes}: with these inputs a size is ${values[segment.elements[i]]}: ${what}`);
    }
    symbols[name] = size;
  });
  return symbols;
}

/**
 * A tensor of the port's dtype and rank, with as many elements as its shape says.
 * @param {Port} port
 * @param {any} value
 * @returns {{ shape: readonly number[], data: TypedArray }}
 */
function checkTensor(port, value) {
  const type = arrayOf(port.dtype);
  const bare = ArrayBuffer.isView(value);
  const data = bare ? value : value?.data;
  const wrong = (/** @type {string} */ what) => new InputError(`input "${port.name}" ${what}`);
  if (!bare && value?.dtype !== undefined && value.dtype !== port.dtype) throw wrong(`has dtype ${value.dtype}, expected ${port.dtype}`);
  if (!(data instanceof type || (data instanceof Uint8ClampedArray && type === Uint8Array))) {
    const found = data?.constructor?.name ?? typeof data;
    throw wrong(`holds ${found}, expected ${port.dtype} as ${type.name}`);
  }
  if (bare && port.shape.some((d) => typeof d !== "number")) {
    throw wrong(`has the symbolic shape ${text(port.shape)}: pass { dtype, shape, data }, not a bare array`);
  }
  const shape = bare ? /** @type {number[]} */ (port.shape) : value.shape;
  if (!Array.isArray(shape) || shape.length !== port.shape.length || !shape.every((d) => Number.isInteger(d) && d >= 0)) {
    throw wrong(`has shape ${text(shape)}, expected ${text(port.shape)}`);
  }
  const count = shape.reduce((a, b) => a * b, 1);
  if (data.length !== count) throw wrong(`has ${data.length} elements, expected ${count} for shape ${text(shape)}`);
  return { shape, data: /** @type {any} */ (data) };
}

/** @param {any} shape */
function text(shape) {
  return Array.isArray(shape) ? `[${shape.map((d) => (Array.isArray(d) ? expression(d) : d)).join(", ")}]` : String(shape);
}

/** @type {Record<string, string>} */
const SPELLING = { add: "+", sub: "-", mul: "*", floordiv: "//", floormod: "%" };

/** @param {any} size @returns {string} */
function expression(size) {
  if (!Array.isArray(size)) return String(size);
  const [op, ...operands] = size;
  const parts = operands.map(expression);
  return op in SPELLING ? `(${parts.join(` ${SPELLING[op]} `)})` : `${op}(${parts.join(", ")})`;
}

// Check that JSON has the types of a manifest, and add the defaults that it leaves out.
//
//   in:  a value, and the name of its type in manifest_records.js, which is derived from webmlc/package/manifest.py
//   out: where it differs, and how; or ""
//
//   fault({ programs: { wasm: { steps: [{ outputs: "2" }] } } }, "Manifest")   // `.programs.wasm.steps[0].outputs is "2", not integer`

import { TYPES } from "./manifest_records.js";
import { OPERATORS } from "./sizes.js";

/** Tests of the types that have no parts. @type {Record<string, (value: any) => boolean>} */
const PLAIN = {
  string: (value) => typeof value === "string",
  integer: Number.isInteger,
  number: (value) => typeof value === "number",
  boolean: (value) => typeof value === "boolean",
  object: isObject,
  Size: isSize,
};

/** @param {any} value */
function isObject(value) {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}

/** @param {any} size @returns {boolean} */
function isSize(size) {
  if (!Array.isArray(size)) return typeof size === "string" || Number.isInteger(size);
  const [operator, ...operands] = size;
  return typeof operator === "string" && Object.hasOwn(OPERATORS, operator) && operands.length > 0 && operands.every(isSize);
}

/** @param {any} value @param {string} expected */
function wrong(value, expected) {
  return value === undefined ? " is missing" : ` is ${String(JSON.stringify(value)).slice(0, 80)}, not ${expected}`;
}

/**
 * Say how a value differs from a type. Adds the fields that have defaults.
 * @param {any} value
 * @param {any} type
 * @returns {string}
 */
export function fault(value, type) {
  if (typeof type === "string" && PLAIN[type]) return PLAIN[type](value) ? "" : wrong(value, type);
  const { fields, list, map, keys, tuple, optional, values, pattern, tags } = typeof type === "string" ? TYPES[type] : type;
  if (optional) return value === null ? "" : fault(value, optional);
  if (values) return values.includes(value) ? "" : wrong(value, values.join(" or "));
  if (pattern) return typeof value === "string" && new RegExp(pattern).test(value) ? "" : wrong(value, "a name of a file");
  if (list || tuple) {
    if (!Array.isArray(value) || (tuple && value.length !== tuple.length)) return wrong(value, tuple ? `${tuple.length} items` : "a list");
    return firstFault(value.entries(), (i) => `[${i}]`, (i) => list ?? tuple[i]);
  }
  if (!isObject(value)) return wrong(value, "an object");
  if (tags) return Object.hasOwn(tags, value.type) ? fault(value, tags[value.type]) : `.type${wrong(value.type, Object.keys(tags).join(" or "))}`;
  if (map) {
    const [key] = keys ? Object.keys(value).filter((name) => fault(name, keys)) : [];
    return key === undefined ? firstFault(Object.entries(value), (name) => `.${name}`, () => map) : ` has a key that${fault(key, keys)}`;
  }
  for (const [name, , standard] of fields) if (value[name] === undefined && standard !== undefined) value[name] = standard;
  const types = new Map(fields);
  const [unknown] = Object.keys(value).filter((name) => !types.has(name));
  if (unknown !== undefined) return `.${unknown} is no field`;
  return firstFault(fields.map((/** @type {string[]} */ [name]) => [name, value[name]]), (name) => `.${name}`, (name) => types.get(name));
}

/**
 * The fault of the first part that has one.
 * @template K
 * @param {Iterable<[K, any]>} parts
 * @param {(key: K) => string} path
 * @param {(key: K) => any} typeOf
 */
function firstFault(parts, path, typeOf) {
  for (const [key, value] of parts) {
    const problem = fault(value, typeOf(key));
    if (problem) return path(key) + problem;
  }
  return "";
}

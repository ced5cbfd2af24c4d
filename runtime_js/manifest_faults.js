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
  return size.length > 1 && Object.hasOwn(OPERATORS, size[0]) && size.slice(1).every(isSize);
}

/** @param {any} value @param {string} expected */
function wrong(value, expected) {
  return value === undefined ? " is missing" : ` is ${String(JSON.stringify(value)).slice(0, 80)}, not ${expected}`;
}

/**
 * Say how a value differs from a type. Adds the fields that have defaults. It is written for an engine that interprets it: a
 * manifest is read once, before the engine compiles anything.
 * @param {any} value
 * @param {any} type
 * @returns {string}
 */
export function fault(value, type) {
  if (typeof type === "string" && PLAIN[type]) return PLAIN[type](value) ? "" : wrong(value, type);
  const form = typeof type === "string" ? TYPES[type] : type;
  if (form.optional) return value === null ? "" : fault(value, form.optional);
  if (form.values) return form.values.includes(value) ? "" : wrong(value, form.values.join(" or "));
  if (form.pattern) return typeof value === "string" && new RegExp(form.pattern).test(value) ? "" : wrong(value, "a name of a file");
  if (form.list) return Array.isArray(value) ? listFault(value, form.list) : wrong(value, "a list");
  if (form.tuple) {
    if (!Array.isArray(value) || value.length !== form.tuple.length) return wrong(value, `${form.tuple.length} items`);
    for (let i = 0; i < value.length; i++) {
      const problem = fault(value[i], form.tuple[i]);
      if (problem) return `[${i}]${problem}`;
    }
    return "";
  }
  if (!isObject(value)) return wrong(value, "an object");
  if (form.fields) return recordFault(value, form.fields);
  if (form.map) return mapFault(value, form.map, form.keys);
  return Object.hasOwn(form.tags, value.type) ? fault(value, form.tags[value.type]) : `.type${wrong(value.type, Object.keys(form.tags).join(" or "))}`;
}

/** @param {any[]} value @param {any} type @returns {string} */
function listFault(value, type) {
  const test = typeof type === "string" && PLAIN[type];
  for (let i = 0; i < value.length; i++) {
    if (test && test(value[i])) continue;
    const problem = fault(value[i], type);
    if (problem) return `[${i}]${problem}`;
  }
  return "";
}

/** @param {Record<string, any>} value @param {any} type @param {any} [keys]  the type of the keys @returns {string} */
function mapFault(value, type, keys) {
  for (const key of Object.keys(value)) {
    const name = keys && fault(key, keys);
    if (name) return ` has a key that${name}`;
    const problem = fault(value[key], type);
    if (problem) return `.${key}${problem}`;
  }
  return "";
}

/** @param {Record<string, any>} value @param {[name: string, type: any, standard?: any][]} fields */
function recordFault(value, fields) {
  for (let i = 0; i < fields.length; i++) {
    const field = fields[i];
    const part = value[field[0]];
    if (part === undefined && field.length === 3) {
      value[field[0]] = field[2];
      continue;
    }
    const problem = fault(part, field[1]);
    if (problem) return `.${field[0]}${problem}`;
  }
  if (Object.keys(value).length === fields.length) return "";
  return `.${Object.keys(value).find((key) => !fields.some(([name]) => name === key))} is no field`;
}

// Compute with texts, before and after the program. The twin of webmlc/host/texts.py; webmlc/core/text_steps.py documents the steps.
//
//   in:  a loaded model, and `texts` of its manifest
//   out: the same model; `run` takes and returns texts, { dtype: "string", shape, data: ["a", "b"] }
//
// In the program a text is a number: its place in the list of words, or behind it. Only models with texts import this module.

import { arrayOf } from "./dtypes.js";
import { InputError, PackageError } from "./errors.js";
import { described } from "./kinds.js";
import { elementCount, wrongNames } from "./manifest.js";
import { chosenOutputs } from "./run_options.js";

/** @import { TextPort, Texts } from "./types.d.ts" */
/** @import { Port, RunOptions } from "./webmlc.js" */
/** A tensor of texts, or of numbers. @typedef {{ dtype: string, shape: readonly number[], data: any }} Value */
/** @typedef {Texts["before"][number]} TextStep */
/** @typedef {Extract<TextStep, { type: "count_grams" }>} CountGrams */
/** @typedef {(row: string[]) => Float32Array} GramCounter */

const MARKS = ["\u0002", "\u0003"]; // before and after the tokens of a text
const SPACE = " \t\n\v\f\r";
const INTEGER = /^[+-]?[0-9]+$/;
const FLOAT = /^[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)(e[+-]?[0-9]+)?$|^[+-]?(inf|infinity|nan)$/i;
/** The bounds of integers. @type {Record<string, [bigint, bigint]>} */
const BOUNDS = Object.fromEntries(
  [8n, 16n, 32n, 64n].flatMap((bits) => [
    [`int${bits}`, [-(2n ** (bits - 1n)), 2n ** (bits - 1n) - 1n]],
    [`uint${bits}`, [0n, 2n ** bits - 1n]],
  ]),
);

/**
 * Let `run` and `profile` of a model take and return texts. Throws PackageError if the words cannot be read.
 * @template {{ inputs: Port[], outputs: Port[], run: any, profile: any, file: (path: string) => Promise<ArrayBuffer> }} M
 * @param {M} model
 * @param {Texts} texts
 * @returns {Promise<M>}
 */
export async function withTexts(model, texts) {
  const read = async (/** @type {string} */ path) => {
    const json = new TextDecoder().decode(await model.file(path));
    try {
      return JSON.parse(json);
    } catch (error) {
      throw new PackageError(`${path}: is not JSON (${/** @type {Error} */ (error).message}). Build the package again`);
    }
  };
  /** @type {string[]} */
  const words = await read(texts.words);
  if (!Array.isArray(words) || words.some((word) => typeof word !== "string")) throw new PackageError(`${texts.words}: holds no texts. Build the package again`);
  const numbers = new Map(words.map((word, number) => [word, number]));
  /** @type {Map<string, GramCounter>} */
  const counters = new Map();
  for (const step of texts.before) if (step.type === "count_grams") counters.set(step.grams, gramCounter(await read(step.grams), step));
  const inputs = joined(model.inputs, texts.feeds, texts.inputs);
  const outputs = joined(model.outputs, texts.reads, texts.outputs);
  const names = new Set(texts.outputs.map(({ name }) => name));
  const run = model.run.bind(model);
  const profile = model.profile.bind(model);
  const feedsOf = (/** @type {Record<string, any>} */ inputTensors) => {
    const values = new Values(words, numbers, counters);
    const wrong = wrongNames(inputs, inputTensors);
    if (wrong) throw wrong;
    for (const [name, { shape, texts: data }] of Object.entries(texts.constants)) values.set(name, { dtype: "string", shape, data });
    /** @type {Map<string, number>} */
    const sizes = new Map();
    for (const port of texts.inputs) values.set(port.name, textsOf(port, inputTensors[port.name], sizes));
    values.compute(texts.before);
    const numeric = Object.entries(inputTensors).filter(([name]) => !texts.inputs.some((port) => port.name === name));
    return { values, feeds: Object.fromEntries([...numeric, ...texts.feeds.map((name) => [name, values.numbered(name)])]) };
  };
  model.inputs = inputs;
  model.outputs = outputs;
  // The texts are read before this returns, as inputs are.
  model.run = async (/** @type {Record<string, any>} */ inputTensors, /** @type {RunOptions} */ options = {}, /** @type {any[]} */ ...more) => {
    const results = numericResults(options, outputs, names);
    const chosen = chosenOutputs(outputs, { ...options, results }).map(({ name }) => name);
    const { values, feeds } = feedsOf(inputTensors);
    const hasTexts = chosen.some((name) => names.has(name));
    const numeric = chosen.filter((name) => !names.has(name));
    const tensors = await run(feeds, { ...options, results, outputs: [...numeric, ...(hasTexts ? texts.reads : [])] }, ...more);
    if (hasTexts) {
      for (const [name, tensor] of Object.entries(tensors)) values.set(name, tensor);
      values.compute(texts.after);
    }
    return Object.fromEntries(chosen.map((name) => [name, names.has(name) ? copied(values.texts(name)) : tensors[name]]));
  };
  model.profile = async (/** @type {Record<string, any>} */ inputTensors) => profile(feedsOf(inputTensors).feeds);
  return model;
}

/** A value in arrays of its own: constants stay as they are, and outputs share nothing. @param {Value} value */
function copied({ dtype, shape, data }) {
  return { dtype, shape: [...shape], data: Array.from(data) };
}

/**
 * The inputs or outputs of the model in its order: ports of the program, without those that only steps use, and ports of texts.
 * @param {Port[]} ports
 * @param {string[]} hidden
 * @param {TextPort[]} texts
 * @returns {Port[]}
 */
function joined(ports, hidden, texts) {
  const all = ports.filter(({ name }) => !hidden.includes(name));
  const inOrder = [...texts].sort((a, b) => a.position - b.position);
  for (const { name, shape, position } of inOrder) all.splice(position, 0, { name, dtype: "string", shape });
  return all;
}

/**
 * The option `results` for outputs that are numbers. Texts come in new arrays, whatever it says. Throws InputError for an array for texts.
 * @param {RunOptions} options
 * @param {Port[]} outputs
 * @param {Set<string>} names  of outputs that are texts
 */
function numericResults({ results, outputs: chosen }, outputs, names) {
  const all = chosen ?? outputs.map(({ name }) => name);
  const entries = results === "gpu" ? all.map((name) => [name, "gpu"]) : Object.entries(results ?? {});
  const array = entries.find(([name, result]) => names.has(name) && result !== "gpu");
  if (array) throw new InputError(`results has an array for "${array[0]}", which holds texts: these come in new arrays`);
  return Object.fromEntries(entries.filter(([name]) => !names.has(name)));
}

/**
 * An input of texts. A list of texts alone is enough if at most one size of the input is symbolic. Throws InputError.
 * @param {TextPort} port
 * @param {any} value
 * @param {Map<string, number>} symbols  the symbolic sizes of the inputs before it, and then of this input
 * @returns {Value}
 */
function textsOf({ name, shape: sizes }, value, symbols) {
  const data = Array.isArray(value) ? value : value?.data;
  const wrong = (/** @type {string} */ problem) => new InputError(`input "${name}" ${problem}`);
  if (!Array.isArray(data)) throw wrong(`holds ${described(data ?? value)}, expected texts as Array`);
  const place = data.findIndex((text) => typeof text !== "string");
  if (place >= 0) throw wrong(`holds ${described(data[place])}, expected texts (string)`);
  const fixed = sizes.reduce((/** @type {number} */ product, size) => product * (typeof size === "number" ? size : 1), 1);
  const isSingle = sizes.filter((size) => typeof size !== "number").length === 1;
  const shape = Array.isArray(value) ? sizes.map((size) => (typeof size === "number" ? size : isSingle ? data.length / fixed : NaN)) : value.shape;
  const isShape = Array.isArray(shape) && shape.length === sizes.length && shape.every((size) => Number.isInteger(size) && size >= 0);
  const isSame = sizes.every((size, i) => {
    if (isShape && typeof size === "string" && !symbols.has(size)) symbols.set(size, shape[i]);
    return Array.isArray(size) || shape?.[i] === (typeof size === "number" ? size : symbols.get(size));
  });
  if (!isShape || !isSame) {
    const bound = sizes.flatMap((size) => (typeof size === "string" && symbols.has(size) ? `${size} = ${symbols.get(size)}` : []));
    throw wrong(`has shape [${shape}], expected [${sizes}]` + (bound.length ? ` with ${bound.join(", ")}` : ""));
  }
  if (elementCount(shape) !== data.length) throw wrong(`has ${data.length} texts, expected [${sizes}]: pass { shape, data }`);
  return { dtype: "string", shape: [...shape], data: [...data] };
}

/** The values of a run. */
class Values {
  /** @type {Map<string, Value>} */
  #values = new Map();
  /** The numbers of texts that are no words. @type {Map<string, number>} */
  #extra = new Map();
  #words;
  #numbers;
  #counters;

  /** @param {string[]} words @param {Map<string, number>} numbers  of the words @param {Map<string, GramCounter>} counters  by file */
  constructor(words, numbers, counters) {
    this.#words = words;
    this.#numbers = numbers;
    this.#counters = counters;
  }

  /** @param {string} name @param {Value} value */
  set(name, value) {
    this.#values.set(name, value);
  }

  /** @param {string} name @returns {Value} */
  get(name) {
    const value = this.#values.get(name);
    if (!value) throw new PackageError(`manifest.json: no step of texts computes "${name}". Build the package again`);
    return value;
  }

  /** A value as the program reads it. @param {string} name @returns {Value} */
  numbered(name) {
    const value = this.get(name);
    if (value.dtype !== "string") return value;
    const numbers = value.data.map((/** @type {string} */ text) => {
      const number = this.#numbers.get(text) ?? this.#extra.get(text) ?? this.#words.length + this.#extra.size;
      if (number >= this.#words.length) this.#extra.set(text, number);
      return BigInt(number);
    });
    return { dtype: "int64", shape: value.shape, data: BigInt64Array.from(numbers) };
  }

  /** A value as texts. @param {string} name @returns {Value} */
  texts(name) {
    const value = this.get(name);
    if (value.dtype === "string") return value;
    const words = this.#extra.size ? [...this.#words, ...this.#extra.keys()] : this.#words;
    return { dtype: "string", shape: value.shape, data: Array.from(value.data, (number) => words[Number(number)]) };
  }

  /** Compute the steps in order. @param {TextStep[]} steps */
  compute(steps) {
    for (const step of steps) {
      const names = step.type === "join" ? step.values : step.type === "append" ? [step.value, step.end] : [step.value];
      const values = names.map((name) => (["view", "print"].includes(step.type) ? this.get(name) : this.texts(name)));
      if (step.type === "count_grams") this.set(step.result, counted(step, values[0], /** @type {GramCounter} */ (this.#counters.get(step.grams))));
      else if (step.type === "split") splitTexts(step, values[0], this);
      else this.set(step.result, computeStep(step, values));
    }
  }
}

/**
 * The result of a step.
 * @param {Exclude<TextStep, { type: "count_grams" | "split" }>} step
 * @param {Value[]} values
 * @returns {Value}
 */
export function computeStep(step, values) {
  const [{ shape, data }] = values;
  switch (step.type) {
    case "view":
      return { ...values[0], shape: viewed(step.shape, shape) };
    case "take":
      return elementsAt(values[0], step.axis, step.indices);
    case "join":
      return concatenated(values, step.axis);
    case "normalise":
      return normalised(step, values[0]);
    case "tokenise":
      return tokenised(step, values[0]);
    case "append":
      return broadcast(values[0], values[1], (text, end) => text + end);
    case "match": {
      const pattern = regularExpression(step.pattern, "^(?:", ")$");
      return { dtype: "bool", shape, data: Uint8Array.from(data, (/** @type {string} */ text) => Number(pattern.test(text))) };
    }
    case "parse": {
      const numbers = data.map((/** @type {string} */ text) => parsed(text, step.dtype));
      return { dtype: step.dtype, shape, data: /** @type {any} */ (arrayOf(step.dtype)).from(numbers) };
    }
    case "print": {
      const isFloat = values[0].dtype.startsWith("float");
      return { dtype: "string", shape, data: Array.from(data, isFloat ? printed : String) };
    }
  }
}

/**
 * The shape of a "view". Axes of equal size do not count for the size that remains, because they may be empty.
 * @param {number[]} sizes
 * @param {readonly number[]} shape
 */
function viewed(sizes, shape) {
  const remaining = elementCount(shape.filter((_, axis) => sizes[axis] !== 0)) / elementCount(sizes.filter((size) => size > 0));
  const result = sizes.map((size, axis) => (size === 0 ? shape[axis] : size === -1 ? remaining : size));
  if (!Number.isInteger(remaining) || elementCount(result) !== elementCount(shape)) throw new InputError(`texts of the shape [${shape}] do not fit the shape [${result}]`);
  return result;
}

/** The shape with another size of an axis. @param {readonly number[]} shape @param {number} axis @param {number} size */
const withSize = (shape, axis, size) => shape.map((old, i) => (i === axis ? size : old));

/** The texts of a value in parts: one for each index of the axes before `axis`. @param {Value} value @param {number} axis @returns {string[][]} */
function partsAlong({ shape, data }, axis) {
  const count = elementCount(shape.slice(0, axis));
  const length = data.length / count;
  return Array.from({ length: count }, (_, i) => data.slice(i * length, (i + 1) * length));
}

/** @param {Value} value @param {number} axis @param {number[]} indices @returns {Value} */
function elementsAt(value, axis, indices) {
  const after = elementCount(value.shape.slice(axis + 1));
  const outside = indices.find((index) => index >= value.shape[axis]);
  if (outside !== undefined) throw new InputError(`index ${outside} is out of range for texts of the shape [${value.shape}]`);
  const data = partsAlong(value, axis).flatMap((part) => indices.flatMap((index) => part.slice(index * after, (index + 1) * after)));
  return { dtype: "string", shape: withSize(value.shape, axis, indices.length), data };
}

/** @param {Value[]} values @param {number} axis @returns {Value} */
function concatenated(values, axis) {
  const shapes = values.map(({ shape }) => String(withSize(shape, axis, 0)));
  if (new Set(shapes).size > 1) throw new InputError(`texts of the shapes [${values.map(({ shape }) => shape).join("] and [")}] do not fit together`);
  const parts = values.map((value) => partsAlong(value, axis));
  const data = parts[0].flatMap((_, i) => parts.flatMap((part) => part[i]));
  const size = values.reduce((sum, { shape }) => sum + shape[axis], 0);
  return { dtype: "string", shape: withSize(values[0].shape, axis, size), data };
}

/** @param {Extract<TextStep, { type: "normalise" }>} step @param {Value} value @returns {Value} */
function normalised({ case: letters, stop_words: stopWords, folds }, { shape, data }) {
  const change = (/** @type {string} */ text) => (letters === "lower" ? text.toLowerCase() : letters === "upper" ? text.toUpperCase() : text);
  if (!stopWords.length) return { dtype: "string", shape, data: data.map(change) };
  if (elementCount(shape.slice(0, -1)) !== 1) throw new InputError(`stop words are removed from one row of texts, and the shape is [${shape}]`);
  const fold = (/** @type {string} */ text) => (folds ? text.toLowerCase() : text);
  const stops = new Set(stopWords.map(fold));
  const texts = data.filter((/** @type {string} */ text) => !stops.has(fold(text))).map(change);
  if (!texts.length) texts.push("");
  return { dtype: "string", shape: withSize(shape, shape.length - 1, texts.length), data: texts };
}

/** @param {Extract<TextStep, { type: "split" }>} step @param {Value} value @param {Values} values */
function splitTexts({ delimiter, limit, result, counts }, { shape, data }, values) {
  const separator = new RegExp(delimiter ? delimiter.replace(/[\\^$.*+?()[\]{}|/]/g, "\\$&") : `[${SPACE}]+`, "gu");
  const parts = data.map((/** @type {string} */ text) => {
    const whole = delimiter ? text : stripped(text);
    return whole ? between(separator, whole, limit < 0 ? Infinity : limit) : [];
  });
  const width = longest(parts);
  const texts = parts.flatMap((/** @type {string[]} */ list) => [...list, ...Array(width - list.length).fill("")]);
  values.set(result, { dtype: "string", shape: [...shape, width], data: texts });
  values.set(counts, { dtype: "int64", shape, data: BigInt64Array.from(parts, ({ length }) => BigInt(length)) });
}

/** The length of the longest list. @param {string[][]} lists */
const longest = (lists) => lists.reduce((most, { length }) => Math.max(most, length), 0);

/** A text without white space at its ends. @param {string} text */
function stripped(text) {
  let [start, end] = [0, text.length];
  while (start < end && SPACE.includes(text[start])) start++;
  while (end > start && SPACE.includes(text[end - 1])) end--;
  return text.slice(start, end);
}

/** The texts between the first matches of a pattern that are not empty. @param {RegExp} pattern @param {string} text @param {number} [limit] */
function between(pattern, text, limit = Infinity) {
  const parts = [];
  let end = 0;
  for (const { 0: match, index } of text.matchAll(pattern)) {
    if (!match) continue;
    if (parts.length === limit) break;
    parts.push(text.slice(end, index));
    end = index + match.length;
  }
  return [...parts, text.slice(end)];
}

/** @param {Extract<TextStep, { type: "tokenise" }>} step @param {Value} value @returns {Value} */
function tokenised(step, { shape, data }) {
  const pattern = step.pattern ? regularExpression(step.pattern) : null;
  const separators = step.separators.map((separator) => regularExpression(separator));
  const lists = data.map((/** @type {string} */ text) => {
    let tokens = pattern ? Array.from(text.matchAll(pattern), ([token]) => token) : separators.length ? [text] : [...text];
    for (const separator of separators) tokens = tokens.flatMap((token) => between(separator, token));
    return tokens.filter((token) => [...token].length >= Math.max(step.shortest, 1));
  });
  const width = longest(lists);
  const [before, after] = step.marks && width ? MARKS.map((mark) => [mark]) : [[], []];
  const texts = lists.flatMap((/** @type {string[]} */ tokens) => [...before, ...tokens, ...after, ...Array(width - tokens.length).fill(step.padding)]);
  return { dtype: "string", shape: [...shape, width + before.length + after.length], data: texts };
}

/** A pattern of the manifest (webmlc/core/text_patterns.py). @param {string} pattern @param {string} [before] @param {string} [after] */
function regularExpression(pattern, before = "", after = "") {
  const folds = pattern.startsWith("(?i)");
  const body = folds ? pattern.slice(4) : pattern;
  return new RegExp(before + body + after, before ? (folds ? "iu" : "u") : folds ? "giu" : "gu");
}

/** Combine the texts of two tensors, one of which may be stretched. @param {Value} left @param {Value} right @param {(a: string, b: string) => string} combine @returns {Value} */
function broadcast(left, right, combine) {
  const rank = Math.max(left.shape.length, right.shape.length);
  const [a, b] = [left, right].map(({ shape }) => [...Array(rank - shape.length).fill(1), ...shape]);
  const shape = a.map((size, axis) => (size === 1 ? b[axis] : size));
  if (b.some((size, axis) => size !== 1 && size !== shape[axis])) throw new InputError(`texts of the shapes [${left.shape}] and [${right.shape}] do not fit together`);
  const place = (/** @type {number} */ index, /** @type {number[]} */ sizes) => {
    let [position, stride] = [0, 1];
    for (let axis = rank - 1; axis >= 0; axis--) {
      if (sizes[axis] !== 1) position += (index % shape[axis]) * stride;
      stride *= sizes[axis];
      index = Math.floor(index / shape[axis]);
    }
    return position;
  };
  const data = Array.from({ length: elementCount(shape) }, (_, i) => combine(left.data[place(i, a)], right.data[place(i, b)]));
  return { dtype: "string", shape, data };
}

/** The weighted counts of n-grams in the rows of a value. @param {CountGrams} step @param {Value} value @param {GramCounter} counter @returns {Value} */
function counted(step, { shape, data }, counter) {
  const length = shape.at(-1) ?? 0;
  const rows = elementCount(shape.slice(0, -1));
  const result = new Float32Array(rows * step.width);
  for (let row = 0; row < rows; row++) result.set(counter(data.slice(row * length, (row + 1) * length)), row * step.width);
  return { dtype: "float32", shape: [...shape.slice(0, -1), step.width], data: result };
}

/**
 * A function that counts the n-grams of a row of texts.
 * @param {{ texts: string[], counts: number[], columns: number[], weights?: number[] }} grams  the contents of a file
 * @param {CountGrams} step
 * @returns {GramCounter}
 */
export function gramCounter({ texts, counts, columns, weights = [] }, { grams, shortest, longest, skips, clips, width }) {
  const needed = counts.reduce((sum, count, i) => sum + count * (i + 1), 0);
  const fits = counts.reduce((sum, count) => sum + count, 0) === columns.length && columns.every((column) => column >= 0 && column < width);
  if (needed !== texts.length || !fits || longest > counts.length) throw new PackageError(`${grams}: its n-grams do not fit together`);
  /** @type {Map<string, number>} */
  const numbers = new Map();
  for (const text of texts) if (!numbers.has(text)) numbers.set(text, numbers.size);
  /** The n-grams by the numbers of their texts. @type {Map<string, number[]>} */
  const places = new Map();
  let start = 0;
  let gram = 0;
  for (const [i, count] of counts.entries()) {
    for (let k = 0; k < count; k++, gram++, start += i + 1) {
      const key = texts.slice(start, start + i + 1).map((text) => numbers.get(text)).join();
      if (i + 1 >= shortest && i + 1 <= longest) places.set(key, [...(places.get(key) ?? []), gram]);
    }
  }
  return (row) => {
    const items = row.map((text) => numbers.get(text) ?? -1);
    /** @type {Map<number, number>} */
    const frequencies = new Map();
    for (let length = shortest; length <= longest; length++) {
      for (let distance = 1; distance <= (length > 1 ? Math.min(skips + 1, items.length) : 1); distance++) {
        for (let first = 0; first + (length - 1) * distance < items.length; first++) {
          let key = String(items[first]);
          for (let k = 1; k < length; k++) key += `,${items[first + k * distance]}`;
          for (const place of places.get(key) ?? []) frequencies.set(place, (frequencies.get(place) ?? 0) + 1);
        }
      }
    }
    const result = new Float32Array(width);
    for (const [place, count] of [...frequencies].sort(([a], [b]) => a - b)) {
      result[columns[place]] += Math.fround(weights[place] ?? 1) * (clips ? 1 : count);
    }
    return result;
  };
}

/** The number that a text spells. Throws InputError if it spells none of this type. @param {string} text @param {string} dtype @returns {number | bigint} */
function parsed(text, dtype) {
  const word = stripped(text);
  const wrong = new InputError(`the text ${JSON.stringify(text)} is not a number of type ${dtype}`);
  if (dtype.startsWith("float")) {
    if (!FLOAT.test(word)) throw wrong;
    const sign = word.startsWith("-") ? -1 : 1;
    return /inf/i.test(word) ? sign * Infinity : /nan/i.test(word) ? NaN : Number(word);
  }
  const bounds = BOUNDS[dtype];
  if (!INTEGER.test(word)) throw wrong;
  const number = word.startsWith("-") ? -BigInt(word.slice(1)) : BigInt(word.replace("+", ""));
  if (number < bounds[0] || number > bounds[1]) throw wrong;
  return dtype.endsWith("64") ? number : Number(number);
}

/** The text of a float, as C's %.8g prints it: halves become even, but JavaScript rounds them up. @param {number} number */
function printed(number) {
  if (Number.isNaN(number)) return "NaN";
  const sign = number < 0 || Object.is(number, -0) ? "-" : "";
  if (!Number.isFinite(number)) return `${sign}INF`;
  const [exact, power] = Math.abs(number).toExponential(100).split("e");
  const isHalf = /^\d\.\d{6}[02468]50*$/.test(exact);
  const [mantissa, exponent] = isHalf ? [exact.slice(0, 9), power] : Math.abs(number).toExponential(7).split("e");
  const place = Number(exponent) + 1; // of the point in the digits
  const digits = mantissa.replace(".", "");
  const trimmed = (/** @type {string} */ text) => text.replace(/\.?0*$/, "");
  if (place <= 0 && place > -4) return sign + trimmed(`0.${"0".repeat(-place)}${digits}`);
  if (place > 0 && place <= 8) return sign + trimmed(`${digits.slice(0, place)}.${digits.slice(place)}`);
  return `${sign}${trimmed(mantissa)}e${exponent[0]}${exponent.slice(1).padStart(2, "0")}`;
}

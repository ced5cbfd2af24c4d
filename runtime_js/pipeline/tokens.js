// Turn texts into the inputs of an encoder: tokens, masks and token types.
//
//   in:  a model whose package has a tokenizer (webmlc build --tokenizer), and texts
//   out: inputs of shape [texts, tokens], padded to the longest text

import { InputError, PackageError } from "../errors.js";
import { openTokenizer } from "../language/open_tokenizer.js";

/** @import { Model, Tensor } from "../webmlc.js" */

const TOKENIZER = "tokenizer.deflate";
const PADS = ["[PAD]", "<pad>", "<|endoftext|>"];

/** The tokenizer of an encoder. */
export class Encoder {
  #tokenizer;
  #inputs;
  #limit;
  #pad;

  /** Read the tokenizer of a package. Throws PackageError if it has none. @param {Model} model */
  static async open(model) {
    if (!model.files.includes(TOKENIZER)) {
      throw new PackageError(`${model.name} has no tokenizer: build it with --tokenizer tokenizer.json`);
    }
    const [{ Tokenizer }, data] = await Promise.all([import("../language/tokenizers.js"), model.file(TOKENIZER)]);
    const { tokenizer, contents } = openTokenizer(Tokenizer, data);
    return new Encoder(tokenizer, contents, model.inputs);
  }

  /** @param {any} tokenizer @param {any} contents  of tokenizer.json @param {Model["inputs"]} inputs */
  constructor(tokenizer, contents, inputs) {
    this.#tokenizer = tokenizer;
    this.#inputs = inputs;
    const [rows, columns] = inputs.find(({ name }) => name === "input_ids")?.shape ?? [];
    if (columns === undefined) throw new InputError("the model has no input input_ids of shape [texts, tokens]");
    /** The number of texts in a run, and the number of tokens; undefined if a run chooses it. */
    this.rows = typeof rows === "number" ? rows : undefined;
    this.columns = typeof columns === "number" ? columns : undefined;
    this.#limit = Math.min(this.columns ?? Infinity, contents.truncation?.max_length ?? Infinity);
    const added = contents.added_tokens?.find((/** @type {any} */ token) => PADS.includes(token.content));
    this.#pad = contents.padding?.pad_id ?? added?.id ?? 0;
  }

  /** The tokens of a text. Special tokens at its ends stay if it is too long. @param {string} text @returns {number[]} */
  #tokensOf(text) {
    const all = this.#tokenizer.encode(text).ids;
    if (all.length <= this.#limit) return all;
    const body = this.#tokenizer.encode(text, { add_special_tokens: false }).ids;
    const before = Math.max(0, all.indexOf(body[0]));
    const after = all.length - before - body.length;
    const room = Math.max(0, this.#limit - before - after);
    return [...all.slice(0, before), ...body.slice(0, room), ...all.slice(all.length - after)];
  }

  /**
   * The inputs of a run, and the mask of the tokens of the texts.
   * @param {string[]} texts
   * @param {number} [width]  the number of tokens, if other texts decide it
   * @returns {{ inputs: Record<string, Tensor>, mask: Uint8Array, columns: number }}
   */
  encode(texts, width) {
    const lists = texts.map((text) => {
      if (typeof text !== "string") throw new InputError(`${JSON.stringify(text)} is no text`);
      return this.#tokensOf(text);
    });
    const columns = this.columns ?? width ?? Math.max(1, ...lists.map((list) => list.length));
    const count = lists.length * columns;
    const [tokens, mask] = [new Int32Array(count).fill(this.#pad), new Uint8Array(count)];
    lists.forEach((list, row) => {
      tokens.set(list, row * columns);
      mask.fill(1, row * columns, row * columns + list.length);
    });
    /** @type {Record<string, ArrayLike<number>>} */
    const values = { input_ids: tokens, attention_mask: mask, token_type_ids: new Uint8Array(count) };
    const positions = () => Int32Array.from({ length: count }, (_, i) => i % columns);
    const inputs = this.#inputs.map(({ name, dtype }) => {
      const numbers = name === "position_ids" ? positions() : values[name];
      if (!numbers) throw new InputError(`the model has an input ${name}, which a text does not determine: run it yourself`);
      const data = dtype === "int64" ? BigInt64Array.from(numbers, BigInt) : dtype === "int32" ? Int32Array.from(numbers) : null;
      if (!data) throw new InputError(`the model takes ${dtype} for ${name}, not integers`);
      return [name, { dtype, shape: [lists.length, columns], data }];
    });
    return { inputs: Object.fromEntries(inputs), mask, columns };
  }
}

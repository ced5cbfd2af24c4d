// Turn messages and texts into tokens, and tokens into text.
//
// The twin of webmlc/generate/prompt.py.

import { InputError, PackageError } from "../errors.js";
import { openTokenizer } from "./open_tokenizer.js";

/** @import { Message, Prompt } from "../webmlc.js" */
/** @import { Libraries } from "./libraries.js" */
/** @typedef {(path: string) => Promise<ArrayBuffer>} ReadFile */

const TOKENIZER = "tokenizer.deflate";
const TEMPLATE = "chat_template.jinja";
const CONFIG = "generation_config.json";
/** The text of the message that tells whether a chat template understands parts. */
const PROBE = "probe-of-parts";

/** The names of these files in a package. */
export const LANGUAGE_FILES = { tokenizer: TOKENIZER, template: TEMPLATE, config: CONFIG };

/** The tokenizer and the chat template of a model. If it has none, it continues the text of messages. */
export class TextCodec {
  #tokenizer;
  #template;
  /** @type {boolean | undefined} */
  #partsTaken;

  /**
   * Read the files of a package. Throws PackageError.
   * @param {ReadFile} read
   * @param {Libraries} libraries
   * @param {boolean} [hasTemplate]
   */
  static async open(read, { tokenizers, jinja: importJinja }, hasTemplate = true) {
    const text = async (/** @type {string} */ path) => new TextDecoder().decode(await read(path));
    const libraries = Promise.all([tokenizers(), hasTemplate ? importJinja() : null]);
    const files = Promise.all([read(TOKENIZER), hasTemplate ? text(TEMPLATE) : "", text(CONFIG)]);
    const [[{ Tokenizer }, jinja], [tokenizer, template, config]] = await Promise.all([libraries, files]);
    return new TextCodec(
      attempt(TOKENIZER, () => openTokenizer(Tokenizer, tokenizer).tokenizer),
      attempt(TEMPLATE, () => jinja && new jinja.Template(template)),
      attempt(CONFIG, () => JSON.parse(config)),
    );
  }

  /** @param {any} tokenizer @param {any} template @param {Record<string, any>} config */
  constructor(tokenizer, template, config) {
    this.#tokenizer = tokenizer;
    this.#template = template;
    this.config = config;
    /** The tokens that end an answer. */
    this.endTokens = new Set([config.eos_token_id ?? []].flat());
  }

  /**
   * The tokens of a prompt: messages, which the chat template formats; a text; or tokens. Throws InputError.
   * @param {Prompt} prompt
   * @param {Record<string, unknown>} [variables]  more variables of the template
   * @returns {number[]}
   */
  tokensOf(prompt, variables = {}) {
    if (typeof prompt === "string") return this.#encode(prompt);
    const items = /** @type {any[]} */ (Array.from(/** @type {ArrayLike<any>} */ (prompt ?? [])));
    if (items.every((item) => typeof item === "bigint" || Number.isInteger(item))) return items.map(Number);
    if (items.every((item) => typeof item?.role === "string")) return this.#encode(this.format(items, variables), !this.#template);
    throw new InputError('the prompt is neither a text, nor tokens, nor messages like { role: "user", content: "Hello" }');
  }

  /**
   * Format messages with the chat template, up to where the answer begins. The content of a message is a text, or a list of
   * parts { type: "text", text }. If the template does not understand parts, it gets their texts as lines.
   * @param {Message[]} messages
   * @param {Record<string, unknown>} variables
   * @returns {string}
   */
  format(messages, variables) {
    const formatted = this.#takesParts ? messages : messages.map(withText);
    if (!this.#template) return formatted.map(({ content }) => content).join("");
    try {
      return this.#render(formatted, variables);
    } catch (error) {
      throw new InputError(`the chat template refuses these messages: ${/** @type {Error} */ (error).message}`);
    }
  }

  /** @param {Message[]} messages @param {Record<string, unknown>} variables @returns {string} */
  #render(messages, variables) {
    const [bos_token, eos_token] = [this.#tokenText("bos_token_id"), this.#tokenText("eos_token_id")];
    return this.#template?.render({ messages, add_generation_prompt: true, bos_token, eos_token, ...variables }) ?? "";
  }

  /** True if the template writes the text of a part, and not the whole list of parts. */
  get #takesParts() {
    this.#partsTaken ??= this.#writesParts();
    return this.#partsTaken;
  }

  #writesParts() {
    const content = /** @type {any} */ ([{ type: "text", text: PROBE }]);
    try {
      const text = this.#render([{ role: "user", content }], {});
      return text.includes(PROBE) && !/["']text["']: *["']$/.test(text.split(PROBE)[0]);
    } catch {
      return false;
    }
  }

  /**
   * The tokens of a text, whose lone surrogates become replacement characters. If `isText`, the tokenizer adds its start token.
   * @param {string} text
   * @param {boolean} [isText]
   * @returns {number[]}
   */
  #encode(text, isText = true) {
    const whole = text.replace(/\p{Surrogate}/gu, "\ufffd"); // of pairs, the expression sees the character
    return this.#tokenizer.encode(whole, { add_special_tokens: isText }).ids;
  }

  /** The text of tokens, without special tokens. @param {number[]} tokens @returns {string} */
  decode(tokens) {
    if (!tokens.length) return "";
    return this.#tokenizer.decode(tokens, { skip_special_tokens: true, clean_up_tokenization_spaces: false });
  }

  /** The text of a special token of the configuration, or an empty text. @param {string} key @returns {string} */
  #tokenText(key) {
    const [token] = [this.config[key]].flat();
    return token === undefined || token === null ? "" : (this.#tokenizer.id_to_token(token) ?? "");
  }
}

/**
 * A message whose content is a text instead of a list of parts. Throws InputError if a part is no text.
 * @param {Message} message
 * @returns {Message}
 */
function withText(message) {
  const content = /** @type {any} */ (message.content);
  if (!Array.isArray(content)) return message;
  if (!content.every((part) => typeof part?.text === "string")) {
    throw new InputError('this model takes messages of text only: a part of a content is { type: "text", text: "..." }');
  }
  return { ...message, content: content.map(({ text }) => text).join("\n") };
}

/**
 * Parse a file of the package. Throws PackageError.
 * @template T
 * @param {string} path
 * @param {() => T} parse
 */
function attempt(path, parse) {
  try {
    return parse();
  } catch (error) {
    throw new PackageError(`${path}: ${/** @type {Error} */ (error).message}`);
  }
}

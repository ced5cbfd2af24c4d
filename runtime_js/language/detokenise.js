// Turn tokens into text, one at a time, and never split a character.
//
// The twin of webmlc/generate/detokenise.py, which explains the method.

const INCOMPLETE = "\ufffd"; // decoders end a text that ends within a character with this

/** The decoder of one answer. */
export class Detokeniser {
  #decode;
  /** @type {number[]} Tokens whose text is out. */
  #shown = [];
  /** @type {number[]} */
  #waiting = [];

  /** @param {(tokens: number[]) => string} decode */
  constructor(decode) {
    this.#decode = decode;
  }

  /** Add a token, and return the text that is now complete. @param {number} token */
  add(token) {
    this.#waiting.push(token);
    const { before, text } = this.#texts();
    if (text.endsWith(INCOMPLETE) || text.length <= before.length) return "";
    return this.#show(before, text);
  }

  /** Return the text of tokens that still wait, with replacement characters. */
  finish() {
    const { before, text } = this.#texts();
    return this.#show(before, text);
  }

  #texts() {
    return { before: this.#decode(this.#shown), text: this.#decode([...this.#shown, ...this.#waiting]) };
  }

  /** @param {string} before @param {string} text */
  #show(before, text) {
    this.#shown = this.#waiting;
    this.#waiting = [];
    return text.slice(before.length);
  }
}

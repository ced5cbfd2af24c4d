// The tokens that the merges of a BPE tokeniser make.
//
// A merge joins the texts of two tokens. So the texts of most tokens follow from the merges, and are not stored. The tokens and the
// merges are found by the hashes of their texts, and the hash of two joined texts follows from the hashes of both.
//
//   in:  the texts of the other tokens; for each merge the tokens on its left and right, and the token that it makes
//   out: the text of a token, the token of a text, and the rank of the merge of two texts
//
// Tokens of one text are equal: a vocabulary has each text once.

const BASE = 0x01000193; // a text's hash is that of a polynomial in this odd number, whose coefficients are the units of the text
const SPREAD = 0x9e3779b1; // spreads hashes over the high bits (Knuth's multiplicative hashing)
const EMPTY = -1;

export class MergedTokens {
  /** @type {string[]} */
  #texts;
  /** @type {Uint32Array} */
  #left;
  /** @type {Uint32Array} */
  #right;
  /** @type {Uint32Array} */
  #made;
  /** @type {Int32Array} By token: the merge that makes it, or `EMPTY`. */
  #merges;
  /** @type {Int32Array} A hash table with open addressing. It holds merges, or `EMPTY`. */
  #table;
  #shift;

  /**
   * @param {string[]} texts  by token, of those that no merge makes; it may have holes
   * @param {Uint32Array} left
   * @param {Uint32Array} right
   * @param {Uint32Array} made
   */
  constructor(texts, left, right, made) {
    this.#texts = texts;
    this.#left = left;
    this.#right = right;
    this.#made = made;
    const size = made.reduce((most, token) => Math.max(most, token + 1), texts.length);
    const hashes = new Int32Array(size);
    const powers = new Int32Array(size); // `BASE` to the length of a token's text, which is odd; 0 if there is no token
    texts.forEach((text, token) => ([hashes[token], powers[token]] = [textHash(text), basePower(text.length)]));
    this.#merges = new Int32Array(size).fill(EMPTY);
    made.forEach((token, merge) => {
      const [first, second] = [left[merge], right[merge]];
      if (!powers[first] || !powers[second]) throw new Error(`merge ${merge} joins an unknown token`);
      if (!powers[token]) this.#merges[token] = merge;
      hashes[token] = Math.imul(hashes[first], powers[second]) + hashes[second];
      powers[token] = Math.imul(powers[first], powers[second]);
    });
    const bits = 1 + Math.ceil(Math.log2(made.length + 1)); // at least half of the table is empty
    this.#shift = 32 - bits;
    this.#table = new Int32Array(2 ** bits).fill(EMPTY);
    // The last merge of two texts comes first in the table, because it decides their rank.
    for (let merge = made.length - 1; merge >= 0; merge--) {
      let slot = this.#slot(hashes[made[merge]]);
      while (this.#table[slot] !== EMPTY) slot = this.#next(slot);
      this.#table[slot] = merge;
    }
  }

  /** The text of a token, or undefined if there is no such token. @param {number} token @returns {string | undefined} */
  textOf(token) {
    const merge = this.#texts[token] === undefined ? this.#merges[token] : EMPTY;
    return merge >= 0 ? `${this.textOf(this.#left[merge])}${this.textOf(this.#right[merge])}` : this.#texts[token];
  }

  /** The token of a text that a merge makes, or undefined. @param {string} text @returns {number | undefined} */
  tokenOf(text) {
    const merge = this.#find(text, (candidate) => this.textOf(this.#made[candidate]) === text);
    return merge === EMPTY ? undefined : this.#made[merge];
  }

  /** The rank of the merge of two texts, or undefined. @param {string} first @param {string} second @returns {number | undefined} */
  rankOf(first, second) {
    const joins = (/** @type {number} */ merge) =>
      this.textOf(this.#left[merge]) === first && this.textOf(this.#right[merge]) === second;
    const merge = this.#find(first + second, joins);
    return merge === EMPTY ? undefined : merge;
  }

  /** The first merge in the table that fulfils a condition, among those whose text may be this one. @param {string} text @param {(merge: number) => boolean} fulfils */
  #find(text, fulfils) {
    let slot = this.#slot(textHash(text));
    while (this.#table[slot] !== EMPTY && !fulfils(this.#table[slot])) slot = this.#next(slot);
    return this.#table[slot];
  }

  /** Where the search for a hash begins. @param {number} hash */
  #slot(hash) {
    return Math.imul(hash, SPREAD) >>> this.#shift;
  }

  /** @param {number} slot */
  #next(slot) {
    return (slot + 1) & (this.#table.length - 1);
  }
}

/** @param {string} text */
function textHash(text) {
  let hash = 0;
  for (let i = 0; i < text.length; i++) hash = (Math.imul(hash, BASE) + text.charCodeAt(i)) | 0;
  return hash;
}

/** `BASE` to the power of `exponent`, modulo 2^32. @param {number} exponent */
function basePower(exponent) {
  let power = 1;
  for (let i = 0; i < exponent; i++) power = Math.imul(power, BASE);
  return power;
}

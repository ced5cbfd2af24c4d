// Read the tokeniser of a package: the contents of tokenizer.json.
//
// The twin of webmlc/package/tokenizer_file.py, which explains the format. Merges are listed in the order of the tokens that they
// make, so the vocabulary follows from them.
//
//   in:  the bytes of the file
//   out: the contents without what the merges imply, and the tokens that they make; null if the contents are whole

import { MergedTokens } from "./merged_tokens.js";

const LENGTH_BYTES = 4;
const KINDS = 3; // the numbers of a merge: left, right, step
const WIDTH = 4; // the bytes of a number

/** @param {ArrayBuffer} data @returns {{ contents: any, merged: MergedTokens | null }} */
export function unpackTokenizer(data) {
  const size = new DataView(data).getUint32(0, true);
  const contents = JSON.parse(new TextDecoder().decode(new Uint8Array(data, LENGTH_BYTES, size)));
  const planes = new Uint8Array(data, LENGTH_BYTES + size);
  const count = planes.length / (KINDS * WIDTH);
  if (!count) return { contents, merged: null };
  const numbers = (/** @type {number} */ kind) => join(planes.subarray(kind * WIDTH * count, (kind + 1) * WIDTH * count), count);
  /** @type {string[]} */
  const texts = [];
  for (const [text, token] of Object.entries(contents.model.vocab)) texts[/** @type {number} */ (token)] = text;
  return { contents, merged: new MergedTokens(texts, numbers(0), numbers(1), tokensOfSteps(numbers(2))) };
}

/** The numbers of four planes of bytes. The bytes of the last one are sorted by those of the third. @param {Uint8Array} planes @param {number} count */
function join(planes, count) {
  const [first, second, third, last] = [0, 1, 2, 3].map((plane) => planes.subarray(plane * count, (plane + 1) * count));
  const places = new Uint32Array(257);
  for (const byte of third) places[byte + 1]++;
  for (let byte = 0; byte < 256; byte++) places[byte + 1] += places[byte];
  const numbers = new Uint32Array(count);
  for (let i = 0; i < count; i++) numbers[i] = (first[i] << 24) | (second[i] << 16) | (third[i] << 8) | last[places[third[i]]++];
  return numbers;
}

/** The tokens that merges make, of which each is `step` behind the one after the last. @param {Uint32Array} steps */
function tokensOfSteps(steps) {
  let token = -1;
  return steps.map((step) => (token = (token + 1 + step) >>> 0));
}

// Read the tokeniser of a package: the contents of tokenizer.json.
//
// The twin of webmlc/package/tokenizer_file.py, which explains the format. Merges are listed in the order of the tokens that they
// make, so the vocabulary follows from them.

const LENGTH_BYTES = 4;
const KINDS = 3; // the numbers of a merge: left, right, step
const WIDTH = 4; // the bytes of a number

/** @param {ArrayBuffer} data @returns {any} */
export function unpackTokenizer(data) {
  const size = new DataView(data).getUint32(0, true);
  const contents = JSON.parse(new TextDecoder().decode(new Uint8Array(data, LENGTH_BYTES, size)));
  const planes = new Uint8Array(data, LENGTH_BYTES + size);
  const count = planes.length / (KINDS * WIDTH);
  const numbers = (/** @type {number} */ kind) => join(planes.subarray(kind * WIDTH * count, (kind + 1) * WIDTH * count), count);
  if (count) addMerges(contents.model, numbers(0), numbers(1), numbers(2));
  return contents;
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

/**
 * Add the merges to a model, and the tokens that they make to its vocabulary. A token may be "__proto__", which cannot be assigned.
 * @param {{ vocab: Record<string, number>, merges: [string, string][] }} model
 * @param {Uint32Array} left
 * @param {Uint32Array} right
 * @param {Uint32Array} step
 */
function addMerges(model, left, right, step) {
  /** @type {string[]} */
  const texts = [];
  for (const [text, token] of Object.entries(model.vocab)) texts[token] = text;
  let token = -1;
  for (let i = 0; i < left.length; i++) {
    const [first, second] = [texts[left[i]], texts[right[i]]];
    if (first === undefined || second === undefined) throw new Error(`merge ${i} joins an unknown token`);
    token = (token + 1 + step[i]) >>> 0;
    texts[token] = first + second;
    model.merges.push([first, second]);
  }
  /** @type {Record<string, number>} */
  const vocabulary = Object.create(null);
  texts.forEach((text, number) => (vocabulary[text] = number)); // skips numbers without a token
  model.vocab = vocabulary;
}

// Draw the random numbers of sampling: xoshiro128** (Blackman and Vigna, 2018).
//
// The twin of webmlc/generate/random_numbers.py, which explains it. Both draw the same numbers.

const GOLDEN = 0x9e3779b9;

/** A generator of random numbers. The same seed, of 32 bits, draws the same numbers. */
export class RandomNumbers {
  #state;

  /** @param {number} seed */
  constructor(seed) {
    this.#state = Uint32Array.from([1, 2, 3, 4], (i) => mixed((seed + GOLDEN * i) % 2 ** 32));
  }

  /** Draw a number from 0 to below 1, of 53 random bits: 27 of one word, 26 of the next. */
  next() {
    const high = this.#word() >>> 5;
    const low = this.#word() >>> 6;
    return (high * 2 ** 26 + low) / 2 ** 53;
  }

  /** Draw 32 bits. */
  #word() {
    const state = this.#state;
    const [a, b] = state;
    const result = Math.imul(rotated(Math.imul(b, 5), 7), 9) >>> 0;
    const c = state[2] ^ a;
    const d = state[3] ^ b;
    state.set([a ^ d, b ^ c, c ^ (b << 9), rotated(d, 11)]);
    return result;
  }
}

/** Rotate a word to the left. @param {number} word @param {number} bits */
function rotated(word, bits) {
  return (word << bits) | (word >>> (32 - bits));
}

/** The output of splitmix32 for a state. @param {number} state */
function mixed(state) {
  let word = state;
  word = Math.imul(word ^ (word >>> 16), 0x21f0aaad);
  word = Math.imul(word ^ (word >>> 15), 0x735a2d97);
  return word ^ (word >>> 15);
}

// Find stop strings in a text that arrives in pieces.
//
// The twin of webmlc/generate/detokenise.py. Text that may be the beginning of a stop string is held back until the next piece
// decides.

/** The filter of one answer. */
export class StopStrings {
  #stops;
  #held = "";
  isFound = false;

  /** @param {string[]} stops */
  constructor(stops) {
    this.#stops = stops;
  }

  /** Add a piece, and return the text that surely comes before any stop string. @param {string} piece */
  add(piece) {
    const text = this.#held + piece;
    const places = this.#stops.map((stop) => text.indexOf(stop)).filter((place) => place >= 0);
    if (places.length) {
      this.isFound = true;
      this.#held = "";
      return text.slice(0, Math.min(...places));
    }
    const held = Math.max(0, ...this.#stops.map((stop) => overlap(text, stop)));
    const end = text.length - held;
    this.#held = text.slice(end);
    return text.slice(0, end);
  }

  /** Return the text that was held back, because no more will come. */
  finish() {
    const text = this.#held;
    this.#held = "";
    return text;
  }
}

/** The length of the longest end of the text that is a beginning of the stop string. @param {string} text @param {string} stop */
function overlap(text, stop) {
  for (let length = Math.min(stop.length - 1, text.length); length > 0; length--) {
    if (text.endsWith(stop.slice(0, length))) return length;
  }
  return 0;
}

// Sound to windows for Silero VAD, and its probabilities to the spans in which somebody speaks.
//
// `findSpeech` is the twin of `get_speech_timestamps_from_probs` of the Python package `silero-vad`, with its default options and
// without its limit for the length of a span.

export const RATE = 16_000; // samples per second
export const WINDOW = 512; // samples that a probability is for
const CONTEXT = 64; // samples before a window that the model reads, too
const THRESHOLD = 0.5; // speech begins above
const EXIT = 0.35; // speech ends below
const SHORTEST = 0.25 * RATE;
const SILENCE = 0.1 * RATE; // shorter silence does not end a span
const PAD = 0.03 * RATE; // added on both sides of a span

/**
 * The windows of a sound as one input. The last one is filled up with silence.
 * @param {Float32Array} samples
 * @param {number} first  the first window
 * @param {number} count
 */
export function windowsOf(samples, first, count) {
  const size = CONTEXT + WINDOW;
  const data = new Float32Array(count * size);
  for (let i = 0; i < count; i++) {
    const begin = (first + i) * WINDOW - CONTEXT;
    data.set(samples.subarray(Math.max(0, begin), begin + size), i * size + Math.max(0, -begin));
  }
  return { dtype: "float32", shape: [count, size], data };
}

/**
 * The spans of speech, in samples.
 * @param {number[]} probabilities
 * @param {number} length  of the sound
 * @returns {{ start: number, end: number }[]}
 */
export function findSpeech(probabilities, length) {
  /** @type {{ start: number, end: number }[]} */
  const spans = [];
  let start = -1;
  let silence = -1; // where speech may have ended
  for (const [index, probability] of probabilities.entries()) {
    const now = index * WINDOW;
    if (probability >= THRESHOLD) {
      silence = -1;
      if (start < 0) start = now;
    } else if (start >= 0 && probability < EXIT) {
      if (silence < 0) silence = now;
      if (now - silence < SILENCE) continue;
      if (silence - start > SHORTEST) spans.push({ start, end: silence });
      start = silence = -1;
    }
  }
  if (start >= 0 && length - start > SHORTEST) spans.push({ start, end: length });
  return spans.map(({ start, end }, index) => ({
    start: Math.max(0, start - padding(spans[index - 1]?.end, start)),
    end: Math.min(length, end + padding(end, spans[index + 1]?.start)),
  }));
}

/** What is added to a span next to a silence. Two spans share a short one. @param {number} end @param {number} start */
const padding = (end, start) => (start - end < 2 * PAD ? Math.floor((start - end) / 2) : PAD);

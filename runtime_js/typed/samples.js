// Read the samples of a sound, at the rate of the model.
//
//   in:  an AudioBuffer, or one channel { sampleRate, data }
//   out: a tensor float32 [channels, length]
//
// A sound of another rate is resampled by windowed sinc interpolation (J. O. Smith, "Digital Audio Resampling Home Page").

import { InputError } from "../errors.js";
import { arrayKind } from "../kinds.js";

/** @import { Tensor } from "../webmlc.js" */

const ROLLOFF = 0.95; // of the lower Nyquist frequency: higher frequencies are removed
const ZERO_CROSSINGS = 16; // of the sinc on each side. More make the filter steeper, and take longer.

/**
 * Read a sound. Throws InputError if the value is none.
 * @param {string} name  of the input
 * @param {any} sound
 * @param {import("./typed.d.ts").Kind} kind
 * @returns {Tensor}
 */
export function readSamples(name, sound, { rate = 0 }) {
  if (sound?.dtype) return sound;
  const { sampleRate, data } = sound ?? {};
  const isBuffer = typeof sound?.getChannelData === "function";
  if (!(sampleRate > 0 && (isBuffer || arrayKind(data) === "Float32Array"))) {
    throw new InputError(`input "${name}" takes a sound: an AudioBuffer, or { sampleRate, data } with a Float32Array`);
  }
  const sources = isBuffer ? Array.from({ length: sound.numberOfChannels }, (_, i) => sound.getChannelData(i)) : [data];
  const channels = sources.map((source) => resample(source, Math.round(sampleRate), rate));
  const [{ length }] = channels;
  const samples = new Float32Array(channels.length * length);
  for (const [i, channel] of channels.entries()) samples.set(channel, i * length);
  return { dtype: "float32", shape: [channels.length, length], data: samples };
}

/**
 * Change the rate of a channel. Before and after the sound there is silence.
 * @param {Float32Array} source
 * @param {number} from  samples per second, a whole number
 * @param {number} to
 */
function resample(source, from, to) {
  if (from === to) return source;
  const cutoff = (ROLLOFF * Math.min(from, to)) / from; // of the sinc, where 1 is the Nyquist frequency of the source
  const width = ZERO_CROSSINGS / cutoff;
  const phases = to / divisor(from, to);
  /** The weights of the samples around an output, by its place between two samples. @type {{ first: number, weights: number[] }[]} */
  const filters = Array.from({ length: phases }, (_, phase) => filterAt(((phase * from) / to) % 1, cutoff, width));
  const result = new Float32Array(Math.ceil((source.length * to) / from));
  for (let i = 0; i < result.length; i++) {
    const { first, weights } = filters[i % phases];
    const start = Math.floor((i * from) / to) + first;
    let sum = 0;
    for (let j = Math.max(0, -start); j < weights.length && start + j < source.length; j++) sum += source[start + j] * weights[j];
    result[i] = sum;
  }
  return result;
}

/**
 * The weights of the samples around a place, which is so far behind the first of them at `-first`. Their sum is 1.
 * @param {number} place
 * @param {number} cutoff
 * @param {number} width
 */
function filterAt(place, cutoff, width) {
  const first = Math.ceil(place - width);
  const weights = Array.from({ length: Math.floor(place + width) - first + 1 }, (_, j) => {
    const distance = first + j - place;
    const angle = Math.PI * cutoff * distance;
    const window = Math.cos((Math.PI * distance) / (2 * width)) ** 2;
    return window * (angle ? Math.sin(angle) / angle : 1);
  });
  const sum = weights.reduce((a, b) => a + b, 0);
  return { first, weights: weights.map((weight) => weight / sum) };
}

/** The greatest common divisor. @param {number} a @param {number} b @returns {number} */
function divisor(a, b) {
  return b ? divisor(b, a % b) : a;
}

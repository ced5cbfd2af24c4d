// automatic-speech-recognition: sounds in, text out, by a model of connectionist temporal classification (CTC).

import { InputError, PackageError } from "../errors.js";
import { arrayKind } from "../kinds.js";
import { evaluate, symbolsOf } from "../sizes.js";
import { warnOfOthers } from "./pipeline_options.js";
import { contentsOf } from "./read_contents.js";

/** @import { Transcript } from "../typed/typed.d.ts" */
/** @import { SpeechOptions as Options } from "./pipeline.js" */
/** @typedef {Transcript["tokens"]} Tokens */
/** @typedef {{ begin: number, end: number, from: number, to: number }} Chunk  `from` and `to` are what it adds to the text, in frames */

const SPEECH_OPTIONS = ["return_timestamps", "chunk_length_s", "stride_length_s"];
const USUAL_OPTIONS = { task: "transcribe", force_full_sequences: false };
const STRIDES_OF_CHUNK = 6; // of a chunk: the default length of what two chunks share, as in transformers.js
const LONG_SOUND = 2 ** 20; // samples: over so many, a model's frames follow from its strides alone

/** @param {any} model */
export async function automaticSpeechRecognition(model) {
  const input = soundInput(model);
  const [output, { values = [] } = {}] = Object.entries(/** @type {Record<string, any>} */ (model.typed)).find(([, { kind }]) => kind === "text") ?? [];
  if (output === undefined) {
    throw new PackageError(`${model.name} returns no text: build it with --output ${model.outputs[0].name}:ctc,labels=vocab.json`);
  }
  const { readSamples } = await import("../typed/samples.js");
  const { rate } = model.typed[input];
  /** @param {any} audios  one, or an array of them @param {Options} [options] */
  return async (audios, options = {}) => {
    warnOfOthers("automatic-speech-recognition", { ...options }, SPEECH_OPTIONS, USUAL_OPTIONS);
    const { return_timestamps: unit = false } = options;
    if (![false, null, true, "word", "char"].includes(unit)) throw new InputError(`return_timestamps is ${unit}, expected true, word or char`);
    const hop = unit || options.chunk_length_s ? samplesPerFrame(model, input, values[0]) : 1;
    const results = [];
    for (const audio of Array.isArray(audios) ? audios : [audios]) {
      const { shape, data } = readSamples(input, await readAudio(audio, rate), model.typed[input]);
      const [channels, length] = shape;
      /** @type {Tokens} */
      const tokens = [];
      for (const chunk of chunksOf(length, rate, hop, options)) {
        const samples = sliceOf(/** @type {Float32Array} */ (data), channels, length, chunk);
        addTokens(tokens, (await model.run({ [input]: samples }))[output].tokens, chunk, hop);
      }
      const text = tokens.map(({ label }) => label).join("").trim();
      results.push(unit ? { text, chunks: (unit === "char" ? lettersOf : wordsOf)(tokens, hop / rate) } : { text });
    }
    return Array.isArray(audios) ? results : results[0];
  };
}

/** The name of the input of samples. Throws PackageError if there is none, or if there are other inputs. @param {any} model @returns {string} */
function soundInput({ name, inputs, typed }) {
  const names = inputs.map((/** @type {{ name: string }} */ port) => port.name);
  if (names.length === 1 && typed[names[0]]?.kind === "samples") return names[0];
  throw new PackageError(
    names.length === 1
      ? `${name} takes no sounds: build it with --input ${names[0]}:samples=16000`
      : `${name} has more inputs than a sound (${names.join(", ")}): build the others in with --constant`,
  );
}

/**
 * A sound that models take: an address, a file, samples at the model's rate, or a sound already.
 * @param {any} audio
 * @param {number} rate
 * @returns {Promise<any>}
 */
async function readAudio(audio, rate) {
  const file = await contentsOf(audio);
  if (file) {
    if (!globalThis.OfflineAudioContext) throw new InputError(`this host decodes no sounds: pass a Float32Array of ${rate} samples per second`);
    return new OfflineAudioContext(1, 1, rate).decodeAudioData(await file.arrayBuffer());
  }
  if (["Float32Array", "Float64Array"].includes(arrayKind(audio))) return { sampleRate: rate, data: Float32Array.from(audio) };
  return audio;
}

/**
 * The samples by which two frames of the output are apart. Throws InputError if the length of the output does not follow from the input's.
 * @param {any} model
 * @param {string} input
 * @param {string} tokens  the name of the output of tokens
 * @returns {number}
 */
function samplesPerFrame({ inputs, outputs, name }, input, tokens) {
  const shapeOf = (/** @type {any[]} */ ports, /** @type {string} */ port) => ports.find((each) => each.name === port).shape;
  const [samples, frames] = [shapeOf(inputs, input), shapeOf(outputs, tokens)].map((shape) => shape.at(-1));
  const symbols = [...symbolsOf([frames])].filter((symbol) => symbol !== samples);
  if (symbols.length) throw new InputError(`${name} decides how many frames a sound has, so that chunks and timestamps have no place`);
  if (typeof samples === "number") return Math.round(samples / evaluate(frames, {}));
  const [few, many] = [LONG_SOUND, 2 * LONG_SOUND].map((length) => evaluate(frames, { [samples]: length }));
  return Math.round(LONG_SOUND / (many - few));
}

/**
 * The chunks of a sound, as the Python pipeline cuts it: each one shares samples with its neighbours, and adds the frames in its middle.
 * @param {number} length  of the sound, in samples
 * @param {number} rate
 * @param {number} hop
 * @param {Options} options
 * @returns {Chunk[]}
 */
function chunksOf(length, rate, hop, { chunk_length_s: seconds, stride_length_s: strides }) {
  if (!seconds) return [{ begin: 0, end: length, from: 0, to: Infinity }];
  const framesOf = (/** @type {number} */ time) => Math.round((time * rate) / hop);
  const [left, right] = (Array.isArray(strides) ? strides : Array(2).fill(strides ?? seconds / STRIDES_OF_CHUNK)).map(framesOf);
  const size = framesOf(seconds);
  if (size <= left + right) throw new InputError(`chunk_length_s is ${seconds}: it must be more than both strides`);
  /** @type {Chunk[]} */
  const chunks = [];
  for (let first = 0; ; first += size - left - right) {
    const begin = first * hop;
    const isLast = begin + size * hop >= length;
    const from = first ? first + left : 0;
    if (Math.min(length, begin + size * hop) > from * hop) {
      chunks.push({ begin, end: Math.min(length, begin + size * hop), from, to: isLast ? Infinity : first + size - right });
    }
    if (isLast) return chunks;
  }
}

/** The samples of a chunk, float32 [channels, length]. @param {Float32Array} data @param {number} channels @param {number} length @param {Chunk} chunk */
function sliceOf(data, channels, length, { begin, end }) {
  const part = new Float32Array(channels * (end - begin));
  for (let channel = 0; channel < channels; channel++) {
    part.set(data.subarray(channel * length + begin, channel * length + end), channel * (end - begin));
  }
  return { dtype: "float32", shape: [channels, end - begin], data: part };
}

/**
 * Add what a chunk adds to the tokens. A token that goes on from one chunk to the next is one.
 * @param {Tokens} tokens
 * @param {Tokens} more  whose frames are relative to the chunk
 * @param {Chunk} chunk
 * @param {number} hop
 */
function addTokens(tokens, more, { begin, from, to }, hop) {
  const offset = begin / hop;
  for (const { label, score, frames } of more) {
    const [start, end] = [Math.max(frames[0] + offset, from), Math.min(frames[1] + offset, to)];
    if (start >= end) continue;
    const last = tokens.at(-1);
    if (last?.frames[1] === start && last.label === label && start === from && from > 0) last.frames[1] = end;
    else tokens.push({ label, score, frames: [start, end] });
  }
}

/** The tokens with their times in seconds. @param {Tokens} tokens @param {number} seconds  of a frame */
function lettersOf(tokens, seconds) {
  return tokens.filter(({ label }) => label).map(({ label, frames }) => ({ text: label, timestamp: frames.map((frame) => frame * seconds) }));
}

/** The words with their times in seconds. Spaces end them. @param {Tokens} tokens @param {number} seconds  of a frame */
function wordsOf(tokens, seconds) {
  /** @type {{ text: string, timestamp: number[] }[]} */
  const words = [];
  let isOpen = false;
  for (const { label, frames } of tokens.filter(({ label }) => label)) {
    const text = label.trim();
    const [start, end] = frames.map((frame) => frame * seconds);
    const last = words[words.length - 1];
    if (text && isOpen && !label.startsWith(" ")) {
      last.text += text;
      last.timestamp[1] = end;
    } else if (text) words.push({ text, timestamp: [start, end] });
    isOpen = Boolean(text) && !label.endsWith(" ");
  }
  return words;
}

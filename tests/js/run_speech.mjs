// Recognise speech with a pipeline.
//   in (stdin):   { package, plain: folders; rate, samples, other: samples at twice the rate }
//   out (stdout): the results by name, warnings and errors

import { pathToFileURL } from "node:url";

import { pipeline as source } from "../../runtime_js/pipeline/pipeline.js";

let input = "";
for await (const chunk of process.stdin) input += chunk;
const { package: folder, plain, rate, samples, other } = JSON.parse(input);
const at = (path) => pathToFileURL(`${path}/`).href;
const warnings = [];
console.warn = (text) => warnings.push(text);
const failure = (promise) => promise.then(() => "none", ({ name, message }) => `${name}: ${message}`);

const { pipeline } = await import(`${at(folder)}pipeline.js`);
const options = { device: "wasm", threads: 1 };
const recognise = await pipeline("automatic-speech-recognition", at(folder), options);
const sound = Float32Array.from(samples);
/** The part of an AudioBuffer that is read. Node lacks the class. */
const buffer = {
  sampleRate: 2 * rate,
  numberOfChannels: 2,
  length: other.length,
  getChannelData: () => Float32Array.from(other),
};
const chunked = { chunk_length_s: 0.2, stride_length_s: [0.04, 0.02] };
const result = {
  text: await recognise(sound),
  list: await recognise([Float64Array.from(samples), { sampleRate: rate, data: sound }]),
  resampled: await recognise(buffer),
  words: await recognise(sound, { return_timestamps: true }),
  letters: await recognise(sound, { return_timestamps: "char" }),
  chunked: await recognise(sound, { ...chunked, return_timestamps: "char" }),
  halves: await recognise(sound, { chunk_length_s: 0.3 }),
};
await recognise(sound, { language: "en", task: "translate", num_beams: null });
result.warnings = warnings;
result.errors = [
  await failure(recognise(sound, { return_timestamps: "line" })),
  await failure(recognise(sound, { chunk_length_s: 0.1, stride_length_s: 0.05 })),
  await failure(recognise(new Blob([]))),
  await failure(source("automatic-speech-recognition", at(plain), options)),
];
await recognise.dispose();
process.stdout.write(JSON.stringify(result));

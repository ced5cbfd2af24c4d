// Run the JavaScript twin of webmlc/generate over the model of fakes.py.
//
//   in:  { folder, random: [seed], jobs: [{ prompt, options, abortAfter?, fails? }] } as JSON
//   out: { random: [[number]], answers: [{ pieces, usage, runs, outputs } | { error, code }] } as JSON

import { readFile } from "node:fs/promises";
import path from "node:path";
import { text } from "node:stream/consumers";
import { InputError } from "../../runtime_js/errors.js";
import { TextGenerator } from "../../runtime_js/language/generate.js";
import { LIBRARIES } from "../../runtime_js/language/libraries.js";
import { TextCodec } from "../../runtime_js/language/prompt.js";
import { RandomNumbers } from "../../runtime_js/language/random_numbers.js";

const SIZE = 256 + 5 + 3;

/** @param {number[]} tokens */
function mixedLogits(tokens) {
  let state = 0;
  for (const token of tokens) state = (Math.imul(state, 31) + token + 1) >>> 0;
  return Float32Array.from({ length: SIZE }, (_, i) => {
    let word = Math.imul(i, 2654435761) ^ state;
    word = Math.imul(word ^ (word >>> 15), 2246822519);
    word ^= word >>> 13;
    return (word >>> 0) / 2 ** 29;
  });
}

/** True while every run fails. */
let fails = false;

class FakeSession {
  tokens = [];
  runs = [];
  outputs = [];

  constructor(capacity) {
    this.capacity = capacity;
  }

  get length() {
    return this.tokens.length;
  }

  async run({ input_ids: { dtype, shape, data } }, { outputs }) {
    if (fails) throw new InputError("no memory");
    if (dtype !== "int64" || shape[0] !== 1 || data.length !== shape[1]) throw new Error("input_ids");
    await null;
    this.tokens.push(...Array.from(data, Number));
    this.runs.push(data.length);
    this.outputs.push(...outputs);
    const logits = mixedLogits(this.tokens);
    const best = BigInt64Array.of(BigInt(logits.indexOf(Math.max(...logits))));
    const results = { logits: { dtype: "float32", shape: [1, SIZE], data: logits }, next_token: { dtype: "int64", shape: [1], data: best } };
    return Object.fromEntries(outputs.map((name) => [name, results[name]]));
  }

  async truncate(length) {
    this.tokens.length = length;
  }

  async dispose() {}
}

const { folder, random, jobs } = JSON.parse(await text(process.stdin));
const codec = await TextCodec.open(async (file) => new Uint8Array(await readFile(path.join(folder, file))).buffer, LIBRARIES);
const sessions = [];
const model = {
  device: "wasm",
  outputs: [{ name: "logits" }, { name: "next_token" }],
  async session({ capacity }) {
    sessions.push(new FakeSession(capacity));
    return sessions.at(-1);
  },
};
const generator = new TextGenerator(model, codec);
const answers = [];
for (const { prompt, options, abortAfter, ...job } of jobs) {
  fails = Boolean(job.fails);
  try {
    const controller = new AbortController();
    const streamed = [];
    const generation = generator.generate(prompt, { ...options, signal: controller.signal, streamer: (piece) => streamed.push(piece) });
    const pieces = [];
    for await (const piece of generation) {
      pieces.push(piece);
      if (pieces.length === abortAfter) controller.abort();
    }
    const { usage } = generation;
    if (streamed.join() !== pieces.join() || generation.text !== pieces.join("")) throw new Error("pieces");
    answers.push({ pieces, usage, runs: sessions.at(-1).runs.splice(0), outputs: sessions.at(-1).outputs.splice(0) });
  } catch ({ message, code }) {
    answers.push({ error: message, code });
  }
}
const numbers = random.map((seed) => {
  const generatorOfSeed = new RandomNumbers(seed);
  return Array.from({ length: 4 }, () => generatorOfSeed.next());
});
console.log(JSON.stringify({ random: numbers, answers }));

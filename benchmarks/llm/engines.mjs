// Load one engine in a page, and measure it. The query says which: ?engine=webmlc|wllama&threads=1&device=wasm
//
//   globalThis.bench: a promise of { load, version, prefill, decode }
//     load           milliseconds from the request to an engine that can run
//     prefill(n)     { tokens, milliseconds } of a prompt of about n tokens in an empty context
//     decode(n, k)   { tokens, milliseconds } of k tokens, one by one, after a context of about n tokens

const query = new URLSearchParams(location.search);
const threads = Number(query.get("threads"));
const device = query.get("device") ?? "wasm";
const CHUNK = device === "wasm" ? 72 : 256; // tokens of a prompt that run at once, as in generate.js
const CAPACITY = 2048; // tokens of a context

let prompts = 0; // no prompt begins as another does, so that no engine takes it from a cache

/** A text of about n tokens: common English words are one token each. @param {number} n */
function text(n) {
  const words = ["time", "water", "light", "house", "people", "music", "story", "world", "green", "river", "paper", "stone"];
  prompts++;
  return Array.from({ length: n }, (_, i) => words[(i * i * prompts + i + prompts) % words.length]).join(" ");
}

async function webmlc() {
  const begin = performance.now();
  const { load } = await import("/model/webmlc.js");
  const model = await load("/model/", { device, threads });
  const session = await model.session({ capacity: CAPACITY });
  const run = async (/** @type {number[]} */ ids) => {
    const data = BigInt64Array.from(ids, BigInt);
    const inputs = { input_ids: { dtype: "int64", shape: [1, ids.length], data } };
    return Number((await session.run(inputs, { outputs: ["next_token"] })).next_token.data[0]);
  };
  await run([1]); // the first run compiles
  const milliseconds = performance.now() - begin;
  const fill = async (/** @type {number} */ n) => {
    session.truncate(0);
    const ids = Array.from({ length: n }, (_, i) => (i * 7919 + ++prompts) % 40_000);
    let last = 0;
    for (let i = 0; i < n; i += CHUNK) last = await run(ids.slice(i, i + CHUNK));
    return last;
  };
  return {
    load: milliseconds,
    version: model.variant,
    async prefill(/** @type {number} */ n) {
      const start = performance.now();
      await fill(n);
      return { tokens: n, milliseconds: performance.now() - start };
    },
    async decode(/** @type {number} */ n, /** @type {number} */ count) {
      let id = await fill(n);
      const start = performance.now();
      for (let i = 0; i < count; i++) id = await run([id]);
      return { tokens: count, milliseconds: performance.now() - start };
    },
  };
}

async function wllama() {
  const begin = performance.now();
  const { Wllama, LoggerWithoutDebug } = await import("/wllama/index.js");
  const engine = new Wllama({ default: "/wllama/wasm/wllama.wasm" }, { logger: LoggerWithoutDebug, suppressNativeLog: true });
  const file = await (await fetch("/gguf/model.gguf")).blob();
  await engine.loadModel([file], { n_ctx: CAPACITY, n_threads: threads, n_gpu_layers: 0, n_parallel: 1, warmup: true });
  const complete = (/** @type {string} */ prompt, /** @type {number} */ count) =>
    engine.createCompletion({ prompt, max_tokens: count, temperature: 0, logit_bias: { [engine.getEOS()]: -100 } });
  await complete("a", 1);
  const milliseconds = performance.now() - begin;
  return {
    load: milliseconds,
    version: Wllama.getLibllamaVersion(),
    async prefill(/** @type {number} */ n) {
      const { timings } = await complete(text(n), 1);
      return { tokens: timings.prompt_n, milliseconds: timings.prompt_ms };
    },
    async decode(/** @type {number} */ n, /** @type {number} */ count) {
      const { timings } = await complete(text(n), count);
      return { tokens: timings.predicted_n, milliseconds: timings.predicted_ms };
    },
  };
}

globalThis.bench = { webmlc, wllama }[query.get("engine") ?? ""]?.();

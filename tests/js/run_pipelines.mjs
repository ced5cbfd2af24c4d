// Run the pipelines of a package, and the adapter with the names of ONNX Runtime Web.
//   in (stdin):   { encoder, classifier, plain: folders; texts, picture: { width, height, channels, data } }
//   out (stdout): the results by name

import { pathToFileURL } from "node:url";

import * as ort from "../../runtime_js/onnxruntime/onnxruntime.js";
import { pipeline as source, TextStreamer } from "../../runtime_js/pipeline/pipeline.js";

let input = "";
for await (const chunk of process.stdin) input += chunk;
const { encoder, classifier, plain, texts, picture } = JSON.parse(input);
const at = (folder) => pathToFileURL(`${folder}/`).href;
const warnings = [];
console.warn = (text) => warnings.push(text);
const failure = (promise) => promise.then(() => "none", ({ name, message }) => `${name}: ${message}`);
const result = { warnings };

const { pipeline } = await import(`${at(encoder)}pipeline.js`);
const events = [];
const options = { device: "cpu", threads: 1, dtype: "q8", progress_callback: ({ status }) => events.push(status) };
const extract = await pipeline("feature-extraction", at(encoder), options);
const plainTensor = ({ type, dims, data, tolist }) => ({ type, dims, data: Array.from(data), hasList: typeof tolist === "function" });
result.none = plainTensor(await extract(texts[0]));
for (const pooling of ["mean", "cls", "last_token"]) result[pooling] = plainTensor(await extract(texts, { pooling, normalize: true }));
result.first = (await extract(texts, { pooling: "mean" })).tolist()[0].length;
result.events = [...new Set(events)];
result.wrong = await failure(extract(texts, { pooling: "max" }));
await extract.dispose();
const fromSource = await source("feature-extraction", at(encoder), { device: "wasm", threads: 1 });
result.fromSource = plainTensor(await fromSource(texts, { pooling: "mean", normalize: true }));
await fromSource.dispose();

const classify = await source("image-classification", at(classifier), { device: "wasm", threads: 1 });
const rgb = { ...picture, data: Uint8Array.from(picture.data) };
result.classes = await classify(rgb, { top_k: 2 });
result.lists = (await classify([rgb, rgb])).map((list) => list.length);
await classify.dispose();

// A model that is loaded already: it answers with the prompt and the options.
const model = {
  name: "echo",
  typed: {},
  run: () => {},
  dispose: () => {},
  generate: (prompt, given) => ({
    complete: async () => {
      given.streamer?.("piece");
      return ` ${JSON.stringify({ ...given, streamer: undefined })}`;
    },
  }),
};
const generate = await source("text-generation", model);
const pieces = [];
const streamer = new TextStreamer(null, { callback_function: (piece) => pieces.push(piece) });
result.text = await generate("Say", { max_new_tokens: 3, streamer, num_beams: 4, num_return_sequences: 1 });
result.pieces = pieces;
result.chat = await generate([{ role: "user", content: "Hi" }], { stop_strings: ["x"] });
result.answer = await generate(["a", "b"], { return_full_text: false });

const session = await ort.InferenceSession.create(at(plain), { executionProviders: ["wasm"] });
const x = new ort.Tensor("float32", [1, 2, 3, 4], [1, 4]);
const { y } = await session.run({ x });
result.ort = { inputs: session.inputNames, outputs: session.outputNames, type: y.type, dims: y.dims, data: Array.from(await y.getData()) };
result.metadata = session.inputMetadata;
result.fetched = Object.keys(await session.run({ x: new ort.Tensor(new Float32Array(4), [1, 4]) }, ["y"]));
result.errors = [
  await failure(session.run({ x: [1, 2] })),
  await failure(session.run({ x }, ["z"])),
  await failure(ort.InferenceSession.create(new Uint8Array(4))),
  await failure((async () => new ort.Tensor("float32", [1, 2], [3]))()),
  await failure(source("fill-mask", at(encoder))),
  await failure(source("image-classification", at(plain))),
  await failure(source("feature-extraction", at(plain))),
];
await session.release();
process.stdout.write(JSON.stringify(result));

// Count the messages to the workers during runs of the model in tests/recurrent.py without a session, all in the worker.
//
//   arguments: the package's folder
//   out (stdout): the number of messages of each run

import { pathToFileURL } from "node:url";
import { Worker } from "node:worker_threads";

import { load } from "../../runtime_js/webmlc.js";

const RUNS = 6;

let messages = 0;
const { postMessage } = Worker.prototype;
Worker.prototype.postMessage = function (...message) {
  messages++;
  return postMessage.apply(this, message);
};
const model = await load(pathToFileURL(`${process.argv[2]}/`), { device: "wasm", threads: 1, inlineMilliseconds: 0 });
const tensor = (rows) => ({ dtype: "float32", shape: [rows, 4], data: new Float32Array(4 * rows).fill(0.5) });
const counts = [];
for (let i = 0; i < RUNS; i++) {
  messages = 0;
  await model.run({ x: tensor(2), w: tensor(8), state: tensor(2), cache_in: tensor(2) });
  counts.push(messages);
}
model.dispose();
process.stdout.write(JSON.stringify(counts));

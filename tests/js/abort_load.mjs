// Abort loads at several moments. The server never ends a file that its URL names, after `?`. Prints JSON.
//
//   arguments: the folder of a package with a tokenizer

import { readFileSync } from "node:fs";
import { createServer } from "node:http";

import { load } from "../../runtime_js/language/webmlc.js";

const [folder] = process.argv.slice(2);
const OPTIONS = { device: "wasm", threads: 2 };

/** The responses that have not ended. @type {Set<import("node:http").ServerResponse>} */
const stalled = new Set();
let stalls = "";
const server = createServer((request, response) => {
  const path = request.url.slice(1);
  const data = readFileSync(`${folder}/${path}`);
  if (!stalls || !path.includes(stalls)) return response.end(data);
  stalled.add(response);
  response.on("close", () => stalled.delete(response));
  response.write(data.subarray(0, 16));
});
await new Promise((resolve) => server.listen(0, "127.0.0.1", resolve));
const url = `http://127.0.0.1:${server.address().port}/`;

const until = async (holds) => {
  while (!holds()) await new Promise((resolve) => setTimeout(resolve, 5));
};
const ending = (promise) => promise.then(() => "no error", ({ name, message }) => `${name}: ${message}`);

/** Abort a load while a file does not arrive. Returns how the load ends, and the reports of progress after that. */
async function abortedIn(file) {
  stalls = file;
  const controller = new AbortController();
  let reports = 0;
  const end = ending(load(url, { ...OPTIONS, signal: controller.signal, onProgress: () => reports++ }));
  await until(() => stalled.size);
  controller.abort(new Error(`no ${file}`));
  reports = 0;
  const text = await end;
  await until(() => !stalled.size); // the connection is closed
  stalls = "";
  return [text, reports];
}

const results = { files: [] };
for (const file of ["manifest", "weights", ".wasm", "tokenizer"]) results.files.push(await abortedIn(file));
results.before = await ending(load(url, { ...OPTIONS, signal: AbortSignal.abort() }));
results.none = await ending(load(url, { ...OPTIONS, signal: "abort" }));
results.folder = await ending(load(folder, { ...OPTIONS, signal: AbortSignal.timeout(1) }));
const controller = new AbortController();
const model = await load(url, { ...OPTIONS, signal: controller.signal });
controller.abort();
await model.restore();
results.after = await model.generate([1, 2, 3], { max_new_tokens: 2, temperature: 0 }).complete().then((text) => typeof text);
model.dispose();
server.close();
server.closeAllConnections();
process.stdout.write(JSON.stringify(results)); // nothing else keeps the process alive

// Try to load what is no package. Paths are relative to the working folder.
//   in (stdin):   [address, or { kind: the name of a value that is none }]
//   out (stdout): [[name, code, message] of each error]

import { load } from "../../runtime_js/webmlc.js";

let input = "";
for await (const chunk of process.stdin) input += chunk;
const VALUES = { bytes: new Uint8Array(4), blob: new Blob([]), nothing: undefined, object: { url: "./model/" } };
const errors = [];
for (const address of JSON.parse(input)) {
  const url = typeof address === "string" ? address : VALUES[address.kind];
  errors.push(await load(url, { device: "wasm", threads: 1 }).then(() => [], ({ name, code, message }) => [name, code, message]));
}
process.stdout.write(JSON.stringify(errors));

// Read manifests with the runtime.
//   in (stdin):   [text of a manifest]
//   out (stdout): [[name, code, message] of each error, of empty strings if there is none]

import { complete } from "../../runtime_js/manifest.js";

let input = "";
for await (const chunk of process.stdin) input += chunk;
const errors = JSON.parse(input).map((text) => {
  try {
    complete(JSON.parse(text), "model/manifest.json");
    return ["", "", ""];
  } catch ({ name, code, message }) {
    return [name, code, message];
  }
});
process.stdout.write(JSON.stringify(errors));

// Cut the foreground out of a picture.
//   in (stdin):   { package, width, height, data: [bytes] }
//   out (stdout): { width, height, data: [bytes], names: of the outputs of a run that chose a tensor }

import { pathToFileURL } from "node:url";

import { load } from "../../runtime_js/webmlc.js";

let input = "";
for await (const chunk of process.stdin) input += chunk;
const { package: folder, width, height, data } = JSON.parse(input);
const model = await load(pathToFileURL(`${folder}/`), { device: "wasm", threads: 1 });
const image = { width, height, data: Uint8ClampedArray.from(data) };
const { scores } = await model.run({ image });
const names = Object.keys(await model.run({ image }, { outputs: ["scores_pixels"] }));
model.dispose();
process.stdout.write(JSON.stringify({ ...scores, data: Array.from(scores.data), names }));

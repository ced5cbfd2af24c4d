// Read texts from scores, in batches of one and more.
//   in (stdin):   { package, batches: [{ shape, data: [scores] }] }
//   out (stdout): { texts: the result of each batch, tensors: the names of the outputs of a run that chose them }

import { pathToFileURL } from "node:url";

import { load } from "../../runtime_js/webmlc.js";

let input = "";
for await (const chunk of process.stdin) input += chunk;
const { package: folder, batches } = JSON.parse(input);
const model = await load(pathToFileURL(`${folder}/`), { device: "wasm", threads: 1 });
const texts = [];
const tensorOf = ({ shape, data }) => ({ dtype: "float32", shape, data: Float32Array.from(data) });
for (const batch of batches) texts.push((await model.run({ x: tensorOf(batch) })).logits);
const chosen = await model.run({ x: tensorOf(batches[0]) }, { outputs: ["logits_tokens", "logits_scores"] });
model.dispose();
process.stdout.write(JSON.stringify({ texts, tensors: Object.keys(chosen) }));

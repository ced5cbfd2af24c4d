// node run_sines.mjs PACKAGE THREADS BATCH...
// Print the first output as JSON, for each batch. The input is x[i] = sin(i).

import { pathToFileURL } from "node:url";

const [folder, threads, ...batches] = process.argv.slice(2);
const base = pathToFileURL(`${folder}/`);
const { load } = await import(new URL("webmlc.js", base).href);
const model = await load(base, { device: "wasm", threads: Number(threads) });
const [input] = model.inputs;
const results = [];
for (const batch of batches.map(Number)) {
  const shape = input.shape.map((d) => (typeof d === "number" ? d : batch));
  const size = shape.reduce((a, b) => a * b, 1);
  const data = Float32Array.from({ length: size }, (_, i) => Math.sin(i));
  const outputs = await model.run({ [input.name]: { dtype: "float32", shape, data } });
  results.push([...Object.values(outputs)[0].data]);
}
model.dispose();
process.stdout.write(JSON.stringify(results));

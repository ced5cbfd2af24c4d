// Run the package at argv[2] under Node with argv[3] threads: `x: float32[n, 4]` in, `y` out, for several n.
//   out (stdout): { variant, threads, outputs, profiled, error }

import { pathToFileURL } from "node:url";
import { load } from "../../runtime_js/webmlc.js";

const [, , folder, threads] = process.argv;
const model = await load(pathToFileURL(`${folder}/`), { device: "wasm", threads: Number(threads) });
const outputs = [];
for (const n of [3, 1, 5000, 6000, 20000, 2]) {
  const data = Float32Array.from({ length: 4 * n }, (_, i) => Math.fround(Math.sin(i + n)));
  const { y } = await model.run({ x: { dtype: "float32", shape: [n, 4], data } });
  outputs.push(Array.from(y.data));
}
const x = { dtype: "float32", shape: [1, 4], data: new Float32Array(4) };
const profiled = (await model.profile({ x })).map((step) => step.kernel);
// Runs that start at the same time must not disturb each other.
const starts = Array.from({ length: 20 }, (_, i) => ({ dtype: "float32", shape: [1, 4], data: new Float32Array(4).fill(i) }));
const together = (await Promise.all(starts.map((t) => model.run({ x: t })))).map(({ y }) => y.data[0]);
const error = await model.run({}).then(
  () => null,
  ({ name, code }) => [name, code],
);
const { variant, threads: count } = model;
model.dispose();
process.stdout.write(JSON.stringify({ variant, threads: count, outputs, profiled, together, error }));

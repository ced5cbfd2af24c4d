// Load a package with two threads, run it, and dispose of it, again and again.
//   arguments: its folder, the rounds, the runs of each, the size of a row of `x: float32[n, size]`
//   out (stdout): [the resident megabytes of the process after each round]

import { pathToFileURL } from "node:url";

import { load } from "../../runtime_js/webmlc.js";

const [folder, ...numbers] = process.argv.slice(2);
const [rounds, runs, size] = numbers.map(Number);
const megabytes = [];
for (let round = 0; round < rounds; round++) {
  const model = await load(pathToFileURL(`${folder}/`), { device: "wasm", threads: 2 });
  for (let run = 0; run < runs; run++) await model.run({ x: { dtype: "float32", shape: [1, size], data: new Float32Array(size) } });
  await model.dispose();
  megabytes.push(process.memoryUsage.rss() / 2 ** 20);
}
process.stdout.write(JSON.stringify(megabytes));

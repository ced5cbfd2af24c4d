// Run a package whose path is relative to the working folder. Inputs change after `run` returns. The model is not disposed of.
//   out (stdout): [first element of `y` of each run]. `x: float32[2, 4]` is full of 1 and of 9 in turn. First come runs that wait
//                 for each other, then runs that start at once.

import { load } from "../../runtime_js/webmlc.js";

const model = await load("./package", { device: "wasm", threads: 2 });
const x = { dtype: "float32", shape: [2, 4], data: new Float32Array(8) };
const firsts = [];
for (let round = 0; round < 4; round++) {
  x.data.fill(1);
  const first = model.run({ x });
  x.data.fill(9);
  const second = model.run({ x });
  x.data.fill(NaN);
  firsts.push((await first).y.data[0], (await second).y.data[0]);
}
const singleThreaded = await load("./package", { device: "wasm", threads: 1 });
for (let round = 0; round < 8; round++) {
  x.data.fill(round % 2 ? 9 : 1);
  const run = singleThreaded.run({ x });
  x.data.fill(NaN);
  firsts.push((await run).y.data[0]);
}
process.stdout.write(JSON.stringify(firsts));

// A package named relative to the working folder. Its inputs change after `run` returns; it is never disposed of.
//   out (stdout): [first element of `y` of each run], of `x: float32[2, 4]` full of 1, then of 9; runs that wait for one
//                 another, then runs that start at once

import { load } from "../../runtime_js/webmlc.js";

const model = await load("./package", { device: "wasm", threads: 2 });
const x = { dtype: "float32", shape: [2, 4], data: new Float32Array(8) };
const firsts = [];
for (let round = 0; round < 4; round++) {
  x.data.fill(1);
  const one = model.run({ x });
  x.data.fill(9);
  const other = model.run({ x });
  x.data.fill(NaN);
  firsts.push((await one).y.data[0], (await other).y.data[0]);
}
const alone = await load("./package", { device: "wasm", threads: 1 });
for (let round = 0; round < 8; round++) {
  x.data.fill(round % 2 ? 9 : 1);
  const run = alone.run({ x });
  x.data.fill(NaN);
  firsts.push((await run).y.data[0]);
}
process.stdout.write(JSON.stringify(firsts));

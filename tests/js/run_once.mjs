// Run a package in the JavaScript runtime.
//   arguments: the package's folder, the number of threads
//   in (stdin):   [{ name: { dtype, shape, data: [numbers] } }], one item per run
//   out (stdout): [{ name: { shape, data: [text] } }], or { error, code } for a run that fails

import { pathToFileURL } from "node:url";

import { arrayOf } from "../../runtime_js/dtypes.js";
import { load } from "../../runtime_js/webmlc.js";

let input = "";
for await (const chunk of process.stdin) input += chunk;

const tensor = ({ dtype, shape, data }) => {
  const convert = dtype.endsWith("64") && dtype !== "float64" ? BigInt : Number;
  return { dtype, shape, data: arrayOf(dtype).from(data, convert) };
};

const model = await load(pathToFileURL(`${process.argv[2]}/`), { device: "wasm", threads: Number(process.argv[3]) });
const results = [];
for (const run of JSON.parse(input)) {
  const feeds = Object.fromEntries(Object.entries(run).map(([name, value]) => [name, tensor(value)]));
  try {
    const outputs = Object.entries(await model.run(feeds));
    results.push(Object.fromEntries(outputs.map(([name, { shape, data }]) => [name, { shape, data: Array.from(data, String) }])));
  } catch (error) {
    results.push({ error: error.message, code: error.code });
  }
}
model.dispose();
process.stdout.write(JSON.stringify(results));

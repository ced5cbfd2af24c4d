// Run packages in the JavaScript runtime, as requested line by line.
//   in (stdin), one per line:   { folder, threads, runs: [{ name: { dtype, shape, data: [numbers] } }] }
//   out (stdout), one per line: [{ name: { shape, data: [text] } }], or { error, code } for a run that fails

import { pathToFileURL } from "node:url";

import { arrayOf } from "../../runtime_js/dtypes.js";
import { load } from "../../runtime_js/webmlc.js";
import { answerLines } from "./answer_lines.mjs";

const tensor = ({ dtype, shape, data }) => {
  if (dtype === "string") return { dtype, shape, data };
  const convert = dtype.endsWith("64") && dtype !== "float64" ? BigInt : Number;
  return { dtype, shape, data: arrayOf(dtype).from(data, convert) };
};

/** A tensor, or a sequence of tensors, as JSON. */
const plain = (value) => (Array.isArray(value) ? value.map(plain) : { shape: value.shape, data: Array.from(value.data, String) });

await answerLines(async ({ folder, threads, runs }) => {
  const model = await load(pathToFileURL(`${folder}/`), { device: "wasm", threads });
  const results = [];
  for (const run of runs) {
    const feeds = Object.fromEntries(Object.entries(run).map(([name, value]) => [name, tensor(value)]));
    try {
      const outputs = Object.entries(await model.run(feeds));
      results.push(Object.fromEntries(outputs.map(([name, value]) => [name, plain(value)])));
    } catch (error) {
      results.push({ error: error.message, code: error.code });
    }
  }
  model.dispose();
  return results;
});

// Run packages in the JavaScript runtime, as requested line by line.
//   argument: the runtime's folder
//   in (stdin), one per line:   { folder, threads, runs: [{ name: { dtype, shape, data: base64 } }] }
//   out (stdout), one per line: [{ name: { dtype, shape, data: base64 } }], or { error, code } for a run that fails

import { pathToFileURL } from "node:url";

import { answerLines } from "./answer_lines.mjs";

const base = pathToFileURL(`${process.argv[2]}/`);
const { load } = await import(new URL("webmlc.js", base).href);
const { arrayOf } = await import(new URL("dtypes.js", base).href);

function tensor({ dtype, shape, data }) {
  const bytes = Uint8Array.from(Buffer.from(data, "base64"));
  return { dtype, shape, data: new (arrayOf(dtype))(bytes.buffer) };
}

function text({ dtype, shape, data }) {
  return { dtype, shape, data: Buffer.from(data.buffer, data.byteOffset, data.byteLength).toString("base64") };
}

const mapValues = (tensors, convert) => Object.fromEntries(Object.entries(tensors).map(([name, value]) => [name, convert(value)]));

await answerLines(async ({ folder, threads, runs }) => {
  const results = [];
  let model = null;
  for (const inputs of runs) {
    try {
      model ??= await load(pathToFileURL(`${folder}/`), { device: "wasm", threads, inlineMilliseconds: 0 });
      results.push(mapValues(await model.run(mapValues(inputs, tensor)), text));
    } catch ({ name, message, code }) {
      results.push({ error: `${name}: ${message}`, code: code ?? name });
      if (code !== "input") {
        model?.dispose();
        model = null;
      }
    }
  }
  model?.dispose();
  return results;
});

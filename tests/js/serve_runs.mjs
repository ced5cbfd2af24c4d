// Packages run by the JavaScript runtime, as many as the caller asks for.
//   argument: the runtime's folder
//   in (stdin), a line each:   { folder, threads, runs: [{ name: { dtype, shape, data: base64 } }] }
//   out (stdout), a line each: [{ name: { dtype, shape, data: base64 } }], or { error, code } of a run that fails

import { createInterface } from "node:readline";
import { pathToFileURL } from "node:url";

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

const mapped = (tensors, convert) => Object.fromEntries(Object.entries(tensors).map(([name, value]) => [name, convert(value)]));

for await (const line of createInterface({ input: process.stdin })) {
  const { folder, threads, runs } = JSON.parse(line);
  const results = [];
  let model = null;
  for (const inputs of runs) {
    try {
      model ??= await load(pathToFileURL(`${folder}/`), { device: "wasm", threads, inlineMilliseconds: 0 });
      results.push(mapped(await model.run(mapped(inputs, tensor)), text));
    } catch ({ name, message, code }) {
      results.push({ error: `${name}: ${message}`, code: code ?? name });
      if (code !== "input") {
        model?.dispose();
        model = null;
      }
    }
  }
  model?.dispose();
  process.stdout.write(`${JSON.stringify(results)}\n`);
}

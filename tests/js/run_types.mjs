// node run_types.mjs FOLDER
// Run the packages in a folder. Each copies its input `x` to `y`. Print for each if the bytes of all elements stay the same.
import { readdirSync } from "node:fs";
import { pathToFileURL } from "node:url";

const root = pathToFileURL(`${process.argv[2]}/`);
const results = {};
for (const dtype of readdirSync(root)) {
  const folder = new URL(`${dtype}/`, root);
  const { load } = await import(new URL("webmlc.js", folder).href);
  const { arrayOf } = await import(new URL("shared.js", folder).href);
  const model = await load(folder.href, { device: "wasm" });
  const type = arrayOf(dtype);
  const bytes = Uint8Array.from({ length: 12 * type.BYTES_PER_ELEMENT }, (_, i) => (i * 37 + 11) & 1);
  const { y } = await model.run({ x: { dtype, shape: [3, 4], data: new type(bytes.buffer) } });
  const copied = new Uint8Array(y.data.buffer, y.data.byteOffset, y.data.byteLength);
  const same = y.data.constructor === type && copied.every((byte, i) => byte === bytes[i]);
  results[dtype] = [y.dtype, y.shape, same && copied.length === bytes.length];
  model.dispose();
}
console.log(JSON.stringify(results));

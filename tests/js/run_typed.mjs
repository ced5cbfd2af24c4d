// Run a package that takes a picture.
//   in (stdin):   { package, width, height, data: [bytes] }
//   out (stdout): { image, tensor: the labels with scores of two runs, errors: [text] }

import { pathToFileURL } from "node:url";

let input = "";
for await (const chunk of process.stdin) input += chunk;
const { package: folder, width, height, data } = JSON.parse(input);

const { load } = await import(pathToFileURL(`${folder}/webmlc.js`).href);
const model = await load(pathToFileURL(`${folder}/`), { device: "wasm", threads: 1 });
const { logits: image } = await model.run({ image: { width, height, data: Uint8ClampedArray.from(data) } });
const tensor = { dtype: "uint8", shape: [height, width, 4], data: Uint8Array.from(data) };
const { logits } = await model.run({ image: tensor });
const errors = [];
for (const wrong of ["picture.png", { width: 2, height: 2, data: new Uint8Array(12) }]) {
  await model.run({ image: wrong }).catch(({ name, message }) => errors.push(`${name}: ${message}`));
}
model.dispose();
process.stdout.write(JSON.stringify({ image, tensor: logits, errors }));

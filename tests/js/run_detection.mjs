// Detect objects in a picture.
//   in (stdin):   { package, width, height, data: [bytes] }
//   out (stdout): { objects, likely, fractions }: the results with the thresholds 0, 0.5 and 0

import { pathToFileURL } from "node:url";

let input = "";
for await (const chunk of process.stdin) input += chunk;
const { package: folder, width, height, data } = JSON.parse(input);
const { pipeline } = await import(pathToFileURL(`${folder}/pipeline.js`).href);
const detect = await pipeline("object-detection", pathToFileURL(`${folder}/`), { device: "wasm", threads: 1 });
const picture = { width, height, data: Uint8ClampedArray.from(data) };
const objects = await detect(picture, { threshold: 0 });
const likely = await detect([picture], { threshold: 0.5 });
const fractions = await detect(picture, { threshold: 0, percentage: true });
await detect.dispose();
process.stdout.write(JSON.stringify({ objects, likely, fractions }));

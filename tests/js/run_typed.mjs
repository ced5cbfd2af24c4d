// Run a package that takes a picture, with each of the modules that may load it.
//   in (stdin):   { package, script: the package as a single file, width, height, data: [bytes] }
//   out (stdout): { [module]: { image, tensor, ranked, raw, steps, errors } }: the labels with scores of two runs, the scores of labels
//                 and of their tensor, the outputs of a run that returns tensors, the number of measured steps, and messages

import { pathToFileURL } from "node:url";

import { load as npm } from "../../runtime_js/language/webmlc.js";
import { load as serviceWorker } from "../../runtime_js/standalone/service_worker.js";

let input = "";
for await (const chunk of process.stdin) input += chunk;
const { package: folder, script, width, height, data } = JSON.parse(input);
const options = { device: "wasm", threads: 1 };
const at = pathToFileURL(`${folder}/`);
const [own, single] = await Promise.all([import(new URL("webmlc.js", at).href), import(pathToFileURL(script).href)]);
const models = {
  package: await own.load(at, options),
  npm: await npm(at, options),
  serviceWorker: await serviceWorker(at, options),
  singleFile: await single.load(options),
};

async function resultsOf(model) {
  const image = { width, height, data: Uint8ClampedArray.from(data) };
  const tensor = { dtype: "uint8", shape: [height, width, 4], data: Uint8Array.from(data) };
  const ranked = await model.run({ image }, { outputs: ["logits", "logits_scores"] });
  const raw = await model.run({ image }, { outputs: ["logits_classes"] });
  const errors = [];
  for (const wrong of ["picture.png", { width: 2, height: 2, data: new Uint8Array(12) }]) {
    await model.run({ image: wrong }).catch(({ name, message }) => errors.push(`${name}: ${message}`));
  }
  return {
    image: (await model.run({ image })).logits,
    tensor: (await model.run({ image: tensor })).logits,
    ranked: [ranked.logits.map(({ score }) => score), Array.from(ranked.logits_scores.data)],
    raw: Object.entries(raw).map(([name, { dtype }]) => `${name}: ${dtype}`),
    steps: (await model.profile({ image })).length,
    errors,
  };
}

const results = {};
for (const [name, model] of Object.entries(models)) {
  results[name] = await resultsOf(model);
  model.dispose();
}
process.stdout.write(JSON.stringify(results));

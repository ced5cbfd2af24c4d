// The page that says what a file is. `build.py` writes the package into model/, and types.json beside this file.

import { openDemo } from "../shared/demo.js";
import { acceptFiles } from "../shared/drop.js";
import { create, createBar, element } from "../shared/elements.js";
import { showBytes } from "../shared/figures.js";
import { chooseType, extractFeatures, typeOfFewBytes } from "./features.js";
import { load } from "./model/webmlc.js";

const SHOWN = 3; // types with the best scores
const MOST_RESULTS = 24;
const EXAMPLES = ["./page.js", "../shared/style.css", "./types.json", "./model/model.simd128.wasm.deflate", "../shared/icon.svg", "./index.html"];

const { configuration, types } = await (await fetch("./types.json")).json();
const demo = await openDemo(load, { model: "./model/" }, "one file");
const examples = await Promise.all(EXAMPLES.map(async (url) => ({ name: url.slice(url.lastIndexOf("/") + 1), file: await (await fetch(url)).blob() })));

/** Say what a file is. @param {Blob} file @param {string} name */
async function identify(file, name) {
  const features = await extractFeatures(file, configuration);
  if (!features) return show(file, name, await typeOfFewBytes(file), []);
  const inputs = { bytes: { dtype: "int32", shape: [1, features.length], data: features } };
  const { target_label } = await demo.run("model", inputs);
  const scores = /** @type {Float32Array} */ (target_label.data);
  const order = [...scores.keys()].sort((a, b) => scores[b] - scores[a]).slice(0, SHOWN);
  const best = order.map((index) => ({ name: configuration.target_labels_space[index], score: scores[index] }));
  show(file, name, chooseType(scores, configuration, types), best);
}

/** @param {Blob} file @param {string} name @param {string} label @param {{ name: string, score: number }[]} best */
function show(file, name, label, best) {
  const { description, mime_type, group } = types[label];
  const scores = best.flatMap(({ name: type, score }) => {
    return [create("dt", "", type), createBar(`Score of ${type}`, score), create("dd", "", `${(100 * score).toFixed(1)} %`)];
  });
  const item = create("li", "card");
  item.dataset.type = label;
  item.append(
    create("p", "name", `${name} · ${file.size < 1000 ? `${file.size} bytes` : showBytes(file.size)}`),
    create("p", "type", description),
    create("p", "soft", [mime_type, group].filter(Boolean).join(" · ")),
    create("dl", "", ...scores),
  );
  element("results").prepend(item);
  element("results").children[MOST_RESULTS]?.remove();
}

async function identifyAll(/** @type {Iterable<File>} */ files) {
  for (const file of files) await identify(file, file.name);
}

element("examples").addEventListener("click", async () => {
  for (const { name, file } of examples) await identify(file, name);
});
acceptFiles(element("drop"), element("files"), identifyAll);
addEventListener("paste", (event) => {
  const text = event.clipboardData?.getData("text");
  if (text) void identify(new Blob([text]), "pasted text");
});
element("files").disabled = element("examples").disabled = false;

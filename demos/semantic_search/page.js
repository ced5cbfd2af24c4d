// The page that searches a text by meaning. `build.py` writes the package into model/, and the tokenizer beside this file.

import { openDemo } from "../shared/demo.js";
import { acceptFiles } from "../shared/drop.js";
import { create, createBar, element } from "../shared/elements.js";
import { load } from "./model/webmlc.js";
import { nearest, splitPassages } from "./passages.js";
import { Tokenizer } from "./tokenizers.js";

const SHOWN = 5;
const BATCH = 8; // passages of a run: the page stays responsive between the runs
const MOST_TOKENS = 256; // the length that the model was trained for
const ANNOUNCE_AFTER_MS = 700;
const SUGGESTIONS = ["I can't sign in", "I want a refund", "my tablet is dead", "Is there a discount for pupils?"];

const tokenizer = fetch("./tokenizer.json").then(async (response) => new Tokenizer(await response.json(), {}));
tokenizer.catch(() => {}); // reported below
const demo = await openDemo(load, { model: "./model/" }, "one query");

let passages = /** @type {string[]} */ ([]);
let embeddings = /** @type {Float32Array[]} */ ([]);
let texts = 0; // counts the texts: only the latest one is read
let isSearching = false;
let isOutdated = false;
let announcement = 0;

/** The embeddings of some texts, which become one batch. @param {string[]} batch @param {(inputs: any) => Promise<any>} run */
async function embed(batch, run) {
  const encoded = (await Promise.all(batch.map(async (text) => (await tokenizer).encode(text).ids))).map(shorten);
  const tokens = Math.max(...encoded.map((ids) => ids.length));
  const shape = [batch.length, tokens];
  const ids = new BigInt64Array(batch.length * tokens);
  const mask = new BigInt64Array(batch.length * tokens);
  encoded.forEach((row, index) => {
    ids.set(row.map(BigInt), index * tokens);
    mask.fill(1n, index * tokens, index * tokens + row.length);
  });
  const tensor = (/** @type {BigInt64Array} */ data) => ({ dtype: "int64", shape, data });
  const { embedding } = await run({ input_ids: tensor(ids), attention_mask: tensor(mask) });
  const size = embedding.shape[1];
  return batch.map((_, index) => /** @type {Float32Array} */ (embedding.data.slice(index * size, (index + 1) * size)));
}

/** Keep the last token, which ends the text. @param {number[]} ids */
const shorten = (ids) => (ids.length <= MOST_TOKENS ? ids : [...ids.slice(0, MOST_TOKENS - 1), ids[ids.length - 1]]);

/** Read a text. Passages can be found as soon as they are read. @param {string} text @param {string} name */
async function readText(text, name) {
  const current = ++texts;
  const parts = splitPassages(text);
  passages = [];
  embeddings = [];
  element("indexing").hidden = false;
  const order = [...parts.keys()].sort((a, b) => parts[a].length - parts[b].length); // similar lengths need little padding
  for (let done = 0; done < order.length; done += BATCH) {
    const batch = order.slice(done, done + BATCH).map((index) => parts[index]);
    const vectors = await embed(batch, (inputs) => demo.models.model.run(inputs));
    if (current !== texts) return;
    passages.push(...batch);
    embeddings.push(...vectors);
    element("indexing").value = passages.length / parts.length;
    element("source").textContent = `Reading ${name}: ${passages.length} of ${parts.length} passages`;
    await search();
  }
  element("indexing").hidden = true;
  element("source").textContent = `${name}: ${passages.length} passages`;
}

/** Search for what the field holds, also if it was typed while the page loaded. While a search runs, only the newest query waits. */
async function search() {
  isOutdated = true;
  if (isSearching) return;
  isSearching = true;
  try {
    while (isOutdated) {
      isOutdated = false;
      await searchOnce(element("query").value.trim());
    }
  } catch (error) {
    demo.facts.fail(error);
  } finally {
    isSearching = false;
  }
}

async function searchOnce(/** @type {string} */ query) {
  if (!query || !embeddings.length) return element("results").replaceChildren();
  const [vector] = await embed([query], (inputs) => demo.run("model", inputs));
  const best = nearest(vector, embeddings, SHOWN);
  element("results").replaceChildren(...best.map(({ index, score }) => {
    return create("li", "", create("p", "", passages[index]), create("span", "score", score.toFixed(3)), createBar("Similarity", score));
  }));
  clearTimeout(announcement);
  announcement = window.setTimeout(() => (element("announcement").textContent = `Best: ${passages[best[0].index]}`), ANNOUNCE_AFTER_MS);
}

for (const text of SUGGESTIONS) {
  const button = create("button", "", text);
  button.addEventListener("click", () => {
    element("query").value = text;
    void search();
  });
  element("suggestions").append(create("li", "", button));
}
element("query").addEventListener("input", () => void search());
acceptFiles(element("drop"), element("files"), async ([file]) => readText(await file.text(), file.name));
addEventListener("paste", (event) => {
  const text = event.clipboardData?.getData("text");
  if (text && event.target !== element("query")) void readText(text, "Pasted text");
});
try {
  await readText(await (await fetch("./help_page.txt")).text(), "The help page of a made-up shop");
  element("files").disabled = false;
} catch (error) {
  demo.facts.fail(error);
}

// Read tokenisers in the form of a package.
//   in:  the paths of files
//   out: the contents of each tokenizer.json, as JSON

import { readFile } from "node:fs/promises";
import { unpackTokenizer } from "../../runtime_js/language/tokenizer_file.js";

const MAX_TOKEN = 80_000;

/** Add what the merges imply: the tokens of all texts, and the pairs of texts that have a rank. */
function whole({ contents, merged }) {
  if (!merged) return contents;
  const { model } = contents;
  const texts = Array.from({ length: MAX_TOKEN }, (_, token) => merged.textOf(token)).filter((text) => text !== undefined);
  const listed = new Map(Object.entries(model.vocab));
  const vocab = Object.fromEntries(texts.map((text) => [text, merged.tokenOf(text) ?? listed.get(text)]));
  const pairs = texts.flatMap((left) => texts.map((right) => ({ rank: merged.rankOf(left, right), pair: [left, right] })));
  const ranked = pairs.filter(({ rank }) => rank !== undefined).sort((a, b) => a.rank - b.rank);
  return { ...contents, model: { ...model, vocab, merges: ranked.map(({ pair }) => pair) } };
}

const contents = [];
for (const path of process.argv.slice(2)) contents.push(whole(unpackTokenizer(new Uint8Array(await readFile(path)).buffer)));
process.stdout.write(JSON.stringify(contents));

// Write the libraries that packages of language models hold: runtime_js/language/tokenizers.js and jinja.js.
//
//   node tests/js/bundle_libraries.mjs            write both files anew
//   node tests/js/bundle_libraries.mjs FOLDER     write them there, for a test that compares
//
// An installed webmlc has no npm. So the files are committed, each with one export, as esbuild minifies it.

import { readFileSync } from "node:fs";
import path from "node:path";
import { fileURLToPath } from "node:url";
import { build } from "esbuild";

const ROOT = path.resolve(path.dirname(fileURLToPath(import.meta.url)), "../..");
const folder = process.argv[2] ?? path.join(ROOT, "runtime_js", "language");

/** The licence, which a copy of a library carries. @param {string} library @param {string} license */
function licenceText(library, license) {
  if (license === "Apache-2.0") return "Apache-2.0: https://www.apache.org/licenses/LICENSE-2.0";
  return readFileSync(path.join(ROOT, "node_modules", library, "LICENSE"), "utf-8").trim();
}

/** The method of a template that formats its source. Nothing here calls it, and its printer takes 5 KB. */
const FORMAT = /^ {2}format\(options\) \{\n.*\n {2}\}\n/m;

const withoutFormat = {
  name: "without-format",
  setup(build) {
    build.onLoad({ filter: /huggingface.jinja.dist.index\.js$/ }, ({ path: file }) => {
      const source = readFileSync(file, "utf-8");
      if (!FORMAT.test(source)) throw new Error(`${file}: the class Template has changed`);
      return { contents: source.replace(FORMAT, ""), loader: "js" };
    });
  },
};

for (const [file, library, name] of [
  ["tokenizers.js", "@huggingface/tokenizers", "Tokenizer"],
  ["jinja.js", "@huggingface/jinja", "Template"],
]) {
  const { version, license } = JSON.parse(readFileSync(path.join(ROOT, "node_modules", library, "package.json"), "utf-8"));
  await build({
    stdin: { contents: `export { ${name} } from "${library}";`, resolveDir: ROOT },
    outfile: path.join(folder, file),
    banner: { js: `// @ts-nocheck\n/*! ${library} ${version} by Hugging Face. ${licenceText(library, license)} */` },
    bundle: true,
    minify: true,
    format: "esm",
    target: "es2022",
    charset: "utf8",
    legalComments: "none",
    plugins: [withoutFormat],
  });
}

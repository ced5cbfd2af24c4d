// Pack the runtime for npm:  node runtime_js/npm/pack.mjs FOLDER
//
//   in:   runtime_js, without the pages that packages show; package.json and README.md beside this file; LICENSE
//   out:  FOLDER/webmlc-VERSION.tgz, whose path is printed
//
// The modules are packed as they are: bundlers join and shorten them.

import { execFileSync } from "node:child_process";
import { cpSync, mkdirSync, mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import path from "node:path";

const HERE = import.meta.dirname;
const RUNTIME = path.dirname(HERE);
const ROOT = path.dirname(RUNTIME);

/** The files of pages and of single files. The modules that only pages import are among them. */
const OTHER_FILES = /\.(html|css)$|^(npm|package_page)(\/|$)|^((\w+\/)?index|page|language\/(chat_view|markdown|offline|work_offline)|standalone\/(contents|embedded|single_\w+))\.js$/;

const isPacked = (/** @type {string} */ file) => !OTHER_FILES.test(path.relative(RUNTIME, file).replaceAll(path.sep, "/"));

const out = path.resolve(process.argv[2] ?? "build");
const staging = mkdtempSync(path.join(tmpdir(), "webmlc-npm-"));
try {
  cpSync(RUNTIME, staging, { recursive: true, filter: isPacked });
  const texts = [path.join(HERE, "package.json"), path.join(HERE, "README.md"), path.join(ROOT, "LICENSE")];
  for (const file of texts) cpSync(file, path.join(staging, path.basename(file)));
  mkdirSync(out, { recursive: true });
  const options = { cwd: staging, encoding: /** @type {const} */ ("utf8"), shell: process.platform === "win32" };
  const [{ filename }] = JSON.parse(execFileSync("npm", ["pack", "--json", "--silent", "--pack-destination", out], options));
  console.log(path.join(out, filename));
} finally {
  rmSync(staging, { recursive: true });
}

// Exercise the sessions of the package at argv[2] in Node, with argv[3] threads, by the script argv[4]. The data is on stdin as JSON.
//   out (stdout): the results of the script

import { readFileSync } from "node:fs";
import { pathToFileURL } from "node:url";
import { load } from "../../runtime_js/webmlc.js";

const [, , folder, threads, script] = process.argv;
const { exercise } = await import(script);
const model = await load(pathToFileURL(`${folder}/`), { device: "wasm", threads: Number(threads) });
const results = await exercise(model, JSON.parse(readFileSync(0, "utf8")));
model.dispose();
process.stdout.write(JSON.stringify(results));

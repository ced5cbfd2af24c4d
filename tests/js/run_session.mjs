// Exercise the sessions of the package at argv[2] in Node, with argv[3] threads. The data is on stdin as JSON.
//   out (stdout): the results of session.mjs

import { readFileSync } from "node:fs";
import { pathToFileURL } from "node:url";
import { load } from "../../runtime_js/webmlc.js";
import { exercise } from "./session.mjs";

const [, , folder, threads] = process.argv;
const model = await load(pathToFileURL(`${folder}/`), { device: "wasm", threads: Number(threads) });
const results = await exercise(model, JSON.parse(readFileSync(0, "utf8")));
model.dispose();
process.stdout.write(JSON.stringify(results));

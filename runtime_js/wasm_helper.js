// A worker that is one more thread of a model; wasm_leader.js starts it, threads.js says what it does.

import { parentPort } from "./platform.js";
import { help } from "./threads.js";

const parent = parentPort();
/** @type {import("./types.d.ts").Help} */
let helping;

parent.listen((message) => {
  if (!helping) parent.post("ready");
  helping = { ...helping, ...message }; // later messages bring a new memory
  help(helping);
});

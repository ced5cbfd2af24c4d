// A worker that is one more thread of a model, a helper (wasm_leader.js starts it) or the caller (wasm_device.js does);
// threads.js says what they do.

import { parentPort } from "./platform.js";
import { help, passOnCalls } from "./threads.js";

const parent = parentPort();
/** @type {import("./types.d.ts").Help} */
let helping;

parent.listen((message) => {
  if (message.type === "caller") return passOnCalls(message.control);
  if (!helping) parent.post("ready");
  helping = { ...helping, ...message }; // later messages bring a new memory
  help(helping);
});

// A worker beside the leader's. What it does, the page's message says:
//
//   { port }      help with runs, as the leader says through the port, for ever or until memory is another
//   { control }   wake the helpers
//
// What fails here goes straight to the page: the leader may be waiting for this thread's work.

import { toData } from "./errors.js";
import { parentPort } from "./platform.js";
import { help, passOnCalls } from "./threads.js";

const parent = parentPort();
/** @type {import("./types.d.ts").Help} */
let helping;

parent.listen(({ port, control }) => {
  if (control) return passOnCalls(control);
  port.onmessage = (/** @type {MessageEvent} */ { data }) => {
    helping = { ...helping, ...data }; // later messages bring a new memory
    try {
      help(helping);
    } catch (error) {
      parent.post(toData(error));
    }
  };
});

// A worker beside the leader's: more often than not one more thread of a model. What it does, its messages say:
//
//   { type: "derive", ... }   make derived buffers while the weights arrive (deriving.js)
//   { type: "caller", ... }   wake the helpers (threads.js)
//   { tid, ... }              help with runs, for ever or until memory is another (threads.js)

import { derive } from "./deriving.js";
import { parentPort } from "./platform.js";
import { help, instantiate, passOnCalls } from "./threads.js";

const parent = parentPort();
/** @type {import("./types.d.ts").Help} */
let helping;

parent.listen(({ type, ...message }) => {
  if (!helping) parent.post("ready");
  if (type === "derive") return derive(instantiate(message.module, message.memory), message.words, message.steps);
  if (type === "caller") return passOnCalls(message.control);
  helping = { ...helping, ...message }; // later messages bring a new memory
  help(helping);
});

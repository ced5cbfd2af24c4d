// Repeat one request, while the notification of the one before comes late.
//   out (stdout): what happened, in order

import { repeat } from "../../runtime_js/repeats.js";

const REPEATS = 2; // see repeats.js
const PAUSE_MS = 50;

const words = new Int32Array(new SharedArrayBuffer(16));
const events = [];
const repeated = repeat(words, 0, new Promise(() => {})).then(() => events.push("repeated"));
Atomics.notify(words, REPEATS); // of the request before
events.push("late notification");
await new Promise((resolve) => setTimeout(resolve, PAUSE_MS));
events.push("done");
Atomics.add(words, REPEATS, 1);
Atomics.notify(words, REPEATS);
await repeated;
process.stdout.write(JSON.stringify(events));

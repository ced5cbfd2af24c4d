// A thread that takes part in trials, one after the other.
//
//   in:  what a helper needs (see `Help` in types.d.ts)
//   out: {} when it listens for calls

import { help } from "./helpers.js";
import { answer, onData } from "./threads.js";

onData((data) => help(data, () => answer({})));

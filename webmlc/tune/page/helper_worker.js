// A thread that takes chunks of parallel loops whenever the measuring thread calls it.
//
//   in: { tid, module, memory, threads, control }; control[0] counts the calls

import { onData } from "./threads.js";

/** @typedef {{ tid: number, module: WebAssembly.Module, memory: WebAssembly.Memory, threads: number, control: Int32Array<SharedArrayBuffer> }} Data */

onData((/** @type {Data} */ { tid, module, memory, threads, control }) => {
  const { exports } = new WebAssembly.Instance(module, { env: { memory } });
  const run = /** @type {(first: number, last: number, tid: number, threads: number) => void} */ (exports.run);
  for (let calls = 0; ; ) {
    Atomics.wait(control, 0, calls);
    calls = Atomics.load(control, 0);
    run(0, 0, tid, threads);
  }
});

// Threads of this engine: workers in a browser, worker threads in Node. Both look like a browser's here.
//
//   const thread = openThread("./helper_worker.js", import.meta.url, (answer) => ..., (error) => ...);
//   thread.post(data);
//   onData((data) => ..., import.meta)          in the thread itself

const { process } = /** @type {any} */ (globalThis);
const node = process?.getBuiltinModule?.("node:worker_threads"); // undefined in browsers

/** @typedef {{ post: (data: any) => void, stop: () => void }} Thread */

/**
 * Start a thread.
 * @param {string} path @param {string} base  the URL that the path is relative to
 * @param {(answer: any) => void} [answered] @param {(message: string) => void} [failed]
 * @returns {Thread}
 */
export function openThread(path, base, answered = () => {}, failed = () => {}) {
  const url = new URL(path, base);
  if (node) {
    const thread = new node.Worker(url);
    thread.on("message", answered);
    thread.on("error", (/** @type {Error} */ error) => failed(error.message));
    return { post: (data) => thread.postMessage(data), stop: () => thread.terminate() };
  }
  const thread = new Worker(url, { type: "module" });
  thread.onmessage = ({ data }) => answered(data);
  thread.onerror = ({ message }) => failed(message || "the worker failed");
  return { post: (data) => thread.postMessage(data), stop: () => thread.terminate() };
}

/** Called in a thread: receive what is posted to it. @param {(data: any) => void} receive */
export function onData(receive) {
  if (node) node.parentPort.on("message", receive);
  else globalThis.onmessage = ({ data }) => receive(data);
}

/** Called in a thread: answer. @param {any} data */
export function answer(data) {
  if (node) node.parentPort.postMessage(data);
  else globalThis.postMessage(data);
}

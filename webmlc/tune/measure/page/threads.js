// Threads of this engine: workers in a browser, worker threads in Node, Deno and Bun.
//
//   const thread = openThread(onAnswer, onError);              it runs worker.js
//   thread.post(data);
//   onData((data) => answer(result));           in the thread itself

const { process } = /** @type {any} */ (globalThis);
/** Node's threads, or undefined in browsers. */
const node = process?.getBuiltinModule?.("node:worker_threads");

export const isNode = node !== undefined;

/** @typedef {{ post: (data: any) => void, stop: () => void }} Thread */

/**
 * Start a thread.
 * @param {(answer: any) => void} onAnswer
 * @param {(message: string) => void} onError  called if the thread fails
 * @returns {Thread}
 */
export function openThread(onAnswer, onError) {
  const url = new URL("./worker.js", import.meta.url);
  if (node) {
    const thread = new node.Worker(url);
    thread.on("message", onAnswer).on("error", (/** @type {Error} */ error) => onError(error.message));
    return { post: (data) => thread.postMessage(data), stop: () => thread.terminate() };
  }
  const thread = new Worker(url, { type: "module" });
  thread.onmessage = ({ data }) => onAnswer(data);
  thread.onerror = ({ message }) => onError(message || "the thread did not start");
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

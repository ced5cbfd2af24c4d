// One of the threads that measure the bandwidth of memory: it calls a function of a module again and again.
//
//   in:  { path, argument }: a module with run(argument) and perhaps fill(argument); then, any number of times, milliseconds
//   out: 0 when the module is ready; then the calls per second of that time

/** @type {() => void} */
let call;

globalThis.onmessage = async ({ data }) => {
  if (typeof data !== "number") {
    const { instance } = await WebAssembly.instantiateStreaming(fetch(data.path));
    const { run, fill } = /** @type {Record<string, (argument: number) => void>} */ (instance.exports);
    fill?.(data.argument); // pages that nobody wrote are one page of zeros
    call = () => run(data.argument);
    postMessage(0);
    return;
  }
  const begin = performance.now();
  let calls = 0;
  let spent = 0;
  while (spent < data) {
    call();
    calls++;
    spent = performance.now() - begin;
  }
  postMessage((1e3 * calls) / spent);
};

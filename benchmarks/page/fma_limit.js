// Measure the limit of this engine on this machine with one thread: the GFLOPS of a loop of multiply-adds in registers.
//
//   in:  /models/fma_limit.wasm, and the operations of one iteration of its loop
//   out: the best of several measurements; the first ones are slow, because the code is not optimised yet

const ITERATIONS = 300_000;
const SAMPLES = 40;

/** @param {number} flops @returns {Promise<number>} */
export async function measureLimit(flops) {
  const code = await (await fetch("/models/fma_limit.wasm")).arrayBuffer();
  const { instance } = await WebAssembly.instantiate(code);
  const run = /** @type {(iterations: number) => number} */ (instance.exports.run);
  let best = Infinity;
  for (let i = 0; i < SAMPLES; i++) {
    const begin = performance.now();
    run(ITERATIONS);
    best = Math.min(best, performance.now() - begin);
    await new Promise((resolve) => setTimeout(resolve));
  }
  return (flops * ITERATIONS) / best / 1e6;
}

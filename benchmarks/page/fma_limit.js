// The most that this engine does on this machine with one thread: GFLOPS of a loop of multiply-adds on registers.
//
//   in:  /models/fma_limit.wasm, and the operations of one turn of its loop
//   out: the best of several measurements, the first ones slow for want of optimised code

const TURNS = 300_000;
const SAMPLES = 40;

/** @param {number} flops @returns {Promise<number>} */
export async function measureLimit(flops) {
  const code = await (await fetch("/models/fma_limit.wasm")).arrayBuffer();
  const { instance } = await WebAssembly.instantiate(code);
  const run = /** @type {(turns: number) => number} */ (instance.exports.run);
  let best = Infinity;
  for (let i = 0; i < SAMPLES; i++) {
    const begin = performance.now();
    run(TURNS);
    best = Math.min(best, performance.now() - begin);
    await new Promise((resolve) => setTimeout(resolve));
  }
  return (flops * TURNS) / best / 1e6;
}

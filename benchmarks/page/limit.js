// Measure the limit of this engine on this machine: the operations per second of a kernel of multiply-adds in registers.
//
//   in:  the folder of the kernel's package (`benchmarks/limit.py`), the operations of a run, and the number of threads
//   out: the best of several runs; the first ones are slow, because the code is not optimised yet

const RUNS = 200; // half a second: a run of one thread takes about 4 ms

/** @param {string} folder @param {number} flops @param {number} threads @returns {Promise<number>} */
export async function measureLimit(folder, flops, threads) {
  const { load } = await import(`${folder}webmlc.js`);
  const model = await load(new URL(folder, location.href).href, { device: "wasm", threads });
  try {
    if (model.threads !== threads) throw new Error(`the limit has ${model.threads} threads, not ${threads}: ${model.threadsReason}`);
    const feeds = Object.fromEntries(model.inputs.map((/** @type {any} */ { name, shape }) => {
      const count = shape.reduce((/** @type {number} */ a, /** @type {number} */ b) => a * b, 1);
      return [name, { dtype: "float32", shape, data: new Float32Array(count).fill(0.5) }];
    }));
    let best = Infinity;
    for (let run = 0; run < RUNS; run++) {
      const [step] = await model.profile(feeds);
      best = Math.min(best, step.milliseconds);
    }
    return (1e3 * flops) / best;
  } finally {
    model.dispose();
  }
}

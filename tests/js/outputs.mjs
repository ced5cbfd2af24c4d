// Run the model of tests/host/test_outputs.py with options: some outputs, arrays that receive them, and signals.

/**
 * @param {import("../../runtime_js/webmlc.js").Model} model
 * @param {{ x: number[], chosen: string[][] }} data
 */
export async function exercise(model, { x, chosen }) {
  const feeds = { x: { dtype: "float32", shape: [x.length / 4, 4], data: Float32Array.from(x) } };
  const plain = (/** @type {any} */ outputs) => Object.fromEntries(Object.entries(outputs).map(([name, { data }]) => [name, Array.from(data, Number)]));
  const text = (/** @type {any} */ options, inputs = feeds) => model.run(inputs, options).then(String, ({ name, code, message }) => `${typeof code === "string" ? code : name}: ${message}`);

  const selections = [];
  for (let i = 0; i < 2; i++) for (const outputs of chosen) selections.push(plain(await model.run(feeds, { outputs })));

  const a = new Float32Array(x.length);
  const total = new Float32Array(100).fill(7);
  const received = await model.run(feeds, { results: { a, total } });
  const again = await model.run(feeds, { outputs: ["a"], results: { a } });
  const places = { isA: received.a.data === a && again.a.data === a, isPart: received.total.data.buffer === total.buffer, rest: total[x.length / 4] };

  const errors = [
    await text({ outputs: ["a", "b"] }),
    await text({ outputs: "a" }),
    await text({ output: ["a"] }),
    await text({ outputs: ["a"], results: { total } }),
    await text({ results: { a: new Float64Array(x.length) } }),
    await text({ results: { a: new Float32Array(3) } }),
  ];

  const signal = AbortSignal.abort();
  const before = await text({ signal });
  const controller = new AbortController();
  const order = [];
  const run = (/** @type {number} */ i, options = {}) => model.run(feeds, options).then(() => order.push(i), ({ name }) => order.push(`${i} ${name}`));
  const runs = [run(0), run(1, { signal: controller.signal }), run(2)];
  controller.abort();
  await Promise.all(runs);
  const between = new AbortController();
  const started = text({ signal: between.signal }); // the model is idle, so that this run starts at once
  between.abort();
  const reason = await text({ signal: AbortSignal.abort(new Error("enough")) });
  const aborted = { before, order, between: await started, reason, after: plain(await model.run(feeds)) };
  return { selections, received: plain(received), places, errors, aborted };
}

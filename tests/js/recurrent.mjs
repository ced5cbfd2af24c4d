// Exercise the sessions of the model in tests/recurrent.py. Returns the results as numbers and texts.

/**
 * @param {import("../../runtime_js/webmlc.js").Model} model
 * @param {{ x: number[][], w: number[] }} data  the input of each run, and the weights
 */
export async function exercise(model, { x, w }) {
  const tensor = (/** @type {number[]} */ numbers, width = 4) => ({
    dtype: "float32",
    shape: [numbers.length / width, width],
    data: Float32Array.from(numbers),
  });
  const feeds = (/** @type {number[]} */ numbers) => ({ x: tensor(numbers), w: tensor(w) });
  const run = async (/** @type {any} */ session, /** @type {number[]} */ numbers) => Array.from((await session.run(feeds(numbers))).y.data);
  const [session, other] = [await model.session(), await model.session()];
  const together = [];
  for (const numbers of x.slice(0, -1)) together.push(await run(session, numbers));
  const saved = await session.save();
  together.push(await run(session, x[x.length - 1]));
  const first = await run(other, x[0]);
  await other.load(saved);
  const continued = await run(other, x[x.length - 1]);
  await session.reset();
  const reset = await run(session, x[0]);
  await other.dispose();
  const reused = await run(await model.session(), x[0]);
  const truncated = await (async () => session.truncate(0))().then(String, String);
  const half = (/** @type {number} */ rows) => tensor(Array(4 * rows).fill(0.5));
  const last = feeds(x[x.length - 1]);
  const results = await model.run({ ...last, state: half(2), cache_in: half(2) });
  const alone = Object.fromEntries(Object.entries(results).map(([name, { data }]) => [name, Array.from(data)]));
  const refused = await model.run({ ...last, state: half(3), cache_in: half(2) }).then(String, String);
  const incomplete = await model.run({ ...last, state: half(2) }).then(String, String);
  // Without a session the caller passes the states on. Runs of other sizes, and sessions, come between.
  const chained = [];
  let pasts = {};
  for (const [i, numbers] of x.entries()) {
    if (i === 8) await model.run(feeds([...numbers, ...numbers]));
    if (i === 12) await run(await model.session(), numbers);
    const { y, stateN, cache_out } = await model.run({ ...feeds(numbers), ...pasts });
    chained.push(Array.from(y.data));
    pasts = { state: stateN, cache_in: cache_out };
  }
  const selected = await model.run({ ...last, ...pasts }, { outputs: ["cache_out"] });
  const chosen = Object.fromEntries(Object.entries(selected).map(([name, { data }]) => [name, Array.from(data)]));
  const state = Array.from(/** @type {any} */ (pasts).state.data);
  const there = await model.run({ ...last, ...pasts }, model.device === "webgpu" ? { results: "gpu" } : {});
  const after = await model.run({ ...last, state: there.stateN, cache_in: there.cache_out });
  return { together, other: first, continued, reset, reused, truncated, alone, refused, incomplete, chained, chosen, state, after: Array.from(after.y.data) };
}

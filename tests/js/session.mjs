// Exercise the sessions of the decoder in tests/decoders.py. Returns the results as numbers and texts.

/**
 * @param {import("../../runtime_js/webmlc.js").Model} model
 * @param {{ x: number[][], w: number[] }} data  the rows of each run, and the weights
 */
export async function exercise(model, { x, w }) {
  const weights = { dtype: "float32", shape: [4, 4], data: Float32Array.from(w) };
  const feeds = (/** @type {number[]} */ rows) => ({
    x: { dtype: "float32", shape: [rows.length / 4, 4], data: Float32Array.from(rows) },
    w: weights,
  });
  const run = async (/** @type {any} */ session, /** @type {number[]} */ rows) => Array.from((await session.run(feeds(rows))).y.data);
  const session = await model.session({ capacity: 40 });
  const other = await model.session({ capacity: 9 });
  const together = [];
  const interleaved = [];
  for (const [i, rows] of x.entries()) {
    together.push(await run(session, rows));
    if (i < 2) interleaved.push(await run(other, rows));
  }
  // The same length of rows again and again: the runtime repeats the request without a message.
  const saved = await session.save();
  const copy = await model.session({ capacity: 60 });
  await copy.load(saved);
  const length = copy.length;
  const last = x[x.length - 1];
  const continued = [await run(session, last), await run(copy, last)];
  session.truncate(x[0].length / 4);
  const truncated = await run(session, x[1]);
  const refused = await other.run(feeds(Array(4 * 9).fill(0))).then(String, String);
  const past = { dtype: "float32", shape: [1, 0, 4], data: new Float32Array(0) };
  const first = await model.run({ ...feeds(x[0]), past });
  const second = await model.run({ ...feeds(x[1]), past: first.present });
  const alone = [first, second].map(({ y, present }) => [Array.from(y.data), present.shape, Array.from(present.data)]);
  for (const each of [session, other, copy]) await each.dispose();
  const disposed = await session.run(feeds(last)).then(String, String);
  const profiled = (await model.profile(feeds(x[0]))).length > 0;
  return { together, interleaved, length, continued, truncated, refused, alone, disposed, profiled };
}

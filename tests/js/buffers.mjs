// Run sessions of a decoder whose pasts are buffers, for tests/js/test_session.py. Returns the outputs as shapes and numbers.

import { arrayOf } from "../../runtime_js/dtypes.js";

/** @typedef {{ dtype: string, shape: number[], data: number[] }} Numbers */

/**
 * @param {import("../../runtime_js/webmlc.js").Model} model
 * @param {{ runs: Record<string, Numbers>[], capacity: number, alone: Record<string, Numbers>[] }} data
 *   the inputs of the runs of a session, and those of runs without one
 */
export async function exercise(model, { runs, capacity, alone }) {
  const tensor = (/** @type {Numbers} */ { dtype, shape, data }) => /** @type {any} */ ({ dtype, shape, data: arrayOf(dtype).from(data) });
  const feeds = (/** @type {Record<string, Numbers>} */ run) => Object.fromEntries(Object.entries(run).map(([name, value]) => [name, tensor(value)]));
  const plain = (/** @type {Record<string, any>} */ outputs) =>
    Object.fromEntries(Object.entries(outputs).map(([name, { shape, data }]) => [name, { shape, data: Array.from(data) }]));
  const session = await model.session({ capacity });
  const together = [];
  for (const run of runs.slice(0, -1)) together.push(plain(await session.run(feeds(run))));
  const copy = await model.session({ capacity });
  await copy.load(await session.save());
  const last = feeds(runs[runs.length - 1]);
  together.push(plain(await session.run(last)));
  const continued = plain(await copy.run(last));
  const full = await (await model.session({ capacity: 2 })).run(feeds(runs[0])).then(String, String);
  const results = [];
  for (const run of alone) results.push(plain(await model.run(feeds(run))));
  return { together, continued, full, alone: results };
}

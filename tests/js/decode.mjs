// Take greedy steps in sessions of the merged decoders in tests/graph/ops/test_merged_decoder.py.

/**
 * @param {import("../../runtime_js/webmlc.js").Model} model
 * @param {{ steps: number, states?: number[] }} job  `states`: of the encoder, in rows of 8
 */
export async function exercise(model, { steps, states }) {
  const encoded = states && { encoder_hidden_states: { dtype: "float32", shape: [1, states.length / 8, 8], data: Float32Array.from(states) } };
  const feeds = (/** @type {number[]} */ ids, /** @type {boolean} */ hasPast) => ({
    input_ids: { dtype: "int64", shape: [1, ids.length], data: BigInt64Array.from(ids, BigInt) },
    use_cache_branch: { dtype: "bool", shape: [1], data: Uint8Array.of(Number(hasPast)) },
    ...encoded,
  });
  const next = async (/** @type {any} */ session, /** @type {number[]} */ ids, /** @type {boolean} */ hasPast) => {
    const { logits, ...more } = await session.run(feeds(ids, hasPast));
    if (Object.keys(more).length) throw new Error(`the run also returned ${Object.keys(more)}`);
    const last = Array.from(logits.data.subarray(-logits.shape[2]));
    return last.indexOf(Math.max(...last));
  };
  const session = await model.session();
  const tokens = [3, 5, 1, 7];
  tokens.push(await next(session, tokens, false));
  for (let step = 1; step < steps; step++) tokens.push(await next(session, [tokens[tokens.length - 1]], true));
  if (states) return { tokens };
  const lengths = [session.length];
  const saved = await session.save();
  session.truncate(4);
  const restored = await next(session, tokens.slice(4, -1), true);
  await next(session, tokens.slice(0, 4), false); // the branch without a past begins again
  lengths.push(session.length);
  await session.load(saved);
  lengths.push(session.length);
  await session.reset();
  lengths.push(session.length);
  const small = await model.session({ capacity: 10 });
  await next(small, tokens.slice(0, 4), false);
  const past = { dtype: "float32", shape: [1, 2, 0, 4], data: new Float32Array(0) };
  /** @type {(() => Promise<any>)[]} */
  const failures = [
    () => small.run(feeds(tokens, true)),
    () => small.load(saved),
    () => small.run(/** @type {any} */ ({ ...feeds(tokens, false), "past_key_values.0.decoder.key": past })),
    async () => {
      await small.dispose();
      await small.run(feeds(tokens, false));
    },
  ];
  const errors = [];
  for (const fails of failures) errors.push(await fails().then(() => "none", (/** @type {any} */ { code }) => code));
  return { tokens, lengths, restored, errors };
}

// Call before, during and after `dispose`, and run at the same time. Prints the outcomes as JSON.
//
//   arguments: the folder of `scaled` (tests/packages.py), that of the decoder in tests/decoders.py, that of a slow model

import { pathToFileURL } from "node:url";

import { load } from "../../runtime_js/webmlc.js";

const [scaled, decoder, slow] = process.argv.slice(2).map((path) => pathToFileURL(`${path}/`).href);
const OPTIONS = { device: "wasm", threads: 2 };

/** The name and the code of the error of a promise, or "no error". */
const ending = (promise) => Promise.resolve(promise).then(() => "no error", ({ name, code, message }) => [name, code, message]);
const ones = (rows) => ({ x: { dtype: "float32", shape: [rows, 4], data: new Float32Array(4 * rows).fill(1) } });
const slowInputs = () => ({ x: { dtype: "float32", shape: [256, 256], data: new Float32Array(65536).fill(0.5) } });
const pause = (milliseconds) => new Promise((resolve) => setTimeout(resolve, milliseconds));

const results = {};

{
  const model = await load(slow, OPTIONS);
  const first = model.run(slowInputs());
  const second = model.run(slowInputs());
  await pause(20); // the first one executes
  const disposal = model.dispose();
  results.interrupted = [await ending(first), await ending(second)];
  results.again = [await ending(disposal), await ending(model.dispose()), await ending(model.run(slowInputs()))];
  results.others = [await ending(model.profile(slowInputs())), await ending(model.restore())];
}
{
  const model = await load(scaled, OPTIONS);
  const run = model.run(ones(1));
  model.dispose();
  results.atOnce = await ending(run);
  const unused = await load(scaled, OPTIONS);
  results.unused = await ending(unused.dispose());
}
{
  const model = await load(decoder, OPTIONS);
  const weights = { dtype: "float32", shape: [4, 4], data: new Float32Array(16).fill(0.5) };
  const session = await model.session({ capacity: 4 });
  await session.run({ ...ones(1), w: weights });
  const other = await model.session({ capacity: 4 });
  await other.dispose();
  results.disposedSession = [await ending(other.run({ ...ones(1), w: weights })), await ending(other.dispose())];
  const [running, pasts] = [session.run({ ...ones(1), w: weights }), model.run({ ...ones(1), w: weights })];
  model.dispose();
  results.sessions = [await ending(running), await ending(pasts), await ending(session.run({ ...ones(1), w: weights })), await ending(session.save())];
  results.sessionEnd = [await ending(session.dispose()), await ending(session.dispose())];
}
{
  const model = await load(scaled, OPTIONS);
  const sizes = Array.from({ length: 40 }, (_, i) => 1 + ((i * 7) % 11));
  const outputs = await Promise.all(sizes.map((rows) => model.run(ones(rows))));
  results.together = outputs.every(({ y }, i) => y.shape[0] === sizes[i] && y.data.every((value, j) => value === [1, 0, 0.5, 3][j % 4]));
  const controller = new AbortController();
  const mix = sizes.map((rows, i) => model.run(i % 3 ? ones(rows) : { x: new Uint8Array(3) }, { signal: i % 3 === 1 ? controller.signal : undefined }));
  controller.abort();
  results.mix = (await Promise.all(mix.map(ending))).map((end) => end[0]);
  results.after = Array.from((await model.run(ones(1))).y.data);
  results.timeout = (await ending(model.run(ones(1), { signal: AbortSignal.abort(new Error("mine")) })))[2];
  results.noSignal = await ending(model.run(ones(1), { signal: "abort" }));
  results.stillIntact = Array.from((await model.run(ones(1))).y.data);
  model.dispose();
}
{
  const models = await Promise.all(Array.from({ length: 4 }, () => load(scaled, OPTIONS)));
  const runs = models.map((model, i) => (i % 2 ? model.run(ones(1)) : ending(model.dispose())));
  results.models = [(await Promise.all(runs)).map((result) => (result.y ? Array.from(result.y.data) : result))];
  for (const model of models) model.dispose();
}
process.stdout.write(JSON.stringify(results));

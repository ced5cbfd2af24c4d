// Run packages with values of other realms, through proxies, and by functions that were taken from their objects. Prints JSON.
//
//   arguments: a folder of packages named by dtype, each of which copies `x: [3, 4]` to `y`; the folder of the recurrent model in
//   tests/recurrent.py

import { readdirSync } from "node:fs";
import { pathToFileURL } from "node:url";
import vm from "node:vm";

import { arrayOf } from "../../runtime_js/dtypes.js";
import * as ort from "../../runtime_js/onnxruntime/onnxruntime.js";
import { Tensor } from "../../runtime_js/pipeline/tensor.js";
import { load } from "../../runtime_js/webmlc.js";

const [types, recurrent] = process.argv.slice(2).map((path) => pathToFileURL(`${path}/`));
const OPTIONS = { device: "wasm", threads: 1 };
const problem = (promise) => Promise.resolve(promise).then(() => "none", ({ name, message }) => `${name}: ${message}`);
const results = { types: {} };

const realm = vm.createContext({});
const elsewhere = (source) => vm.runInContext(source, realm);

/** An object whose properties are proxies, too, as those of Vue's `reactive` are. */
function reactive(object) {
  const isPlain = (value) => ["Object", "Array"].includes(Object.prototype.toString.call(value).slice(8, -1));
  const get = (target, key, receiver) => {
    const value = Reflect.get(target, key, receiver);
    return typeof value === "object" && value && isPlain(value) ? reactive(value) : value;
  };
  return new Proxy(object, { get });
}

for (const dtype of readdirSync(types)) {
  const model = await load(new URL(`${dtype}/`, types), OPTIONS);
  const { name } = arrayOf(dtype);
  const data = elsewhere(`new ${name}(12).map((_, i) => (${name}.name.startsWith("Big") ? BigInt(i % 2) : i % 2))`);
  const target = elsewhere(`new ${name}(12)`);
  const expected = Array.from(data, String).join();
  const copies = [];
  const [first, second] = [model.run({ x: { dtype, shape: elsewhere("[3, 4]"), data } }), model.run({ x: data })]; // the second one waits
  data.fill(data[0]);
  copies.push((await first).y.data, (await second).y.data);
  const again = await model.run({ x: { dtype, shape: [3, 4], data: copies[0] } }, { outputs: elsewhere('["y"]'), results: { y: target } });
  copies.push(target, again.y.data);
  results.types[dtype] = copies.every((copy) => Array.from(copy, String).join() === expected);
  model.dispose();
}

const model = await load(new URL("float32/", types), OPTIONS);
const x = { dtype: "float32", shape: [3, 4], data: Float32Array.from({ length: 12 }, (_, i) => i) };
const sum = async (outputs) => (await outputs).y.data.reduce((a, b) => a + b);
const { run, profile, dispose } = model;
const proxied = reactive(model);
class Holder {
  constructor() {
    this.state = reactive({ model, x });
  }
}
const { state } = new Holder();
const shared = new Float32Array(new SharedArrayBuffer(48));
shared.set(x.data);
const resizable = new Float32Array(new ArrayBuffer(48, { maxByteLength: 96 }), 0, 12);
resizable.set(x.data);
class Own {
  get dtype() {
    return "float32";
  }
  get shape() {
    return [3, 4];
  }
  get data() {
    return x.data;
  }
}
results.ways = {
  destructured: await sum(run({ x })),
  proxied: await sum(proxied.run(reactive({ x }))),
  nested: await sum(state.model.run({ x: state.x })),
  spread: await sum({ ...model }.run({ x })),
  inherited: await sum(Object.create(model).run({ x })),
  shared: await sum(model.run({ x: { ...x, data: shared } })),
  resizable: await sum(model.run({ x: { ...x, data: resizable } })),
  bytes: await sum(model.run({ x: { ...x, data: new Float32Array(Buffer.from(x.data.buffer).buffer, 0, 12) } })),
  accessors: await sum(Promise.all([model.run({ x }), model.run({ x: new Own() })]).then(([, second]) => second)),
};
results.facts = [proxied.device, proxied.threads, proxied.inputs[0].name, proxied.gpuDevice, proxied.memoryBytes === model.memoryBytes];
results.profile = (await profile({ x })).length === (await proxied.profile({ x })).length;
const outputs = await model.run({ x });
const clone = structuredClone(outputs, { transfer: [outputs.y.data.buffer] });
results.clone = [clone.y.dtype, clone.y.shape, await sum(model.run({ x: clone.y }))];
results.refused = [
  await problem(model.run({ x: { ...x, data: new Proxy(x.data, {}) } })),
  await problem(model.run({ x: { ...x, data: x.data.buffer } })),
  await problem(model.run({ x: { ...x, data: new DataView(x.data.buffer) } })),
  await problem(model.run({ x: { ...x, data: elsewhere("new Float64Array(12)") } })),
  await problem(model.run({ x }, { results: { y: elsewhere("new Uint8Array(12)") } })),
];

const memory = await load(recurrent, OPTIONS);
const rows = (count) => ({ dtype: "float32", shape: [count, 4], data: elsewhere(`new Float32Array(${4 * count}).fill(0.5)`) });
const session = await reactive(memory).session();
const { run: step, save } = session;
const hidden = reactive(session);
await step({ x: rows(2), w: rows(8) });
await hidden.run({ x: rows(2), w: rows(8) });
const saved = await save();
results.session = [hidden.length, saved.length > 0, await problem(hidden.load(elsewhere(`Uint8Array.from([${saved}])`))), await problem(hidden.dispose())];
results.pasts = Object.keys(await memory.run({ x: rows(2), w: rows(8), state: rows(2), cache_in: rows(2) })).length > 1;
memory.dispose();

const adapter = new ort.InferenceSession(reactive(model));
const feeds = { x: new ort.Tensor("float32", x.data, [3, 4]) };
const { run: runAdapter } = adapter;
results.adapter = {
  destructured: await sum(runAdapter(feeds)),
  proxied: await sum(reactive(adapter).run(reactive(feeds))),
  cloned: await sum(adapter.run(structuredClone(feeds))),
  plain: await sum(adapter.run({ x: { type: "float32", dims: [3, 4], data: x.data } })),
};
const tensor = new Tensor("float32", elsewhere("new Float32Array([1, 2, 3, 4])"), [2, 2]);
const { tolist, slice } = tensor;
results.tensor = [tolist(), slice(0).tolist(), reactive(tensor)[1].tolist(), structuredClone(tensor).dims, new Tensor(elsewhere("new BigInt64Array(2)")).type];
await dispose();
results.end = await problem(proxied.run({ x }));
process.stdout.write(JSON.stringify(results));

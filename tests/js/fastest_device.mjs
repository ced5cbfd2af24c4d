// Choose between devices of models that only wait.
//   out (stdout): { name: { device, opened: [devices], disposed: [devices], reason, stored } }; and the inputs of a sample

import { chooseFaster, sampleOf } from "../../runtime_js/fastest_device.js";

/** @param {Record<string, number>} milliseconds  by device; NaN fails, and a missing device cannot be opened */
async function choose(milliseconds, storage, build = "a") {
  const [opened, disposed] = [[], []];
  const open = async (wish, reason = "the only one") => {
    const device = wish === "auto" ? ("webgpu" in milliseconds ? "webgpu" : "wasm") : wish;
    if (!(device in milliseconds)) throw new Error("no such program");
    opened.push(device);
    const model = { device, deviceReason: reason, dispose: () => disposed.push(device) };
    model.run = async () => {
      if (Number.isNaN(milliseconds[device])) throw new Error("the device fails");
      await new Promise((resolve) => setTimeout(resolve, milliseconds[device]));
    };
    return { model, explain: (text) => (model.deviceReason = text) };
  };
  const { device, deviceReason } = await chooseFaster(open, {}, { key: "key", build, storage });
  return { device, opened, disposed, reason: deviceReason.replace(/\d+\.\d/g, "N"), stored: storage.map.size };
}

const memory = () => ({
  map: new Map(),
  getItem(key) {
    return this.map.get(key) ?? null;
  },
  setItem(key, value) {
    this.map.set(key, value);
  },
});
const full = { ...memory(), setItem: () => { throw new Error("QuotaExceededError"); } };
const shared = memory();
const typed = { picture: { kind: "pixels" } };
const inputs = [
  { name: "tokens", dtype: "int64", shape: ["batch", "length"] },
  { name: "image", dtype: "float32", shape: ["batch", 3, "height", ["mul", 2, "height"]] },
  { name: "picture", dtype: "uint8", shape: ["rows", "columns", 4] },
];
const symbols = [
  { name: "batch", input: "tokens", axis: 0 },
  { name: "length", input: "tokens", axis: 1 },
  { name: "height", input: "image", axis: 2 },
  { name: "rows", input: "picture", axis: 0 },
  { name: "columns", input: "picture", axis: 1 },
];
const results = {
  gpu: await choose({ wasm: 30, webgpu: 1 }, shared),
  again: await choose({ wasm: 1, webgpu: 30 }, shared),
  rebuilt: await choose({ wasm: 1, webgpu: 30 }, shared, "b"),
  rebuiltAgain: await choose({ wasm: 30, webgpu: 1 }, shared, "b"),
  alone: await choose({ wasm: 1 }, memory()),
  gpuOnly: await choose({ webgpu: 1 }, memory()),
  failing: await choose({ wasm: 1, webgpu: NaN }, memory()),
  neither: await choose({ wasm: NaN, webgpu: NaN }, memory()),
  full: await choose({ wasm: 1, webgpu: 30 }, full),
  sample: Object.values(sampleOf({ inputs, symbols, typed })).map(({ dtype, shape, data }) => [dtype, shape, data.length]),
};
process.stdout.write(JSON.stringify(results));

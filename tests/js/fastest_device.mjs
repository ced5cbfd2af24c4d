// Choose between devices of models that only wait.
//   out (stdout): { name: { device, opened: [devices], disposed: [devices], reason, stored } }

import { openFastest } from "../../runtime_js/pipeline/fastest_device.js";

/** @param {Record<string, number>} milliseconds  by device; NaN fails, and a missing device cannot be opened */
async function choose(milliseconds, storage, download = 1) {
  const [opened, disposed] = [[], []];
  const open = async (wish) => {
    const device = wish === "auto" ? ("webgpu" in milliseconds ? "webgpu" : "wasm") : wish;
    if (!(device in milliseconds)) throw new Error("no such program");
    opened.push(device);
    const model = { device, deviceReason: "the only one", resources: { download }, dispose: () => disposed.push(device) };
    const call = async () => {
      if (Number.isNaN(milliseconds[device])) throw new Error("the device fails");
      await new Promise((resolve) => setTimeout(resolve, milliseconds[device]));
    };
    return { model, call };
  };
  const { opened: chosen, reason } = await openFastest(open, null, "key", storage);
  return { device: chosen.model.device, opened, disposed, reason: reason.replace(/\d+\.\d/g, "N"), stored: storage?.map.size ?? 0 };
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
const results = {
  gpu: await choose({ wasm: 30, webgpu: 1 }, shared),
  again: await choose({ wasm: 1, webgpu: 30 }, shared),
  rebuilt: await choose({ wasm: 1, webgpu: 30 }, shared, 2),
  cpu: await choose({ wasm: 1, webgpu: 30 }, null),
  alone: await choose({ wasm: 1 }, memory()),
  gpuOnly: await choose({ webgpu: 1 }, memory()),
  failing: await choose({ wasm: 1, webgpu: NaN }, memory()),
  full: await choose({ wasm: 1, webgpu: 30 }, full),
};
process.stdout.write(JSON.stringify(results));

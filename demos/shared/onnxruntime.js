// Run the original models of a demo with ONNX Runtime Web, which this loads from the site's folder onnxruntime/.

const FOLDER = new URL("../onnxruntime/", import.meta.url);
/** The files that ONNX Runtime Web fetches on each device. */
const FILES = {
  wasm: ["ort.wasm.min.mjs", "ort-wasm-simd-threaded.mjs", "ort-wasm-simd-threaded.wasm"],
  webgpu: ["ort.webgpu.min.mjs", "ort-wasm-simd-threaded.asyncify.mjs", "ort-wasm-simd-threaded.asyncify.wasm"],
};

/** @param {string | URL} url */
async function fetchBytes(url) {
  const response = await fetch(url);
  if (!response.ok) throw new Error(`${new URL(url, location.href).pathname}: the server answers ${response.status}`);
  return new Uint8Array(await response.arrayBuffer());
}

/**
 * Open the originals of some packages, on the device and with the threads that webmlc has.
 * @param {string[]} names
 * @param {"wasm" | "webgpu"} device
 * @param {number} threads
 */
export async function openOriginals(names, device, threads) {
  const urls = FILES[device].map((file) => new URL(file, FOLDER));
  const files = await Promise.all(urls.map(fetchBytes));
  const models = await Promise.all(names.map((name) => fetchBytes(`./original/${name}.onnx`)));
  const ort = await import(urls[0].href);
  ort.env.wasm.wasmPaths = FOLDER.href;
  ort.env.wasm.numThreads = threads;
  ort.env.logLevel = "error";
  const sessions = new Map();
  for (const [index, name] of names.entries()) {
    sessions.set(name, await ort.InferenceSession.create(models[index], { executionProviders: [device] }));
  }
  const note = await fetch("./original/note.txt");
  return {
    device: device === "webgpu" ? "GPU (WebGPU)" : `CPU, ${threads} ${threads === 1 ? "thread" : "threads"}`,
    bytes: [...files, ...models].reduce((sum, { byteLength }) => sum + byteLength, 0),
    note: note.ok ? await note.text() : "",
    /** @param {import("./demo.js").Run} run @returns {Promise<Record<string, ArrayLike<number | bigint>>>} */
    async run({ name, inputs }) {
      const feeds = Object.entries(inputs).map(([input, { dtype, data, shape }]) => [input, new ort.Tensor(dtype, data, shape)]);
      const outputs = await sessions.get(name).run(Object.fromEntries(feeds));
      return Object.fromEntries(Object.entries(outputs).map(([output, { data }]) => [output, data]));
    },
  };
}

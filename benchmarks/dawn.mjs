// Time webmlc and ONNX Runtime Web on the GPU of this machine, without a browser: in Dawn for Node, on one adapter.
//
//   in (stdin):   { runs, warmup, folders: [path of a model's folder], decoder?: { package, capacity, context, tokens } }
//   out (stdout): { adapter, rows: [{ model, engine, shaders?, version, load, first, error, latencies } | { model, engine, failure } |
//                 { shaders, ms }] }
//   stderr:       one line per model, while it works
//
// The folder of a model contains model.onnx, package/ (of webmlc) and data.json. The engines take turns, one run each. Times are
// milliseconds, from inputs on the CPU to outputs on the CPU. `first` is from the import of the engine to its first result. `decoder` is the
// package of a language model: `ms` is the time of a token after `context` others.

import { readFile } from "node:fs/promises";
import { basename, join } from "node:path";
import { pathToFileURL } from "node:url";
import { create, globals } from "webgpu";
import { readData, relativeError } from "./page/data.js";

Object.assign(globalThis, globals);
const gpu = create(["enable-dawn-features=allow_unsafe_apis"]); // timestamps and features that are experimental elsewhere
Object.defineProperty(globalThis, "navigator", { value: { gpu, userAgent: "" }, configurable: true });

// A browser takes shared memory here, Dawn for Node refuses it. ONNX Runtime Web uploads from its shared memory.
const { writeBuffer } = GPUQueue.prototype;
GPUQueue.prototype.writeBuffer = function (buffer, offset, data, ...range) {
  const isShared = ArrayBuffer.isView(data) && data.buffer instanceof SharedArrayBuffer;
  return writeBuffer.call(this, buffer, offset, isShared ? data.slice() : data, ...range);
};

const ENGINES = {
  async webmlc(folder) {
    const path = pathToFileURL(join(folder, "package/"));
    const { load } = await import(new URL("webmlc.js", path).href);
    const model = await load(path.href, { device: "webgpu" });
    if (model.device !== "webgpu") throw new Error(`it runs on ${model.device}: ${model.deviceReason}`);
    return {
      version: "",
      shaders: model.shaders,
      async run(inputs) {
        const outputs = await model.run(inputs);
        return Object.fromEntries(Object.entries(outputs).map(([name, { data }]) => [name, data]));
      },
      dispose: () => model.dispose(),
    };
  },
  async onnxruntime(folder) {
    const ort = await import("onnxruntime-web/webgpu");
    ort.env.wasm.numThreads = 1;
    ort.env.logLevel = "error";
    const model = await readFile(join(folder, "model.onnx"));
    const session = await ort.InferenceSession.create(new Uint8Array(model), { executionProviders: ["webgpu"] });
    return {
      version: ort.env.versions.web,
      async run(inputs) {
        const feeds = Object.entries(inputs).map(([name, { dtype, shape, data }]) => [name, new ort.Tensor(dtype, data, shape)]);
        const outputs = await session.run(Object.fromEntries(feeds));
        return Object.fromEntries(session.outputNames.map((name) => [name, outputs[name].data]));
      },
      dispose: () => session.release(),
    };
  },
};

/** The bytes of a file of a model's folder. */
async function readBuffer(folder, file) {
  const { buffer, byteOffset, byteLength } = await readFile(join(folder, file));
  return buffer.slice(byteOffset, byteOffset + byteLength);
}

async function open(row, folder, inputs, expected) {
  const begin = performance.now();
  const { run, version, shaders, dispose } = await ENGINES[row.engine](folder);
  const load = performance.now() - begin;
  const outputs = await run(inputs);
  Object.assign(row, { version, shaders, load, first: performance.now() - begin, error: relativeError(outputs, expected), latencies: [] });
  return { row, run, dispose };
}

async function measure(folder, { runs, warmup }) {
  const read = (file) => readBuffer(folder, file);
  const [inputs, expected] = await Promise.all([readData("inputs", read), readData("outputs", read)]);
  const rows = Object.keys(ENGINES).map((engine) => ({ model: basename(folder), engine }));
  const sessions = [];
  for (const row of rows) {
    try {
      sessions.push(await open(row, folder, inputs, expected));
    } catch (error) {
      row.failure = String(error?.message ?? error).split("\n")[0];
    }
  }
  for (let round = 0; round < warmup + runs; round++) {
    for (const { row, run } of sessions) {
      if (row.failure) continue;
      const begin = performance.now();
      try {
        await run(inputs);
      } catch (error) {
        row.failure = String(error?.message ?? error).split("\n")[0];
      }
      if (round >= warmup) row.latencies.push(performance.now() - begin);
    }
  }
  for (const { dispose } of sessions) await dispose();
  return rows;
}

/** The median time of a token. */
async function decode({ package: path, capacity, context, tokens }) {
  const folder = pathToFileURL(join(path, "/"));
  const { load } = await import(new URL("webmlc.js", folder).href);
  const model = await load(folder.href, { device: "webgpu" });
  const session = await model.session({ capacity });
  const run = async (/** @type {number[]} */ ids) => {
    const inputs = { input_ids: { dtype: "int64", shape: [1, ids.length], data: BigInt64Array.from(ids, BigInt) } };
    return Number((await session.run(inputs, { outputs: ["next_token"] })).next_token.data[0]);
  };
  let token = await run(Array.from({ length: context }, (_, i) => ((7919 * i + 1) % 90) + 3));
  const times = [];
  for (let i = 0; i < tokens; i++) {
    const begin = performance.now();
    token = await run([token]);
    times.push(performance.now() - begin);
  }
  model.dispose();
  return { shaders: model.shaders, ms: times.sort((a, b) => a - b)[tokens >> 1] };
}

async function main() {
  let input = "";
  for await (const chunk of process.stdin) input += chunk;
  const job = JSON.parse(input);
  const adapter = await gpu.requestAdapter();
  if (!adapter) throw new Error("Dawn finds no adapter: it needs a Vulkan, Metal or D3D12 driver");
  const rows = [];
  for (const folder of job.folders) {
    console.error(`measuring ${basename(folder)}`);
    rows.push(...(await measure(folder, job)));
  }
  if (job.decoder) rows.push(await decode(job.decoder));
  const { vendor, architecture, device, description } = adapter.info;
  process.stdout.write(JSON.stringify({ adapter: [vendor, architecture, device, description].filter(Boolean).join(" "), rows }));
}

await main();
process.exit(0); // Dawn's threads would keep the process

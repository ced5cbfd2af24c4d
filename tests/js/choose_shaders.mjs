// Choose the shaders of a program for adapters that say different things of themselves.
//   in (stdin):  { adapters, shaders, features, halves, choice }; an adapter is what `GPUAdapter` or `GPUDevice` has, its features as a list;
//                features are those that variants of the shaders need, and halves the buffers that some store as float16
//   out (stdout): per adapter { shaders, features, workgroups, dtypes, arena } of its program, or { error, code }

import { withSchedules } from "../../runtime_js/machine_class.js";

const chunks = [];
for await (const chunk of process.stdin) chunks.push(chunk);
const { adapters, shaders, features, halves, choice } = JSON.parse(Buffer.concat(chunks).toString());
const launch = (x) => ({ workgroups: [x, 1, 1], entry: "", integers: [], sections: [] });
const step = { kernel: "product", launches: { gpu: launch(8), software: launch(2) } };
const buffers = ["a", "b"].map((name) => ({ name, dtype: "float32" }));
const resources = { features: [], arena: { webgpu: 1024 } };
const manifest = { machines: [], programs: { webgpu: { buffers, steps: [step], resources, shaders, shader_features: features ?? {}, halves } } };
const results = adapters.map((adapter) => {
  try {
    const offered = { ...adapter, features: new Set(adapter.features) };
    const { program: webgpu } = withSchedules(manifest, "webgpu", 1, offered, choice);
    const dtypes = webgpu.buffers.map(({ dtype }) => dtype);
    const { features: needed, arena } = webgpu.resources;
    return { shaders: webgpu.shaders, features: needed, workgroups: Object.values(webgpu.steps[0].launches)[0].workgroups, dtypes, arena: arena.webgpu };
  } catch ({ code, message }) {
    return { code, error: message };
  }
});
process.stdout.write(JSON.stringify(results));

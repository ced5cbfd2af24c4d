// Choose the shaders of a program for adapters that say different things of themselves.
//   in (stdin):  { adapters, shaders, features, choice }; an adapter is what `GPUAdapter` or `GPUDevice` has, its features as a list;
//                features are those that variants of the shaders need
//   out (stdout): per adapter { shaders, features, workgroups } of its program, or { error, code }

import { withSchedules } from "../../runtime_js/machine_class.js";

const chunks = [];
for await (const chunk of process.stdin) chunks.push(chunk);
const { adapters, shaders, features, choice } = JSON.parse(Buffer.concat(chunks).toString());
const step = { kernel: "product", workgroups: [8, 1, 1], variants: { software: { workgroups: [2, 1, 1] } } };
const manifest = { programs: { webgpu: { steps: [step], resources: { features: [] }, shaders, shader_features: features } } };
const results = adapters.map((adapter) => {
  try {
    const offered = { ...adapter, features: new Set(adapter.features) };
    const { webgpu } = withSchedules(manifest, "webgpu", 1, offered, choice).programs;
    return { shaders: webgpu.shaders, features: webgpu.resources.features, workgroups: webgpu.steps[0].workgroups };
  } catch ({ code, message }) {
    return { code, error: message };
  }
});
process.stdout.write(JSON.stringify(results));

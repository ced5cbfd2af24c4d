// Choose the shaders of a program for adapters that say different things of themselves.
//   in (stdin):  { adapters, shaders, choice }; an adapter is what `GPUAdapter` or `GPUDevice` has
//   out (stdout): per adapter { shaders, workgroups } of its program, or { error, code }

import { withSchedules } from "../../runtime_js/machine_class.js";

const chunks = [];
for await (const chunk of process.stdin) chunks.push(chunk);
const { adapters, shaders, choice } = JSON.parse(Buffer.concat(chunks).toString());
const step = { kernel: "product", workgroups: [8, 1, 1], variants: { software: { workgroups: [2, 1, 1] } } };
const manifest = { programs: { webgpu: { steps: [step], shaders } } };
const results = adapters.map((adapter) => {
  try {
    const { webgpu } = withSchedules(manifest, "webgpu", 1, adapter, choice).programs;
    return { shaders: webgpu.shaders, workgroups: webgpu.steps[0].workgroups };
  } catch ({ code, message }) {
    return { code, error: message };
  }
});
process.stdout.write(JSON.stringify(results));

// Compile the pipelines of a kernel with two optional sections, on a device that only keeps the text of modules.
//   in (stdin):   { text, entry, needed }; needed are pairs of 0 and 1, of runs one after the other
//   out (stdout): the text of the pipeline that each run launches

import { Kernels } from "../../runtime_js/gpu_program.js";

const chunks = [];
for await (const chunk of process.stdin) chunks.push(chunk);
const { text, entry, needed } = JSON.parse(Buffer.concat(chunks).toString());
globalThis.GPUShaderStage = { COMPUTE: 4 };
const device = {
  createBindGroupLayout: () => ({}),
  createPipelineLayout: () => ({}),
  createShaderModule: ({ code }) => code,
  createComputePipelineAsync: async ({ compute }) => compute.module,
};
const launch = { workgroups: [1, 1, 1], entry, integers: [], sections: ["first", "second"] };
const step = { kernel: entry, device: "webgpu", arguments: [], symbols: [], launches: { software: launch } };
const kernels = new Kernels(device, { buffers: [] }, text);
const texts = [];
for (const [first, second] of needed) {
  const values = { first, second };
  if (kernels.missing([step], values).length) await kernels.compile([step], values);
  texts.push(kernels.of(step).pipeline);
}
process.stdout.write(JSON.stringify(texts));

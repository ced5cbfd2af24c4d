// Decode many tokens with a small language model, and count what the runtime asks of the device meanwhile.
//
//   out: { tokens, messages, calls, memory, length }: `messages` to workers, calls of WebGPU by name, and the bytes before and after

/** @type {Record<string, number>} */
let calls = {};
let messages = 0;

/** Count the calls of a method. @param {any} type @param {string} name @param {() => void} count */
function watch(type, name, count) {
  const method = type?.prototype[name];
  if (!method) return;
  type.prototype[name] = function (...values) {
    count();
    return method.apply(this, values);
  };
}

const { Worker } = /** @type {any} */ (globalThis.process ? await import("node:worker_threads") : globalThis);
watch(Worker, "postMessage", () => messages++);
/** @type {[string, string[]][]} */
const METHODS = [
  ["GPUDevice", ["createBuffer", "createBindGroup", "createBindGroupLayout", "createShaderModule", "createComputePipelineAsync", "createCommandEncoder"]],
  ["GPUCommandEncoder", ["beginComputePass", "copyBufferToBuffer"]],
  ["GPUQueue", ["submit"]],
  ["GPUBuffer", ["mapAsync", "destroy"]],
];
for (const [type, names] of METHODS) for (const name of names) watch(/** @type {any} */ (globalThis)[type], name, () => (calls[name] = (calls[name] ?? 0) + 1));

/**
 * @param {import("../../runtime_js/webmlc.js").Model} model
 * @param {{ prompt: number[], count: number }} data
 */
export async function exercise(model, { prompt, count }) {
  const session = await model.session({ capacity: prompt.length + count + 16 });
  const tokens = [];
  let fresh = prompt;
  let bytes = 0;
  const decode = async (/** @type {number} */ times) => {
    for (let i = 0; i < times; i++) {
      const input = { dtype: "int64", shape: [1, fresh.length], data: BigInt64Array.from(fresh, BigInt) };
      const { next_token } = await session.run({ input_ids: input }, { outputs: ["next_token"] });
      bytes = next_token.data.byteLength;
      fresh = [Number(next_token.data[0])];
      tokens.push(...fresh);
    }
  };
  await decode(4); // the first runs plan, allocate and bind
  const before = model.memoryBytes;
  [calls, messages] = [{}, 0];
  await decode(count);
  const results = { tokens, messages, calls: { ...calls }, memory: [before, model.memoryBytes], length: session.length, bytes };
  await session.dispose();
  return results;
}

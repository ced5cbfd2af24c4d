// Compute the layouts of manifests, and the segments of runs that return some outputs, with the code of the runtime.
//   in (stdin):   [{ manifest, target, symbols, threads, redZone, outputs: [buffer] }]
//   out (stdout): [{ segments, loading, layouts: { wasm, webgpu } }]

import { complete } from "../../runtime_js/manifest.js";
import { layout, memoryOf, placeInOrder } from "../../runtime_js/memory_plan.js";
import { bufferBytes } from "../../runtime_js/sizes.js";
import { selectSegments } from "../../runtime_js/transfers.js";

let input = "";
for await (const chunk of process.stdin) input += chunk;

const plain = ({ offsets, sizes, arena, constants, scratch, total, states, stateBytes, replacedStates }) => ({
  offsets: Object.fromEntries(offsets),
  sizes: Object.fromEntries(sizes),
  arena,
  constants: Object.fromEntries(constants),
  scratch,
  total,
  states: Object.fromEntries(states),
  stateBytes,
  replacedStates: [...replacedStates].sort(),
});

const cases = JSON.parse(input).map((item) => ({ ...item, manifest: complete(item.manifest, "case") }));
const results = cases.map(({ manifest: { programs, ...manifest }, target, symbols, threads, redZone, outputs }) => {
  const program = programs[target];
  const chosen = { ...manifest, program };
  const { temporary, derived, constants } = memoryOf(program, "webgpu");
  return {
    segments: selectSegments(program, new Set(outputs)),
    loading: [constants, temporary, derived].map((numbers) => {
      const { addresses, end } = placeInOrder(program, numbers, bufferBytes(program, {}));
      return [Object.fromEntries(addresses), end];
    }),
    layouts: {
      wasm: plain(layout(chosen, "wasm", symbols, threads, redZone)),
      webgpu: plain(layout(chosen, "webgpu", symbols, threads, redZone)),
    },
  };
});
process.stdout.write(JSON.stringify(results));

// Compute the stages and layouts of manifests with the code of the runtime.
//   in (stdin):   [{ manifest, target, symbols, threads }]
//   out (stdout): [{ stages, loading, layouts: { wasm, webgpu } }]

import { complete } from "../../runtime_js/manifest.js";
import { layout, placeConstants, placeDerived, stages } from "../../runtime_js/memory_plan.js";

let input = "";
for await (const chunk of process.stdin) input += chunk;

const plain = ({ offsets, sizes, arena, constants, scratch, total, states, stateBytes }) => ({
  offsets: Object.fromEntries(offsets),
  sizes: Object.fromEntries(sizes),
  arena,
  constants: Object.fromEntries(constants),
  scratch,
  total,
  states: Object.fromEntries(states),
  stateBytes,
});

const cases = JSON.parse(input).map((item) => ({ ...item, manifest: complete(item.manifest, "case") }));
const results = cases.map(({ manifest, target, symbols, threads }) => ({
  stages: stages(manifest, target).map(({ segment, uploads, downloads }) => ({
    segment:
      "bind" in segment
        ? segment.bind
        : [segment.first, segment.last, segment.module_first ?? 0, segment.module_last ?? 0],
    uploads,
    downloads,
  })),
  loading: [
    placeConstants(manifest, target, "webgpu", 0),
    placeConstants(manifest, target, "webgpu", 0, true),
    placeDerived(manifest, target),
  ].map(({ addresses, end }) => [Object.fromEntries(addresses), end]),
  layouts: {
    wasm: plain(layout(manifest, target, "wasm", symbols, threads)),
    webgpu: plain(layout(manifest, target, "webgpu", symbols, threads)),
  },
}));
process.stdout.write(JSON.stringify(results));

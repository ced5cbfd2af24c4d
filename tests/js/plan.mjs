// Compute the stages and layouts of manifests with the code of the runtime.
//   in (stdin):   [{ manifest, own, symbols, threads }]
//   out (stdout): [{ stages, layouts: { wasm, webgpu } }]

import { complete } from "../../runtime_js/manifest.js";
import { layout, stages } from "../../runtime_js/memory_plan.js";

let input = "";
for await (const chunk of process.stdin) input += chunk;

const plain = ({ offsets, sizes, arena, constants, scratch, total }) => ({
  offsets: Object.fromEntries(offsets),
  sizes: Object.fromEntries(sizes),
  arena,
  constants: Object.fromEntries(constants),
  scratch,
  total,
});

const cases = JSON.parse(input).map((item) => ({ ...item, manifest: complete(item.manifest, "case") }));
const results = cases.map(({ manifest, own, symbols, threads }) => ({
  stages: stages(manifest, own).map(({ segment, uploads, downloads }) => ({
    segment:
      "bind" in segment
        ? segment.bind
        : [segment.first, segment.last, segment.module_first ?? 0, segment.module_last ?? 0],
    uploads,
    downloads,
  })),
  layouts: {
    wasm: plain(layout(manifest, own, "wasm", symbols, threads)),
    webgpu: plain(layout(manifest, own, "webgpu", symbols, threads)),
  },
}));
process.stdout.write(JSON.stringify(results));

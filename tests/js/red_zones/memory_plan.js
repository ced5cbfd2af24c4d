// A memory plan whose buffers share no bytes: the twin of `place_apart` in webmlc/package/placement.py. The plan of the runtime
// is beside this file, as plain_memory_plan.js.

import { align } from "./placement.js";
import { layout as plainLayout } from "./plain_memory_plan.js";

export * from "./plain_memory_plan.js";

export const RED_ZONE = 64;

function placeApart(intervals) {
  const offsets = intervals.map(() => 0);
  let end = 0;
  for (const i of [...intervals.keys()].sort((i, j) => intervals[i][4] - intervals[j][4])) {
    offsets[i] = align(end + RED_ZONE, intervals[i][3]);
    end = offsets[i] + Math.max(intervals[i][0], 1);
  }
  return { offsets, total: end + RED_ZONE };
}

export function layout(manifest, target, device, symbols, threads = 1) {
  const plan = plainLayout(manifest, target, device, symbols, threads, placeApart);
  return { ...plan, arena: manifest.programs[target].resources.arena[device] ?? plan.arena }; // the bytes that the leader compares with the manifest
}

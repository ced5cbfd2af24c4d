// The runtime's memory plan, which lies beside it as plain_memory_plan.js, with buffers that share no bytes: the twin of
// `place_apart` in webmlc/package/memory_plan.py.

import { align, layout as planned } from "./plain_memory_plan.js";

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

export function layout(manifest, own, device, symbols, threads = 1) {
  const plan = planned(manifest, own, device, symbols, threads, placeApart);
  return { ...plan, arena: manifest.programs[own].resources.arena[device] ?? plan.arena }; // what the leader compares
}

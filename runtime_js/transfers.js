// Choose what a run that returns only some outputs downloads, and which of its last steps it may skip.
//
// The twin of `select_stages` in webmlc/package/transfers.py, which explains the algorithm.
//
//   in:  a manifest, the target of the program, the ports of the outputs
//   out: stages, as memory_plan.js plans them

import { outputsOf, resultBuffers, stages } from "./memory_plan.js";

/** @typedef {import("./types.d.ts").Device} Device */
/** @typedef {import("./types.d.ts").Manifest} Manifest */
/** @typedef {import("./types.d.ts").Port} Port */
/** @typedef {import("./types.d.ts").Program} Program */
/** @typedef {import("./types.d.ts").Run} Run */
/** @typedef {import("./types.d.ts").Stage} Stage */

/**
 * The stages of a run that returns these outputs.
 * @param {Manifest} manifest
 * @param {Device} target
 * @param {Port[]} outputs
 * @returns {Stage[]}
 */
export function selectStages(manifest, target, outputs) {
  const program = /** @type {Program} */ (manifest.programs[target]);
  const needed = resultBuffers({ ...manifest, outputs });
  for (const { name, kind } of program.buffers) if (kind === "state") needed.add(name);
  const segments = [...program.segments];
  for (const [i, segment] of [...segments.entries()].reverse()) {
    if ("bind" in segment) {
      needed.add(segment.bind);
      continue;
    }
    const run = segment.once ? segment : withoutLastSteps(program, segment, needed);
    for (const step of program.steps.slice(run.first, run.last)) for (const name of step.arguments) needed.add(name);
    segments[i] = run;
  }
  const selected = { ...manifest, outputs, programs: { [target]: { ...program, segments } } };
  return stages(selected, target).filter(({ segment, downloads }) => "bind" in segment || segment.first < segment.last || downloads.length);
}

/**
 * Cut off the last steps of a segment if none of the `needed` buffers is theirs. Steps of control flow stay, up to their targets.
 * @param {Program} program
 * @param {Run} run
 * @param {Set<string>} needed
 * @returns {Run}
 */
function withoutLastSteps({ steps }, run, needed) {
  const { device, first, module_first: base = 0 } = run;
  let { last } = run;
  while (last > first && !steps[last - 1].control && !outputsOf(steps[last - 1]).some((name) => needed.has(name))) last--;
  for (const { control } of steps.slice(first, run.last)) if (control) last = Math.max(last, control.target);
  return device === "wasm" ? { ...run, last, module_last: base + last - first } : { ...run, last };
}

// Choose what a run that returns only some outputs downloads, and which of the last steps it may skip.
//
// The twin of `select_segments` in webmlc/package/transfers.py, which explains the algorithm.

import { readByHost } from "./memory_plan.js";

/** @import { Program, Run, Segment, Step } from "./types.d.ts" */

/**
 * The segments of a run that returns these results.
 * @param {Program} program
 * @param {Set<string>} results  names of buffers
 * @returns {Segment[]}
 */
export function selectSegments(program, results) {
  if (program.segments.some(({ type }) => type === "jump" || type === "jump_unless")) return program.segments;
  const moved = new Set(results); // what the host reads, and what later runs upload
  const needed = new Set(program.buffers.filter(({ kind }) => kind === "state").map(({ name }) => name));
  const devices = new Set(); // of later runs
  /** @type {Segment[]} */
  const selected = [];
  for (const segment of [...program.segments].reverse()) {
    if (segment.type !== "run") {
      for (const name of readByHost(segment)) moved.add(name);
      selected.unshift(segment);
      continue;
    }
    const last = segment.once ? segment.last : lastNeeded(program, segment, (name) => moved.has(name) || needed.has(name));
    const downloads = segment.downloads.filter((name) => moved.has(name));
    if (last === segment.first && !downloads.length && !devices.has(segment.device)) continue;
    devices.add(segment.device);
    for (const name of segment.uploads) moved.add(name);
    for (const step of program.steps.slice(segment.first, last)) for (const name of step.arguments) needed.add(name);
    selected.unshift({ ...segment, last, downloads });
  }
  return selected;
}

/** The buffers that a step writes. @param {Step} step */
function outputsOf({ arguments: names, outputs }) {
  return names.slice(names.length - outputs);
}

/**
 * The end of the steps of a segment that write needed buffers, or that such steps follow. Steps of control flow stay, up to their targets.
 * @param {Program} program
 * @param {Run} segment
 * @param {(name: string) => boolean} isNeeded
 */
function lastNeeded({ steps }, { first, last: end }, isNeeded) {
  let last = end;
  while (last > first && !steps[last - 1].control && !outputsOf(steps[last - 1]).some(isNeeded)) last--;
  for (const { control } of steps.slice(first, end)) if (control) last = Math.max(last, control.target);
  return last;
}

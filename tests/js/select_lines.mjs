// Select lines of the code of a report, one after the other, and print the step that each selects, or null.
//
//   in (stdin):   { data, lines: [[text, line], ...] }
//   out (stdout): [step | null, ...]

import { readFileSync } from "node:fs";
import { State } from "../../webmlc/report/page/state.js";

const { data, lines } = JSON.parse(readFileSync(0, "utf8"));
const steps = lines.map(([text, line]) => {
  const state = new State(data);
  return state.selectLine(text, line) ? (state.selection.step ?? null) : null;
});
process.stdout.write(JSON.stringify(steps));

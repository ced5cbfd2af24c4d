// Choose who executes runs of given durations, as requested line by line.
//
//   in (stdin), one per line:   { threads, limit, times: [{ there, alone, together: milliseconds }, ...] }
//   out (stdout), one per line: [the way of each run]

import { Pace } from "../../runtime_js/short_runs.js";
import { answerLines } from "./answer_lines.mjs";

await answerLines(({ threads, limit, times }) => {
  const pace = new Pace(threads, limit);
  return times.map((milliseconds) => {
    const { way } = pace;
    pace.took(way, milliseconds[way]);
    return way;
  });
});

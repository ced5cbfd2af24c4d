// Choose who executes runs of given durations.
//
//   in (argv[2]):  { threads, limit, times: [{ there, alone, together: milliseconds }, ...] }
//   out (stdout):  [the way of each run]

import { Pace } from "../../runtime_js/short_runs.js";

const { threads, limit, times } = JSON.parse(process.argv[2]);
const pace = new Pace(threads, limit);
const choices = times.map((milliseconds) => {
  const { way } = pace;
  pace.took(way, milliseconds[way]);
  return way;
});
process.stdout.write(JSON.stringify(choices));

// Where runs are made, whose times are given.
//
//   in (argv[2]):  { threads, times: [[milliseconds in the page, in the worker], ...] }
//   out (stdout):  [whether each was made in the page]

import { Pace } from "../../runtime_js/short_runs.js";

const { threads, times } = JSON.parse(process.argv[2]);
const pace = new Pace(threads);
const choices = times.map(([inPage, inWorker]) => {
  const { here } = pace;
  pace.took(here, here ? inPage : inWorker);
  return here;
});
process.stdout.write(JSON.stringify(choices));

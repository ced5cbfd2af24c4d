// What the leader of a crew does where helpers do not come, or make the work slower.
//   out (stdout): { absent: { divisible, whole }, choices: { slower, faster, disturbed } }

import { Crew, Work } from "../../runtime_js/spmd.js";

/** The calls that work of steps 2..4 makes of the module while no helper comes. */
function absent(isDivisible) {
  const calls = [];
  new Crew(1).run((...call) => calls.push(call), new Work(2, 5, isDivisible));
  return calls;
}

/** Of `runs` runs, which take helpers; `cost(together, run)` is how long one takes. */
function choices(runs, cost) {
  const work = new Work(0, 1, true);
  return Array.from({ length: runs }, (_, run) => {
    const together = work.chooseTogether();
    work.took(together, cost(together, run));
    return together;
  });
}

const faster = (together) => (together ? 1 : 2);
const disturbed = (run) => run >= 20 && run < 60;
process.stdout.write(
  JSON.stringify({
    absent: { divisible: absent(true), whole: absent(false) },
    choices: {
      slower: choices(100, (together) => (together ? 2 : 1)),
      faster: choices(100, faster),
      disturbed: choices(100, (together, run) => (together && disturbed(run) ? 10 : faster(together))),
    },
  }),
);

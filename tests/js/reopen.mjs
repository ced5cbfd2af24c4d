// Run a model whose first program fails, while later runs wait. `x: float32[n, 4]` is the input, `y` the output.
//
//   in (stdin), one per line:   { manifest: its JSON, runs: number of runs }
//   out (stdout), one per line: { outcomes: [first element of y, or the name of the error], opened, disposed: numbers of programs }

import { InternalError } from "../../runtime_js/errors.js";
import { complete } from "../../runtime_js/manifest.js";
import { Model } from "../../runtime_js/model.js";
import { answerLines } from "./answer_lines.mjs";

await answerLines(async ({ manifest: json, runs }) => {
  const manifest = complete(json, new URL("http://localhost/"));
  let opened = 0;
  let disposed = 0;
  /** A program whose runs overlap. @param {boolean} fails */
  const program = (fails) => ({
    device: "webgpu",
    overlaps: true,
    executors: {
      webgpu: {
        async execute(_stage, _sizes, uploads) {
          const x = uploads[0][1].slice();
          await new Promise((resolve) => setTimeout(resolve, 1));
          if (fails) throw new InternalError("the GPU failed");
          return [["y", x]];
        },
        dispose: () => disposed++,
      },
    },
  });
  const open = async () => {
    opened++;
    await new Promise((resolve) => setTimeout(resolve, 1));
    return program(false);
  };
  const model = new Model({}, manifest, { threads: 1, threadsReason: "" }, open, program(true));
  const x = (i) => ({ dtype: "float32", shape: [1, 4], data: new Float32Array(4).fill(i) });
  const run = (_, i) => model.run({ x: x(i) }).then(({ y }) => y.data[0], ({ name }) => name);
  const outcomes = await Promise.all(Array.from({ length: runs }, run));
  model.dispose();
  return { outcomes, opened, disposed };
});

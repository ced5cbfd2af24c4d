// Answer requests until the input ends. A line is a request, as JSON; so is its answer.

import { createInterface } from "node:readline";

/** @param {(request: any) => any} answer  may return a promise; what it throws ends the process */
export async function answerLines(answer) {
  for await (const line of createInterface({ input: process.stdin })) {
    process.stdout.write(`${JSON.stringify(await answer(JSON.parse(line)))}\n`);
  }
}

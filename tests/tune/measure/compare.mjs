// Fill inputs and compare outputs with the page's functions.
//
//   in:  { fills: [[buffer, seed], ...], pairs: [[actual, expected, dtype, tolerance], ...] }, bytes in base64
//   out: { fills: [base64, ...], differences: [text, ...] }

import { readFileSync } from "node:fs";
import { bytesOf, difference, fill } from "../../../webmlc/tune/measure/page/compare.js";

const { fills, pairs } = JSON.parse(readFileSync(0, "utf8"));
const answer = {
  fills: fills.map(([buffer, seed]) => Buffer.from(fill(buffer, seed)).toString("base64")),
  differences: pairs.map(([actual, expected, dtype, tolerance]) => difference(bytesOf(actual), bytesOf(expected), dtype, tolerance)),
};
console.log(JSON.stringify(answer));

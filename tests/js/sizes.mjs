// Evaluate sizes with the operators of the runtime.
//   in (stdin):   [{ size, symbols }]
//   out (stdout): { operators: [name], values: [number, or the message of an error] }

import { evaluate, OPERATORS } from "../../runtime_js/sizes.js";

let input = "";
for await (const chunk of process.stdin) input += chunk;

const value = ({ size, symbols }) => {
  try {
    const number = evaluate(size, symbols);
    return Object.is(number, -0) ? "-0" : number;
  } catch (error) {
    return `${error.code}: ${error.message}`;
  }
};

process.stdout.write(JSON.stringify({ operators: Object.keys(OPERATORS), values: JSON.parse(input).map(value) }));

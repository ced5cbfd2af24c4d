// Evaluate expressions of tensors.
//   in (stdin):   { tensors: { name: { type, dims, data: numbers } }, expressions: [text] }, in which the names are tensors
//   out (stdout): [{ type, dims, data: texts } | text of the error]

import { Tensor } from "../../runtime_js/pipeline/tensor.js";

let input = "";
for await (const chunk of process.stdin) input += chunk;
const { tensors, expressions } = JSON.parse(input);
const results = expressions.map((expression) => {
  const values = Object.values(tensors).map(({ type, dims, data }) => new Tensor(type, data, dims));
  try {
    const result = new Function("Tensor", ...Object.keys(tensors), `return ${expression}`)(Tensor, ...values);
    if (!(result instanceof Tensor)) return { value: typeof result === "bigint" ? Number(result) : result };
    return { type: result.type, dims: result.dims, data: Array.from(result.data, String) };
  } catch (error) {
    return { error: `${error.name}: ${error.message}` };
  }
});
process.stdout.write(JSON.stringify(results));

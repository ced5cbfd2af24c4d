// Tint, the WGSL compiler of Chromium, as a process: Dawn for Node on its null backend, which needs no driver.
//
//   in:  lines of standard input, each a WGSL text as a JSON string
//   out: for each one line, the JSON array of the compiler's messages: { text, line, column }, counted from 1
//
// It ends with its standard input.

import { createInterface } from "node:readline";
import { create } from "webgpu";

const gpu = create(["backend=null"]); // Dawn lives as long as somebody holds this
const adapter = await gpu.requestAdapter();
const device = await adapter.requestDevice({ requiredFeatures: ["shader-f16", "subgroups"] });

for await (const line of createInterface({ input: process.stdin })) {
  device.pushErrorScope("validation");
  const module = device.createShaderModule({ code: JSON.parse(line) });
  const { messages } = await module.getCompilationInfo();
  const error = await device.popErrorScope();
  const answer = messages.map(({ message, lineNum, linePos }) => ({ text: message, line: lineNum, column: linePos }));
  if (error && !answer.length) answer.push({ text: error.message, line: 0, column: 0 });
  console.log(JSON.stringify(answer));
}
process.exit(0);

// Join a search from Node, Deno or Bun: `node join.mjs URL`. The twin of index.js, without a page.

import { Session } from "./join.js";
import { Measurer } from "./measurer.js";
import { describe, features } from "./platform.js";

const { process } = /** @type {any} */ (globalThis);
const [, , server] = process.argv;
if (!features().includes("relaxed")) {
  process.getBuiltinModule("node:v8").setFlagsFromString("--experimental-wasm-relaxed-simd"); // Node 20 has it behind this flag
}
const { phase, message } = await new Session(new URL(server), new Measurer(), () => {}).run(await describe());
if (phase === "refused") {
  console.error(`webmlc tune: ${message}`);
  process.exitCode = 1;
}

// A memory plan whose buffers share no bytes, with a red zone before and behind each. The plan of the runtime is beside this file, as
// plain_memory_plan.js.

import { layout as plainLayout } from "./plain_memory_plan.js";

export * from "./plain_memory_plan.js";

export const RED_ZONE = 64;

export function layout(manifest, device, symbols, threads = 1) {
  const plan = plainLayout(manifest, device, symbols, threads, RED_ZONE);
  return { ...plan, arena: manifest.program.resources.arena[device] ?? plan.arena }; // the bytes that the leader compares with the manifest
}

// Find the class of machines that this host is of: a package may hold other schedules of some kernels for it. The twin of
// webmlc/core/machine_class.py.
//
//   in:  the classes in the manifest, numbered from 1, and what the program runs on
//   out: the program with the kernels for this host

import { builtin } from "./platform.js";

/** @typedef {import("./types.d.ts").Device} Device */
/** @typedef {import("./types.d.ts").MachineClass} MachineClass */
/** @typedef {import("./types.d.ts").Manifest} Manifest */
/** @typedef {import("./types.d.ts").Program} Program */

const ENGINES = Object.entries({ firefox: /Firefox\//, chromium: /Chrome\//, safari: /Version\/.* Safari/ });

/** The name of this engine, as `webmlc tune` names it. */
export function engineName() {
  const versions = /** @type {any} */ (globalThis).process?.versions;
  const runtime = builtin && ["bun", "deno", "node"].find((name) => versions?.[name]); // Bun and Deno say that they are Node, too
  return runtime ?? ENGINES.find(([, pattern]) => pattern.test(globalThis.navigator?.userAgent ?? ""))?.[0] ?? "";
}

/**
 * The number of the class of a machine: of its class, or else of its adapter in another engine; 0 if there is neither.
 * @param {MachineClass[]} classes
 * @param {MachineClass} machine
 */
export function machineNumber(classes, { device, engine, adapter = "", parallel = false }) {
  const isSame = (/** @type {MachineClass} */ other) =>
    other.device === device && other.engine === engine && (other.adapter ?? "") === adapter && (other.parallel ?? false) === parallel;
  const index = classes.findIndex(isSame);
  return 1 + (index < 0 && adapter ? classes.findIndex((other) => other.adapter === adapter) : index);
}

/**
 * The manifest with the kernels for this host in the program of a device.
 * @param {Manifest} manifest
 * @param {Device} device
 * @param {number} threads
 * @param {GPUAdapter | GPUDevice | null} adapter
 * @returns {Manifest}
 */
export function withSchedules(manifest, device, threads, adapter) {
  const { machines } = manifest;
  const program = /** @type {Program} */ (manifest.programs[device]);
  if (!machines?.length) return manifest;
  const engine = engineName();
  const machine = machineNumber(machines, { device: "wasm", engine, parallel: threads > 1 });
  const { vendor, architecture } = (adapter && ("info" in adapter ? adapter.info : adapter.adapterInfo)) ?? {};
  const name = [vendor, architecture].filter(Boolean).join(" ");
  const gpu = machineNumber(machines, { device: "webgpu", engine, adapter: name });
  const steps = program.steps.map(({ alternatives, ...step }) => ({ ...step, ...alternatives?.[gpu] }));
  return { ...manifest, programs: { ...manifest.programs, [device]: { ...program, steps, machine } } };
}

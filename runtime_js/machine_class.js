// Choose the schedules of a package for this host: the variant of the shaders for its adapter, and other schedules of some kernels for
// its class of machines. The twin of webmlc/host/choose_schedules.py and webmlc/core/machine_class.py.
//
//   in:  the classes in the manifest, numbered from 1, and what the program runs on
//   out: the program with the kernels for this host

import { PackageError } from "./errors.js";
import { builtin } from "./platform.js";

/** @import { Chosen, Device, MachineClass, Manifest, Program, Step } from "./types.d.ts" */

const QUAD = 4; // threads
const QUADS = "software-subgroups"; // the variant whose quads share loads
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
export function machineNumber(classes, { device, engine, adapter, is_parallel }) {
  const isSame = (/** @type {MachineClass} */ other) =>
    other.device === device && other.engine === engine && other.adapter === adapter && other.is_parallel === is_parallel;
  const index = classes.findIndex(isSame);
  return 1 + (index < 0 && adapter ? classes.findIndex((other) => other.adapter === adapter) : index);
}

/** The information of an adapter, or of the adapter of a device. @param {GPUAdapter | GPUDevice | null} adapter @returns {Partial<GPUAdapterInfo>} */
function infoOf(adapter) {
  return (adapter && ("info" in adapter ? adapter.info : adapter.adapterInfo)) ?? {};
}

/** True if an adapter, or that of a device, computes on the CPU. @param {GPUAdapter | GPUDevice | null} adapter */
export function isSoftware(adapter) {
  const { isFallbackAdapter, architecture, description } = infoOf(adapter);
  return isFallbackAdapter || /swiftshader|llvmpipe|lavapipe/i.test(`${architecture} ${description}`);
}

/** True if the subgroups of an adapter, or of that of a device, are the four threads of a quad. @param {GPUAdapter | GPUDevice | null} adapter */
function hasQuads(adapter) {
  const { subgroupMinSize, subgroupMaxSize } = infoOf(adapter);
  return adapter?.features.has("subgroups") && subgroupMinSize === QUAD && subgroupMaxSize === QUAD;
}

/**
 * The variant of the shaders to run: `choice`, or one for software on such an adapter, or the one that uses the most of the features
 * that the adapter offers. On adapters that no variant was made for, the first.
 * @param {Program} program
 * @param {GPUAdapter | GPUDevice | null} adapter
 * @param {string} [choice]
 */
function chooseShaders({ shaders, shader_features: features }, adapter, choice) {
  const names = Object.keys(shaders);
  if (choice && !shaders[choice]) {
    throw new PackageError(`the package has no ${choice} shaders (it has ${names}); build it with --adapter all`);
  }
  if (choice || names.length === 1) return choice ?? names[0];
  if (isSoftware(adapter) && shaders.software) return shaders[QUADS] && hasQuads(adapter) ? QUADS : "software";
  const needs = (/** @type {string} */ name) => features[name] ?? [];
  const usable = names.filter((name) => !name.startsWith("software") && needs(name).every((feature) => adapter?.features.has(feature)));
  return usable.sort((a, b) => needs(b).length - needs(a).length)[0] ?? names[0];
}

/**
 * The buffers and resources of a program as a variant of its shaders has them, which needs some features.
 * @param {Program} program
 * @param {string[]} [features]
 */
function withFeatures({ buffers, resources, halves }, features = []) {
  const needed = { ...resources, features: [...resources.features, ...features] };
  if (!halves || !features.includes("shader-f16")) return { buffers, resources: needed };
  const isHalf = new Set(halves.buffers);
  return {
    buffers: buffers.map((buffer, number) => (isHalf.has(number) ? { ...buffer, dtype: /** @type {const} */ ("float16") } : buffer)),
    resources: { ...needed, arena: { ...resources.arena, webgpu: halves.arena } },
  };
}

/**
 * The manifest with the program of a device, which has the kernels for this host.
 * @param {Manifest} manifest
 * @param {Device} target
 * @param {number} threads
 * @param {GPUAdapter | GPUDevice | null} adapter
 * @param {string} [choice]  a variant of the shaders
 * @returns {Chosen}
 */
export function withSchedules({ programs, ...manifest }, target, threads, adapter, choice) {
  const { machines } = manifest;
  let program = /** @type {Program} */ (programs[target]);
  const { shaders, steps, shader_features: features } = program;
  const engine = engineName();
  const machine = machineNumber(machines, { device: "wasm", engine, adapter: "", is_parallel: threads > 1 });
  if (Object.keys(shaders).length) {
    const variant = chooseShaders(program, adapter, choice);
    const { vendor, architecture } = infoOf(adapter);
    const name = [vendor, architecture].filter(Boolean).join(" ");
    const gpu = machineNumber(machines, { device: "webgpu", engine, adapter: name, is_parallel: false });
    const launched = steps.map((step) => ({ ...step, launches: chosenLaunch(step, variant, gpu) }));
    program = { ...program, steps: launched, shaders: { [variant]: shaders[variant] }, ...withFeatures(program, features[variant]) };
  }
  return { ...manifest, program, target, machine };
}

/** The launch of a step in a variant of the shaders, on a class of machines. @param {Step} step @param {string} variant @param {number} machine */
function chosenLaunch({ launches }, variant, machine) {
  const name = variant in launches ? variant : Object.keys(launches)[0];
  return name === undefined ? launches : { [variant]: launches[`${name}@${machine}`] ?? launches[name] };
}

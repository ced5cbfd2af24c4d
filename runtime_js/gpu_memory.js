// Plan the memory of a program on a GPU by capacity: a plan serves all symbols whose buffers fit.
//
//   in:  the symbols of a run, and the states of its session
//   out: a binding: the values of the symbols, and a plan, which has the place of each buffer in the arena or in the states
//
// The first run is planned exactly. Symbols that no plan fits get one that has room to grow. So a model whose sizes vary soon
// has a plan for all of them, and then allocates no buffer and builds no bind group. A run may continue with more symbols, which
// its segments bind; the plans of its stages must agree, because the arena holds what earlier stages wrote.

import { AdapterError, codeOf, InternalError } from "./errors.js";
import { BINDING_MULTIPLE } from "./gpu_buffers.js";
import { align, boundSymbols, checkNew, checkPlaces, GROWTH, layout, statePlaces } from "./memory_plan.js";
import { bufferBytes } from "./sizes.js";

/** @import { Chosen, Layout, Size, StatePlaces, States, Symbols } from "./types.d.ts" */
/** @import { GpuBuffers } from "./gpu_buffers.js" */
/** @import { GpuPlace } from "./gpu_program.js" */
/** A uniform buffer, and the values of symbols that it holds. */
/** @typedef {{ names: string[], buffer: GPUBuffer, values: Int32Array }} Uniform */
/** `sizes` are the numbers of workgroups. @typedef {{ kernel: import("./gpu_program.js").Kernel, group: GPUBindGroup, sizes: Size[] }} Dispatch */
/** The places of buffers for symbols up to `capacity`, and the uniforms and dispatches (by step) that were needed so far. */
/** @typedef {{ capacity: Symbols, layout: Layout, uniforms: Map<string, Uniform>, dispatches: Map<number, Dispatch>, block?: Block }} Plan */
/**
 * The symbols of a run, and the bytes of its buffers. `values` has the named sizes, too; in a session it has its length, and `symbols`
 * the largest length.
 * @typedef {{ symbols: Symbols, values: Symbols, sizes: Map<string, number>, plan: Plan }} Binding
 */
/** Plans, the bindings that use them, by symbols, and the binding of the stage before. */
/** @typedef {{ plans: Plan[], bindings: Map<string, Binding>, latest?: Binding }} Plans */
/** The states of a session, and the plans whose bind groups contain their buffer. */
/** @typedef {Plans & { buffer: GPUBuffer, places: StatePlaces }} Block */

const MAX_GPU_PLANS = 16; // that are cached
const MAX_BINDINGS = 64;

export class GpuMemory {
  /** @type {GPUBuffer | null} One for all plans. */
  arena = null;
  /** @type {Map<number, Block>} By id of the session. */
  blocks = new Map();
  /** @type {Map<string, GpuPlace>} */
  constants = new Map();
  /** @type {Plans} Of runs without a session. */
  #plans = { plans: [], bindings: new Map() };

  /** @param {GpuBuffers} buffers @param {Chosen} manifest */
  constructor(buffers, manifest) {
    this.buffers = buffers;
    this.manifest = manifest;
    this.program = manifest.program;
  }

  /** The binding of these symbols and this session. The arena has room for it. @param {Symbols} symbols @param {States} [states] */
  bind(symbols, states) {
    const key = JSON.stringify(symbols);
    const block = states && (this.blocks.get(states.id) ?? this.#open(symbols, states));
    const owner = block ?? this.#plans;
    let binding = owner.bindings.get(key);
    if (!binding || !this.#continues(owner, binding.plan, symbols)) {
      const sizes = bufferBytes(this.program, symbols);
      const plan = this.#planFor(owner, symbols, sizes, block);
      if (states && block) checkPlaces(block.places, { ...plan.layout, sizes }, states);
      binding = { symbols, values: symbols, sizes, plan };
      if (owner.bindings.size >= MAX_BINDINGS) owner.bindings.delete([...owner.bindings.keys()][0]);
      owner.bindings.set(key, binding);
    }
    owner.latest = binding;
    if (!this.arena || binding.plan.layout.arena > this.arena.size) this.#grow(owner, binding.plan);
    return binding;
  }

  /** Allocate the states of a session. @param {Symbols} symbols @param {States} states */
  #open(symbols, states) {
    checkNew(states);
    const plan = layout(this.manifest, "webgpu", symbols);
    const buffer = this.buffers.createStorage("a session", plan.stateBytes);
    /** @type {Block} */
    const block = { buffer, places: statePlaces(plan, states), plans: [], bindings: new Map() };
    this.blocks.set(states.id, block);
    return block;
  }

  /** Free the states of a session. @param {States} states */
  release({ id }) {
    const block = this.blocks.get(id);
    if (block) for (const plan of [...block.plans]) this.#drop(block, plan);
    this.buffers.destroy(block?.buffer);
    this.blocks.delete(id);
  }

  /**
   * The capacity for which the earlier stages of the run were planned, if a run may have other symbols than at its start: that of
   * the symbols that have the same values as before.
   * @param {Plans} owner
   * @param {Symbols} symbols
   * @returns {Symbols}
   */
  #earlier({ latest }, symbols) {
    if (!latest || !boundSymbols(this.program).length) return {};
    const { capacity } = latest.plan;
    return Object.fromEntries(Object.entries(capacity).filter(([name]) => name in symbols && symbols[name] === latest.symbols[name]));
  }

  /** True if a plan agrees with those of the earlier stages of the run. @param {Plans} owner @param {Plan} plan @param {Symbols} symbols */
  #continues(owner, { capacity }, symbols) {
    return Object.entries(this.#earlier(owner, symbols)).every(([name, value]) => capacity[name] === value);
  }

  /**
   * A plan that the symbols fit: one that exists, or a new one. In the block of a session, new plans are exact.
   * @param {Plans} owner
   * @param {Symbols} symbols
   * @param {Map<string, number>} sizes
   * @param {Block} [block]
   */
  #planFor(owner, symbols, sizes, block) {
    const { plans } = owner;
    const existing = plans.find((plan) => fits(plan.layout, sizes) && this.#continues(owner, plan, symbols));
    if (existing) return existing;
    const earlier = this.#earlier(owner, symbols);
    const plan = (!block && this.#roomy({ ...grown(symbols, plans), ...earlier }, sizes)) || this.#plan({ ...symbols, ...earlier });
    plan.block = block;
    plans.push(plan);
    if (plans.length > MAX_GPU_PLANS) this.#drop(owner, plans[0]);
    return plan;
  }

  /** A plan with room to grow, or null if the device or the model does not allow it. @param {Symbols} capacity @param {Map<string, number>} sizes */
  #roomy(capacity, sizes) {
    const { maxBufferSize, maxStorageBufferBindingSize } = this.buffers.device.limits;
    try {
      const plan = this.#plan(capacity);
      const largest = [...plan.layout.sizes.values()].reduce((a, b) => Math.max(a, b), 0);
      return fits(plan.layout, sizes) && plan.layout.arena <= maxBufferSize && largest <= maxStorageBufferBindingSize ? plan : null;
    } catch (error) {
      if (codeOf(error) === "input") return null; // the larger sizes are beyond what a buffer may have
      throw error;
    }
  }

  /** @param {Symbols} capacity @returns {Plan} */
  #plan(capacity) {
    const plan = layout(this.manifest, "webgpu", capacity);
    const expected = this.program.resources.arena.webgpu ?? plan.arena;
    if (plan.arena !== expected) throw new InternalError(`the arena takes ${plan.arena} bytes, the manifest says ${expected}`);
    return { capacity, layout: plan, uniforms: new Map(), dispatches: new Map() };
  }

  /** Forget a plan and its bindings. @param {Plans} owner @param {Plan} plan */
  #drop({ plans, bindings }, plan) {
    plans.splice(plans.indexOf(plan), 1);
    for (const [key, binding] of bindings) if (binding.plan === plan) bindings.delete(key);
    for (const { buffer } of plan.uniforms.values()) this.buffers.destroy(buffer);
  }

  /**
   * Allocate a larger arena. During a run the contents of the old one are copied. The bind groups of all plans refer to the old
   * one; of those of `owner` only the plan remains, because it has room for smaller sizes.
   * @param {Plans} owner
   * @param {Plan} plan
   */
  #grow(owner, plan) {
    const { capacity, layout: { arena } } = plan;
    const old = this.arena;
    const { device } = this.buffers;
    const isMidRun = old && boundSymbols(this.program).some((name) => name in capacity);
    const size = isMidRun ? Math.max(arena, Math.min(align(old.size * GROWTH, BINDING_MULTIPLE), device.limits.maxBufferSize)) : arena;
    this.arena = this.buffers.createStorage("the arena", size);
    if (isMidRun) {
      const encoder = device.createCommandEncoder();
      encoder.copyBufferToBuffer(old, 0, this.arena, 0, old.size);
      device.queue.submit([encoder.finish()]);
    }
    this.buffers.destroy(old);
    if (!isMidRun) for (const other of owner.plans.filter((each) => each !== plan)) this.#drop(owner, other);
    const plans = [this.#plans, ...this.blocks.values()].flatMap((each) => each.plans);
    for (const { dispatches } of plans) dispatches.clear();
  }

  /** The place of a buffer. @param {Plan} plan @param {string} name @returns {GpuPlace} */
  place({ layout: { states, offsets }, block }, name) {
    const state = states.get(name);
    if (block && state !== undefined) return { buffer: block.buffer, offset: state };
    const constant = this.constants.get(name);
    return constant ?? { buffer: /** @type {GPUBuffer} */ (this.arena), offset: /** @type {number} */ (offsets.get(name)) };
  }

  /** The place of a buffer, and its size at capacity. @param {Plan} plan @param {string} name @returns {GPUBufferBinding} */
  resource(plan, name) {
    const size = align(Math.max(plan.layout.sizes.get(name) ?? 0, 4), BINDING_MULTIPLE);
    const limit = this.buffers.device.limits.maxStorageBufferBindingSize;
    if (size > limit) throw new AdapterError(`buffer ${name} has ${size} bytes; this adapter binds at most ${limit} at once`);
    return { ...this.place(plan, name), size };
  }
}

/** True if buffers of these sizes have room in a layout. @param {Layout} layout @param {Map<string, number>} sizes */
function fits({ sizes: capacities }, sizes) {
  return capacities.size === sizes.size && [...sizes].every(([name, size]) => size <= (capacities.get(name) ?? -1));
}

/**
 * The capacity for symbols that no plan fits. A symbol that is larger than ever before gets room.
 * @param {Symbols} symbols
 * @param {Plan[]} plans
 * @returns {Symbols}
 */
function grown(symbols, plans) {
  const roomy = Object.entries(symbols).map(([name, value]) => {
    const largest = plans.reduce((most, { capacity }) => Math.max(most, capacity[name] ?? 0), 0);
    return [name, largest && value > largest ? Math.max(value, Math.ceil(largest * GROWTH)) : value];
  });
  return Object.fromEntries(roomy);
}

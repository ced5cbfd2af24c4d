// The states of a session on the devices of its model.

import { codeOf } from "./errors.js";
import { capacityOf, lengthOf, symbolsOf } from "./sizes.js";

/** @import { Model } from "./model.js" */
/** @import { Manifest, Port, States, Symbols, Transfers } from "./types.d.ts" */

let sessions = 0; // counts those of all models

/** States that have not begun. @param {number} capacity @returns {States} */
export function newStates(capacity) {
  return { id: ++sessions, capacity, length: 0, symbols: null };
}

/** The axis along which a past grows, or -1. @param {Port} past @param {Manifest} manifest */
export function axisOf({ shape }, manifest) {
  return lengthOf(manifest) ? shape.indexOf(lengthOf(manifest)) : -1;
}

/** The symbols of the shapes of states, but for the length. @param {Manifest} manifest @param {Symbols} symbols @returns {Symbols} */
export function stateSizes(manifest, symbols) {
  const [program] = Object.values(manifest.programs); // all programs have the same states
  const names = program.buffers.flatMap(({ kind, shape }) => (kind === "state" ? [...symbolsOf(shape, program.sizes)] : []));
  const sizes = names.filter((name) => name !== lengthOf(manifest) && name in symbols);
  return Object.fromEntries(sizes.map((name) => [name, symbols[name]]));
}

/** The bytes of the valid rows of each state of a session. @param {Model} model @param {States} states @returns {Promise<Transfers>} */
export function readStates(model, states) {
  return model.useExecutors(async (executors) => (await Promise.all(executors.map((executor) => executor.readStates(states)))).flat());
}

/**
 * Replace the states of a session. `states.length` is the new length, and `symbols` the sizes with which the session begins.
 * @param {Model} model
 * @param {Manifest} manifest
 * @param {States} states
 * @param {Transfers} rows
 * @param {Symbols} [symbols]
 */
export function writeStates(model, manifest, states, rows, symbols) {
  const sizes = { ...Object.fromEntries(manifest.symbols.map(({ name }) => [name, 1])), ...symbols };
  const planned = { ...sizes };
  if (lengthOf(manifest)) planned[lengthOf(manifest)] = states.capacity - model.rows(sizes);
  if (capacityOf(manifest)) planned[capacityOf(manifest)] = states.capacity;
  return model.useExecutors(async (executors) => {
    await Promise.all(executors.map((executor) => executor.writeStates(planned, states, rows)));
  });
}

/** Free the states of a session, after the runs before, unless its model is gone. @param {Model} model @param {States} states */
export async function releaseStates(model, states) {
  try {
    await model.useExecutors(async (executors) => {
      for (const executor of executors) executor.release(states);
    });
  } catch (error) {
    if (codeOf(error) !== "disposed") throw error;
  }
}

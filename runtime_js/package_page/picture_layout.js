// Tell which tensors are pictures, by their shapes.
//
//   [1, 3, 224, 224]   →  { height: 224, width: 224, channels: 3, isLast: false }

/** @typedef {{ height: number, width: number, channels: number, isLast: boolean }} Layout  sides of 0 are chosen by a run */

const CHANNELS = [1, 3, 4];
const LEAST_SIDE = 8; // of a picture; smaller ones are tables

/**
 * The layout of one picture; null for other tensors.
 * @param {{ shape: readonly any[] }} value
 * @returns {Layout | null}
 */
export function pictureLayout({ shape }) {
  if (shape.length === 4 && typeof shape[0] === "number" && shape[0] !== 1) return null;
  if (shape.length < 3 || shape.length > 4) return null;
  const [first, second, third] = shape.slice(-3);
  const side = (/** @type {any} */ size) => (typeof size === "number" ? size : 0);
  const isSide = (/** @type {any} */ size) => typeof size !== "number" || size >= LEAST_SIDE;
  if (CHANNELS.includes(first) && isSide(second) && isSide(third)) return { height: side(second), width: side(third), channels: first, isLast: false };
  if (CHANNELS.includes(third) && isSide(first) && isSide(second)) return { height: side(first), width: side(second), channels: third, isLast: true };
  return null;
}

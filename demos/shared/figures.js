// Figures of the demos: how they are computed, and how they are written.

/** @param {number} milliseconds */
export const showTime = (milliseconds) =>
  milliseconds < 10_000 ? `${milliseconds.toFixed(milliseconds < 10 ? 2 : 0)} ms` : `${(milliseconds / 1000).toFixed(1)} s`;

/** @param {number} bytes */
export const showBytes = (bytes) => (bytes < 1e6 ? `${Math.round(bytes / 1e3)} KB` : `${(bytes / 1e6).toFixed(1)} MB`);

/** @param {number[]} values */
export function median(values) {
  const sorted = [...values].sort((a, b) => a - b);
  return (sorted[(sorted.length - 1) >> 1] + sorted[sorted.length >> 1]) / 2;
}

/**
 * The largest difference between the outputs of two engines, relative to the largest value of each output.
 * @param {Record<string, ArrayLike<number | bigint>>} outputs
 * @param {Record<string, ArrayLike<number | bigint>>} references
 */
export function relativeDifference(outputs, references) {
  let worst = 0;
  for (const [name, values] of Object.entries(outputs)) {
    let scale = 0;
    let difference = 0;
    for (let i = 0; i < values.length; i++) {
      scale = Math.max(scale, Math.abs(Number(references[name][i])));
      const d = Math.abs(Number(values[i]) - Number(references[name][i]));
      if (!(d <= difference)) difference = d; // NaN counts as the largest difference
    }
    worst = Math.max(worst, difference / (scale || 1));
  }
  return worst;
}

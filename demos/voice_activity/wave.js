// Draw a waveform with its spans of speech, and the probability of speech as a line.

import { WINDOW } from "./speech.js";

/**
 * @param {HTMLCanvasElement} canvas
 * @param {{ samples: Float32Array, probabilities: number[], spans: { start: number, end: number }[], position: number }} sound
 *   `position` is the sample that is played, or -1
 */
export function drawWave(canvas, { samples, probabilities, spans, position }) {
  const context = canvas.getContext("2d");
  if (!context || !canvas.clientWidth) return;
  const width = Math.round(canvas.clientWidth * devicePixelRatio);
  const height = Math.round(canvas.clientHeight * devicePixelRatio);
  if (canvas.width !== width || canvas.height !== height) Object.assign(canvas, { width, height });
  const style = getComputedStyle(canvas);
  const colour = (/** @type {string} */ name) => style.getPropertyValue(name);
  context.clearRect(0, 0, width, height);
  const scale = width / samples.length;

  context.fillStyle = colour("--accent-soft");
  for (const { start, end } of spans) context.fillRect(start * scale, 0, (end - start) * scale, height);

  const loudest = samples.reduce((most, sample) => Math.max(most, Math.abs(sample)), 0.05);
  const column = Math.max(2, Math.round(3 * devicePixelRatio));
  let span = 0;
  for (let x = 0; x < width; x += column) {
    const from = Math.floor(x / scale);
    const to = Math.min(samples.length, Math.ceil((x + column) / scale));
    let peak = 0;
    for (let i = from; i < to; i++) peak = Math.max(peak, Math.abs(samples[i]));
    while (span < spans.length && spans[span].end < from) span++;
    context.fillStyle = colour(spans[span]?.start <= from ? "--accent" : "--soft");
    const bar = Math.max(1, (peak / loudest) * height * 0.84);
    context.fillRect(x, (height - bar) / 2, column * 0.66, bar);
  }

  context.strokeStyle = colour("--ink");
  context.lineWidth = devicePixelRatio;
  context.beginPath();
  probabilities.forEach((probability, index) => context.lineTo((index + 0.5) * WINDOW * scale, height * (0.98 - 0.96 * probability)));
  context.stroke();

  if (position >= 0) {
    context.fillStyle = colour("--ink");
    context.fillRect(position * scale, 0, 2 * devicePixelRatio, height);
  }
}

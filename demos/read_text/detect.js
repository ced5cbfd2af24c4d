// Pictures for the detector of PP-OCR, and its probabilities to rectangles around text.
//
// The twin of `DetPreProcess` and `DBPostProcess` of the Python package `rapidocr`. The method is that of Liao et al., "Real-time
// Scene Text Detection with Differentiable Binarization" (2019), section 3.4.

import { smallestRectangle } from "./geometry.js";

/** @typedef {import("./geometry.js").Rectangle} Rectangle */

const STEP = 32; // the detector halves the picture five times
const LONGEST = 960; // pixels of the longer side
const THRESHOLD = 0.3; // of a pixel of text
const BOX_THRESHOLD = 0.5; // of the mean in a rectangle
const GROWTH = 1.6; // the detector finds text without its border
const SMALLEST = 3; // pixels of the shorter side
const SAME_LINE = 10; // pixels between the upper edges of rectangles in one line

/**
 * The values of a canvas as the models of PP-OCR take them: blue, green and red planes, from -1 to 1.
 * @param {CanvasRenderingContext2D | OffscreenCanvasRenderingContext2D} context
 * @param {number} width  of the input; what the picture does not cover is 0
 */
export function pixelsOf(context, width = context.canvas.width) {
  const { data, width: used, height } = context.getImageData(0, 0, context.canvas.width, context.canvas.height);
  const planes = new Float32Array(3 * height * width);
  for (let y = 0; y < height; y++) {
    for (let x = 0; x < used; x++) {
      for (let channel = 0; channel < 3; channel++) {
        planes[((2 - channel) * height + y) * width + x] = data[4 * (y * used + x) + channel] / 127.5 - 1;
      }
    }
  }
  return { dtype: "float32", shape: [1, 3, height, width], data: planes };
}

/** The input of the detector. @param {ImageBitmap} picture */
export function detectorInput(picture) {
  const scale = Math.min(1, LONGEST / Math.max(picture.width, picture.height));
  const [width, height] = [picture.width, picture.height].map((size) => Math.max(STEP, Math.round((size * scale) / STEP) * STEP));
  const context = contextOf(width, height);
  context.drawImage(picture, 0, 0, width, height);
  return pixelsOf(context);
}

/** @param {number} width @param {number} height */
export function contextOf(width, height) {
  const context = new OffscreenCanvas(width, height).getContext("2d", { willReadFrequently: true });
  if (!context) throw new Error("this browser has no canvas");
  context.imageSmoothingQuality = "high";
  return context;
}

/**
 * The rectangles around text, in reading order, in the pixels of the probabilities.
 * @param {Float32Array} probabilities
 * @param {number} width
 * @param {number} height
 * @returns {Rectangle[]}
 */
export function findText(probabilities, width, height) {
  const visited = new Uint8Array(width * height);
  const rectangles = [];
  for (let start = 0; start < probabilities.length; start++) {
    if (visited[start] || probabilities[start] <= THRESHOLD) continue;
    const tight = smallestRectangle(edgeOf(probabilities, width, height, start, visited));
    if (Math.min(tight.width, tight.height) < SMALLEST || meanInside(probabilities, width, height, tight) < BOX_THRESHOLD) continue;
    const growth = (tight.width * tight.height * GROWTH) / (2 * (tight.width + tight.height)); // on each side
    rectangles.push({ ...tight, width: tight.width + 2 * growth, height: tight.height + 2 * growth });
  }
  return inReadingOrder(rectangles);
}

/** The pixels at the edge of a connected area of text, which becomes visited. */
function edgeOf(
  /** @type {Float32Array} */ probabilities,
  /** @type {number} */ width,
  /** @type {number} */ height,
  /** @type {number} */ start,
  /** @type {Uint8Array} */ visited,
) {
  const edge = [];
  const stack = [start];
  visited[start] = 1;
  for (let index = stack.pop(); index !== undefined; index = stack.pop()) {
    const [x, y] = [index % width, Math.floor(index / width)];
    let neighbours = 0;
    for (let dy = -1; dy <= 1; dy++) {
      for (let dx = -1; dx <= 1; dx++) {
        const next = index + dy * width + dx;
        if (x + dx < 0 || x + dx >= width || y + dy < 0 || y + dy >= height || probabilities[next] <= THRESHOLD) continue;
        neighbours++;
        if (!visited[next]) stack.push(next);
        visited[next] = 1;
      }
    }
    if (neighbours < 9) edge.push({ x, y });
  }
  return edge;
}

/** The mean probability inside a rectangle. */
function meanInside(
  /** @type {Float32Array} */ probabilities,
  /** @type {number} */ width,
  /** @type {number} */ height,
  /** @type {Rectangle} */ { x, y, along, width: w, height: h },
) {
  const reach = Math.hypot(w, h) / 2;
  let [sum, count] = [0, 0];
  for (let row = Math.max(0, Math.floor(y - reach)); row <= Math.min(height - 1, y + reach); row++) {
    for (let column = Math.max(0, Math.floor(x - reach)); column <= Math.min(width - 1, x + reach); column++) {
      const [dx, dy] = [column - x, row - y];
      if (Math.abs(dx * along.x + dy * along.y) > w / 2 || Math.abs(dy * along.x - dx * along.y) > h / 2) continue;
      sum += probabilities[row * width + column];
      count++;
    }
  }
  return count ? sum / count : 0;
}

/** From top to bottom, and in a line from left to right. @param {Rectangle[]} rectangles */
function inReadingOrder(rectangles) {
  const top = (/** @type {Rectangle} */ r) => r.y - r.height / 2;
  const sorted = [...rectangles].sort((a, b) => top(a) - top(b));
  let line = 0;
  const lines = sorted.map((rectangle, index) => (index && top(rectangle) - top(sorted[index - 1]) >= SAME_LINE ? ++line : line));
  const order = [...sorted.keys()].sort((a, b) => lines[a] - lines[b] || sorted[a].x - sorted[b].x);
  return order.map((index) => sorted[index]);
}

// Turn a drawing into an image like those that the model was trained on.
//
//   in:  strokes, each a list of points { x, y } in any unit
//   out: 64 intensities from 0 to 16, row by row: an 8×8 image of the drawing
//
//   imageOfStrokes([[{ x: 10, y: 0 }, { x: 10, y: 90 }]])   // a "1"
//
// The training images are 32×32 bitmaps whose pixels were counted in blocks of 4×4. Their digits are as high
// as the image, about two thirds as wide, and centred. All digits have about the same amount of ink. The
// strokes are therefore fitted to that box, and drawn with the thickness that gives this amount of ink.

/** @typedef {{ x: number, y: number }} Point */

export const SIDE = 8;
const BLOCK = 4;
const BITMAP = SIDE * BLOCK;
const BOX = { width: 20, height: 32 };
const INK = 312; // black pixels, the mean of the training images: 19.5 blocks of 16
const THICKNESS = { thinnest: 3, thickest: 9.5 };
const MAX_DISTORTION = 2; // the ratio of the two scales, at most

/**
 * @param {Point[][]} strokes
 * @returns {Float32Array} 64 intensities, all zero where nothing is drawn
 */
export function imageOfStrokes(strokes) {
  const drawn = strokes.filter((stroke) => stroke.length > 0);
  if (drawn.length === 0) return new Float32Array(SIDE * SIDE);
  let thickness = 5;
  let bitmap = render(fit(drawn, thickness), thickness);
  // Thicker lines shrink the path and overlap, so the thickness is found by iteration.
  for (let round = 0; round < 4; round++) {
    const { thinnest, thickest } = THICKNESS;
    thickness = Math.min(thickest, Math.max(thinnest, (thickness * INK) / total(bitmap)));
    bitmap = render(fit(drawn, thickness), thickness);
  }
  return countBlocks(bitmap);
}

/** Scale and centre the strokes so that lines of this thickness just fill the box. */
function fit(/** @type {Point[][]} */ strokes, /** @type {number} */ thickness) {
  const points = strokes.flat();
  const [left, right] = extent(points.map((p) => p.x));
  const [top, bottom] = extent(points.map((p) => p.y));
  const wide = (BOX.width - thickness) / Math.max(right - left, 1e-9);
  const high = (BOX.height - thickness) / Math.max(bottom - top, 1e-9);
  const scaleX = Math.min(wide, high * MAX_DISTORTION);
  const scaleY = Math.min(high, wide * MAX_DISTORTION);
  const place = (/** @type {Point} */ { x, y }) => ({
    x: BITMAP / 2 + (x - (left + right) / 2) * scaleX,
    y: BITMAP / 2 + (y - (top + bottom) / 2) * scaleY,
  });
  return strokes.map((stroke) => stroke.map(place));
}

/** The share of every pixel that round lines along the strokes cover, from 0 to 1. */
function render(/** @type {Point[][]} */ strokes, /** @type {number} */ thickness) {
  const bitmap = new Float32Array(BITMAP * BITMAP);
  const reach = thickness / 2 + 0.5;
  for (const stroke of strokes) {
    for (let i = 0; i < stroke.length; i++) {
      const from = stroke[Math.max(0, i - 1)];
      const to = stroke[i];
      const [firstRow, lastRow] = pixels(from.y, to.y, reach);
      const [firstColumn, lastColumn] = pixels(from.x, to.x, reach);
      for (let row = firstRow; row <= lastRow; row++) {
        for (let column = firstColumn; column <= lastColumn; column++) {
          const coverage = reach - distance(column + 0.5, row + 0.5, from, to);
          const index = row * BITMAP + column;
          bitmap[index] = Math.max(bitmap[index], Math.min(1, coverage));
        }
      }
    }
  }
  return bitmap;
}

/** The first and the last pixel that a line between two coordinates can touch. */
function pixels(/** @type {number} */ a, /** @type {number} */ b, /** @type {number} */ reach) {
  const first = Math.max(0, Math.floor(Math.min(a, b) - reach));
  const last = Math.min(BITMAP - 1, Math.ceil(Math.max(a, b) + reach));
  return [first, last];
}

/** The distance of a point from the segment between two other points. */
function distance(
  /** @type {number} */ x,
  /** @type {number} */ y,
  /** @type {Point} */ from,
  /** @type {Point} */ to,
) {
  const dx = to.x - from.x;
  const dy = to.y - from.y;
  const squared = dx * dx + dy * dy;
  const along = squared && ((x - from.x) * dx + (y - from.y) * dy) / squared;
  const t = Math.min(1, Math.max(0, along));
  return Math.hypot(x - from.x - t * dx, y - from.y - t * dy);
}

function countBlocks(/** @type {Float32Array} */ bitmap) {
  const image = new Float32Array(SIDE * SIDE);
  for (let row = 0; row < BITMAP; row++) {
    for (let column = 0; column < BITMAP; column++) {
      const block = Math.floor(row / BLOCK) * SIDE + Math.floor(column / BLOCK);
      image[block] += bitmap[row * BITMAP + column];
    }
  }
  return image.map(Math.round);
}

function extent(/** @type {number[]} */ values) {
  return [Math.min(...values), Math.max(...values)];
}

function total(/** @type {Float32Array} */ values) {
  return values.reduce((sum, value) => sum + value, 0);
}

// A line of text for the recogniser of PP-OCR.
//
// The twin of `resize_norm_img` of the Python package `rapidocr`. The package of the recogniser decodes the text (`build.py`).

import { contextOf, pixelsOf } from "./detect.js";

const HEIGHT = 48; // pixels of a line
const NARROWEST = 320; // pixels of an input
const WIDTH_STEP = 64; // inputs of few widths share a memory plan
const VERTICAL = 1.5; // higher than wide by this: the text is turned

/**
 * Cut a rectangle out of a picture, and turn it upright.
 * @param {ImageBitmap} picture
 * @param {import("./geometry.js").Rectangle} rectangle  in the pixels of the picture
 */
export function recogniserInput(picture, { x, y, along, width, height }) {
  const isVertical = height > VERTICAL * width;
  const [w, h] = isVertical ? [height, width] : [width, height];
  const scale = HEIGHT / h;
  const used = Math.max(1, Math.ceil(w * scale));
  const context = contextOf(used, HEIGHT);
  context.translate(used / 2, HEIGHT / 2);
  context.scale(scale, scale);
  context.rotate(-Math.atan2(along.y, along.x) - (isVertical ? Math.PI / 2 : 0));
  context.drawImage(picture, -x, -y);
  return pixelsOf(context, Math.max(NARROWEST, Math.ceil(used / WIDTH_STEP) * WIDTH_STEP));
}

/** @typedef {import("../../runtime_js/typed/typed.d.ts").Transcript} Transcript */

/**
 * The scores of a text's characters, by the package and by the original, which returns the best class of each step and its score.
 * @param {{ text: Transcript }} outputs
 * @param {Record<string, ArrayLike<number | bigint>>} original
 */
export function characterScores({ text: { tokens } }, original) {
  const score = Float32Array.from(tokens, (token) => token.score);
  return [{ score }, { score: Float32Array.from(tokens, ({ frames: [first] }) => Number(original.score[first])) }];
}

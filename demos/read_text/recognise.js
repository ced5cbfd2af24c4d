// A line of text for the recogniser of PP-OCR, and its steps to characters.
//
// The twin of `resize_norm_img` and `CTCLabelDecode` of the Python package `rapidocr`. The package returns the best class of each
// step, and its score, because the largest output of the model would take longer to copy.

import { contextOf, pixelsOf } from "./detect.js";

const HEIGHT = 48; // pixels of a line
const NARROWEST = 320; // pixels of an input
const WIDTH_STEP = 64; // inputs of few widths share a memory plan
const VERTICAL = 1.5; // higher than wide by this: the text is turned
const BLANK = 0; // the class between characters

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

/**
 * The text, without blanks and repetitions, and the mean score of its characters.
 * @param {ArrayLike<number | bigint>} classes
 * @param {ArrayLike<number | bigint>} scores
 * @param {string[]} characters
 */
export function decode(classes, scores, characters) {
  let text = "";
  const used = [];
  for (let step = 0; step < classes.length; step++) {
    const index = Number(classes[step]);
    if (index === BLANK || (step && classes[step] === classes[step - 1])) continue;
    text += characters[index];
    used.push(Number(scores[step]));
  }
  return { text, score: used.length ? used.reduce((sum, score) => sum + score, 0) / used.length : 0 };
}

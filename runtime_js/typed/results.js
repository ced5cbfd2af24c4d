// Turn the tensors of a typed output into what pages show.
//
//   in:  the tensors of an output of classes, boxes, a text or a mask
//   out: a list:  [{ label: "cat", score: 0.9 }, ...]. Boxes also have their sides in pixels of the picture.
//        A text:  { text: "cat", score: 0.9, tokens: [...] }
//        A mask:  ImageData, or { width, height, data } with a byte for each pixel

/** @import { LabelledBox, LabelledScore, Transcript } from "./typed.d.ts" */
/** @import { Tensor } from "../webmlc.js" */

/** The functions that read outputs, by kind. @type {Record<string, (tensors: Tensor[], labels: string[] | undefined) => object>} */
export const RESULTS = { classes: readClasses, boxes: readBoxes, mask: readMask, text: readTexts };

/** The label of a class. @param {string[] | undefined} labels @param {number} index */
const labelOf = (labels, index) => labels?.[index] ?? `LABEL_${index}`;

/**
 * The objects of an output of boxes, the likeliest first.
 * @param {Tensor[]} tensors  the boxes, their scores and their classes
 * @param {string[] | undefined} labels
 * @returns {LabelledBox[]}
 */
function readBoxes([boxes, scores, classes], labels) {
  const objects = Array.from(/** @type {Float32Array} */ (scores.data), (score, i) => {
    const [xmin, ymin, xmax, ymax] = Array.from(boxes.data.subarray(4 * i, 4 * i + 4), Number);
    const index = Number(classes.data[i]);
    return { score, label: labelOf(labels, index), box: { xmin, ymin, xmax, ymax } };
  });
  return objects.sort((a, b) => b.score - a.score);
}

/**
 * The labels with scores of an output of classes: a list, or a list for each element of a batch.
 * @param {Tensor[]} tensors  the scores, and the classes if they are ranked
 * @param {string[] | undefined} labels
 * @returns {LabelledScore[] | LabelledScore[][]}
 */
function readClasses([scores, classes], labels) {
  const count = scores.shape.at(-1) ?? 1;
  /** @type {LabelledScore[][]} */
  const lists = [];
  for (let begin = 0; begin < scores.data.length; begin += count) {
    const items = Array.from({ length: count }, (_, i) => {
      const index = classes ? Number(classes.data[begin + i]) : i;
      return { label: labelOf(labels, index), score: Number(scores.data[begin + i]) };
    });
    lists.push(items);
  }
  return lists.length === 1 ? lists[0] : lists;
}

/**
 * The text of an output of tokens: one, or one for each element of a batch. Its score is the mean of its tokens' scores.
 * @param {Tensor[]} tensors  the tokens, which end with -1; the first and the last time step of each; and the scores
 * @param {string[] | undefined} labels
 * @returns {Transcript | Transcript[]}
 */
function readTexts([{ shape, data }, frames, scores], labels) {
  const [rows, time] = shape;
  const texts = Array.from({ length: rows }, (_, row) => {
    /** @type {Transcript["tokens"]} */
    const tokens = [];
    for (let i = row * time; i < (row + 1) * time && Number(data[i]) >= 0; i++) {
      const [start, end] = [Number(frames.data[2 * i]), Number(frames.data[2 * i + 1])];
      tokens.push({ label: labelOf(labels, Number(data[i])), score: Number(scores.data[i]), frames: [start, end] });
    }
    const total = tokens.reduce((sum, { score }) => sum + score, 0);
    return { text: tokens.map(({ label }) => label).join(""), score: total / Math.max(tokens.length, 1), tokens };
  });
  return rows === 1 ? texts[0] : texts;
}

/**
 * The opacity of a picture's pixels; or the pixels, as ImageData where the host has it.
 * @param {Tensor[]} tensors  uint8 [height, width] or [height, width, 4]
 */
function readMask([{ shape, data }]) {
  const [height, width, channels] = shape;
  const bytes = new Uint8ClampedArray(/** @type {ArrayBuffer} */ (data.buffer), data.byteOffset, data.length);
  return channels && globalThis.ImageData ? new ImageData(bytes, width, height) : { width, height, data: bytes };
}

// Turn the tensors of a typed output into what pages show.
//
//   in:  the tensors of an output of classes or boxes
//   out: a list:  [{ label: "cat", score: 0.9 }, ...]
//        Boxes also have their sides in pixels of the picture.

/** @typedef {import("./typed.d.ts").LabelledBox} LabelledBox */
/** @typedef {import("./typed.d.ts").LabelledScore} LabelledScore */
/** @typedef {import("../webmlc.js").Tensor} Tensor */

/** The functions that read outputs, by kind. @type {Record<string, (tensors: Tensor[], labels: string[] | undefined) => object[]>} */
export const RESULTS = { classes: readClasses, boxes: readBoxes };

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
    return { score, label: labels?.[index] ?? `LABEL_${index}`, box: { xmin, ymin, xmax, ymax } };
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
      return { label: labels?.[index] ?? `LABEL_${index}`, score: Number(scores.data[begin + i]) };
    });
    lists.push(items);
  }
  return lists.length === 1 ? lists[0] : lists;
}

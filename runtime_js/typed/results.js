// Turn the tensors of a typed output into what pages show.
//
//   in:  the outputs of a run, by name; the kind of a typed output
//   out: the same outputs, with the typed one in place of its tensors:  logits: [{ label: "cat", score: 0.9 }, ...]
//        Boxes also have their sides in pixels of the picture.

/** @typedef {import("./typed.d.ts").Kind} Kind */
/** @typedef {import("./typed.d.ts").LabelledBox} LabelledBox */
/** @typedef {import("./typed.d.ts").LabelledScore} LabelledScore */
/** @typedef {import("../webmlc.js").Tensor} Tensor */

/** The functions that read outputs, by kind. @type {Record<string, typeof readClasses>} */
export const RESULTS = { classes: readClasses, boxes: readBoxes };

/**
 * Replace the tensors of an output of boxes by its objects, the likeliest first.
 * @param {Record<string, any>} outputs
 * @param {string} name
 * @param {Kind} kind
 * @param {string[] | undefined} labels
 */
function readBoxes(outputs, name, { values = [] }, labels) {
  const [boxes, scores, classes] = values.map((value) => /** @type {Tensor} */ (outputs[value]));
  for (const value of values) delete outputs[value];
  /** @type {LabelledBox[]} */
  const objects = Array.from(/** @type {Float32Array} */ (scores.data), (score, i) => {
    const [xmin, ymin, xmax, ymax] = Array.from(boxes.data.subarray(4 * i, 4 * i + 4), Number);
    const index = Number(classes.data[i]);
    return { score, label: labels?.[index] ?? `LABEL_${index}`, box: { xmin, ymin, xmax, ymax } };
  });
  outputs[name] = objects.sort((a, b) => b.score - a.score);
}

/**
 * Replace the tensors of an output of classes by its labels with scores: a list, or a list for each element of a batch.
 * @param {Record<string, any>} outputs
 * @param {string} name
 * @param {Kind} kind
 * @param {string[] | undefined} labels
 */
function readClasses(outputs, name, { values = [] }, labels) {
  const [scores, classes] = values.map((value) => /** @type {Tensor} */ (outputs[value]));
  for (const value of values) delete outputs[value];
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
  outputs[name] = lists.length === 1 ? lists[0] : lists;
}

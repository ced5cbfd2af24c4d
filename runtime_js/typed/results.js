// Turn the tensors of a typed output into what pages show.
//
//   in:  the outputs of a run, by name; the kind of a typed output
//   out: the same outputs, with the typed one in place of its tensors:  logits: [{ label: "cat", score: 0.9 }, ...]

/** @typedef {import("./typed.js").Kind} Kind */
/** @typedef {import("./typed.js").LabelledScore} LabelledScore */
/** @typedef {import("../webmlc.js").Tensor} Tensor */

/**
 * Replace the tensors of an output of classes by its labels with scores: a list, or a list for each element of a batch.
 * @param {Record<string, any>} outputs
 * @param {string} name
 * @param {Kind} kind
 * @param {string[] | undefined} labels
 */
export function readResults(outputs, name, { values = [] }, labels) {
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

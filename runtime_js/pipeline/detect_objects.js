// object-detection: pictures in, objects with their boxes out.

import { PackageError } from "../errors.js";
import { pictureInput, readImage } from "./classify_images.js";
import { warnOfOthers } from "./pipeline_options.js";

/** @import { LabelledBox } from "../typed/typed.d.ts" */

const DEFAULT_THRESHOLD = 0.9;

/** @param {any} model */
export async function objectDetection(model) {
  const input = pictureInput(model);
  const [output] = Object.entries(model.typed).find(([, { kind }]) => kind === "boxes") ?? [];
  if (output === undefined) {
    throw new PackageError(`${model.name} returns no boxes: build it with --output ${model.outputs[0].name}:boxes=cxcywh,labels=labels.txt`);
  }
  /** @param {any} images  one, or an array of them @param {{ threshold?: number, percentage?: boolean }} [options] */
  return async (images, options = {}) => {
    warnOfOthers("object-detection", options, ["threshold", "percentage"]);
    const { threshold = DEFAULT_THRESHOLD, percentage = false } = options;
    /** @type {LabelledBox[][]} */
    const results = [];
    for (const image of Array.isArray(images) ? images : [images]) {
      const picture = /** @type {any} */ (await readImage(image));
      const [height, width] = percentage ? sizeOf(picture) : [1, 1];
      /** @type {LabelledBox[]} */
      const objects = (await model.run({ [input]: picture }))[output];
      const likely = objects.filter(({ score }) => score >= threshold);
      results.push(
        likely.map(({ box: { xmin, ymin, xmax, ymax }, ...object }) => {
          const box = { xmin: xmin / width, ymin: ymin / height, xmax: xmax / width, ymax: ymax / height };
          return { ...object, box };
        }),
      );
    }
    return Array.isArray(images) ? results : results[0];
  };
}

/** The height and width of a picture. @param {any} picture @returns {number[]} */
function sizeOf({ shape, naturalHeight, naturalWidth, videoHeight, videoWidth, displayHeight, displayWidth, height, width }) {
  if (shape) return shape.slice(0, 2);
  return [naturalHeight ?? videoHeight ?? displayHeight ?? height, naturalWidth ?? videoWidth ?? displayWidth ?? width];
}

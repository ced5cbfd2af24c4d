// image-classification: pictures in, labels with scores out.

import { InputError, PackageError } from "../errors.js";
import { warnOfOthers } from "./pipeline_options.js";
import { contentsOf } from "./read_contents.js";

/** @import { LabelledScore, PixelSource } from "../typed/typed.d.ts" */

const DEFAULT_TOP_K = 5;

/** @param {any} model */
export async function imageClassification(model) {
  const input = pictureInput(model);
  const [output] = Object.entries(model.typed).find(([, { kind }]) => kind === "classes") ?? [];
  if (output === undefined) {
    throw new PackageError(`${model.name} returns no labels: build it with --output ${model.outputs[0].name}:topk=5,labels=labels.txt`);
  }
  /** @param {any} images  one, or an array of them @param {{ top_k?: number }} [options] */
  return async (images, options = {}) => {
    warnOfOthers("image-classification", options, ["top_k"]);
    const { top_k: count = DEFAULT_TOP_K } = options;
    /** @type {LabelledScore[][]} */
    const results = [];
    for (const image of Array.isArray(images) ? images : [images]) {
      const outputs = await model.run({ [input]: await readImage(image) });
      results.push(best(outputs[output], count));
    }
    return Array.isArray(images) ? results : results[0];
  };
}

/** @param {LabelledScore[]} items @param {number | null} count */
function best(items, count) {
  const sorted = [...items].sort((a, b) => b.score - a.score);
  return count === null ? sorted : sorted.slice(0, count);
}

/** The name of the input of pixels. Throws PackageError if there is none, or if there are other inputs. @param {any} model */
export function pictureInput(model) {
  const names = model.inputs.map((/** @type {{ name: string }} */ { name }) => name);
  const plainInputs = names.filter((/** @type {string} */ name) => model.typed[name]?.kind !== "pixels");
  if (names.length === 1 && !plainInputs.length) return names[0];
  throw new PackageError(
    names.length === 1
      ? `${model.name} takes no pictures: build it with --input ${names[0]}:pixels=rgb`
      : `${model.name} has more inputs than a picture (${names.join(", ")}): build the others in with --constant`,
  );
}

/**
 * A picture that models take: an address, a Blob, a Response, a RawImage of transformers.js, or a picture already.
 * @param {any} image
 * @returns {Promise<PixelSource>}
 */
export async function readImage(image) {
  const file = await contentsOf(image);
  if (file) {
    if (!globalThis.createImageBitmap) throw new InputError("this host decodes no pictures: pass { width, height, data } of RGBA bytes");
    return createImageBitmap(file);
  }
  return image?.channels && image.channels !== 4 ? withFourChannels(image) : image;
}

/** A RawImage of one or three channels as RGBA. @param {{ width: number, height: number, channels: number, data: Uint8Array }} image */
function withFourChannels({ width, height, channels, data }) {
  if (![1, 3].includes(channels)) throw new InputError(`a picture of ${channels} channels: there are 1, 3 or 4`);
  const pixels = new Uint8Array(4 * width * height).fill(255);
  for (let pixel = 0; pixel < width * height; pixel++) {
    for (let c = 0; c < 3; c++) pixels[4 * pixel + c] = data[channels * pixel + (channels === 1 ? 0 : c)];
  }
  return { width, height, data: pixels };
}

// Pictures as tensors of their pixels, and back, with the options of ONNX Runtime Web.
//
//   (value + bias) / mean  of each channel of a picture;  (value - bias) * mean  of each channel of a tensor

import { InputError } from "../errors.js";
import { kindOf } from "../kinds.js";
import { contentsOf } from "../pipeline/read_contents.js";
import { readPixels } from "../typed/pixels.js";

/** @import { ImageOptions } from "./onnxruntime.js" */
/** @typedef {{ type: string, data: Float32Array | Uint8Array, dims: number[] }} Parts */

const CHANNELS = 4; // of pixels
const WHITE = 255;

/** The tensor of a picture, or of the picture at an address. @param {any} image @param {ImageOptions} [options] @returns {Promise<Parts>} */
export async function tensorOfImage(image, options = {}) {
  const file = await contentsOf(image);
  if (file && !globalThis.createImageBitmap) throw new InputError("this host decodes no pictures: pass { width, height, data } of RGBA bytes");
  const picture = file ? await createImageBitmap(file) : image;
  const { resizedWidth, resizedHeight, tensorLayout = "NCHW", dataType = "float32" } = options;
  const resized = resizedWidth && resizedHeight ? await createImageBitmap(picture, { resizeWidth: resizedWidth, resizeHeight: resizedHeight }) : picture;
  const { shape, data } = readPixels("image", resized);
  const [height, width] = shape;
  const pixels = /** @type {Uint8Array} */ (data);
  // An image element gives four channels, as in ONNX Runtime Web.
  const format = channelsOf(options.tensorFormat ?? (kindOf(image) === "HTMLImageElement" ? "RGBA" : "RGB"));
  const [mean, bias] = normalisation(options, dataType === "uint8" ? 1 : WHITE);
  const result = new (dataType === "uint8" ? Uint8Array : Float32Array)(format.length * width * height);
  const place = placesIn(tensorLayout, format.length, width * height);
  for (const [c, channel] of format.entries()) {
    for (let i = 0; i < width * height; i++) result[place(c, i)] = (pixels[CHANNELS * i + channel] + bias[c]) / mean[c];
  }
  const dims = tensorLayout === "NHWC" ? [1, height, width, format.length] : [1, format.length, height, width];
  return { type: dataType, data: result, dims };
}

/** The pixels of a tensor. @param {{ dims: readonly number[], data: any }} tensor @param {ImageOptions} [options] @returns {ImageData} */
export function toImageData({ dims, data }, options = {}) {
  const { tensorLayout = "NCHW" } = options;
  const sizes = dims.length === 3 ? [1, ...dims] : dims;
  const [count, channels, height, width] = tensorLayout === "NHWC" ? [sizes[0], sizes[3], sizes[1], sizes[2]] : sizes;
  const format = channelsOf(options.format ?? "RGB");
  if (sizes.length !== 4 || count !== 1 || ![1, format.length].includes(channels)) {
    throw new InputError(`a tensor of shape [${dims}] is no picture of ${format.length} channels in the layout ${tensorLayout}`);
  }
  if (!globalThis.ImageData) throw new InputError("this host has no ImageData");
  const [mean, bias] = normalisation(options, WHITE);
  const pixels = new Uint8ClampedArray(CHANNELS * width * height).fill(WHITE);
  const place = placesIn(tensorLayout, channels, width * height);
  for (const [c, channel] of format.entries()) {
    for (let i = 0; i < width * height; i++) pixels[CHANNELS * i + channel] = (Number(data[place(channels === 1 ? 0 : c, i)]) - bias[c]) * mean[c];
  }
  return new ImageData(pixels, width, height);
}

/** The channels of pixels, which are RGBA, in the order of a format. @param {string} format */
function channelsOf(format) {
  if (!["RGB", "RGBA", "BGR", "RBG"].includes(format)) throw new InputError(`the format ${format} is none of RGB, RGBA, BGR, RBG`);
  return [...format].map((letter) => "RGBA".indexOf(letter));
}

/** The mean and the bias of each channel. @param {ImageOptions} options @param {number} usualMean @returns {number[][]} */
function normalisation({ norm = {} }, usualMean) {
  const { mean = usualMean, bias = 0 } = norm;
  const each = (/** @type {number | readonly number[]} */ value, /** @type {number} */ usual) => {
    return typeof value === "number" ? Array(CHANNELS).fill(value) : [0, 1, 2, 3].map((c) => value[c] ?? usual);
  };
  return [each(mean, usualMean), each(bias, 0)];
}

/** The place of a channel of a pixel in a tensor. @param {string} layout @param {number} channels @param {number} pixels */
function placesIn(layout, channels, pixels) {
  if (layout === "NHWC") return (/** @type {number} */ c, /** @type {number} */ i) => channels * i + c;
  return (/** @type {number} */ c, /** @type {number} */ i) => c * pixels + i;
}

// Read the pixels of a picture.
//
//   in:  ImageData, a tensor, or what a canvas draws: an ImageBitmap, VideoFrame, canvas, image or video element
//   out: a tensor uint8 [height, width, 4], which is RGBA

import { InputError } from "../errors.js";

/** @import { PixelSource } from "./typed.d.ts" */
/** @import { Tensor } from "../webmlc.js" */

const CHANNELS = 4;

/** The canvas that draws pictures, and its context. @type {{ canvas: any, context: any } | undefined} */
let drawing;

/**
 * Read the pixels of a picture. Throws InputError if it has none, or if the page may not read them.
 * @param {string} name  of the input
 * @param {PixelSource} source
 * @returns {Tensor}
 */
export function readPixels(name, source) {
  const picture = /** @type {any} */ (source);
  if (picture?.dtype) return picture;
  const [width, height] = sizeOf(picture);
  if (!(width > 0 && height > 0)) {
    throw new InputError(
      `input "${name}" takes a picture: ImageData, an ImageBitmap, VideoFrame, canvas, or an image or video that is loaded`,
    );
  }
  const data = picture.data ?? draw(name, picture, width, height);
  if (data.length !== CHANNELS * width * height || data.BYTES_PER_ELEMENT !== 1) {
    throw new InputError(`input "${name}" has ${data.length} numbers, expected ${width} × ${height} pixels of ${CHANNELS} bytes, RGBA`);
  }
  return { dtype: "uint8", shape: [height, width, CHANNELS], data: new Uint8Array(data.buffer, data.byteOffset, data.length) };
}

/** The width and height of a picture in pixels. @param {any} picture @returns {[number, number]} */
export function sizeOf(picture) {
  if (!picture) return [0, 0];
  const pairs = [
    [picture.naturalWidth, picture.naturalHeight], // an <img>
    [picture.videoWidth, picture.videoHeight],
    [picture.displayWidth, picture.displayHeight], // a VideoFrame
    [picture.width, picture.height],
  ];
  const [width, height] = pairs.find(([width]) => width !== undefined) ?? [0, 0];
  return [Number(width), Number(height)];
}

/** @param {string} name @param {any} picture @param {number} width @param {number} height @returns {Uint8ClampedArray} */
function draw(name, picture, width, height) {
  try {
    drawing ??= openDrawing();
    const { canvas, context } = drawing;
    if (canvas.width !== width || canvas.height !== height) Object.assign(canvas, { width, height });
    else context.clearRect(0, 0, width, height);
    context.drawImage(picture, 0, 0, width, height);
    return context.getImageData(0, 0, width, height).data;
  } catch (error) {
    const { message } = /** @type {Error} */ (error);
    drawing = undefined; // a canvas that a foreign picture tainted stays so
    throw new InputError(`input "${name}": the pixels cannot be read (${message})`);
  }
}

/** A canvas that is drawn on by the CPU, so that reading it is fast. */
function openDrawing() {
  const canvas = globalThis.OffscreenCanvas ? new OffscreenCanvas(1, 1) : document.createElement("canvas");
  return { canvas, context: canvas.getContext("2d", { willReadFrequently: true }) };
}

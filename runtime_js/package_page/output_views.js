// Show the outputs of a model.
//
//   in:  an output: a tensor, or what the runtime makes of a typed one (labels with scores, a text, a mask)
//   out: an element: bars for scores, a picture, a text, or a table

import { create } from "../page.js";
import { pictureLayout } from "./picture_layout.js";

/** @import { Tensor } from "../webmlc.js" */

const MOST_BARS = 10;
const MOST_CELLS = 12; // rows, and columns, of a table
const SMALL_SIDE = 96; // pixels a side up to which a picture is shown larger

/**
 * The view of an output.
 * @param {string} name
 * @param {any} value
 * @param {string} [kind]  that of a typed output
 */
export function outputView(name, value, kind) {
  const figure = create("figure");
  figure.className = "value";
  const caption = create("figcaption");
  caption.append(create("strong", name), " ", create("code", value.dtype ? `${value.dtype}[${value.shape.join(", ")}]` : (kind ?? "")));
  figure.append(caption, value.dtype ? tensorView(name, value) : typedView(name, value, kind));
  return figure;
}

/** @param {string} name @param {any} value @param {string} [kind] */
function typedView(name, value, kind) {
  if (value.width) return pictureView(name, value.width, value.height, pixelsOf(value));
  if (kind !== "text") return bars([value].flat(2).map(({ label, score }) => ({ label, share: score, text: `${(100 * score).toFixed(1)} %` })));
  const texts = [value].flat().map(({ text }) => Object.assign(create("p", text), { className: "text" }));
  const list = create("div");
  list.append(...texts);
  return list;
}

/** The pixels of a picture, or of a mask in gray. @param {{ width: number, height: number, data: Uint8ClampedArray }} mask */
function pixelsOf({ width, height, data }) {
  const isOpacity = data.length === width * height;
  return isOpacity ? Uint8ClampedArray.from({ length: 4 * data.length }, (_, i) => (i % 4 === 3 ? 255 : data[i >> 2])) : new Uint8ClampedArray(data);
}

/** @param {string} name @param {Tensor} tensor */
function tensorView(name, tensor) {
  const data = /** @type {ArrayLike<any>} */ (/** @type {any} */ (tensor.data));
  const layout = pictureLayout(tensor);
  if (layout?.width && layout.height) return pictureView(name, layout.width, layout.height, pixelsOfTensor(data, layout));
  const sizes = tensor.shape.filter((size) => size !== 1);
  if (sizes.length === 0 && data.length) return Object.assign(create("p", numberText(data[0])), { className: "text" });
  if (sizes.length === 1 && /^(float32|float64)$/.test(tensor.dtype)) return bars(largest(data));
  return table(data, sizes.at(-1) ?? 1);
}

/**
 * The pixels of a tensor: its least value is black, and its largest white.
 * @param {ArrayLike<any>} data
 * @param {import("./picture_layout.js").Layout} layout
 */
function pixelsOfTensor(data, { width, height, channels, isLast }) {
  const values = Array.from(data, Number);
  const [least, most] = values.reduce(([low, high], value) => [Math.min(low, value), Math.max(high, value)], [Infinity, -Infinity]);
  const scale = 255 / (most - least || 1);
  return Uint8ClampedArray.from({ length: 4 * width * height }, (_, i) => {
    const [pixel, channel] = [i >> 2, i & 3];
    if (channel === 3) return 255;
    const source = channels === 1 ? 0 : channel;
    return (values[isLast ? channels * pixel + source : width * height * source + pixel] - least) * scale;
  });
}

/** @param {string} name @param {number} width @param {number} height @param {Uint8ClampedArray} pixels */
function pictureView(name, width, height, pixels) {
  const canvas = /** @type {HTMLCanvasElement} */ (Object.assign(create("canvas"), { width, height }));
  canvas.getContext("2d")?.putImageData(new ImageData(new Uint8ClampedArray(pixels), width, height), 0, 0);
  canvas.setAttribute("role", "img");
  canvas.setAttribute("aria-label", name);
  canvas.classList.toggle("small", Math.max(width, height) <= SMALL_SIDE);
  return canvas;
}

/** The largest elements of a vector, with their places. @param {ArrayLike<any>} data */
function largest(data) {
  const values = Array.from(data, Number);
  const order = [...values.keys()].sort((a, b) => values[b] - values[a]).slice(0, MOST_BARS);
  const [least, most] = [Math.min(0, values[order.at(-1) ?? 0]), values[order[0]]];
  const share = (/** @type {number} */ value) => (value - least) / (most - least || 1);
  return order.map((i) => ({ label: String(i), share: share(values[i]), text: numberText(values[i]) }));
}

/** A list of bars. @param {{ label: string, share: number, text: string }[]} rows  shares from 0 to 1 */
function bars(rows) {
  const list = create("ul");
  list.className = "bars";
  for (const { label, share, text } of rows) {
    const li = create("li");
    const bar = Object.assign(create("progress"), { max: 1, value: Number.isFinite(share) ? share : 0 });
    bar.setAttribute("aria-label", label);
    li.append(create("span", label), " ", create("span", text), bar);
    list.append(li);
  }
  return list;
}

/** The first rows and columns of a tensor. @param {ArrayLike<any>} data @param {number} columns */
function table(data, columns) {
  const rows = columns ? data.length / columns : 0;
  const node = create("table");
  const body = create("tbody");
  for (let row = 0; row < Math.min(rows, MOST_CELLS); row++) {
    const line = create("tr");
    if (rows > 1) line.append(create("th", String(row)));
    for (let column = 0; column < Math.min(columns, MOST_CELLS); column++) line.append(create("td", numberText(data[row * columns + column])));
    if (columns > MOST_CELLS) line.append(create("td", "…"));
    body.append(line);
  }
  node.append(body);
  const frame = create("div");
  frame.className = "scroll";
  frame.tabIndex = 0;
  frame.append(node);
  if (rows > MOST_CELLS) frame.append(Object.assign(create("p", `and ${rows - MOST_CELLS} rows more`), { className: "soft" }));
  return frame;
}

/** @param {any} value */
const numberText = (value) => (["bigint", "string"].includes(typeof value) || Number.isInteger(value) ? String(value) : Number(value).toPrecision(4));

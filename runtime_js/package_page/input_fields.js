// Fields in which people enter the inputs of a model.
//
//   in:  an input of the model, and its kind if it is a value of the page
//   out: a field: an element, and a function that returns what a run takes
//
// Pictures are dropped, chosen or drawn; sounds are dropped or chosen; texts and numbers are typed. Inputs that nobody enters are random.

import { arrayOf } from "../dtypes.js";
import { create } from "../page.js";
import { pictureLayout } from "./picture_layout.js";

/** @import { Port, Size } from "../webmlc.js" */
/** @typedef {Record<string, number>} Symbols */
/** @typedef {{ node: HTMLElement, read: (symbols: Symbols) => Promise<any> }} Field */

const SMALL_PICTURE = 96; // pixels a side up to which a picture is shown larger, and can be drawn
const PEN = 0.07; // the width of the pen, as a share of the picture's
const INTEGERS = 10; // random integers are below it

/**
 * The field for an input.
 * @param {Port} port
 * @param {{ kind: string, rate?: number } | undefined} kind
 * @returns {Field}
 */
export function inputField(port, kind) {
  const node = create("fieldset");
  node.className = "value";
  const legend = create("legend");
  legend.append(create("strong", port.name), " ", code(kind?.kind ?? typeText(port)));
  node.append(legend);
  const isPicture = pictureLayout(port) !== null && ["float32", "uint8"].includes(port.dtype);
  const read = port.dtype === "string" ? textField(node, port) : kind?.kind === "samples" ? soundField(node, kind.rate ?? 0) : kind || isPicture ? pictureField(node, port, Boolean(kind)) : numberField(node, port);
  return { node, read };
}

/** @param {Port} port */
const typeText = ({ dtype, shape }) => `${dtype}[${shape.join(", ")}]`;

/** @param {string} text */
const code = (text) => create("code", text);

/** @param {string} text */
function hint(text) {
  const node = create("p", text);
  node.className = "soft";
  return node;
}

/**
 * A place to drop a file of a type, with a button that opens one.
 * @param {HTMLElement} node
 * @param {string} accept
 * @param {(file: File) => Promise<void>} onFile
 */
function dropArea(node, accept, onFile) {
  const area = create("div");
  area.className = "drop";
  const input = /** @type {HTMLInputElement} */ (Object.assign(create("input"), { type: "file", accept }));
  input.setAttribute("aria-label", node.querySelector("strong")?.textContent ?? "");
  const problem = hint("Or drop a file here.");
  const take = (/** @type {FileList | null | undefined} */ files) => {
    if (!files?.length) return;
    const [file] = files;
    const say = (/** @type {string} */ text) => (problem.textContent = text);
    onFile(file).then(
      () => say(file.name),
      (error) => say(`${file.name}: ${error.message}`),
    );
  };
  input.addEventListener("change", () => take(input.files));
  for (const type of ["dragover", "dragleave", "drop"])
    area.addEventListener(type, (event) => {
      event.preventDefault();
      area.classList.toggle("over", type === "dragover");
      if (type === "drop") take(/** @type {DragEvent} */ (event).dataTransfer?.files);
    });
  area.append(input, problem);
  node.append(area);
  return area;
}

/**
 * A field for a picture. A value of the page is the picture itself; in a tensor, black is 0, and white is what somebody chooses.
 * @param {HTMLElement} node
 * @param {Port} port
 * @param {boolean} isTyped
 * @returns {Field["read"]}
 */
function pictureField(node, port, isTyped) {
  const layout = isTyped ? { height: 0, width: 0, channels: 3, isLast: true } : pictureLayout(port);
  if (!layout) throw new Error(`${port.name} is no picture`);
  const canvas = /** @type {HTMLCanvasElement} */ (create("canvas"));
  Object.assign(canvas, { width: layout.width || 224, height: layout.height || 224 });
  const isSmall = layout.width > 0 && Math.max(layout.width, layout.height) <= SMALL_PICTURE;
  const context = /** @type {CanvasRenderingContext2D} */ (canvas.getContext("2d", { willReadFrequently: true }));
  const white = Object.assign(create("input"), { type: "number", value: port.dtype === "uint8" ? "255" : "1", step: "any" });
  let isEmpty = true;
  /** @type {ImageBitmap | null} */
  let picture = null;
  const clear = () => {
    context.fillRect(0, 0, canvas.width, canvas.height);
    isEmpty = true;
  };
  const area = dropArea(node, "image/*", async (file) => {
    picture = await createImageBitmap(file);
    if (!layout.width) Object.assign(canvas, { width: picture.width, height: picture.height });
    context.drawImage(picture, 0, 0, canvas.width, canvas.height);
    canvas.hidden = isEmpty = false;
  });
  canvas.setAttribute("role", "img");
  canvas.setAttribute("aria-label", `the picture for ${port.name}`);
  area.prepend(canvas);
  canvas.classList.toggle("small", isSmall);
  canvas.hidden = !isSmall;
  if (isSmall) {
    clear();
    drawWithPen(canvas, context, () => (isEmpty = false));
    const button = Object.assign(create("button", "Clear"), { type: "button" });
    button.addEventListener("click", clear);
    area.append(hint("Or draw. An empty picture is random."), button);
  }
  if (!isTyped) {
    const label = create("label", "White is ");
    label.append(white);
    area.append(label);
  }
  return async (symbols) => {
    if (isTyped) {
      if (!picture) throw new Error(`choose a picture for ${port.name}`);
      return picture;
    }
    if (isEmpty) return randomTensor(port, symbols);
    const { width, height } = canvas;
    const { channels, isLast } = layout;
    const scale = Number(white.value) / 255;
    const pixels = context.getImageData(0, 0, width, height).data;
    const data = new (arrayOf(port.dtype))(width * height * channels);
    for (let i = 0; i < width * height; i++) {
      const [red, green, blue, opacity] = pixels.subarray(4 * i, 4 * i + 4);
      const values = channels === 1 ? [0.299 * red + 0.587 * green + 0.114 * blue] : [red, green, blue, opacity];
      for (let c = 0; c < channels; c++) data[isLast ? channels * i + c : width * height * c + i] = values[c] * scale;
    }
    const shape = [...Array(port.shape.length - 3).fill(1), ...(isLast ? [height, width, channels] : [channels, height, width])];
    for (const [axis, size] of port.shape.entries()) if (typeof size === "string") symbols[size] = shape[axis];
    return { dtype: port.dtype, shape, data };
  };
}

/**
 * Let people draw in white.
 * @param {HTMLCanvasElement} canvas
 * @param {CanvasRenderingContext2D} context
 * @param {() => void} onStroke
 */
function drawWithPen(canvas, context, onStroke) {
  canvas.classList.add("pad");
  const place = (/** @type {PointerEvent} */ { offsetX, offsetY }) =>
    /** @type {const} */ ([(offsetX / canvas.clientWidth) * canvas.width, (offsetY / canvas.clientHeight) * canvas.height]);
  canvas.addEventListener("pointerdown", (event) => {
    canvas.setPointerCapture(event.pointerId);
    Object.assign(context, { lineWidth: Math.max(1, PEN * canvas.width), lineCap: "round", lineJoin: "round", strokeStyle: "white" });
    context.beginPath();
    context.moveTo(...place(event));
  });
  canvas.addEventListener("pointermove", (event) => {
    if (!canvas.hasPointerCapture(event.pointerId)) return;
    context.lineTo(...place(event));
    context.stroke();
    onStroke();
  });
}

/** A field for a sound, in samples of the model's rate. @param {HTMLElement} node @param {number} rate @returns {Field["read"]} */
function soundField(node, rate) {
  const canvas = /** @type {HTMLCanvasElement} */ (Object.assign(create("canvas"), { width: 600, height: 80, hidden: true }));
  canvas.setAttribute("role", "img");
  canvas.setAttribute("aria-label", "the sound");
  /** @type {AudioBuffer | null} */
  let sound = null;
  const area = dropArea(node, "audio/*", async (file) => {
    sound = await new OfflineAudioContext(1, 1, rate).decodeAudioData(await file.arrayBuffer());
    canvas.hidden = false;
    drawSound(canvas, sound.getChannelData(0));
  });
  area.prepend(canvas);
  return async () => {
    if (!sound) throw new Error("choose a sound");
    return sound;
  };
}

/** Draw the largest sample of each column. @param {HTMLCanvasElement} canvas @param {Float32Array} samples */
function drawSound(canvas, samples) {
  const context = /** @type {CanvasRenderingContext2D} */ (canvas.getContext("2d"));
  const { width, height } = canvas;
  context.clearRect(0, 0, width, height);
  context.fillStyle = getComputedStyle(canvas).getPropertyValue("color");
  for (let x = 0; x < width; x++) {
    const column = samples.subarray(Math.floor((x * samples.length) / width), Math.ceil(((x + 1) * samples.length) / width));
    const top = Math.max(1, column.reduce((largest, value) => Math.max(largest, Math.abs(value)), 0) * height);
    context.fillRect(x, (height - top) / 2, 1, top);
  }
}

/** A field for texts, one in each line. @param {HTMLElement} node @param {Port} port @returns {Field["read"]} */
function textField(node, port) {
  const area = /** @type {HTMLTextAreaElement} */ (create("textarea"));
  area.placeholder = "Texts, one in each line";
  area.setAttribute("aria-label", port.name);
  node.append(area);
  return async (symbols) => {
    const data = area.value.split("\n");
    if (data.length > 1 && !data.at(-1)) data.pop();
    inferSize(port, symbols, data.length);
    return { dtype: "string", shape: port.shape.map((size) => sizeOf(size, symbols)), data };
  };
}

/** A field for numbers. @param {HTMLElement} node @param {Port} port @returns {Field["read"]} */
function numberField(node, port) {
  const area = /** @type {HTMLTextAreaElement} */ (create("textarea"));
  area.placeholder = /mask/.test(port.name) ? "Numbers, or nothing: ones" : "Numbers, or nothing: random ones";
  area.setAttribute("aria-label", port.name);
  area.spellcheck = false;
  node.append(area);
  return async (symbols) => {
    const words = area.value.split(/[\s,;[\]]+/).filter(Boolean);
    if (!words.length) return randomTensor(port, symbols);
    const numbers = words.map(Number);
    const wrong = numbers.findIndex(Number.isNaN);
    if (wrong >= 0 && !/^nan$/i.test(words[wrong])) throw new Error(`${port.name}: ${words[wrong]} is no number`);
    inferSize(port, symbols, numbers.length);
    const shape = port.shape.map((size) => sizeOf(size, symbols));
    const count = shape.reduce((a, b) => a * b, 1);
    if (count !== numbers.length) throw new Error(`${port.name}: ${numbers.length} numbers, and ${typeText({ ...port, shape })} has ${count}`);
    const type = arrayOf(port.dtype);
    const isBig = /64$/.test(port.dtype) && /int/.test(port.dtype);
    return { dtype: port.dtype, shape, data: isBig ? /** @type {any} */ (type).from(words, BigInt) : /** @type {any} */ (type).from(numbers) };
  };
}

/** Choose the last symbolic size of an input by the count of its elements. @param {Port} port @param {Symbols} symbols @param {number} count */
function inferSize({ shape }, symbols, count) {
  const last = shape.filter((size) => typeof size === "string").at(-1);
  if (last === undefined) return;
  const fixedCount = shape.filter((size) => size !== last).reduce((/** @type {number} */ product, size) => product * sizeOf(size, symbols), 1);
  const times = shape.filter((size) => size === last).length;
  const size = Math.round((count / fixedCount) ** (1 / times));
  if (size ** times * fixedCount === count) symbols[/** @type {string} */ (last)] = size;
}

/** @param {Size} size @param {Symbols} symbols @returns {number} */
function sizeOf(size, symbols) {
  if (typeof size === "number") return size;
  if (typeof size === "string") return symbols[size];
  throw new Error("an input's dimension is an expression: run this model from your own page");
}

/**
 * Random values: floats between -1 and 1, small integers. All elements of a mask are 1.
 * @param {Port} port
 * @param {Symbols} symbols
 */
function randomTensor({ name, dtype, shape }, symbols) {
  const sizes = shape.map((size) => sizeOf(size, symbols));
  const type = /** @type {any} */ (arrayOf(dtype));
  const length = sizes.reduce((a, b) => a * b, 1);
  const limit = dtype === "bool" || /type/.test(name) ? 2 : INTEGERS;
  const integer = () => (/mask/.test(name) ? 1 : Math.floor(Math.random() * limit));
  if (/^float(32|64)$/.test(dtype)) return { dtype, shape: sizes, data: type.from({ length }, () => Math.random() * 2 - 1) };
  if (/float/.test(dtype)) return { dtype, shape: sizes, data: new type(length) };
  const isBig = /int64$/.test(dtype);
  return { dtype, shape: sizes, data: type.from({ length }, () => (isBig ? BigInt(integer()) : integer())) };
}

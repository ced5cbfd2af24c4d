// The page that reads the text in a picture. `build.py` writes the packages into detector/ and recogniser/.

import { openDemo } from "../shared/demo.js";
import { acceptFiles } from "../shared/drop.js";
import { create, element } from "../shared/elements.js";
import { detectorInput, findText } from "./detect.js";
import { load } from "./detector/webmlc.js";
import { drawExample } from "./example.js";
import { cornersOf } from "./geometry.js";
import { characterScores, recogniserInput } from "./recognise.js";

/** @typedef {{ rectangle: import("./geometry.js").Rectangle, text: string, score: number }} Line */

const WORST = 0.5; // lines with a lower score are not shown
const LARGEST = 1600; // pixels of the longer side of the canvas

const demo = await openDemo(load, { detector: "./detector/", recogniser: "./recogniser/" }, "the picture");

/** @type {ImageBitmap | null} */
let picture = null;
/** @type {Line[]} */
let lines = [];
let pictures = 0; // counts the pictures: only the latest one is read

/** Read a picture, and show each line when it is read. @param {ImageBitmap} image */
async function read(image) {
  const current = ++pictures;
  picture = image;
  lines = [];
  show("Looking for text…");
  await demo.task(async () => {
    const x = detectorInput(image);
    const { probability } = await demo.run("detector", { x });
    const [height, width] = x.shape.slice(2);
    const [scaleX, scaleY] = [image.width / width, image.height / height];
    const found = findText(/** @type {Float32Array} */ (probability.data), width, height);
    for (const { x: left, y: top, along, width: w, height: h } of found) {
      if (current !== pictures) return;
      const rectangle = { x: left * scaleX, y: top * scaleY, along, width: w * scaleX, height: h * scaleY };
      const { text: { text, score } } = await demo.run("recogniser", { x: recogniserInput(image, rectangle) }, characterScores);
      const line = { rectangle, text, score };
      if (line.score >= WORST) lines.push(line);
      show(`Reading: ${lines.length} of ${found.length} lines`);
    }
  });
  if (current === pictures) show(lines.length ? `${lines.length} ${lines.length === 1 ? "line" : "lines"}` : "No text found");
}

/** @param {string} state */
function show(state) {
  element("state").textContent = state;
  element("copy").disabled = !lines.length;
  element("lines").replaceChildren(...lines.map((line) => {
    const button = create("button", "", line.text, create("span", "", `${Math.round(100 * line.score)} %`));
    for (const event of ["focus", "pointerenter"]) button.addEventListener(event, () => draw(line));
    for (const event of ["blur", "pointerleave"]) button.addEventListener(event, () => draw());
    return create("li", "", button);
  }));
  draw();
}

/** Draw the picture and its boxes. @param {Line} [emphasised] */
function draw(emphasised) {
  const canvas = element("picture");
  const context = canvas.getContext("2d");
  if (!picture) return;
  const scale = Math.min(1, LARGEST / Math.max(picture.width, picture.height));
  Object.assign(canvas, { width: Math.round(picture.width * scale), height: Math.round(picture.height * scale) });
  context.scale(scale, scale);
  context.drawImage(picture, 0, 0);
  context.lineWidth = Math.max(picture.width, picture.height) / 300;
  for (const line of lines) {
    context.beginPath();
    for (const { x, y } of cornersOf(line.rectangle)) context.lineTo(x, y);
    context.closePath();
    context.strokeStyle = "#7c6cff";
    context.fillStyle = line === emphasised ? "rgb(124 108 255 / 40%)" : "rgb(124 108 255 / 12%)";
    context.fill();
    context.stroke();
  }
}

/** @param {Blob} file */
async function open(file) {
  try {
    await read(await createImageBitmap(file).catch(() => {
      throw new Error("This browser cannot show the file.");
    }));
  } catch (error) {
    show("");
    demo.facts.fail(error);
  }
}

element("copy").addEventListener("click", () => void navigator.clipboard?.writeText(lines.map(({ text }) => text).join("\n")));
acceptFiles(element("drop"), element("files"), ([file]) => open(file));
try {
  await read(await drawExample());
} catch (error) {
  demo.facts.fail(error);
}
element("files").disabled = false;

// Read the parts of the page, and build elements.

/** @param {string} id @returns {any} */
export const byId = (id) => document.getElementById(id);

/**
 * An element with a class, properties and content.
 * @param {string} tag
 * @param {Record<string, any>} [properties]
 * @param {...(Node | string)} content
 * @returns {any}
 */
export function build(tag, properties = {}, ...content) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name in element) /** @type {any} */ (element)[name] = value;
    else element.setAttribute(name, String(value));
  }
  element.append(...content);
  return element;
}

/**
 * An element of a drawing.
 * @param {string} tag
 * @param {Record<string, string | number>} attributes
 * @param {...(Node | string)} content
 */
export function draw(tag, attributes, ...content) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, String(value));
  element.append(...content);
  return element;
}

/** The bytes of a part of the page. @param {string} name @returns {Uint8Array<ArrayBuffer>} */
export function partBytes(name) {
  const text = byId(`part-${name}`)?.textContent ?? "";
  const binary = atob(text);
  const bytes = new Uint8Array(binary.length);
  for (let i = 0; i < binary.length; i++) bytes[i] = binary.charCodeAt(i);
  return bytes;
}

/** True if the page has a part. @param {string} name */
export const hasPart = (name) => byId(`part-${name}`) !== null;

/** Decompress bytes. @param {Uint8Array<ArrayBuffer>} bytes @returns {Promise<ArrayBuffer>} */
export function inflate(bytes) {
  return new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"))).arrayBuffer();
}

const UNITS = ["", "K", "M", "G", "T"];

/** A number with three digits and a unit. @param {number} value @param {string} unit @param {number} [step] */
export function short(value, unit, step = 1000) {
  let power = 0;
  while (value >= step && power < UNITS.length - 1) {
    value /= step;
    power++;
  }
  const digits = value >= 100 || power === 0 ? 0 : value >= 10 ? 1 : 2;
  return `${value.toFixed(digits)} ${UNITS[power]}${unit.length > 3 ? " " : ""}${unit}`.replace("  ", " ");
}

/** @param {number | null | undefined} bytes */
export const byteText = (bytes) => (bytes === null || bytes === undefined ? "depends on the input" : short(bytes, "B"));

/** Milliseconds. @param {number} ms */
export function timeText(ms) {
  if (ms >= 1) return `${ms.toFixed(ms >= 100 ? 0 : 2)} ms`;
  return ms >= 1e-3 ? `${(1e3 * ms).toFixed(ms >= 0.1 ? 0 : 1)} µs` : `${(1e6 * ms).toFixed(0)} ns`;
}

/** @param {number} count @param {string} noun */
export const countText = (count, noun) => `${count.toLocaleString("en")} ${noun}${count === 1 ? "" : "s"}`;

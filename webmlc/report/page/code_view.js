// The emitted code: only the lines in view are elements, so a text of any length scrolls at once.

import { build, byId, countText } from "./parts.js";
import { MODULE } from "./state.js";

/** @import { State } from "./state.js" */

const LINE_HEIGHT = 18; // pixels of a line, as in report.css
const MARGIN = 12; // lines above and below those in view
const VARIANT_NAMES = /** @type {Record<string, string>} */ ({ gpu: "for graphics cards", software: "for adapters in software" });
const TOKEN = /(;;.*|\/\/.*)|(\$[\w.]+|\b(?:fn|func|loop|block|if|else|then|for|while|var|let|const|local|param|return)\b)/g;

/** @param {State} state */
export function openCode(state) {
  const scroller = byId("lines");
  const page = byId("page");
  /** @type {Map<string, string[]>} */
  const texts = new Map();
  let shown = "";
  let shownLine = -1;
  let cursor = -1; // the line of the keyboard

  const name = () => state.kernel?.text ?? (state.device === "wasm" ? MODULE : state.variant);
  const language = () => (name() === MODULE ? "WebAssembly text" : "WGSL");
  const lines = () => {
    const key = name();
    const split = texts.get(key) ?? (state.data.texts[key] ?? "").split("\n");
    texts.set(key, split);
    return split;
  };
  const render = () => {
    const all = lines();
    const first = Math.max(0, Math.floor(scroller.scrollTop / LINE_HEIGHT) - MARGIN);
    const last = Math.min(all.length, first + Math.ceil(scroller.clientHeight / LINE_HEIGHT) + 2 * MARGIN);
    const ranges = [state.kernel?.lines, state.step?.calls];
    const isMine = (/** @type {number} */ line) => ranges.some((range) => range && line >= range[0] && line < range[1]);
    const rows = [];
    for (let i = first; i < last; i++) {
      const nodes = state.nodesOfLine(i);
      const isOfNode = nodes.includes(state.selection.node ?? -1);
      const row = build("div", { className: `row${isMine(i) ? " mine" : ""}${isOfNode ? " node" : ""}${i === cursor ? " cursor" : ""}` });
      row.title = nodes.map((node) => state.data.nodes[node].name).join(", ");
      const place = { role: "option", id: `line-${i}`, "aria-selected": i === cursor, "aria-setsize": all.length, "aria-posinset": i + 1 };
      for (const [name, value] of Object.entries(place)) row.setAttribute(name, String(value));
      row.dataset.line = i;
      row.style.top = `${i * LINE_HEIGHT}px`;
      row.append(build("i", {}, String(i + 1)), ...coloured(all[i]));
      rows.push(row);
    }
    page.replaceChildren(...rows);
    scroller.setAttribute("aria-activedescendant", cursor >= first && cursor < last ? `line-${cursor}` : "");
  };
  const reveal = (/** @type {number} */ line) => {
    const top = line * LINE_HEIGHT;
    const { scrollTop, clientHeight } = scroller;
    if (top < scrollTop || top > scrollTop + clientHeight - 2 * LINE_HEIGHT) scroller.scrollTop = Math.max(0, top - 2 * LINE_HEIGHT);
  };
  const choose = () => {
    if (state.selectLine(name(), cursor)) return;
    byId("codenote").textContent = `Line ${cursor + 1} belongs to no node of the model.`;
    render();
  };
  const update = () => {
    const all = lines();
    page.style.height = `${all.length * LINE_HEIGHT}px`;
    const { kernel } = state;
    byId("codename").textContent = kernel ? kernel.name : language();
    const [first, end] = kernel?.lines ?? [0, 0];
    const range = end ? `lines ${first + 1} to ${end} of ${countText(all.length, "line")}` : all.length > 1 ? countText(all.length, "line") : "";
    const missing = !(name() in state.data.texts) ? "The package was built without --emit-text, so it does not hold this text." : "";
    byId("codenote").textContent = missing || `${language()} ${range}`;
    byId("variant").hidden = state.shaders.length < 2 || name() === MODULE;
    const { line } = state.selection;
    if (line !== undefined && (name() !== shown || line !== shownLine)) {
      cursor = line;
      reveal(line);
    }
    [shown, shownLine] = [name(), line ?? -1];
    render();
  };

  const chooser = byId("variant");
  for (const variant of state.shaders) chooser.append(build("option", { value: variant }, VARIANT_NAMES[variant] ?? variant));
  chooser.addEventListener("change", () => state.showVariant(chooser.value));
  scroller.addEventListener("scroll", render);
  new ResizeObserver(render).observe(scroller);
  page.addEventListener("click", (/** @type {MouseEvent} */ event) => {
    const row = /** @type {HTMLElement | null} */ (/** @type {Element} */ (event.target).closest(".row"));
    if (!row || getSelection()?.toString()) return;
    cursor = Number(row.dataset.line);
    choose();
  });
  scroller.addEventListener("keydown", (/** @type {KeyboardEvent} */ event) => {
    const steps = { ArrowDown: 1, ArrowUp: -1, PageDown: 20, PageUp: -20 };
    const step = steps[/** @type {keyof typeof steps} */ (event.key)];
    if (event.key === "Enter") choose();
    else if (step) {
      cursor = Math.max(0, Math.min(lines().length - 1, cursor + step));
      reveal(cursor);
      render();
    } else return;
    event.preventDefault();
  });
  state.listen(update);
  update();
}

/** A line as text and coloured words. @param {string} line */
function coloured(line) {
  const parts = [];
  let end = 0;
  for (const match of line.matchAll(TOKEN)) {
    parts.push(line.slice(end, match.index), build(match[1] ? "em" : "b", {}, match[0]));
    end = match.index + match[0].length;
  }
  return [...parts, line.slice(end)];
}

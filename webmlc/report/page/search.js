// Search nodes, kernels and values by name. Every word must occur.

import { build, byId } from "./parts.js";

/** @import { State } from "./state.js" */
/** @typedef {{ text: string, kind: string, rank: number, choose: () => void }} Hit */

const MOST_HITS = 60; // hits that are listed

/** @param {State} state @param {() => void} onChoose  called after a hit was chosen */
export function openSearch(state, onChoose) {
  const field = byId("search");
  const list = byId("hits");
  /** @type {Hit[]} */
  let hits = [];
  let current = 0;

  const show = () => {
    list.replaceChildren(
      ...hits.map(({ text, kind }, i) =>
        build("li", { role: "option", id: `hit-${i}`, "aria-selected": String(i === current) }, build("span", {}, text), build("span", { className: "note" }, kind)),
      ),
    );
    list.hidden = !hits.length;
    field.setAttribute("aria-expanded", String(hits.length > 0));
    field.setAttribute("aria-activedescendant", hits.length ? `hit-${current}` : "");
    list.children[current]?.scrollIntoView({ block: "nearest" });
  };
  const close = () => {
    hits = [];
    show();
  };
  const choose = (/** @type {number} */ i) => {
    const hit = hits[i];
    close();
    if (!hit) return;
    hit.choose();
    onChoose();
  };

  field.addEventListener("input", () => {
    hits = find(state, field.value);
    current = 0;
    show();
  });
  field.addEventListener("keydown", (/** @type {KeyboardEvent} */ event) => {
    if (event.key === "ArrowDown" || event.key === "ArrowUp") {
      current = (current + (event.key === "ArrowDown" ? 1 : hits.length - 1)) % Math.max(hits.length, 1);
      show();
    } else if (event.key === "Enter") choose(current);
    else if (event.key === "Escape") close();
    else return;
    event.preventDefault();
  });
  list.addEventListener("pointerdown", (/** @type {PointerEvent} */ event) => {
    const item = /** @type {Element} */ (event.target).closest("li");
    if (item) choose([...list.children].indexOf(item));
    event.preventDefault();
  });
  field.addEventListener("blur", close);
}

/** The hits of a text, the best ones first. @param {State} state @param {string} query @returns {Hit[]} */
function find(state, query) {
  const words = query.toLowerCase().split(/\s+/).filter(Boolean);
  if (!words.length) return [];
  /** @type {Hit[]} */
  const hits = [];
  const add = (/** @type {string} */ text, /** @type {string} */ kind, /** @type {() => void} */ choose, extra = "") => {
    const whole = `${text} ${extra}`.toLowerCase();
    if (!words.every((word) => whole.includes(word))) return;
    const name = text.toLowerCase();
    const rank = name === words[0] ? 0 : name.startsWith(words[0]) ? 1 : name.includes(words[0]) ? 2 : 3;
    hits.push({ text, kind, rank, choose });
  };
  for (const [node, { name, op, outputs = [] }] of state.data.nodes.entries()) {
    add(name, op ?? "node", () => state.select({ node }), `${op} ${outputs.join(" ")}`);
  }
  for (const [kernel, { name }] of state.program.kernels.entries()) {
    add(name, "kernel", () => state.select({ step: state.stepsOfKernel(kernel)[0] }));
  }
  return hits.sort((a, b) => a.rank - b.rank || a.text.length - b.text.length).slice(0, MOST_HITS);
}

// The memory plan: which buffer has which bytes at which step.

import { build, byId, byteText, draw } from "./parts.js";

/** @import { State } from "./state.js" */
/** @import { Memory } from "./types.d.ts" */

const [PLAN_WIDTH, PLAN_HEIGHT, PLAN_LEFT, PLAN_BOTTOM] = [720, 360, 64, 30];
const PLAN_TITLES = { wasm: "Memory of the CPU", webgpu: "Memory of the GPU" };

/** @param {State} state */
export function openMemory(state) {
  const panel = byId("memory");
  let isStale = true;
  let program = state.program;
  const show = () => {
    if (panel.hidden) return;
    if (isStale) panel.replaceChildren(...state.program.memory.flatMap((plan) => planPart(state, plan)), ...emptyPart(state));
    isStale = false;
    mark(state, panel);
  };
  panel.addEventListener("click", (/** @type {MouseEvent} */ event) => {
    const box = /** @type {SVGElement | null} */ (/** @type {Element} */ (event.target).closest(".box"));
    if (box) state.select({ step: Number(box.dataset.step) });
  });
  panel.addEventListener("keydown", (/** @type {KeyboardEvent} */ event) => {
    const move = event.key === "ArrowRight" ? 1 : event.key === "ArrowLeft" ? -1 : 0;
    if (!move) return;
    const last = state.program.steps.length - 1;
    state.select({ step: Math.max(0, Math.min(last, (state.selection.step ?? -1) + move)) });
    event.preventDefault();
  });
  state.listen(() => {
    if (program !== state.program) isStale = true;
    program = state.program;
    show();
  });
  return show;
}

/** @param {State} state */
function emptyPart(state) {
  return state.program.memory.length ? [] : [build("p", { className: "note" }, "This program needs no memory between its steps.")];
}

/** One drawing: steps to the right, addresses upwards. @param {State} state @param {Memory} plan */
function planPart(state, plan) {
  const { steps, buffers, weights } = state.program;
  const x = (/** @type {number} */ step) => PLAN_LEFT + (step / steps.length) * (PLAN_WIDTH - PLAN_LEFT - 4);
  const y = (/** @type {number} */ bytes) => PLAN_HEIGHT - PLAN_BOTTOM - (bytes / Math.max(plan.bytes, 1)) * (PLAN_HEIGHT - PLAN_BOTTOM - 10);
  const svg = draw("svg", { viewBox: `0 0 ${PLAN_WIDTH} ${PLAN_HEIGHT}`, tabindex: 0, role: "group", "aria-label": "Buffers over the steps of a run. Left and right move to another step.", "data-steps": steps.length });
  for (let i = 0; i <= 4; i++) {
    const bytes = (plan.bytes * i) / 4;
    svg.append(draw("line", { class: "grid", x1: PLAN_LEFT, x2: PLAN_WIDTH - 4, y1: y(bytes), y2: y(bytes) }), draw("text", { x: PLAN_LEFT - 6, y: y(bytes) + 4, "text-anchor": "end" }, byteText(bytes)));
  }
  for (const [number, [buffer, first, last, offset, bytes]] of plan.boxes.entries()) {
    const [name, type, kind] = buffers[buffer];
    const box = { x: x(first), y: y(offset + bytes), width: Math.max(x(last + 1) - x(first), 1), height: Math.max(y(offset) - y(offset + bytes), 0.5) };
    const title = `${name}: ${type}, ${byteText(bytes)} at ${offset.toLocaleString("en")}, steps ${first} to ${last}${kind === "scratch" ? "" : `, ${kind}`}`;
    const maker = steps.findIndex(({ writes }) => writes.includes(buffer));
    svg.append(draw("rect", { class: `box t${number % 4}`, "data-step": maker < 0 ? first : maker, "data-buffer": buffer, ...box }, draw("title", {}, title)));
  }
  svg.append(draw("line", { class: "now", x1: 0, x2: 0, y1: 6, y2: PLAN_HEIGHT - PLAN_BOTTOM }));
  for (let i = 0; i <= 4; i++) svg.append(draw("text", { x: x((steps.length * i) / 4), y: PLAN_HEIGHT - PLAN_BOTTOM + 16, "text-anchor": i === 4 ? "end" : "middle" }, String(Math.round((steps.length * i) / 4))));
  const live = plan.boxes.reduce((sum, [, , , , bytes]) => sum + bytes, 0);
  const facts = [
    `${byteText(plan.bytes)} for ${plan.boxes.length.toLocaleString("en")} buffers that take ${byteText(live)} without sharing`,
    plan.device === "wasm" ? `whole memory ${byteText(plan.total)}, with ${byteText(weights)} of weights and ${byteText(plan.scratch)} of scratch for each thread` : `weights ${byteText(weights)}`,
    plan.states ? `states of a session ${byteText(plan.states)}` : "",
  ];
  return [build("h2", {}, PLAN_TITLES[plan.device]), build("p", { className: "note" }, `${facts.filter(Boolean).join("; ")}. Steps from left to right, addresses from bottom to top.`), build("figure", {}, svg)];
}

/** Mark the selected step, and the buffers that it writes and reads. @param {State} state @param {Element} panel */
function mark(state, panel) {
  const { step } = state.selection;
  const used = new Set(state.step ? [...state.step.reads, ...state.step.writes].map(String) : []);
  for (const box of panel.querySelectorAll(".box")) box.classList.toggle("current", used.has(/** @type {SVGElement} */ (box).dataset.buffer ?? ""));
  for (const line of panel.querySelectorAll(".now")) {
    const count = state.program.steps.length;
    const x = step === undefined ? -10 : PLAN_LEFT + ((step + 0.5) / count) * (PLAN_WIDTH - PLAN_LEFT - 4);
    line.setAttribute("x1", String(x));
    line.setAttribute("x2", String(x));
  }
}

// A row for each step: its work, its time, and a roofline of all.

import { build, byId, draw, short, timeText } from "./parts.js";

/** @import { State } from "./state.js" */
/** @typedef {{ title: string, value: (step: number) => number | string, text: (step: number) => string | Node }} Column */

const [CHART_WIDTH, CHART_HEIGHT, CHART_LEFT, CHART_BOTTOM] = [640, 260, 56, 34]; // of the roofline

/** @param {State} state */
export function openKernels(state) {
  let sortBy = 0;
  let direction = 1;
  let isStale = true;
  const table = byId("steps");
  const mark = () => {
    for (const row of table.querySelectorAll("tr[data-step]")) row.classList.toggle("current", Number(row.dataset.step) === state.selection.step);
    for (const dot of byId("roofline").querySelectorAll(".dot")) dot.classList.toggle("current", Number(dot.dataset.step) === state.selection.step);
  };
  const show = () => {
    if (byId("kernels").hidden) {
      isStale = true;
      return;
    }
    if (isStale) fill();
    isStale = false;
    mark();
    table.querySelector("tr.current")?.scrollIntoView({ block: "nearest" });
  };
  const fill = () => {
    const columns = columnsOf(state);
    const { value } = columns[sortBy];
    const order = [...state.program.steps.keys()].filter((step) => state.program.steps[step].kernel >= 0);
    order.sort((a, b) => (value(a) < value(b) ? -1 : value(a) > value(b) ? 1 : 0) * direction);
    const heads = columns.map(({ title }, i) => {
      const button = build("button", { type: "button", onclick: () => sort(i) }, title + (i === sortBy ? (direction > 0 ? " ↑" : " ↓") : ""));
      return build("th", { className: i > 1 ? "figure" : "", scope: "col" }, button);
    });
    const rows = order.map((step) => {
      const row = build("tr", { tabIndex: 0 }, ...columns.map(({ text }, i) => build("td", { className: i > 1 ? "figure" : "" }, text(step))));
      row.dataset.step = step;
      return row;
    });
    table.replaceChildren(build("thead", {}, build("tr", {}, ...heads)), build("tbody", {}, ...rows));
    byId("roofline").replaceChildren(...roofline(state));
  };
  const sort = (/** @type {number} */ column) => {
    direction = column === sortBy ? -direction : column > 1 ? -1 : 1;
    sortBy = column;
    fill();
    mark();
  };
  const choose = (/** @type {Event} */ event) => {
    const target = /** @type {HTMLElement | null} */ (/** @type {Element} */ (event.target).closest("[data-step]"));
    if (target) state.select({ step: Number(target.dataset.step) });
  };
  byId("kernels").addEventListener("click", choose);
  table.addEventListener("keydown", (/** @type {KeyboardEvent} */ event) => {
    if (event.key === "Enter" && /** @type {Element} */ (event.target).tagName === "TR") choose(event);
  });
  let [program, times] = [state.program, state.measured];
  state.listen(() => {
    if (program !== state.program || times !== state.measured) isStale = true;
    [program, times] = [state.program, state.measured];
    show();
  });
  return show;
}

/** @param {State} state @returns {Column[]} */
function columnsOf(state) {
  const { steps, kernels } = state.program;
  const flops = (/** @type {number} */ s) => steps[s].flops ?? 0;
  const hasWork = steps.some((step) => step.flops !== undefined);
  const names = (/** @type {number} */ s) => [...steps[s].nodes.map((node) => state.data.nodes[node].name), ...steps[s].origin];
  /** @type {Column[]} */
  const columns = [
    { title: "Step", value: (s) => s, text: (s) => `${s}` },
    { title: "Kernel", value: (s) => kernels[steps[s].kernel].name, text: (s) => build("span", { title: names(s).join(", ") }, kernels[steps[s].kernel].name, build("span", { className: "note" }, steps[s].once ? " (at load)" : "")) },
    { title: "Nodes", value: (s) => names(s).length, text: (s) => String(names(s).length) },
    { title: "Bytes", value: (s) => steps[s].least, text: (s) => short(steps[s].least, "B") },
  ];
  if (hasWork) {
    columns.push({ title: "Operations", value: flops, text: (s) => short(flops(s), "") });
    columns.push({ title: "per byte", value: (s) => flops(s) / steps[s].least, text: (s) => (flops(s) / (steps[s].least || 1)).toFixed(1) });
  }
  const times = state.measured;
  if (!times) return columns;
  const ms = (/** @type {number} */ s) => times.steps[s] ?? 0;
  if (hasWork) columns.push({ title: "Operations/s", value: (s) => flops(s) / ms(s), text: (s) => (ms(s) ? short((flops(s) / ms(s)) * 1000, "") : "") });
  columns.push({ title: "Time", value: ms, text: (s) => (times.steps[s] === undefined ? "" : timeText(ms(s))) });
  columns.push({
    title: "Share",
    value: ms,
    text: (s) => {
      const bar = build("span", { className: "share", title: `${((100 * ms(s)) / times.total).toFixed(1)} %` });
      bar.style.width = `${(60 * ms(s)) / Math.max(...times.steps.map((t) => t ?? 0), 1e-9)}px`;
      return bar;
    },
  });
  return columns;
}

/** The measured speed of each step over its intensity, below what the machine can do. @param {State} state @returns {Node[]} */
function roofline(state) {
  const times = state.measured;
  const { steps, kernels } = state.program;
  const points = [...steps.keys()].flatMap((s) => {
    const [ms, flops] = [times?.steps[s] ?? 0, steps[s].flops ?? 0];
    return ms && flops && steps[s].least ? [{ s, x: flops / steps[s].least, y: (flops / ms) * 1000, ms }] : [];
  });
  if (!times || !points.length) return [build("p", { className: "note" }, times ? "Without the model, the operations of its kernels are not known." : "Measure, to see the time of each step, and its speed beside what this machine can do.")];
  const peak = times.peak ?? { flops: Math.max(...points.map(({ y }) => y)), bytes: Math.max(...points.map(({ x, y }) => y / x)) };
  const xs = range([...points.map(({ x }) => x), peak.flops / peak.bytes]);
  const ys = range([...points.map(({ y }) => y), peak.flops]);
  const px = (/** @type {number} */ x) => CHART_LEFT + ((Math.log10(x) - xs[0]) / (xs[1] - xs[0])) * (CHART_WIDTH - CHART_LEFT - 20);
  const py = (/** @type {number} */ y) => CHART_HEIGHT - CHART_BOTTOM - ((Math.log10(y) - ys[0]) / (ys[1] - ys[0])) * (CHART_HEIGHT - CHART_BOTTOM - 12);
  const svg = draw("svg", { viewBox: `0 0 ${CHART_WIDTH} ${CHART_HEIGHT}`, role: "img", "aria-label": "Roofline: operations per second over operations per byte" });
  for (let p = xs[0]; p <= xs[1]; p++) svg.append(draw("line", { class: "grid", x1: px(10 ** p), x2: px(10 ** p), y1: 8, y2: CHART_HEIGHT - CHART_BOTTOM }), draw("text", { x: px(10 ** p), y: CHART_HEIGHT - CHART_BOTTOM + 14, "text-anchor": "middle" }, String(10 ** p)));
  for (let p = ys[0]; p <= ys[1]; p++) svg.append(draw("line", { class: "grid", x1: CHART_LEFT, x2: CHART_WIDTH - 20, y1: py(10 ** p), y2: py(10 ** p) }), draw("text", { x: CHART_LEFT - 6, y: py(10 ** p) + 4, "text-anchor": "end" }, short(10 ** p, "")));
  const ridge = peak.flops / peak.bytes;
  const start = Math.max(10 ** xs[0], 10 ** ys[0] / peak.bytes);
  svg.append(draw("path", { class: "roof", d: `M${px(start)},${py(start * peak.bytes)}L${px(ridge)},${py(peak.flops)}L${px(10 ** xs[1])},${py(peak.flops)}` }));
  svg.append(draw("text", { x: CHART_WIDTH / 2, y: CHART_HEIGHT - 4, "text-anchor": "middle" }, "operations per byte, and operations per second"));
  for (const { s, x, y, ms } of points) {
    const title = `step ${s} · ${kernels[steps[s].kernel].name} · ${timeText(ms)} · ${short(y, "operations/s")}`;
    svg.append(draw("circle", { class: "dot", "data-step": s, cx: px(x), cy: py(y), r: 3 + 9 * Math.sqrt(ms / times.total) }, draw("title", {}, title)));
  }
  const limits = times.peak ? `The line is what this machine did at the same time: ${short(peak.flops, "operations/s")}, and ${short(peak.bytes, "B/s")} from memory.` : "The line is the best of these kernels.";
  return [build("p", { className: "note" }, `${limits} A large dot takes much of the time.`), svg];
}

/** The powers of ten around some numbers. @param {number[]} values */
function range(values) {
  const low = Math.floor(Math.log10(Math.min(...values)));
  return [low, Math.max(low + 1, Math.ceil(Math.log10(Math.max(...values))))];
}

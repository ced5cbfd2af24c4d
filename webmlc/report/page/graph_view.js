// The drawing of the model's graph: pan, zoom, select. Only what is in view is drawn.

import { build, byId, countText } from "./parts.js";

/** @import { State } from "./state.js" */
/** @import { View } from "./types.d.ts" */

const COLUMN = 176; // distances of columns and rows, and the size of a box, at a zoom of 1
const ROW = 66;
const BOX_WIDTH = 156;
const BOX_HEIGHT = 40;
const READABLE = 0.45; // the zoom from which texts are drawn
const FAINTEST = 0.05; // the zoom below which boxes are hardly visible
const LARGEST = 2.5;
const TITLES = { layers: "one of equal layers", computation: "nodes that run", model: "all nodes" };

/** @param {State} state */
export function openGraph(state) {
  const canvas = /** @type {HTMLCanvasElement} */ (byId("drawing"));
  const context = /** @type {CanvasRenderingContext2D} */ (canvas.getContext("2d"));
  const { views } = state.data;
  let view = views[0];
  let colours = styleColours();
  const camera = { x: 0, y: 0, zoom: 1 }; // the point of the drawing in the middle of the canvas
  let isPlaced = false;
  let pending = false;
  /** @type {Map<number, number>} The item of each node of the view. */
  let owners = new Map();
  let shownNode = -1;

  for (const { name, items } of views) byId("view").append(build("option", { value: name }, `Show: ${TITLES[name]} (${items.length.toLocaleString("en")})`));

  const center = (/** @type {number} */ item) => ({ x: view.places[item][0] * COLUMN, y: view.places[item][1] * ROW });
  const redraw = () => {
    if (pending) return;
    pending = true;
    requestAnimationFrame(() => {
      pending = false;
      paint();
    });
  };
  const open = (/** @type {View} */ next) => {
    view = next;
    owners = new Map(view.items.flatMap(({ nodes }, item) => nodes.map((node) => /** @type {[number, number]} */ ([node, item]))));
    byId("view").value = view.name;
  };
  const extent = () => {
    const xs = view.places.map(([x]) => x * COLUMN);
    const rows = view.places.reduce((most, [, y]) => Math.max(most, y), 0);
    const left = xs.reduce((a, b) => Math.min(a, b), Infinity) - BOX_WIDTH;
    const right = xs.reduce((a, b) => Math.max(a, b), -Infinity) + BOX_WIDTH;
    return { left, right, top: -ROW, bottom: (rows + 1) * ROW };
  };
  const showAll = () => {
    const { left, right, top, bottom } = extent();
    camera.x = (left + right) / 2;
    camera.y = (top + bottom) / 2;
    const whole = Math.min(1, canvas.clientWidth / (right - left), canvas.clientHeight / (bottom - top));
    camera.zoom = Math.max(whole, FAINTEST);
    if (whole < FAINTEST) camera.y = top + canvas.clientHeight / 2 / camera.zoom; // it does not fit: from its top
    redraw();
  };
  const showStart = () => {
    showAll();
    if (camera.zoom >= READABLE) return;
    camera.zoom = 0.8;
    const first = view.places.findIndex(([, row]) => row === 0);
    camera.x = center(Math.max(first, 0)).x;
    camera.y = canvas.clientHeight / 2 / camera.zoom - ROW;
    redraw();
  };
  const zoom = (/** @type {number} */ factor, x = 0, y = 0) => {
    const next = Math.max(0.01, Math.min(LARGEST, camera.zoom * factor));
    camera.x += x / camera.zoom - x / next; // the point under the pointer stays there
    camera.y += y / camera.zoom - y / next;
    camera.zoom = next;
    redraw();
  };

  function paint() {
    const ratio = devicePixelRatio || 1;
    const { clientWidth: width, clientHeight: height } = canvas;
    if (!width) return;
    if (canvas.width !== Math.round(width * ratio)) canvas.width = Math.round(width * ratio);
    if (canvas.height !== Math.round(height * ratio)) canvas.height = Math.round(height * ratio);
    if (!isPlaced) {
      isPlaced = true;
      showStart();
    }
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    context.clearRect(0, 0, width, height);
    context.translate(width / 2, height / 2);
    context.scale(camera.zoom, camera.zoom);
    context.translate(-camera.x, -camera.y);
    const [w, h] = [width / 2 / camera.zoom, height / 2 / camera.zoom];
    const area = { left: camera.x - w, right: camera.x + w, top: camera.y - h, bottom: camera.y + h };
    paintEdges(area);
    paintItems(area);
  }

  /** @param {{ left: number, right: number, top: number, bottom: number }} area */
  function paintEdges(area) {
    const chosen = state.selection.node === undefined ? undefined : owners.get(state.selection.node);
    for (const isChosen of [false, true]) {
      context.beginPath();
      for (const [source, target] of view.edges) {
        if ((source === chosen || target === chosen) !== isChosen) continue;
        const [a, b] = [center(source), center(target)];
        if (Math.min(a.y, b.y) > area.bottom || Math.max(a.y, b.y) < area.top) continue;
        if (Math.min(a.x, b.x) - COLUMN > area.right || Math.max(a.x, b.x) + COLUMN < area.left) continue;
        const rows = (b.y - a.y) / ROW;
        const bend = rows > 1.5 && Math.abs(a.x - b.x) < BOX_WIDTH / 2 ? BOX_WIDTH * 0.75 : 0; // around the boxes between
        const [y1, y2] = [a.y + BOX_HEIGHT / 2, b.y - BOX_HEIGHT / 2];
        const lift = Math.min(ROW, (y2 - y1) / 2);
        context.moveTo(a.x, y1);
        context.bezierCurveTo(a.x + bend, y1 + lift, b.x + bend, y2 - lift, b.x, y2);
      }
      context.lineWidth = isChosen ? 2 : Math.min(1.2, 0.5 / camera.zoom);
      context.strokeStyle = isChosen ? colours.accent : colours.muted;
      context.globalAlpha = isChosen ? 1 : 0.6;
      context.stroke();
    }
    context.globalAlpha = 1;
  }

  /** @param {{ left: number, right: number, top: number, bottom: number }} area */
  function paintItems(area) {
    const mode = byId("colours").value;
    const most = state.program.steps.reduce((m, _, step) => Math.max(m, figure(state, step, mode)), 0);
    const mates = new Set(state.step?.nodes ?? []);
    for (const [item, { nodes, label }] of view.items.entries()) {
      const { x, y } = center(item);
      if (x + BOX_WIDTH < area.left || x - BOX_WIDTH > area.right || y + BOX_HEIGHT < area.top || y - BOX_HEIGHT > area.bottom) continue;
      const isChosen = nodes.includes(state.selection.node ?? -1);
      context.beginPath();
      context.roundRect(x - BOX_WIDTH / 2, y - BOX_HEIGHT / 2, BOX_WIDTH, BOX_HEIGHT, 6);
      context.fillStyle = label ? colours.panel : nodeColour(state, nodes[0], mode, colours, most);
      context.fill();
      const isMate = nodes.some((node) => mates.has(node));
      const least = 0.6 / camera.zoom; // pixels of the canvas
      context.lineWidth = Math.max(isChosen ? 3 : isMate ? 2 : 1, isChosen || isMate ? 2 * least : least);
      context.strokeStyle = isMate || isChosen ? colours.accent : label || camera.zoom < READABLE ? colours.muted : colours.line;
      context.setLineDash(label ? [5, 4] : []);
      context.stroke();
      context.setLineDash([]);
      if (camera.zoom >= READABLE) paintText(item, x, y);
    }
  }

  /** @param {number} item @param {number} x @param {number} y */
  function paintText(item, x, y) {
    const { nodes, label } = view.items[item];
    const { op, name } = state.data.nodes[nodes[0]];
    context.textAlign = "center";
    context.fillStyle = colours.text;
    context.font = "600 12px system-ui, sans-serif";
    context.fillText(fit(label ? label.split(",")[0] : op?.split(".").at(-1) || name, false), x, y - 3);
    context.font = "10px system-ui, sans-serif";
    context.fillStyle = colours.muted;
    context.fillText(label ? countText(nodes.length, "node") : fit(op ? name : "", true), x, y + 12);
  }

  /** The text, as far as a box has room. Names differ at their end. @param {string} text @param {boolean} atEnd */
  function fit(text, atEnd) {
    const room = BOX_WIDTH - 12;
    const width = context.measureText(text).width;
    if (width <= room) return text;
    const length = Math.floor((text.length * room) / width) - 1;
    return atEnd ? `…${text.slice(-length)}` : `${text.slice(0, length)}…`;
  }

  /** The item at a point of the canvas, or -1. @param {number} px @param {number} py */
  function hit(px, py) {
    const x = camera.x + (px - canvas.clientWidth / 2) / camera.zoom;
    const y = camera.y + (py - canvas.clientHeight / 2) / camera.zoom;
    return view.places.findIndex((_, item) => Math.abs(center(item).x - x) <= BOX_WIDTH / 2 && Math.abs(center(item).y - y) <= BOX_HEIGHT / 2);
  }

  /** Select an item. Layers unfold. @param {number} item */
  function choose(item) {
    const { nodes, label } = view.items[item];
    if (label) open(views.find(({ name }) => name === "computation") ?? view);
    state.select({ node: nodes[0] });
  }

  /** Bring the selected node into view, in another view if this one lacks or folds it. */
  function follow() {
    const { node } = state.selection;
    if (node !== undefined && node !== shownNode) {
      const holds = (/** @type {View} */ { items }) => items.some(({ nodes }) => nodes.length === 1 && nodes[0] === node);
      if (!holds(view)) open(views.find(holds) ?? view);
      const { x, y } = center(owners.get(node) ?? 0);
      const [w, h] = [canvas.clientWidth / 2 / camera.zoom - BOX_WIDTH / 2, canvas.clientHeight / 2 / camera.zoom - BOX_HEIGHT];
      if (camera.zoom < READABLE) camera.zoom = 0.8;
      if (Math.abs(x - camera.x) > w || Math.abs(y - camera.y) > h) [camera.x, camera.y] = [x, y];
    }
    shownNode = node ?? -1;
    redraw();
  }

  open(view);
  listenToPointer(canvas, camera, zoom, redraw, (x, y) => {
    const item = hit(x, y);
    if (item >= 0) choose(item);
  });
  canvas.addEventListener("keydown", (event) => {
    const pan = 80 / camera.zoom;
    const item = owners.get(state.selection.node ?? -1);
    const neighbours = item === undefined ? [] : neighboursOf(view, item, event.key);
    if (event.key === "+" || event.key === "=") zoom(1.25);
    else if (event.key === "-") zoom(0.8);
    else if (event.key === "0") showAll();
    else if (neighbours.length) choose(neighbours[0]);
    else if (item === undefined && event.key.startsWith("Arrow")) {
      camera.x += event.key === "ArrowLeft" ? -pan : event.key === "ArrowRight" ? pan : 0;
      camera.y += event.key === "ArrowUp" ? -pan : event.key === "ArrowDown" ? pan : 0;
      redraw();
    } else if (event.key === "Enter") byId("lines").focus();
    else return;
    event.preventDefault();
  });
  byId("closer").addEventListener("click", () => zoom(1.4));
  byId("further").addEventListener("click", () => zoom(1 / 1.4));
  byId("whole").addEventListener("click", showAll);
  byId("colours").addEventListener("change", redraw);
  byId("view").addEventListener("change", () => {
    open(/** @type {View} */ (views.find(({ name }) => name === byId("view").value)));
    shownNode = -1;
    if (owners.has(state.selection.node ?? -1)) follow();
    else showStart();
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
    colours = styleColours();
    redraw();
  });
  new ResizeObserver(redraw).observe(canvas);
  state.listen(follow);
  redraw();
}

/** The items to which an arrow key leads. @param {View} view @param {number} item @param {string} key */
function neighboursOf({ places, edges }, item, key) {
  if (key === "ArrowDown") return edges.filter(([source]) => source === item).map(([, target]) => target);
  if (key === "ArrowUp") return edges.filter(([, target]) => target === item).map(([source]) => source);
  if (key !== "ArrowLeft" && key !== "ArrowRight") return [];
  const side = key === "ArrowLeft" ? -1 : 1;
  const [column, row] = places[item];
  const neighbours = [...places.keys()].filter((other) => places[other][1] === row && (places[other][0] - column) * side > 0);
  return neighbours.sort((a, b) => Math.abs(places[a][0] - column) - Math.abs(places[b][0] - column));
}

/**
 * Pan by dragging, zoom by the wheel or two fingers, and report taps.
 * @param {HTMLCanvasElement} canvas
 * @param {{ x: number, y: number, zoom: number }} camera
 * @param {(factor: number, x?: number, y?: number) => void} zoom
 * @param {() => void} redraw
 * @param {(x: number, y: number) => void} tap
 */
function listenToPointer(canvas, camera, zoom, redraw, tap) {
  /** @type {Map<number, { x: number, y: number }>} */
  const pointers = new Map();
  let moved = 0;
  const fromMiddle = (/** @type {{ x: number, y: number }} */ { x, y }) => ({ x: x - canvas.clientWidth / 2, y: y - canvas.clientHeight / 2 });
  canvas.addEventListener("pointerdown", (event) => {
    canvas.setPointerCapture(event.pointerId);
    pointers.set(event.pointerId, { x: event.offsetX, y: event.offsetY });
    moved = 0;
  });
  canvas.addEventListener("pointermove", (event) => {
    const last = pointers.get(event.pointerId);
    if (!last) return;
    const point = { x: event.offsetX, y: event.offsetY };
    const [dx, dy] = [point.x - last.x, point.y - last.y];
    moved += Math.abs(dx) + Math.abs(dy);
    pointers.set(event.pointerId, point);
    const other = [...pointers].find(([id]) => id !== event.pointerId)?.[1];
    if (other) {
      const distance = (/** @type {{ x: number, y: number }} */ { x, y }) => Math.hypot(x - other.x, y - other.y);
      const middle = fromMiddle(other);
      zoom(distance(point) / Math.max(distance(last), 1), middle.x, middle.y);
    } else {
      camera.x -= dx / camera.zoom;
      camera.y -= dy / camera.zoom;
      redraw();
    }
  });
  const end = (/** @type {PointerEvent} */ event) => {
    if (pointers.delete(event.pointerId) && moved < 6 && event.type === "pointerup") tap(event.offsetX, event.offsetY);
  };
  canvas.addEventListener("pointerup", end);
  canvas.addEventListener("pointercancel", end);
  canvas.addEventListener(
    "wheel",
    (event) => {
      event.preventDefault();
      const { x, y } = fromMiddle({ x: event.offsetX, y: event.offsetY });
      if (event.ctrlKey || !event.shiftKey) zoom(Math.exp(-event.deltaY * (event.ctrlKey ? 0.01 : 0.0015)), x, y);
      else {
        camera.x += event.deltaY / camera.zoom;
        redraw();
      }
    },
    { passive: false },
  );
}

// Colours of the drawing: those of the page's style, as the browser computes them.

const STYLE_NAMES = ["text", "muted", "line", "page", "panel", "accent", "soft", "hot", "node"];
const FAMILIES = /** @type {[RegExp, number][]} */ ([
  [/Conv|MatMul|Gemm|Product|Attention|LSTM|GRU|RNN/, 212],
  [/Relu|Sigmoid|Tanh|Clip|Gelu|Swish|Silu|Elu|Softplus|Erf|Mish/i, 12],
  [/Norm|Softmax/, 285],
  [/Pool|Reduce|ArgM/, 150],
  [/Concat|Split|Slice|Gather|Reshape|Transpose|Squeeze|Flatten|Pad|Resize|Expand|Tile|Shape|Identity|Cast/, 60],
  [/Quant/, 330],
]);

/** The colours of the style by name. @returns {Record<string, string>} */
function styleColours() {
  const probe = document.createElement("span");
  document.body.append(probe);
  const colours = Object.fromEntries(
    STYLE_NAMES.map((name) => {
      probe.style.color = `var(--${name})`;
      return [name, getComputedStyle(probe).color];
    }),
  );
  probe.remove();
  return colours;
}

/** A colour of this hue that text can be read on. @param {number} hue @param {boolean} isDark */
const ofHue = (hue, isDark) => (isDark ? `hsl(${hue} 40% 26%)` : `hsl(${hue} 75% 90%)`);

/**
 * The colour of a node's box.
 * @param {State} state @param {number} node @param {string} mode @param {Record<string, string>} colours @param {number} most  the largest figure of a step
 */
function nodeColour(state, node, mode, colours, most) {
  const isDark = matchMedia("(prefers-color-scheme: dark)").matches;
  const { op = "", fate } = state.data.nodes[node];
  const step = state.stepsOfNode(node)[0];
  if (mode === "operator") {
    const family = FAMILIES.find(([pattern]) => pattern.test(op));
    return fate || !family ? colours.node : ofHue(family[1], isDark);
  }
  if (step === undefined) return colours.page;
  if (mode === "kernel") return ofHue((state.program.steps[step].kernel * 137.5) % 360, isDark);
  const share = Math.sqrt(Math.max(...state.stepsOfNode(node).map((s) => figure(state, s, mode))) / (most || 1));
  return isDark ? `hsl(8 ${20 + 50 * share}% ${18 + 26 * share}%)` : `hsl(12 ${30 + 60 * share}% ${96 - 34 * share}%)`;
}

/** The figure of a step that a colour shows. @param {State} state @param {number} step @param {string} mode */
function figure(state, step, mode) {
  return (mode === "time" ? state.measured?.steps[step] : state.program.steps[step].flops) ?? 0;
}

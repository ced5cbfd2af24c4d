// A drawing pad on a canvas, for mouse, finger and keyboard.
//
//   in:  a canvas that can have the focus
//   out: strokes, reported at every change; each is a list of points { x, y } from 0 to 1
//
//   const pad = createPad(canvas, { onChange: (strokes) => ..., onSay: (words) => ... });
//   pad.clear();

/** @typedef {import("./preprocess.js").Point} Point */

const KEY_STEP = 1 / 24; // how far an arrow key moves the pen, as a share of the pad's width
const PEN_WIDTH = 0.075; // as a share of the pad's width
const START = { x: 0.5, y: 0.15 };
/** @type {Record<string, Point>} */
const ARROWS = {
  ArrowLeft: { x: -1, y: 0 },
  ArrowRight: { x: 1, y: 0 },
  ArrowUp: { x: 0, y: -1 },
  ArrowDown: { x: 0, y: 1 },
};
const CLEAR_KEYS = ["c", "C", "Delete", "Backspace", "Escape"];

/**
 * @param {HTMLCanvasElement} canvas
 * @param {{ onChange: (strokes: Point[][]) => void, onSay: (words: string) => void }} listeners
 */
export function createPad(canvas, { onChange, onSay }) {
  /** @type {Point[][]} */
  let strokes = [];
  /** @type {number | null} */
  let pointer = null;
  const pen = { ...START, down: false, shown: false };
  /** @type {Set<string>} */
  const pressedArrows = new Set();

  function changed() {
    paint();
    onChange(strokes);
  }

  function clear() {
    strokes = [];
    pointer = null;
    Object.assign(pen, START, { down: false });
    changed();
  }

  function paint() {
    const context = canvas.getContext("2d");
    if (!context) return;
    const size = canvas.width;
    const style = getComputedStyle(canvas);
    context.clearRect(0, 0, size, size);
    context.strokeStyle = style.color;
    context.lineWidth = PEN_WIDTH * size;
    context.lineCap = context.lineJoin = "round";
    for (const stroke of strokes) {
      context.beginPath();
      const [first, ...nextPoints] = stroke;
      context.moveTo(first.x * size, first.y * size);
      // A stroke of a single point is drawn as a dot.
      for (const { x, y } of nextPoints.length ? nextPoints : [first]) context.lineTo(x * size, y * size);
      context.stroke();
    }
    if (pen.shown) paintPen(context, size, style.getPropertyValue("--accent"));
  }

  function paintPen(/** @type {CanvasRenderingContext2D} */ context, /** @type {number} */ size, /** @type {string} */ colour) {
    context.beginPath();
    context.arc(pen.x * size, pen.y * size, PEN_WIDTH * size * 0.62, 0, 2 * Math.PI);
    context.lineWidth = Math.max(2, size / 120);
    context.strokeStyle = context.fillStyle = colour;
    context.stroke();
    if (!pen.down) return;
    context.beginPath();
    context.arc(pen.x * size, pen.y * size, PEN_WIDTH * size * 0.25, 0, 2 * Math.PI);
    context.fill();
  }

  function point(/** @type {PointerEvent} */ event) {
    const { left, top, width, height } = canvas.getBoundingClientRect();
    return { x: (event.clientX - left) / width, y: (event.clientY - top) / height };
  }

  canvas.addEventListener("pointerdown", (event) => {
    if (pointer !== null || event.button !== 0) return;
    pointer = event.pointerId;
    canvas.setPointerCapture(pointer);
    pen.shown = pen.down = false;
    strokes.push([point(event)]);
    changed();
  });

  canvas.addEventListener("pointermove", (event) => {
    if (event.pointerId !== pointer) return;
    const events = event.getCoalescedEvents?.() ?? [];
    strokes.at(-1)?.push(...(events.length ? events : [event]).map(point));
    changed();
  });

  for (const end of ["pointerup", "pointercancel"]) {
    canvas.addEventListener(end, (event) => {
      if (/** @type {PointerEvent} */ (event).pointerId === pointer) pointer = null;
    });
  }

  function movePen() {
    for (const key of pressedArrows) {
      pen.x = Math.min(1, Math.max(0, pen.x + ARROWS[key].x * KEY_STEP));
      pen.y = Math.min(1, Math.max(0, pen.y + ARROWS[key].y * KEY_STEP));
    }
    if (pen.down) strokes.at(-1)?.push({ x: pen.x, y: pen.y });
  }

  canvas.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key in ARROWS) {
      pressedArrows.add(event.key);
      movePen();
    } else if (event.key === " ") {
      if (event.repeat) return event.preventDefault();
      pen.down = !pen.down;
      if (pen.down) strokes.push([{ x: pen.x, y: pen.y }]);
      onSay(pen.down ? "Pen down" : "Pen lifted");
    } else if (CLEAR_KEYS.includes(event.key)) {
      clear();
      onSay("Cleared");
    } else {
      return;
    }
    event.preventDefault();
    pen.shown = true;
    changed();
  });

  canvas.addEventListener("keyup", (event) => pressedArrows.delete(event.key));
  canvas.addEventListener("focus", () => {
    pen.shown = canvas.matches(":focus-visible");
    paint();
  });
  canvas.addEventListener("blur", () => {
    pressedArrows.clear();
    pen.shown = pen.down = false;
    paint();
  });

  new ResizeObserver(() => {
    canvas.width = canvas.height = Math.round(canvas.clientWidth * devicePixelRatio);
    paint();
  }).observe(canvas);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", paint);

  return { clear };
}

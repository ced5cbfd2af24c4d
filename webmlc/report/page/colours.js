// Colours of the drawing: those of the page's style, as the browser computes them.

/** @typedef {import("./state.js").State} State */

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
export function styleColours() {
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
export function nodeColour(state, node, mode, colours, most) {
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
export function figure(state, step, mode) {
  return (mode === "time" ? state.measured?.steps[step] : state.program.steps[step].flops) ?? 0;
}

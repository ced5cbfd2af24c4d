// Read the repetitions in the lists of a manifest. The twin of `unfold` in webmlc/package/repetitions.py, which explains them.

/**
 * Replace each repetition of a list by its items.
 * @param {any[]} items
 * @returns {any[]}
 */
export function unfold(items) {
  return items.flatMap((item) => {
    if (item.count === undefined) return [item];
    const { count, items: templates } = item;
    return Array.from({ length: count }, (_, i) => filled(templates[i % templates.length], Math.floor(i / templates.length)));
  });
}

/** The value that a template stands for in repetition `index`. @param {any} template @param {number} index @returns {any} */
function filled(template, index) {
  if (Array.isArray(template)) return template.map((value) => filled(value, index));
  if (template && typeof template === "object") {
    return Object.fromEntries(Object.entries(template).map(([key, value]) => [key, filled(value, index)]));
  }
  if (typeof template !== "string") return template;
  const number = (/** @type {string} */ series) => {
    const [first, step] = series.split("+").map(Number);
    return step === undefined ? Number(series.split(",")[index]) : first + index * step;
  };
  const mark = /^\{#([\d+,-]+)\}$/.exec(template);
  return mark ? number(mark[1]) : template.replace(/\{([\d+,-]+)\}/g, (_, series) => String(number(series)));
}

// Read the repetitions in the lists of a manifest. The twin of `unfold` in webmlc/package/repetitions.py, which explains them.

const MOST = 1e6; // items of a list; a damaged file has more

/** A value with its whole lists, and with those of the objects in it. @param {any} value @returns {any} */
export function unfolded(value) {
  if (Array.isArray(value)) return unfold(value);
  if (typeof value !== "object" || !value) return value;
  return Object.fromEntries(Object.entries(value).map(([key, inner]) => [key, unfolded(inner)]));
}

/**
 * Replace each repetition of a list by its items.
 * @param {any[]} items
 * @returns {any[]}
 */
export function unfold(items) {
  const total = items.reduce((sum, item) => sum + (item?.count ?? 0), 0);
  if (total > MOST) throw new Error(`${total} repetitions`);
  return items.flatMap((item) => {
    if (item?.count === undefined) return [item];
    const { count, items: templates } = item;
    return Array.from({ length: count }, (_, i) => filled(templates[i % templates.length], Math.floor(i / templates.length)));
  });
}

/** The value that a template stands for in repetition `index`. @param {any} template @param {number} index @returns {any} */
function filled(template, index) {
  if (typeof template === "string") return template.includes("{") ? filledText(template, index) : template;
  if (typeof template !== "object" || !template) return template;
  if (Array.isArray(template)) return template.map((value) => filled(value, index));
  /** @type {Record<string, any>} */
  const value = {};
  for (const key in template) value[key] = filled(template[key], index);
  return value;
}

/** A string, or the number that it stands for, in repetition `index`. @param {string} text @param {number} index */
function filledText(text, index) {
  if (text.startsWith("{#")) return numberOf(text.slice(2, -1), index);
  return text.replace(/\{([\d+,-]+)\}/g, (_, series) => String(numberOf(series, index)));
}

/** The number at `index` of a series: `first+step`, or a list. @param {string} series @param {number} index */
function numberOf(series, index) {
  const step = series.indexOf("+");
  return step < 0 ? Number(series.split(",")[index]) : Number(series.slice(0, step)) + index * Number(series.slice(step + 1));
}

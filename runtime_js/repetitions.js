// Read the repetitions in the lists of a manifest. The twin of `unfold` in webmlc/package/repetitions.py, which explains them.

const ITEM_LIMIT = 1e6; // items of a list; a damaged file may ask for more

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
  const total = items.reduce((sum, item) => sum + count(item), 0);
  if (total > ITEM_LIMIT) throw new Error(`a repetition is malformed: ${total} items`);
  return items.flatMap((item) => {
    if (item?.count === undefined) return [item];
    const templates = item.items;
    return Array.from({ length: item.count }, (_, i) => filled(templates[i % templates.length], Math.floor(i / templates.length)));
  });
}

/** The number of items that an item of a folded list stands for. @param {any} item */
function count(item) {
  if (item?.count === undefined) return 1;
  if (Number.isInteger(item.count) && item.count > 0 && Array.isArray(item.items) && item.items.length) return item.count;
  throw new Error("a repetition is malformed: it needs a positive count and templates");
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

// Read the Markdown that language models write: a part of CommonMark, as a tree.
//
//   in:  a text, which may end anywhere, because an answer is shown while it is generated
//   out: blocks: ["p", "some ", ["strong", "bold"], " text"], ["pre", ["code", "x = 1"]], ["ul", ["li", "one"]], ...
//
// A tree is a tag with its children. Texts stay texts: there are no links, no images and no markup, so an answer can neither run
// anything nor fetch anything.

/** @typedef {[tag: string, ...children: (string | Tree)[]]} Tree */

const MAX_DEPTH = 8; // of lists and quotes in each other; deeper ones are text
const FENCE = /^ {0,3}(```+|~~~+)/;
const HEADING = /^ {0,3}(#{1,6})\s+(.*?)\s*#*$/;
const ITEM = /^( *)([-*+]|(\d{1,9})[.)])\s+(.*)$/;
const QUOTE = /^ {0,3}> ?(.*)$/;
const RULE = /^ {0,3}([-*_])( *\1){2,} *$/;
/** Code, strong and emphasised text. Signs next to a space or within a word are signs, such as in `2 * 3` and `snake_case`. */
const SPAN = /(`+)(?!`)(.+?)(?<!`)\1(?!`)|\*\*(?=\S)(.+?)(?<=\S)\*\*(?!\*)|(?<!\w)__(?=\S)(.+?)(?<=\S)__(?!\w)|\*(?=[^\s*])(.+?)(?<=[^\s*])\*(?!\*)|(?<!\w)_(?=[^\s_])(.+?)(?<=[^\s_])_(?!\w)/s;

/** @param {string} text @returns {Tree[]} */
export function readMarkdown(text) {
  return readBlocks(text.split("\n"));
}

/** @param {string[]} lines @param {number} [depth] @returns {Tree[]} */
function readBlocks(lines, depth = 0) {
  /** @type {Tree[]} */
  const blocks = [];
  for (let i = 0; i < lines.length; ) {
    const nested = depth < MAX_DEPTH ? (readList(lines, i, depth + 1) ?? readQuote(lines, i, depth + 1)) : undefined;
    const [block, count] = readCode(lines, i) ?? nested ?? readLine(lines[i]) ?? readParagraph(lines, i);
    if (block) blocks.push(block);
    i += count;
  }
  return blocks;
}

/** A block and the number of its lines. @typedef {[Tree | null, number]} Block */

/** Code between fences, or up to the end of the text. @param {string[]} lines @param {number} first @returns {Block | undefined} */
function readCode(lines, first) {
  const fence = FENCE.exec(lines[first])?.[1];
  if (!fence) return undefined;
  let end = first + 1;
  while (end < lines.length && !lines[end].trim().startsWith(fence)) end++;
  return [["pre", ["code", lines.slice(first + 1, end).join("\n")]], end + 1 - first];
}

/**
 * A list: items of one kind, each with the lines that are indented further. Blank lines may be between them.
 * @param {string[]} lines @param {number} first @param {number} depth @returns {Block | undefined}
 */
function readList(lines, first, depth) {
  const [, indent, , number] = ITEM.exec(lines[first]) ?? [];
  if (indent === undefined || RULE.test(lines[first])) return undefined;
  /** @type {Tree} */
  const list = [number === undefined ? "ul" : "ol"];
  let end = first;
  while (end < lines.length) {
    const item = ITEM.exec(lines[end]);
    if (!item || item[1].length !== indent.length || (item[3] === undefined) !== (number === undefined)) break;
    const content = [item[4]];
    end++;
    while (end < lines.length && (!lines[end].trim() || indentation(lines[end]) > indent.length)) content.push(lines[end++]);
    while (content.length > 1 && !(/** @type {string} */ (content.at(-1)).trim())) content.pop();
    const inner = Math.min(...content.slice(1).filter((line) => line.trim()).map(indentation));
    const unindented = content.map((line, i) => (i ? line.slice(Math.min(inner, indentation(line))) : line));
    const children = readBlocks(unindented, depth);
    const [head, ...others] = children;
    list.push(head?.[0] === "p" ? ["li", ...head.slice(1), ...others] : ["li", ...children]);
  }
  return [list, end - first];
}

/** @param {string} line */
function indentation(line) {
  return line.length - line.trimStart().length;
}

/** @param {string[]} lines @param {number} first @param {number} depth @returns {Block | undefined} */
function readQuote(lines, first, depth) {
  let end = first;
  while (end < lines.length && QUOTE.test(lines[end])) end++;
  if (end === first) return undefined;
  return [["blockquote", ...readBlocks(lines.slice(first, end).map((line) => line.replace(QUOTE, "$1")), depth)], end - first];
}

/** A heading, a rule or a blank line. @param {string} line @returns {Block | undefined} */
function readLine(line) {
  const heading = HEADING.exec(line);
  if (heading) return [[`h${Math.min(6, heading[1].length + 2)}`, ...readSpans(heading[2])], 1]; // the page has h1 and h2
  if (RULE.test(line)) return [["hr"], 1];
  return line.trim() ? undefined : [null, 1];
}

/** @param {string[]} lines @param {number} first @returns {Block} */
function readParagraph(lines, first) {
  let end = first + 1;
  const isOther = (/** @type {string} */ line) => !line.trim() || [FENCE, HEADING, ITEM, QUOTE, RULE].some((form) => form.test(line));
  while (end < lines.length && !isOther(lines[end])) end++;
  return [["p", ...readSpans(lines.slice(first, end).join("\n"))], end - first];
}

/** @param {string} text @returns {(string | Tree)[]} */
function readSpans(text) {
  const match = SPAN.exec(text);
  if (!match) return text ? [text] : [];
  const [whole, ticks, code, strong, boldly, emphasis, gently] = match;
  /** @type {Tree} */
  const span = ticks ? ["code", code.trim() || code] : [strong ?? boldly ? "strong" : "em", ...readSpans(strong ?? boldly ?? emphasis ?? gently)];
  const before = text.slice(0, match.index);
  return [...(before ? [before] : []), span, ...readSpans(text.slice(match.index + whole.length))];
}

// The view of the chat page. All texts become text nodes, so a model cannot write markup.

import { create, element } from "../page.js";
import { readMarkdown } from "./markdown.js";

/** @import { Usage } from "../webmlc.js" */
/** @import { Tree } from "./markdown.js" */

const NEAR_END = 80; // pixels: who has scrolled up further reads, and is not scrolled down

/** @param {number} bytes */
export function megabytes(bytes) {
  const size = bytes / 1e6;
  return `${size.toLocaleString("en", { maximumFractionDigits: size < 10 ? 1 : 0 })} MB`;
}

/** Add a message, and return a function that appends to its text. @param {string} role @param {string} text */
export function addMessage(role, text) {
  const article = create("article");
  article.className = role;
  article.setAttribute("aria-label", role === "user" ? "You" : "Model");
  const content = create("div", text);
  content.className = "content";
  article.append(content);
  element("welcome").hidden = true;
  element("log").append(article);
  scrollToEnd(true);
  /** @type {string[]} The blocks on the page, as JSON. */
  const blocks = [];
  return {
    article,
    append(/** @type {string} */ piece) {
      text += piece;
      const isNear = isNearEnd();
      showBlocks(content, blocks, readMarkdown(text));
      if (isNear) scrollToEnd(false);
    },
  };
}

/**
 * Show blocks of Markdown. Blocks that are on the page already stay, so that a selection in them stays, too.
 * @param {HTMLElement} content
 * @param {string[]} shown
 * @param {Tree[]} blocks
 */
function showBlocks(content, shown, blocks) {
  for (const [i, block] of blocks.entries()) {
    const key = JSON.stringify(block);
    if (key === shown[i]) continue;
    const [old, node] = [content.children[i], nodeOf(block)];
    if (old) old.replaceWith(node);
    else content.append(node);
    shown[i] = key;
  }
  for (shown.length = blocks.length; content.children.length > blocks.length; ) content.lastElementChild?.remove();
}

/** @param {Tree} tree */
function nodeOf([tag, ...children]) {
  const node = create(tag);
  node.append(...children.map((child) => (typeof child === "string" ? child : nodeOf(child))));
  return node;
}

/** Show the figures of an answer below it, with buttons. @param {HTMLElement} article @param {string} text @param {Record<string, () => void>} buttons */
export function finishMessage(article, text, buttons) {
  for (const old of document.querySelectorAll(".regenerate")) old.remove(); // only the last answer can be replaced
  const isNear = isNearEnd();
  const below = create("div");
  below.className = "below";
  below.append(create("span", text));
  for (const [name, act] of Object.entries(buttons)) {
    const button = create("button", name);
    button.setAttribute("type", "button");
    button.className = name.toLowerCase();
    button.addEventListener("click", act);
    below.append(button);
  }
  article.append(below);
  if (isNear) scrollToEnd(false);
}

/** Show how full the context is, and how fast the answer comes. @param {Usage | null} usage */
export function showUsage(usage) {
  const tokens = usage?.context_tokens ?? 0;
  element("context").value = usage ? tokens / usage.capacity : 0;
  element("tokens").textContent = usage ? `${tokens.toLocaleString("en")} of ${usage.capacity.toLocaleString("en")} tokens` : "no tokens yet";
  element("speed").textContent = usage?.tokens_per_second ? `${usage.tokens_per_second.toFixed(1)} tokens/s` : "";
}

/** Why an answer ended, if that was not the model's choice. @param {Usage} usage */
export function ending({ finish_reason: reason }) {
  const reasons = { interrupted: "stopped", length: "ended: the longest answer", context: "ended: the context is full" };
  return reasons[/** @type {keyof typeof reasons} */ (reason)] ?? "";
}

/** Show an error, or hide the last one. @param {unknown} [error] */
export function showProblem(error) {
  element("problem").hidden = error === undefined;
  element("problem").textContent = error instanceof Error ? error.message : String(error ?? "");
}

/** Add a line to the details of the settings, or replace it. @param {string} term @param {string} text */
export function showDetail(term, text) {
  const id = `detail ${term}`;
  const value = element(id);
  if (value) value.textContent = text;
  else {
    const description = create("dd", text);
    description.id = id;
    element("details").append(create("dt", term), description);
  }
}

/** Say that the model has no chat template: it continues texts. */
export function showCompletion() {
  for (const [selector, text] of [["h2", "Begin a text"], ["p", "The model continues it, on this device. Nothing that you write leaves it."]]) {
    /** @type {HTMLElement} */ (document.querySelector(`#welcome ${selector}`)).textContent = text;
  }
  element("question").placeholder = "Begin a text";
  element("suggestions").remove();
}

/** Let people begin with a question of others. @param {string[]} questions @param {(question: string) => void} ask */
export function offerQuestions(questions, ask) {
  for (const question of questions) {
    const button = create("button", question);
    button.setAttribute("type", "button");
    button.addEventListener("click", () => ask(question));
    const item = create("li");
    item.append(button);
    element("suggestions").append(item);
  }
}

const scroller = () => /** @type {HTMLElement} */ (document.querySelector("#page > main"));

function isNearEnd() {
  const { scrollHeight, scrollTop, clientHeight } = scroller();
  return scrollHeight - scrollTop - clientHeight < NEAR_END;
}

/** @param {boolean} isSmooth */
function scrollToEnd(isSmooth) {
  const behavior = isSmooth && !matchMedia("(prefers-reduced-motion: reduce)").matches ? "smooth" : "instant";
  scroller().scrollTo({ top: scroller().scrollHeight, behavior });
}

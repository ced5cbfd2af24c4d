// The page of a language model's package: a chat with the model in the same folder.
// `?device=wasm|webgpu&threads=2` choose the device and the threads.

import { element, openPage, showFailure } from "../page.js";
import { addMessage, ending, finishMessage, megabytes, offerQuestions, showCompletion, showDetail, showProblem, showUsage } from "./chat_view.js";
import { load } from "./webmlc.js";
import { workOffline } from "./work_offline.js";

/** @import { LanguageModel, Message } from "../webmlc.js" */

const QUESTIONS = ["Explain why the sky is blue", "Write a haiku about the sea", "Plan a weekend in the mountains"];
const LATER_FILES = ["./session.js"]; // loaded for the first answer

/** @type {Message[]} */
const messages = [];
/** @type {LanguageModel} */
let model;
/** @type {AbortController | null} Of the answer that is being generated. */
let running = null;

/** Answer the last message. */
async function answer() {
  const controller = new AbortController();
  running = controller;
  setBusy(true);
  showProblem();
  const { article, append } = addMessage("assistant", "");
  article.classList.add("busy");
  const system = element("system").value.trim();
  const prompt = system ? [{ role: "system", content: system }, ...messages] : [...messages];
  try {
    const generation = model.generate(prompt, {
      temperature: element("temperature").valueAsNumber || 0,
      max_new_tokens: element("limit").valueAsNumber || 512,
      signal: controller.signal,
    });
    for await (const piece of generation) {
      append(piece);
      showUsage(generation.usage);
    }
    const { text, usage } = generation;
    messages.push({ role: "assistant", content: text });
    showUsage(usage);
    const figures = `${usage.completion_tokens} tokens, ${usage.tokens_per_second.toFixed(1)} tokens/s, first after ${usage.prompt_seconds.toFixed(2)} s`;
    finishMessage(article, [figures, ending(usage)].filter(Boolean).join(" · "), {
      Copy: () => void navigator.clipboard?.writeText(text),
      Regenerate: () => regenerate(article),
    });
  } catch (error) {
    article.remove();
    showProblem(error);
    if (messages.at(-1)?.role === "user") takeBack();
  } finally {
    article.classList.remove("busy");
    running = null;
    setBusy(false);
    showMemory();
  }
}

/** Send a question. While the model loads, a question stays in its field. @param {string} text */
function ask(text) {
  if (running || element("send").disabled || !text.trim()) return;
  messages.push({ role: "user", content: text.trim() });
  addMessage("user", text.trim());
  element("question").value = "";
  answer();
}

/** Replace the last answer. @param {HTMLElement} article */
function regenerate(article) {
  if (running) return;
  messages.pop();
  article.remove();
  answer();
}

/** Move the last question back into the field, because it was not answered. */
function takeBack() {
  element("question").value ||= messages.pop()?.content;
  element("log").lastElementChild?.remove();
}

/** Start a new conversation. */
function startAnew() {
  running?.abort();
  messages.length = 0;
  element("log").replaceChildren();
  element("welcome").hidden = false;
  showUsage(null);
  showProblem();
  element("question").focus();
}

/** @param {boolean} isBusy */
function setBusy(isBusy) {
  element("send").hidden = isBusy;
  element("stop").hidden = !isBusy;
  element("new").disabled = isBusy;
  if (!isBusy) element("question").focus({ preventScroll: true });
}

/**
 * Show the memory of the page, if the browser can tell: that of the model, and that of the scripts. (`measureUserAgentSpecificMemory`
 * takes a minute, and counts the memory that workers share once for each of them.)
 */
function showMemory() {
  const { memory: heap } = /** @type {any} */ (performance);
  const parts = [model.memoryBytes && `model ${megabytes(model.memoryBytes)}`, heap && `scripts ${megabytes(heap.usedJSHeapSize)}`];
  const text = parts.filter(Boolean).join(", ");
  if (text) showDetail("Memory of this page", text);
}

function listen() {
  element("form").addEventListener("submit", (/** @type {SubmitEvent} */ event) => {
    event.preventDefault();
    ask(element("question").value);
  });
  element("question").addEventListener("keydown", (/** @type {KeyboardEvent} */ event) => {
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    ask(element("question").value);
  });
  addEventListener("keydown", ({ key }) => {
    if (key === "Escape" && !element("settings").open) running?.abort();
  });
  element("stop").addEventListener("click", () => running?.abort());
  element("new").addEventListener("click", startAnew);
  element("open-settings").addEventListener("click", () => element("settings").showModal());
  offerQuestions(QUESTIONS, ask);
}

/** Show the model's facts, and let people ask. */
function start() {
  element("name").textContent = document.title = model.name;
  const cpu = model.threads === 1 ? "CPU, 1 thread" : `CPU, ${model.threads} threads`;
  const { download, weights, memory } = model.resources;
  element("facts").textContent = `${model.device === "webgpu" ? "GPU" : cpu} · ${megabytes(download)}`;
  showDetail("Device", `${model.device} (${model.deviceReason})`);
  showDetail("Threads", `${model.threads} (${model.threadsReason})`);
  showDetail("Download", megabytes(download));
  showDetail("Weights", megabytes(weights));
  showDetail("Memory of this page", memory ? `model ${megabytes(memory)}` : "this browser does not tell");
  if (!model.hasChatTemplate) showCompletion();
  element("loading").remove();
  element("welcome").hidden = false;
  for (const id of ["send", "new"]) element(id).disabled = false;
  showMemory();
}

async function main() {
  const options = openPage();
  listen();
  element("question").focus();
  const offline = await workOffline("./offline.js", LATER_FILES);
  model = await load("./", {
    ...options,
    onProgress: ({ loaded, total }) => {
      Object.assign(element("progress"), { value: loaded, max: total });
      element("status").textContent = `${megabytes(loaded)} of ${megabytes(total)}`;
    },
  });
  start();
  showDetail("Works offline", offline);
}

main().catch(showFailure);

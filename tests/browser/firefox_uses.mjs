// Use the pages of the demos in Firefox, through puppeteer, and return what they show.

import { isStored } from "./stored_files.mjs";

const POLL_MS = 50;
const LIMIT_MS = 60_000;

/** Wait until a function, which runs in the page, returns something. @returns {Promise<any>} */
async function until(page, callable, ...args) {
  const deadline = Date.now() + LIMIT_MS;
  for (;;) {
    const value = await page.evaluate(callable, ...args);
    if (value) return value;
    if (Date.now() > deadline) throw new Error(`no result in ${LIMIT_MS} ms of ${callable}; the page: ${await page.evaluate(() => document.body.innerText)}`);
    await new Promise((resolve) => setTimeout(resolve, POLL_MS));
  }
}

/** Wait until an element exists and can be used. */
const untilEnabled = (page, selector) => until(page, (name) => document.querySelector(name)?.disabled === false, selector);

/** Wait until the page would work without a network. */
const untilStored = (page) => until(page, isStored);

/** Draw a one with the mouse. */
export async function digits(page) {
  await until(page, () => /draw to see/.test(document.querySelector("#fact-time").textContent));
  const { x, y, size } = await page.evaluate(() => {
    const box = document.querySelector("#pad").getBoundingClientRect();
    return { x: box.x, y: box.y, size: box.width };
  });
  const move = ([left, top]) => page.mouse.move(x + left * size, y + top * size, { steps: 8 });
  await move([0.36, 0.28]);
  await page.mouse.down();
  for (const point of [[0.52, 0.1], [0.52, 0.5], [0.52, 0.9]]) await move(point);
  await page.mouse.up();
  await until(page, () => /^Reads/.test(document.querySelector("#announcement").textContent));
  await untilStored(page);
  return page.evaluate(() => document.querySelector("#digit").textContent);
}

/** Let the page say what its own files are. */
export async function fileTypes(page) {
  await untilEnabled(page, "#examples");
  await page.focus("#examples");
  await page.keyboard.press("Enter");
  const types = await until(page, () => {
    const items = [...document.querySelectorAll("#results li")];
    return items.length === 6 && items.map((item) => item.dataset.type);
  });
  await untilStored(page);
  return types;
}

/** The lines of the notice that the page draws. */
export async function readText(page) {
  await untilEnabled(page, "#files");
  await untilStored(page);
  return page.evaluate(() => [...document.querySelectorAll("#lines button")].map((item) => item.firstChild.textContent));
}

/** The best passage for a query. */
export async function search(page) {
  await untilEnabled(page, "#files"); // all passages are read
  await page.type("#query", "I can't sign in");
  await until(page, () => document.querySelector("#announcement").textContent);
  await untilStored(page);
  return page.evaluate(() => document.querySelector("#results li p").textContent);
}

/** The spans of speech in the recording of the page. */
export async function speech(page) {
  await untilEnabled(page, "#files");
  await untilStored(page);
  return page.evaluate(() => [...document.querySelectorAll("#spans li")].map((item) => item.textContent));
}

/** The answer to a question. */
export const chat = (page) => ask(page, "why is the sky blue?");

/** The likeliest answer of the model in the chat demo. */
export async function planet(page) {
  await untilEnabled(page, "#send");
  await page.evaluate(() => {
    document.querySelector("#temperature").value = "0";
  });
  return ask(page, "Which planet is closest to the sun?");
}

/** Ask by keyboard, and wait for the end of the answer. */
async function ask(page, question) {
  await untilEnabled(page, "#send");
  await page.type("#question", question);
  await page.keyboard.press("Enter");
  const answer = await until(page, () => {
    const isIdle = document.querySelector("#stop").hidden;
    return isIdle && document.querySelector("article.assistant p")?.textContent;
  });
  await untilStored(page);
  return answer;
}

// Take the pictures of the README: the chat page on a desktop and on a phone, while the demo serves it.
//
//   make demo-chat                                  prints an address
//   node demos/chat/pictures.mjs ADDRESS            writes docs/chat.png and docs/chat_phone.png

import path from "node:path";
import { fileURLToPath } from "node:url";
import { startBrowser } from "../../tests/browser/chromium.mjs";

const DOCS = path.resolve(path.dirname(fileURLToPath(import.meta.url)), "../../docs");
const LIMIT_MS = 240_000;
const QUESTION = "Write a Python function that reverses a string.";
const PICTURES = {
  "chat.png": { viewport: { width: 900, height: 520 } },
  "chat_phone.png": { viewport: { width: 390, height: 700 }, isMobile: true, hasTouch: true, colorScheme: "dark" },
};

const browser = await startBrowser();
try {
  for (const [file, options] of Object.entries(PICTURES)) {
    const page = await (await browser.newContext(options)).newPage();
    page.setDefaultTimeout(LIMIT_MS);
    await page.goto(process.argv[2]);
    await page.getByText("What would you like to know?").waitFor();
    await page.getByRole("button", { name: "Settings" }).click();
    await page.getByLabel("Temperature").fill("0");
    await page.getByRole("button", { name: "Done" }).click();
    await page.getByLabel("Message").fill(QUESTION);
    await page.keyboard.press("Enter");
    await page.getByRole("button", { name: "Regenerate" }).waitFor();
    await page.screenshot({ path: path.join(DOCS, file) });
    await page.context().close();
  }
} finally {
  await browser.close();
}

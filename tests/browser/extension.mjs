// Load an extension into Chromium, and print what its page and its service worker return.
//
//   arguments:  the extension's folder, a page in it
//   out:        { page, serviceWorker }: the results of `globalThis.run()` in each

import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import path from "node:path";
import { chromium } from "playwright-core";
import { EXECUTABLE, FLAGS } from "./chromium.mjs";

const [extension, page] = process.argv.slice(2);
const profile = await mkdtemp(path.join(tmpdir(), "webmlc-extension-"));
const context = await chromium.launchPersistentContext(profile, {
  executablePath: EXECUTABLE,
  args: [...FLAGS, `--disable-extensions-except=${extension}`, `--load-extension=${extension}`],
  ignoreDefaultArgs: ["--disable-extensions"],
});
try {
  const worker = context.serviceWorkers()[0] ?? (await context.waitForEvent("serviceworker", { timeout: 20_000 }));
  const tab = await context.newPage();
  const errors = [];
  tab.on("pageerror", (error) => errors.push(String(error)));
  tab.on("console", (message) => message.type() === "error" && errors.push(message.text()));
  await tab.goto(new URL(page, worker.url()).href);
  const call = "(async () => { while (!globalThis.run) await new Promise((resolve) => setTimeout(resolve, 20)); return run(); })()";
  console.log(JSON.stringify({ page: await tab.evaluate(call), serviceWorker: await worker.evaluate(call), errors }));
} finally {
  await context.close();
  await rm(profile, { recursive: true });
}

// Control Debian's Chromium, without a window, through playwright-core.

import { startBrowser } from "../browser/chromium.mjs";
import { openPage } from "./open_page.mjs";

export async function start() {
  const browser = await startBrowser();
  return { version: browser.version(), open: (url) => openPage(browser, url), close: () => browser.close() };
}

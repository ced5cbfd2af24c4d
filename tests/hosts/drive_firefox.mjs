// Control Debian's Firefox ESR, without a window, through puppeteer-core over WebDriver BiDi.

import puppeteer from "puppeteer-core";
import { findExecutable } from "./executables.mjs";
import { openPage } from "./open_page.mjs";

/** @param {Record<string, unknown>} [options]  of puppeteer */
export async function start(options = {}) {
  const executablePath = findExecutable("Firefox", "firefox-esr", ["/usr/bin/firefox-esr"]);
  const browser = await puppeteer.launch({ browser: "firefox", executablePath, headless: true, ...options });
  const version = (await browser.version()).replace(/^firefox\//i, "");
  return { version, open: (url) => openPage(browser, url), close: () => browser.close() };
}

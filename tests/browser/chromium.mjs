// A real headless Chromium with WebGPU (on SwiftShader).
//
//   const browser = await startBrowser();
//   const page = await (await browser.newContext()).newPage();
//
// Shared by tests/browser (through run_pages.mjs), tests/hosts and benchmarks/.

import { existsSync } from "node:fs";
import { chromium } from "playwright-core";

export const EXECUTABLE = process.env.WEBMLC_CHROMIUM ?? "/usr/bin/chromium";

export const FLAGS = [
  "--no-sandbox",
  "--enable-unsafe-webgpu",
  "--use-webgpu-adapter=swiftshader",
  "--enable-features=Vulkan",
  "--use-fake-device-for-media-stream", // a microphone that beeps
  "--disable-background-networking",
  "--disable-component-update",
  "--disable-sync",
  // A page that is not in front must run at full speed: benchmarks take turns between pages.
  "--disable-background-timer-throttling",
  "--disable-backgrounding-occluded-windows",
  "--disable-renderer-backgrounding",
];

/** Start Chromium with an empty profile. The caller closes it. */
export async function startBrowser() {
  if (!existsSync(EXECUTABLE)) {
    throw new Error(`no Chromium at ${EXECUTABLE}: install Debian's chromium, or set WEBMLC_CHROMIUM`);
  }
  return chromium.launch({ executablePath: EXECUTABLE, args: FLAGS });
}

// The processes of a browser, and their memory, for benchmarks.

import { readFile } from "node:fs/promises";

/** The browser's processes: { type, id, cpuTime }, in seconds. */
export async function processesOf(browser) {
  const session = await browser.newBrowserCDPSession();
  const { processInfo } = await session.send("SystemInfo.getProcessInfo");
  await session.detach();
  return processInfo;
}

/** The ids of the processes that contain pages. */
export async function renderers(browser) {
  return (await processesOf(browser)).filter(({ type }) => type === "renderer").map(({ id }) => id);
}

/** The peak memory of a process in bytes, or null if the system does not report it. */
export async function peakMemory(pid) {
  const status = await readFile(`/proc/${pid}/status`, "utf8").catch(() => "");
  const peak = /^VmHWM:\s+(\d+) kB/m.exec(status);
  return peak && Number(peak[1]) * 1024;
}

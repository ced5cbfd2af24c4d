// The processes of a browser, and their memory, for benchmarks.

import { readdir, readFile } from "node:fs/promises";

/** The browser's processes: { type, id, cpuTime }, in seconds. */
export async function processesOf(browser) {
  const session = await browser.newBrowserCDPSession();
  const { processInfo } = await session.send("SystemInfo.getProcessInfo");
  await session.detach();
  return processInfo;
}

const SAMPLE_MS = 50; // between two samples of memory, each of which takes some hundredths of a millisecond

/**
 * Open a blank page at an address, in a context of its own, and watch the memory of its process. A later page of the same origin
 * reuses this process.
 * @returns {Promise<{ page, peakMemory: () => Promise<number> }>} `peakMemory` ends the watch, and returns bytes; see `watchMemory`
 */
export async function openWatched(browser, url) {
  const page = await (await browser.newContext()).newPage();
  await page.goto(url);
  return { page, peakMemory: watchMemory(await rendererOf(page)) };
}

/**
 * The id of the process that contains a page, its workers, and nothing else, or null if the system does not report threads. A browser
 * that opens a page also starts spare processes, and pages of its own, some of which are larger than a blank page. So the page starts a
 * worker, and its process is the one with one more.
 */
async function rendererOf(page) {
  const browser = page.context().browser();
  const workersOf = async () => {
    const renderers = (await processesOf(browser)).filter(({ type }) => type === "renderer");
    return new Map(await Promise.all(renderers.map(async ({ id }) => [id, await countWorkers(id)])));
  };
  const before = await workersOf();
  const worker = await page.evaluateHandle(async () => {
    const thread = new Worker("data:text/javascript,postMessage(0)");
    await new Promise((resolve) => (thread.onmessage = resolve));
    return thread;
  });
  const after = await workersOf();
  await worker.evaluate((thread) => thread.terminate());
  const [pid = null] = [...after.keys()].filter((id) => after.get(id) > (before.get(id) ?? 0));
  return pid;
}

/** The number of threads of a process that are workers of pages. */
async function countWorkers(pid) {
  const ids = await readdir(`/proc/${pid}/task`).catch(() => []);
  const names = await Promise.all(ids.map((id) => readFile(`/proc/${pid}/task/${id}/comm`, "utf8").catch(() => "")));
  return names.filter((name) => name.startsWith("DedicatedWorker")).length;
}

/**
 * Watch the memory of a process that no file backs, in bytes. Pages of the browser's program are left out: how many of them are resident
 * depends on what ran before. The system reports no peak of this memory, so it is sampled.
 * @param {number} pid
 * @returns {() => Promise<number>} ends the watch, and returns the peak
 */
function watchMemory(pid) {
  let peak = 0;
  const sample = async () => {
    peak = Math.max(peak, await unbackedMemory(pid));
  };
  const timer = setInterval(sample, SAMPLE_MS);
  return async () => {
    clearInterval(timer);
    await sample();
    return peak;
  };
}

/** The resident memory of a process that no file backs, in bytes, its own and what it shares; 0 if the system does not report it. */
async function unbackedMemory(pid) {
  const status = await readFile(`/proc/${pid}/status`, "utf8").catch(() => "");
  const sizes = [...status.matchAll(/^Rss(?:Anon|Shmem):\s+(\d+) kB/gm)].map(([, kilobytes]) => Number(kilobytes));
  return 1024 * sizes.reduce((sum, size) => sum + size, 0);
}

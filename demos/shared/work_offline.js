// Let a page work offline, with the service worker of offline.js.

const WORKER_MILLISECONDS = 10_000; // the page does not wait longer for the worker

/**
 * Fetch again what the page loaded before the service worker had control: the worker keeps what passes through it. Files that
 * are still on their way are fetched again when they have come, and are not waited for.
 */
async function fetchThroughWorker() {
  const urls = new Set();
  const fetchOnce = async (/** @type {string} */ url) => {
    if (urls.has(url) || new URL(url).origin !== location.origin) return;
    urls.add(url);
    await (await fetch(url)).arrayBuffer();
  };
  const fetchFiles = (/** @type {PerformanceEntryList} */ entries) => {
    const files = /** @type {PerformanceResourceTiming[]} */ (entries).filter(({ workerStart }) => !workerStart);
    return Promise.all(files.map(({ name }) => fetchOnce(name)));
  };
  new PerformanceObserver((list) => void fetchFiles(list.getEntries()).catch(() => {})).observe({ type: "resource" });
  await Promise.all([fetchOnce(location.href), fetchFiles(performance.getEntriesByType("resource"))]);
}

/**
 * Let a service worker keep the files below its folder, so that the page works offline. A page can do without it.
 * @param {URL | string} script  of the worker, which is a copy of offline.js
 * @returns {Promise<string>} "yes", or when or why not
 */
export async function workOffline(script) {
  const container = navigator.serviceWorker;
  if (!container) return "no: this browser or this address allows no service worker";
  try {
    const hasControl = new Promise((resolve) => container.addEventListener("controllerchange", resolve, { once: true }));
    const registration = await container.register(script);
    // An active worker without control will get none: the person has forced the browser to load the page anew.
    const comes = !container.controller && registration.active?.state !== "activated";
    if (comes) await Promise.race([hasControl, new Promise((resolve) => setTimeout(resolve, WORKER_MILLISECONDS))]);
    if (!container.controller) return "after the next visit";
    await fetchThroughWorker();
    return "yes";
  } catch (error) {
    return `no: ${/** @type {Error} */ (error).message}`;
  }
}

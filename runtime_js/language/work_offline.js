// Let a page work offline, with the service worker of offline.js.

const WORKER_MILLISECONDS = 10_000; // the page does not wait longer for the worker

/**
 * Fetch again what the page loaded before the service worker had control: the worker stores what passes through it. Files that
 * are still on their way are fetched again when they have come, and are not waited for.
 * @param {number} controlTime  of the page's clock: what began before passed through another worker, or through none
 * @param {string[]} files  addresses of files that the page will load later
 */
async function fetchThroughWorker(controlTime, files) {
  const urls = new Set();
  const fetchOnce = async (/** @type {string} */ url) => {
    if (urls.has(url) || new URL(url).origin !== location.origin) return;
    urls.add(url);
    await (await fetch(url)).arrayBuffer();
  };
  const fetchMissed = (/** @type {PerformanceEntryList} */ entries) => {
    const missed = entries.filter(({ startTime }) => startTime < controlTime);
    return Promise.all(missed.map(({ name }) => fetchOnce(name)));
  };
  new PerformanceObserver((list) => void fetchMissed(list.getEntries()).catch(() => {})).observe({ type: "resource" });
  const addresses = ["", ...files].map((file) => new URL(file, location.href).href);
  await Promise.all([...addresses.map(fetchOnce), fetchMissed(performance.getEntriesByType("resource"))]);
}

/**
 * Let a service worker store the files below its folder, so that the page works offline. A page can do without it. Until the
 * worker has control, that of a folder above may have it, such as that of a gallery around the page. It stores files for itself.
 * @param {URL | string} script  of the worker, which is a copy of offline.js
 * @param {string[]} files  that the page will load later
 * @returns {Promise<string>} "yes", or when or why not
 */
export async function workOffline(script, files = []) {
  const container = navigator.serviceWorker;
  if (!container) return "no: this browser or this address allows no service worker";
  const { href } = new URL(script, location.href);
  const hasControl = () => container.controller?.scriptURL === href;
  try {
    /** @type {Promise<number>} */
    const controlTime = new Promise((resolve) => {
      if (hasControl()) resolve(0);
      else container.addEventListener("controllerchange", () => hasControl() && resolve(performance.now()));
    });
    const registration = await container.register(script);
    // An active worker without control will get none: the person has forced the browser to load the page anew.
    const comes = !hasControl() && registration.active?.state !== "activated";
    if (comes) await Promise.race([controlTime, new Promise((resolve) => setTimeout(resolve, WORKER_MILLISECONDS))]);
    if (!hasControl()) return "after the next visit";
    await fetchThroughWorker(await controlTime, files);
    return "yes";
  } catch (error) {
    return `no: ${/** @type {Error} */ (error).message}`;
  }
}

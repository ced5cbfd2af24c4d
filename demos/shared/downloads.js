// Count the bytes that a page has downloaded.

/**
 * The bytes of the files whose addresses pass the test, as the browser counted them, each file once. A browser states no size for
 * the script of a worker that came through the service worker, which has a copy of it.
 * @param {(url: string) => boolean} isCounted
 */
export async function downloadedBytes(isCounted) {
  const entries = [...performance.getEntriesByType("navigation"), ...performance.getEntriesByType("resource")];
  /** @type {Map<string, number>} */
  const sizes = new Map();
  for (const { name, encodedBodySize } of /** @type {PerformanceResourceTiming[]} */ (entries)) {
    if (isCounted(name)) sizes.set(name, Math.max(sizes.get(name) ?? 0, encodedBodySize));
  }
  let sum = 0;
  for (const [name, bytes] of sizes) sum += bytes || (await copiedBytes(name));
  return sum;
}

/** The bytes of the service worker's copy of a file; 0 without one. @param {string} url */
async function copiedBytes(url) {
  const copy = await globalThis.caches?.match(url, { ignoreSearch: true });
  return copy ? (await copy.blob()).size : 0;
}

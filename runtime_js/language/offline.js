// The service worker of pages with packages: it stores the files of every page that was opened below its folder, so that the
// page works offline.
//
// Data of a package (weights, code, tokeniser) are stored under their hashes, and are never fetched twice. All other files come
// from the network if it answers, so that a new build shows at once. The chat page has this worker, and so have the demos.

const scope = /** @type {any} */ (globalThis).registration.scope;
const CACHE = `webmlc ${scope}`;
const DATA = /\.(safetensors|deflate|json|jinja)$/;
const MANIFEST = /\/manifest\.json$/;

/** The hashes of the package in the folder of a file. @param {Cache} cache @param {URL} url @returns {Promise<Record<string, { sha256: string }>>} */
async function filesBeside(cache, url) {
  const manifest = await cache.match(new URL("./manifest.json", url));
  return manifest ? (await manifest.json()).files : {};
}

/** Delete the data of older builds of a package. @param {Cache} cache @param {URL} manifest */
async function clean(cache, manifest) {
  const folder = new URL("./", manifest).href;
  const hashes = new Set(Object.values(await filesBeside(cache, manifest)).map(({ sha256 }) => sha256));
  for (const { url } of await cache.keys()) {
    const hash = new URL(url).searchParams.get("sha256");
    if (url.startsWith(folder) && hash && !hashes.has(hash)) await cache.delete(url);
  }
}

/** @param {Request} request @param {(work: Promise<unknown>) => void} waitUntil  the browser may end the worker before */
async function answer(request, waitUntil) {
  const cache = await caches.open(CACHE);
  const url = new URL(request.url);
  url.search = "";
  url.hash = "";
  if (DATA.test(url.pathname)) {
    const name = url.pathname.slice(url.pathname.lastIndexOf("/") + 1);
    const hash = (await filesBeside(cache, url))[name]?.sha256;
    if (hash) url.searchParams.set("sha256", hash);
    const data = hash && (await cache.match(url));
    if (data) return data;
  }
  try {
    const response = await fetch(request);
    if (response.status !== 200) return response;
    const storage = cache.put(url, response.clone());
    if (MANIFEST.test(url.pathname)) await storage.then(() => clean(cache, url));
    else waitUntil(storage.catch(() => {})); // no room: the page works all the same
    return response;
  } catch (error) {
    const copy = await cache.match(url);
    if (copy) return copy;
    throw error;
  }
}

addEventListener("install", () => /** @type {any} */ (globalThis).skipWaiting());
addEventListener("activate", (/** @type {any} */ event) => event.waitUntil(/** @type {any} */ (globalThis).clients.claim()));
addEventListener("fetch", (/** @type {any} */ event) => {
  const { request } = event;
  if (request.method === "GET" && request.url.startsWith(scope)) event.respondWith(answer(request, (work) => event.waitUntil(work)));
});

// The service worker of the chat page: it keeps the files of the package, so that the page works offline.
//
// Data of the model (weights, code, tokenizer) are kept under their hashes, and are never fetched twice. All other files come
// from the network if it answers, so that a new build shows at once.

const scope = /** @type {any} */ (globalThis).registration.scope;
const CACHE = `webmlc ${scope}`;
/** Files that the page loads before this worker has control, or only for the first answer. */
const SHELL = ["./", "./index.css", "./index.js", "./webmlc.js", "./shared.js", "./session.js"];
const MANIFEST = new URL("manifest.json", scope).href;
const DATA = /\.(safetensors|deflate|json|jinja)$/;

/** @param {Cache} cache @returns {Promise<Record<string, { sha256: string }>>} */
async function filesOf(cache) {
  const manifest = await cache.match(MANIFEST);
  return manifest ? (await manifest.json()).files : {};
}

/** Delete the data of older builds. @param {Cache} cache */
async function clean(cache) {
  const hashes = new Set(Object.values(await filesOf(cache)).map(({ sha256 }) => sha256));
  for (const { url } of await cache.keys()) {
    const hash = new URL(url).searchParams.get("sha256");
    if (hash && !hashes.has(hash)) await cache.delete(url);
  }
}

/** @param {Request} request @param {(work: Promise<unknown>) => void} waitUntil  the browser may end the worker before */
async function answer(request, waitUntil) {
  const cache = await caches.open(CACHE);
  const url = new URL(request.url);
  url.search = "";
  url.hash = "";
  const hash = DATA.test(url.pathname) && (await filesOf(cache))[url.href.slice(scope.length)]?.sha256;
  if (hash) {
    url.searchParams.set("sha256", hash);
    const data = await cache.match(url);
    if (data) return data;
  }
  try {
    const response = await fetch(request);
    if (response.status !== 200) return response;
    const storage = cache.put(url, response.clone());
    if (url.href === MANIFEST) await storage.then(() => clean(cache));
    else waitUntil(storage.catch(() => {})); // no room: the page works all the same
    return response;
  } catch (error) {
    const copy = await cache.match(url);
    if (copy) return copy;
    throw error;
  }
}

addEventListener("install", (/** @type {any} */ event) => {
  /** @type {any} */ (globalThis).skipWaiting();
  event.waitUntil(caches.open(CACHE).then((cache) => cache.addAll(SHELL)));
});
addEventListener("activate", (/** @type {any} */ event) => event.waitUntil(/** @type {any} */ (globalThis).clients.claim()));
addEventListener("fetch", (/** @type {any} */ event) => {
  const { request } = event;
  if (request.method === "GET" && request.url.startsWith(scope)) event.respondWith(answer(request, (work) => event.waitUntil(work)));
});

// Whether a page would work without a network. The function runs in the page.

/**
 * Whether the service worker of the page's own folder has all files that the page has loaded, and all weights of their packages,
 * which workers may have loaded.
 */
export async function isStored() {
  const { scope } = await navigator.serviceWorker.ready; // without a network, Firefox may leave its `active` null
  const { controller } = navigator.serviceWorker;
  if (!controller || new URL("./", controller.scriptURL).href !== scope) return false;
  const cache = await caches.open(`webmlc ${scope}`);
  const folder = new URL("./", location.href).href;
  const urls = [location.href, ...performance.getEntriesByType("resource").map(({ name }) => name)];
  for (const { url } of await cache.keys()) {
    if (!url.startsWith(folder) || !url.endsWith("/manifest.json")) continue;
    const { files } = await (await cache.match(url)).json();
    for (const name of Object.keys(files)) if (name.endsWith(".safetensors")) urls.push(new URL(name, url).href);
  }
  const copies = await Promise.all(urls.map((url) => cache.match(url, { ignoreSearch: true })));
  return copies.every(Boolean);
}

// Keep the files of a package in the browser's Cache API, so that the next load needs no network.
//
//   in:  a base
//   out: a base that opens kept files, and keeps those that it downloads; `files.reason` says what it did
//
// A kept file is named by its URL and its hash, so that a new build never meets an old file. Whoever opens a file checks it against
// its hash, kept or not. The manifest is downloaded first; without a network, the kept one is opened.

import { codeOf } from "./errors.js";

/** @import { Base, KeptFiles, Manifest } from "./types.d.ts" */

const KEPT_FILES = "webmlc";
const MANIFEST_FILE = "manifest.json";
const HASH_PARAMETER = "sha256"; // the parameter that is added to URLs

/**
 * Open a model from a base that keeps files. Without a cache, `files` says why there is none. If a kept file is damaged, all are
 * downloaded again.
 * @template T
 * @param {Base} base
 * @param {(base: Base) => Promise<T>} openModel
 * @returns {Promise<T>}
 */
export async function withKeptFiles(base, openModel) {
  const files = new FileCache(base);
  await files.openCache();
  try {
    return await openModel({ ...base, open: (path) => files.open(path), files });
  } catch (error) {
    if (codeOf(error) !== "package" || !files.hits) throw error;
    await files.clear();
    return withKeptFiles(base, openModel);
  }
}

/** @implements {KeptFiles} */
class FileCache {
  hits = 0; // files that came from the cache
  /** @type {Cache | null} */
  #cache = null;
  #obstacle = "";
  #kept = { files: 0, bytes: 0 };
  #room = Infinity; // bytes that the browser's quota leaves
  #persists = false;
  /** @type {Manifest["files"]} */
  #entries = {};
  #base;

  /** @param {Base} base */
  constructor(base) {
    this.#base = base;
  }

  async openCache() {
    if (!this.#base.url.protocol.startsWith("http")) this.#obstacle = "the package has no http address";
    else if (!globalThis.caches) this.#obstacle = "this host has no Cache API, which pages have over https";
    else {
      try {
        this.#cache = await caches.open(KEPT_FILES);
        const { quota = Infinity, usage = 0 } = (await navigator.storage?.estimate?.()) ?? {};
        this.#room = quota - usage;
        this.#persists = (await navigator.storage?.persisted?.()) ?? false;
      } catch (error) {
        this.#obstacle = `the browser opens no cache (${/** @type {Error} */ (error).message})`;
      }
    }
  }

  get reason() {
    const { files, bytes } = this.#kept;
    const fate = this.#persists ? "storage is persistent" : "the browser may remove them when space is short";
    const parts = [
      this.hits ? `files from the cache: ${this.hits}` : "",
      files ? `files kept: ${files}, ${bytes} bytes` : "",
      this.#obstacle ? `not kept: ${this.#obstacle}` : fate,
    ];
    return parts.filter(Boolean).join("; ");
  }

  /** Learn the hashes of the files, and remove kept files of other builds. @param {Manifest} manifest */
  use({ files }) {
    this.#entries = files;
    this.#removeExcept((path, hash) => files[path]?.sha256 === hash).catch(() => {}); // they only take space
  }

  /** Remove all kept files of the package. */
  clear() {
    return this.#removeExcept(() => false);
  }

  /** @param {(path: string, hash: string | null) => boolean} isCurrent */
  async #removeExcept(isCurrent) {
    const { href } = this.#base.url;
    for (const request of (await this.#cache?.keys()) ?? []) {
      const url = new URL(request.url);
      const hash = url.searchParams.get(HASH_PARAMETER);
      const path = request.url.slice(href.length).split("?")[0];
      if (request.url.startsWith(href) && hash !== null && !isCurrent(decodeURIComponent(path), hash)) await this.#cache?.delete(request);
    }
  }

  /** Open a file. @param {string} path */
  async open(path) {
    const url = new URL(path, this.#base.url);
    const cache = this.#cache;
    if (!cache) return this.#base.open(path);
    if (url.href === new URL(MANIFEST_FILE, this.#base.url).href) return this.#openManifest(cache, path, url);
    const entry = this.#entries[path];
    if (!entry) return this.#base.open(path);
    url.searchParams.set(HASH_PARAMETER, entry.sha256);
    const hit = await cache.match(url);
    if (hit) {
      this.hits++;
      return hit;
    }
    const response = await this.#base.open(path);
    if (entry.bytes > this.#room) this.#obstacle = `${path} takes ${entry.bytes} bytes, and the browser's quota leaves ${this.#room}`;
    else if (response.ok) {
      this.#room -= entry.bytes;
      this.#keep(cache, url, response.clone(), entry.bytes);
    }
    return response;
  }

  /** @param {Cache} cache @param {string} path @param {URL} url */
  async #openManifest(cache, path, url) {
    try {
      const response = await this.#base.open(path);
      if (response.ok) cache.put(url, response.clone()).catch(() => {});
      return response;
    } catch (error) {
      const hit = await cache.match(url);
      if (hit) return hit;
      throw error;
    }
  }

  /** @param {Cache} cache @param {URL} url @param {Response} response @param {number} bytes */
  async #keep(cache, url, response, bytes) {
    try {
      await cache.put(url, response);
      this.#kept.files++;
      this.#kept.bytes += bytes;
    } catch (error) {
      const { name, message } = /** @type {Error} */ (error); // the quota is used up, or the download broke off
      this.#obstacle = `${name}: ${message}`;
    }
  }
}

// A package in a folder, as pages load it: parts of the runtime are imported on demand, and workers are scripts.
//
// Only pages import this module: if a worker did, bundlers would see a worker that starts itself.
//
// Browsers start workers only from scripts of the page's origin, and bundlers move scripts. So there are two ways to start a
// worker:
//
//   1. From the script beside this module. Bundlers see `new Worker(new URL(...))`, bundle that script and replace its URL.
//   2. From the package's copy of the script. If that is on another origin, a blob of this origin imports it.

import { folderAt } from "./open_model.js";
import { builtin, open } from "./platform.js";

/** @import { Base } from "./types.d.ts" */

const SCRIPT = "wasm_worker.js";
const HERE = import.meta.url; // a constant, because bundlers copy files that they see in `new URL(..., import.meta.url)`

/** The base of a model in a folder. @param {string | URL} url @returns {Base} */
export function baseAt(url) {
  const folder = folderAt(url);
  return {
    url: folder,
    address: String(url),
    open: (path, signal) => open(new URL(path, folder), signal),
    workers: { areThisThread: false, ways: waysToStart(folder), ...failureOf(new URL(SCRIPT, folder)) },
    adapter: () => import("./adapter.js"),
    webgpuDevice: () => import("./webgpu_device.js"),
    session: () => import("./session.js"),
    runAlone: () => import("./run_alone.js"),
    fileCache: () => import("./file_cache.js"),
    fastestDevice: () => import("./fastest_device.js"),
    samples: () => import("./typed/samples.js"),
    gpuPixels: () => import("./typed/gpu_pixels.js"),
    texts: () => import("./texts.js"),
    typedValues: () => import("./typed/typed_model.js"),
  };
}

/** The ways to start a worker. @param {URL} folder  of the package @returns {(() => any)[]} */
function waysToStart(folder) {
  if (builtin) return [HERE, folder].map((place) => () => new (/** @type {any} */ (builtin)("node:worker_threads").Worker)(new URL(SCRIPT, place)));
  return [
    () => new Worker(new URL("./wasm_worker.js", import.meta.url), { type: "module" }),
    () => startCopy(new URL(SCRIPT, folder)),
  ];
}

/** Start a script of any origin. @param {URL} url */
function startCopy(url) {
  if (url.origin === origin) return new Worker(url, { type: "module" });
  const script = new Blob([`import ${JSON.stringify(url)}`], { type: "text/javascript" });
  return new Worker(URL.createObjectURL(script), { type: "module" });
}

/** The name of a worker that did not start, and what to do about it. @param {URL} url  of its script */
function failureOf({ href, origin }) {
  const remedy =
    builtin || origin === globalThis.origin
      ? "serve the whole package there, to isolated pages with Cross-Origin-Embedder-Policy"
      : "serve the package from the page's origin, or with Access-Control-Allow-Origin to a page whose " +
        `Content-Security-Policy has worker-src blob: ${origin}`;
  return { script: href, remedy };
}

// A package inside of the script that loads it.

import { builtin, inflate } from "../platform.js";
import { ARCHIVE, WORKER } from "./contents.js";
import { PARTS, THIS_THREAD } from "./parts.js";

/** @import { Base, WorkerSource } from "../types.d.ts" */

const FOLDER = new URL("single-file:/"); // only errors show it
const LIST_LENGTH_BYTES = 4;

/** @type {Promise<Map<string, Uint8Array<ArrayBuffer>>> | undefined} */
let files;

/** The base of the model in this script. @returns {Base} */
export function embeddedBase() {
  const workers = builtin || globalThis.Worker ? WORKERS : THIS_THREAD;
  return { ...PARTS, url: FOLDER, address: FOLDER.href, workers, open: openEmbedded };
}

/** The worker's script is a text in this one. Pages from files start only classic workers. @type {WorkerSource} */
const WORKERS = {
  areThisThread: false,
  ways: [
    builtin
      ? () => new (/** @type {any} */ (builtin)("node:worker_threads").Worker)(new URL(`data:text/javascript,${encodeURIComponent(WORKER)}`))
      : () => new Worker(URL.createObjectURL(new Blob(['"use strict";', WORKER], { type: "text/javascript" }))),
  ],
  script: "in this script",
  remedy: "allow worker-src blob: in the page's Content-Security-Policy, or build a package in a folder",
};

/** Read a file of the package. @param {string} path  or its URL */
async function openEmbedded(path) {
  files ??= unpack();
  const file = (await files).get(new URL(path, FOLDER).pathname.slice(1));
  return file ? new Response(file) : new Response(null, { status: 404 });
}

/** The files of the archive, by path: the length of a JSON list of paths and lengths, the list, and the files. */
async function unpack() {
  const data = await inflate(decodeBase64(ARCHIVE).buffer);
  const listLength = new DataView(data).getUint32(0, true);
  const list = new TextDecoder().decode(new Uint8Array(data, LIST_LENGTH_BYTES, listLength));
  let end = LIST_LENGTH_BYTES + listLength;
  return new Map(
    JSON.parse(list).map((/** @type {[string, number]} */ [path, length]) => {
      end += length;
      return [path, new Uint8Array(data, end - length, length)];
    }),
  );
}

/** @param {string} text @returns {Uint8Array<ArrayBuffer>} */
function decodeBase64(text) {
  const { fromBase64 } = /** @type {any} */ (Uint8Array);
  if (fromBase64) return fromBase64.call(Uint8Array, text);
  const characters = atob(text);
  const data = new Uint8Array(characters.length);
  for (let i = 0; i < data.length; i++) data[i] = characters.charCodeAt(i);
  return data;
}

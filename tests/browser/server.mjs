// Serve the pages of tests and benchmarks on the loopback interface.
//
//   const server = await startServer({ "/": "build/digits" });
//   server.origin     // http://127.0.0.1:PORT
//   server.requests   // the requests: path, status, bytes
//   await server.close();

import { open, stat } from "node:fs/promises";
import { createServer } from "node:http";
import path from "node:path";
import { setTimeout as sleep } from "node:timers/promises";

/** The bytes of one read. The server shares the cores with the pages that are measured, and large reads need half the time. */
const PIECE_BYTES = 1 << 20;
/** @type {Buffer[]} Buffers to use again: garbage collection of new ones would stop the server for tens of milliseconds. */
const freeBuffers = [];

const MIME_TYPES = {
  ".css": "text/css",
  ".html": "text/html; charset=utf-8",
  ".js": "text/javascript",
  ".json": "application/json",
  ".mjs": "text/javascript",
  ".svg": "image/svg+xml",
  ".wasm": "application/wasm",
  ".wgsl": "text/plain; charset=utf-8",
};

/** Send a file. @param {string} file @param {import("node:http").ServerResponse} response */
async function send(file, response) {
  const handle = await open(file);
  const piece = freeBuffers.pop() ?? Buffer.allocUnsafeSlow(PIECE_BYTES);
  try {
    for (;;) {
      const { bytesRead } = await handle.read(piece, 0, PIECE_BYTES);
      if (!bytesRead) break;
      await new Promise((resolve, reject) => response.write(piece.subarray(0, bytesRead), (error) => (error ? reject(error) : resolve(undefined))));
    }
    response.end();
  } finally {
    freeBuffers.push(piece);
    await handle.close();
  }
}

/**
 * Serve folders on a free loopback port.
 *
 * @param {Record<string, string>} mounts  folders by URL prefix ("/models/"); the longest prefix that matches counts
 * @param {{ isolated?: boolean, headers?: Record<string, string>, delays?: Record<string, number> }} [options]
 *   isolated: send COOP and COEP, so that pages may share memory with workers; true by default
 *   delays: milliseconds before an answer begins, by path
 * @returns {Promise<{ origin: string, requests: { path: string, status: number, bytes: number }[], close: () => Promise<void> }>}
 */
export async function startServer(mounts, { isolated = true, headers = {}, delays = {} } = {}) {
  const prefixes = Object.keys(mounts).sort((a, b) => b.length - a.length);
  const requests = [];
  const allHeaders = {
    "Cache-Control": "no-store",
    ...(isolated && {
      "Cross-Origin-Opener-Policy": "same-origin",
      "Cross-Origin-Embedder-Policy": "require-corp",
      "Cross-Origin-Resource-Policy": "same-origin",
    }),
    ...headers,
  };

  const server = createServer(async (request, response) => {
    const url = decodeURIComponent(new URL(request.url ?? "/", "http://loopback").pathname);
    const prefix = prefixes.find((p) => url.startsWith(p));
    const entry = { path: url, status: 404, bytes: 0 };
    requests.push(entry);
    if (delays[url]) await sleep(delays[url]);
    const folder = prefix && path.resolve(mounts[prefix]);
    const file = folder && path.join(folder, url.slice(prefix.length), url.endsWith("/") ? "index.html" : "");
    const isInside = file?.startsWith(folder + path.sep);
    const status = isInside ? await stat(file).catch(() => null) : null;
    if (!status?.isFile()) {
      response.writeHead(404, allHeaders).end();
      return;
    }
    entry.status = 200;
    entry.bytes = status.size;
    const type = MIME_TYPES[path.extname(file)] ?? "application/octet-stream";
    response.writeHead(200, { ...allHeaders, "Content-Type": type, "Content-Length": status.size });
    await send(file, response).catch(() => response.destroy());
  });

  await new Promise((resolve) => server.listen(0, "127.0.0.1", () => resolve(undefined)));
  const { port } = server.address();
  return {
    origin: `http://127.0.0.1:${port}`,
    requests,
    close: () =>
      new Promise((resolve) => {
        server.close(() => resolve());
        server.closeAllConnections();
      }),
  };
}

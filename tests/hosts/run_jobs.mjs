// Start one host and run jobs in it, one after the other, until standard input ends.
//
//   argument:  the host's driver: chromium, firefox, webkit or script
//   in:        a job per line: { root, page?, headers?, module, name, arg, timeout }
//   out:       first { version }, then a report per job: { value, errors } or { error, errors }
//
// A job calls the export `name` of a module (a path in `root`) with `arg`. In a browser the call runs inside `page`. That is a path
// in `root`, a folder which is then served with `headers`, or the address of a page on another server. Node, Deno and Bun are the
// host themselves, as this process, and `root` is the folder of their modules.
//
// A driver exports `start()`, which returns
//
//   { version, open(url), close() }                  a host
//   { evaluate(callable, arg), errors, close() }     the result of `open`: a page, or the process of the host

import path from "node:path";
import { createInterface } from "node:readline";
import { pathToFileURL } from "node:url";

/** Runs inside the host. @param {{ module: string, name: string, arg: unknown }} job */
const callExport = async ({ module, name, arg }) => (await import(module))[name](arg);

/**
 * Reject if `promise` takes longer than `milliseconds`.
 * @param {number} milliseconds
 * @param {Promise<any>} promise
 */
function within(milliseconds, promise) {
  let timer;
  const timeout = new Promise((_, reject) => {
    timer = setTimeout(() => reject(new Error(`the job took longer than ${milliseconds} ms`)), milliseconds);
  });
  return Promise.race([promise, timeout]).finally(() => clearTimeout(timer));
}

/** The addresses of a job's page and module. */
async function locate({ root, page, headers, module }) {
  if (page === undefined) {
    const file = pathToFileURL(path.join(root, module)).href;
    return { url: file, module: file, close: async () => {} };
  }
  if (!headers) return { url: page, module, close: async () => {} };
  const { startServer } = await import("../browser/server.mjs");
  const server = await startServer({ "/": root }, { isolated: false, headers });
  return { url: server.origin + page, module, close: server.close };
}

async function run(host, job) {
  const { url, module, close } = await locate(job);
  const page = await host.open(url);
  const report = { errors: page.errors };
  try {
    report.value = await within(job.timeout, page.evaluate(callExport, { module, name: job.name, arg: job.arg }));
  } catch (error) {
    report.error = String(error?.stack ?? error);
  } finally {
    await page.close();
    await close();
  }
  return report;
}

/** Print a line of JSON. @param {unknown} line */
const print = (line) => process.stdout.write(`${JSON.stringify(line)}\n`);

const { start } = await import(`./drive_${process.argv[2]}.mjs`);
const host = await start();
try {
  print({ version: host.version });
  for await (const line of createInterface({ input: process.stdin })) print(await run(host, JSON.parse(line)));
} finally {
  await host.close();
}
process.exit(0); // otherwise a worker of a failed job could keep this process alive

// Start one host and run jobs in it, one after the other, until standard input ends.
//
//   argument:  the host's driver: chromium, firefox, webkit or script
//   in:        a job per line: { root, page?, headers?, module, name, arg, timeout }
//   out:       first { version }, then a report per job: { value, errors } or { error, errors }
//
// A job calls the export `name` of a module (a path in `root`) with `arg`. In a browser it does so inside `page`: a path in
// `root`, which is then a folder to serve with `headers`, or the address of a page that is served elsewhere. Under Node, Deno
// and Bun this process is the host, and `root` is where its modules are.
//
// A driver exports `start()`, which returns
//
//   { version, open(url), close() }                  a host
//   { evaluate(callable, arg), errors, close() }     what `open` resolves to: a page, or the host's process itself

import path from "node:path";
import { createInterface } from "node:readline";
import { pathToFileURL } from "node:url";

/** Runs inside of the host. @param {{ module: string, name: string, arg: unknown }} job */
const callExport = async ({ module, name, arg }) => (await import(module))[name](arg);

/**
 * Reject when `promise` takes longer than `milliseconds`.
 * @param {number} milliseconds
 * @param {Promise<any>} promise
 */
function within(milliseconds, promise) {
  let timer;
  const late = new Promise((_, reject) => {
    timer = setTimeout(() => reject(new Error(`the job took longer than ${milliseconds} ms`)), milliseconds);
  });
  return Promise.race([promise, late]).finally(() => clearTimeout(timer));
}

/** Where a job's page and module are. */
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

/** @param {unknown} line */
const print = (line) => process.stdout.write(`${JSON.stringify(line)}\n`);

const { start } = await import(`./drive_${process.argv[2]}.mjs`);
const host = await start();
try {
  print({ version: host.version });
  for await (const line of createInterface({ input: process.stdin })) print(await run(host, JSON.parse(line)));
} finally {
  await host.close();
}
process.exit(0); // a worker that a failed job left behind would hold this process

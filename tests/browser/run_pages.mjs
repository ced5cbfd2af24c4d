// Open pages in one Chromium, and print the value that each returns. A line of JSON is a job.
//
//   in (stdin):   { mounts, isolated?, headers?, delays?, other, otherHeaders, pages: [{ path, context?, arg?, timeout?, evaluate | script }] }
//   out (stdout): [{ value, console, errors, requests } | { error, console, errors, requests }, ...]
//
// `evaluate` is the source of a function of `arg`, which runs inside the page. `script` is a module file. Its default export runs
// here, as `({ page, origin, arg }) => value`, and drives the page as a person would. `other` is the mounts of a server on a
// second origin, whose address is the second argument of `evaluate`. `context` is playwright's options of a context (viewport,
// colorScheme, reducedMotion, ...).

import { createInterface } from "node:readline";
import { pathToFileURL } from "node:url";
import { startBrowser } from "./chromium.mjs";
import { startServer } from "./server.mjs";

const DEFAULT_TIMEOUT_MS = 60_000;

/** Reject if `promise` takes longer than `ms`. */
function within(ms, promise) {
  let timer;
  const timeout = new Promise((_, reject) => {
    timer = setTimeout(() => reject(new Error(`the page took longer than ${ms} ms`)), ms);
  });
  return Promise.race([promise, timeout]).finally(() => clearTimeout(timer));
}

async function runPage(browser, server, other, job) {
  const context = await browser.newContext(job.context ?? {});
  const page = await context.newPage();
  const report = { console: [], errors: [], requests: [] };
  const firstRequest = server.requests.length;
  page.on("console", (message) => report.console.push(`${message.type()}: ${message.text()}`));
  page.on("pageerror", (error) => report.errors.push(String(error)));
  try {
    const work = async () => {
      await page.goto(new URL(job.path, server.origin).href);
      if (job.script) {
        const { default: drive } = await import(pathToFileURL(job.script).href);
        return drive({ page, origin: server.origin, arg: job.arg });
      }
      return page.evaluate(`(${job.evaluate})(${JSON.stringify(job.arg ?? null)}, ${JSON.stringify(other.origin)})`);
    };
    report.value = (await within(job.timeout ?? DEFAULT_TIMEOUT_MS, work())) ?? null;
  } catch (error) {
    report.error = String(error?.stack ?? error);
  } finally {
    report.requests = server.requests.slice(firstRequest);
    await context.close();
  }
  return report;
}

/** The reports of one job, whose folders are served while it runs. */
async function runJob(browser, job) {
  const server = await startServer(job.mounts, job);
  const other = await startServer(job.other, { isolated: false, headers: job.otherHeaders });
  try {
    const reports = [];
    for (const page of job.pages) reports.push(await runPage(browser, server, other, page));
    return reports;
  } finally {
    await server.close();
    await other.close();
  }
}

/** Run jobs until the input ends. A browser that has crashed is replaced. */
async function main() {
  let browser;
  try {
    for await (const line of createInterface({ input: process.stdin })) {
      if (!browser?.isConnected()) browser = await startBrowser();
      process.stdout.write(`${JSON.stringify(await runJob(browser, JSON.parse(line)))}\n`);
    }
  } finally {
    await browser?.close();
  }
}

await main();

// Measure language models side by side in one Chromium.
//
//   in (stdin):   { mounts, device, threads: [1, 2], lengths: [16, ...], count, rounds, engines: ["webmlc", "wllama"] }
//   out (stdout): { browser, limits: { threads: { bandwidth, flops } }, blank: bytes of memory of a blank page, rows: [{ engine, threads, load, version,
//                 downloads, memory, prefill: { length: [tokens per second] }, decode: { length: [...] } }] }
//
// The engines of a group take turns, one measurement each, so that other work of the machine affects them alike.

import { startBrowser } from "../../tests/browser/chromium.mjs";
import { startServer } from "../../tests/browser/server.mjs";
import { openWatched } from "../processes.mjs";

const LIMIT_MS = 600_000;
const LIMIT_TIMES = 10; // of which the best counts
const LIMIT_TIME_MS = 200;

/** Bytes per second that so many threads read, and floating-point operations per second on registers. */
async function limits(browser, server, threads) {
  const page = await (await browser.newContext()).newPage();
  await page.goto(`${server.origin}/bench/index.html`);
  const measured = await page.evaluate(
    async ([count, times, milliseconds]) => {
      /** The most calls per second of all threads together. */
      const rate = async (path, argument) => {
        const workers = Array.from({ length: count }, () => new Worker("/bench/limits.mjs", { type: "module" }));
        const ask = (worker, question) =>
          new Promise((resolve) => {
            worker.onmessage = ({ data }) => resolve(data);
            worker.postMessage(question);
          });
        const askAll = (question) => Promise.all(workers.map((worker) => ask(worker, question)));
        await askAll({ path, argument });
        let best = 0;
        for (let i = 0; i < times; i++) best = Math.max(best, (await askAll(milliseconds)).reduce((sum, calls) => sum + calls));
        for (const worker of workers) worker.terminate();
        return best;
      };
      const { bytes, flops } = await (await fetch("/limits/limits.json")).json();
      const { measureLimit } = await import("/page/limit.js");
      return { bandwidth: bytes * (await rate("/limits/read.wasm", bytes)), flops: await measureLimit("/limits/flops/", flops, count) };
    },
    [threads, LIMIT_TIMES, LIMIT_TIME_MS],
  );
  await page.context().close();
  return measured;
}

/** The memory of a page that does nothing. */
async function blankMemory(browser, server) {
  const { page, peakMemory } = await openWatched(browser, `${server.origin}/bench/index.html`);
  const memory = await peakMemory();
  await page.context().close();
  return memory;
}

const job = JSON.parse(await new Response(process.stdin).text());
const server = await startServer(job.mounts, { headers: { "Cache-Control": "max-age=3600" } }); // workers load what the page has, too
const browser = await startBrowser();
const rows = [];
try {
  const blank = await blankMemory(browser, server);
  const measured = {};
  for (const threads of job.threads) measured[threads] = await limits(browser, server, threads);
  for (const threads of job.threads) {
    const pages = [];
    for (const engine of job.engines) {
      const { page, peakMemory } = await openWatched(browser, `${server.origin}/bench/index.html`);
      page.setDefaultTimeout(LIMIT_MS);
      const errors = [];
      page.on("pageerror", (error) => errors.push(String(error)));
      const first = server.requests.length;
      await page.goto(`${server.origin}/bench/index.html?engine=${engine}&threads=${threads}&device=${job.device}`);
      const facts = await page.evaluate(async () => {
        const { load, version } = await globalThis.bench;
        return { load, version };
      });
      const downloads = server.requests.slice(first).filter(({ path }) => !path.startsWith("/bench/"));
      pages.push({ page, peakMemory, row: { engine, threads, ...facts, downloads, prefill: {}, decode: {} } });
      process.stderr.write(`${engine}, ${threads} threads: loaded in ${Math.round(facts.load)} ms ${errors.join(" ")}\n`);
    }
    for (let round = 0; round < job.rounds; round++) {
      for (const length of job.lengths) {
        for (const kind of ["prefill", "decode"]) {
          for (const { page, row } of pages) {
            const { tokens, milliseconds } = await page.evaluate(
              async ([name, n, count]) => (await globalThis.bench)[name](n, count),
              [kind, length, job.count],
            );
            const rate = (1e3 * tokens) / milliseconds;
            (row[kind][length] ??= []).push(rate);
            process.stderr.write(`${row.engine}, ${threads} threads, ${kind} ${length}: ${rate.toFixed(1)} tokens/s\n`);
          }
        }
      }
    }
    for (const { page, peakMemory, row } of pages) {
      rows.push({ ...row, memory: await peakMemory() });
      await page.context().close();
    }
  }
  process.stdout.write(JSON.stringify({ browser: `Chromium ${browser.version()}`, limits: measured, blank, rows }));
} finally {
  await browser.close();
  await server.close();
}

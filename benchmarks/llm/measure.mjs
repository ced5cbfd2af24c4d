// Measure language models side by side in one Chromium.
//
//   in (stdin):   { mounts, device, threads: [1, 2], lengths: [16, ...], count, rounds, engines: ["webmlc", "wllama"] }
//   out (stdout): { browser, limits: { bandwidth, flops }, blank: bytes of memory of a blank page, rows: [{ engine, threads, load, version, downloads, memory,
//                 prefill: { length: [tokens per second] }, decode: { length: [...] } }] }
//
// The engines of a group take turns, one measurement each, so that other work of the machine affects them alike.

import { startBrowser } from "../../tests/browser/chromium.mjs";
import { startServer } from "../../tests/browser/server.mjs";
import { openWatched } from "../processes.mjs";

const LIMIT_MS = 600_000;

/** Bytes per second that one thread reads, and floating-point operations per second on registers. */
async function limits(browser, server) {
  const page = await (await browser.newContext()).newPage();
  await page.goto(`${server.origin}/bench/index.html`);
  return page.evaluate(async () => {
    const bytes = 200 << 20;
    const run = async (path, call) => {
      const { instance } = await WebAssembly.instantiateStreaming(fetch(path));
      instance.exports.fill?.(bytes); // pages that nobody wrote are one page of zeros
      let best = Infinity;
      for (let i = 0; i < 12; i++) {
        const begin = performance.now();
        call(instance.exports);
        best = Math.min(best, performance.now() - begin);
      }
      return best / 1e3;
    };
    const seconds = await run("/limits/read.wasm", ({ read }) => read(bytes));
    const turns = 2e6;
    const { flops } = await (await fetch("/limits/limits.json")).json();
    return { bandwidth: bytes / seconds, flops: (turns * flops) / (await run("/limits/fma.wasm", ({ run: fma }) => fma(turns))) };
  });
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
  const measured = await limits(browser, server);
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

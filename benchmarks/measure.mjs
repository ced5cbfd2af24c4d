// Time engines side by side in one Chromium.
//
//   in (stdin):   { mounts, runs, warmup, loads, profiles, flops, groups: [{ model, device, threads, interval?, engines: [{ engine, variant?, folder? }] }] }
//   out (stdout): { browser, limits: { model: GFLOPS }, rows: [{ model, device, threads, interval?, engine, variant, latencies, first, load, error,
//                 version, bytes, weights, memory, profile? } | { ..., failure }] }
//   stderr:       one line per group, while it works
//
// The engines of a group take turns, one load or run each, so that other work of the machine affects them all alike. Each engine
// has a separate page. Groups never overlap, because idle threads of an engine may spin. `memory` is that of one more page, because
// its measurement needs a blank page in the same process first (see processes.mjs). A page is opened when the browser is idle: for half
// a second after it creates a context, Chromium loads internal pages, and that would be part of the first load of every engine.

import { startBrowser } from "../tests/browser/chromium.mjs";
import { startServer } from "../tests/browser/server.mjs";
import { openWatched, processesOf } from "./processes.mjs";

const PAUSE_MS = 30; // the time in which the threads of the previous engine fall asleep
const WARM = { runs: 40, ms: 2000 }; // rounds of all engines, and their time, whichever ends first: V8 optimises small models meanwhile
const SERIES = 15; // runs of a turn of a group with an interval
const MEMORY_RUNS = 5; // after these, engines have allocated what their runs need
const LOAD_LIMIT_MS = 180_000;
const IDLE = { ms: 100, share: 0.05, tries: 50 }; // idle: at most this share of a core for this time; threads that spin are never idle

const WEIGHTS = /\.(safetensors|onnx|tflite)$|\/constants-\d+\.bin$/;
const SCAFFOLDING = /^\/bench\/|\/(data|package)\.json$|\/(inputs|outputs)-\d+\.bin$/;

/** Wait until the browser is idle. */
async function untilIdle(browser) {
  const cpuSeconds = async () => (await processesOf(browser)).reduce((sum, { cpuTime }) => sum + cpuTime, 0);
  let before = await cpuSeconds();
  for (let i = 0; i < IDLE.tries; i++) {
    await new Promise((resolve) => setTimeout(resolve, IDLE.ms));
    const now = await cpuSeconds();
    if ((now - before) * 1000 <= IDLE.share * IDLE.ms) return;
    before = now;
  }
}

/** The address of the page that measures an engine. */
function addressOf(server, { model, device, threads }, { engine, variant, folder }) {
  const query = new URLSearchParams({ engine, model, device, threads: String(threads), ...(variant && { variant }), ...(folder && { folder }) });
  return `${server.origin}/bench/index.html?${query}`;
}

async function openPage(browser, server, group, engine) {
  const context = await browser.newContext();
  const page = await context.newPage();
  page.setDefaultTimeout(LOAD_LIMIT_MS);
  const messages = [];
  page.on("console", (message) => messages.push(message.text()));
  page.on("pageerror", (error) => messages.push(String(error)));
  const firstRequest = server.requests.length;
  try {
    await untilIdle(browser);
    await page.goto(addressOf(server, group, engine));
    const facts = await page.evaluate(async () => {
      const { load, first, error, version, variant } = await globalThis.bench;
      return { load, first, error, version, variant };
    });
    const downloads = server.requests.slice(firstRequest).filter(({ path }) => !SCAFFOLDING.test(path));
    const sum = (requests) => requests.reduce((total, { bytes }) => total + bytes, 0);
    return { context, page, ...facts, bytes: sum(downloads), weights: sum(downloads.filter(({ path }) => WEIGHTS.test(path))) };
  } catch (error) {
    await context.close();
    throw new Error([String(error?.message ?? error).split("\n")[0], ...messages.slice(-3)].join(" | "), { cause: error });
  }
}

/** Load every engine `loads` times, in turn and in new contexts. The last page of each engine stays open. */
async function openPages(browser, server, group, rows, loads) {
  const pages = new Map();
  for (let i = 0; i < loads; i++) {
    for (const [number, row] of rows.entries()) {
      if (row.failure) continue;
      await pages.get(row)?.context.close();
      pages.delete(row);
      try {
        const { context, page, first, load, ...facts } = await openPage(browser, server, group, group.engines[number]);
        Object.assign(row, facts, { first: [...(row.first ?? []), first], load: [...(row.load ?? []), load] });
        pages.set(row, { row, page, context });
      } catch (error) {
        row.failure = error.message;
      }
    }
  }
  return [...pages.values()];
}

/** The milliseconds of every step, with one value per profile. */
async function profile(page, times) {
  const profiles = [];
  for (let i = 0; i < times; i++) profiles.push(await page.evaluate(async () => (await globalThis.bench).profile()));
  return profiles[0].map(({ kernel, device, origin }, i) => ({ kernel, device, origin, milliseconds: profiles.map((p) => p[i].milliseconds) }));
}

/** The peak memory of a page that loads an engine and runs it some times, in bytes; null if the system does not report it. */
async function measureMemory(browser, server, group, engine) {
  const { page, peakMemory } = await openWatched(browser, `${server.origin}/bench/limit.html`);
  page.setDefaultTimeout(LOAD_LIMIT_MS);
  await page.goto(addressOf(server, group, engine));
  for (let i = 0; i < MEMORY_RUNS; i++) await page.evaluate(async () => (await globalThis.bench).run());
  const memory = await peakMemory();
  await page.context().close();
  return memory || null;
}

async function measureGroup(browser, server, job, group) {
  const { model, device, threads, interval, engines } = group;
  const turn = interval === undefined ? { count: 1, interval: 0 } : { count: SERIES, interval };
  const rows = engines.map((engine) => ({ model, device, threads, ...(interval !== undefined && { interval }), ...engine }));
  const pages = await openPages(browser, server, group, rows, job.loads);
  for (const { row } of pages) row.latencies = [];
  for (let round = 0, timed = 0, spent = 0; timed < job.runs; round++) {
    const isWarmup = round < job.warmup || (round < WARM.runs && spent < WARM.ms);
    if (!isWarmup) timed++;
    pages.push(...pages.splice(0, 1)); // no engine always runs after the same other engine
    for (const { row, page } of pages) {
      if (row.failure) continue;
      await page.waitForTimeout(PAUSE_MS);
      try {
        const begin = performance.now();
        const latencies = await page.evaluate(async ({ count, interval }) => (await globalThis.bench).series(count, interval), turn);
        spent += performance.now() - begin;
        if (!isWarmup) row.latencies.push(...latencies);
      } catch (error) {
        row.failure = error.message;
      }
    }
  }
  for (const { row, page, context } of pages) {
    if (!row.failure && row === rows[0] && device === "wasm" && threads === 1 && interval === undefined) row.profile = await profile(page, job.profiles);
    await context.close();
  }
  for (const [number, row] of rows.entries()) {
    if (row.failure || device !== "wasm" || interval !== undefined) continue;
    try {
      row.memory = await measureMemory(browser, server, group, engines[number]);
    } catch (error) {
      row.failure = error.message;
    }
  }
  return rows;
}

async function measureLimit(browser, server, flops) {
  const context = await browser.newContext();
  const page = await context.newPage();
  await page.goto(`${server.origin}/bench/limit.html`);
  const limit = await page.evaluate(async (n) => (await import("/bench/limit.js")).measureLimit("/models/limit/", n, 1), flops);
  await context.close();
  return limit / 1e9;
}

async function main() {
  let input = "";
  for await (const chunk of process.stdin) input += chunk;
  const job = JSON.parse(input);
  // Every load has a separate context and cache. As for a visitor, a file is downloaded once in it.
  const server = await startServer(job.mounts, { headers: { "Cache-Control": "max-age=3600" } });
  const browser = await startBrowser();
  try {
    const rows = [];
    const limits = {};
    for (const group of job.groups) {
      const names = group.engines.map(({ engine, variant }) => (variant ? `${engine} ${variant}` : engine));
      console.error(`measuring ${group.model} on ${group.device}, ${group.threads} thread(s): ${names.join(", ")}`);
      limits[group.model] = Math.max(limits[group.model] ?? 0, await measureLimit(browser, server, job.flops));
      rows.push(...(await measureGroup(browser, server, job, group)));
    }
    process.stdout.write(JSON.stringify({ browser: browser.version(), limits, rows }));
  } finally {
    await browser.close();
    await server.close();
  }
}

await main();

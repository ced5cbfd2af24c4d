// Time engines side by side in one Chromium.
//
//   in (stdin):   { mounts, runs, warmup, loads, profiles, flops, groups: [{ model, device, threads, engines: [{ engine, variant? }] }] }
//   out (stdout): { browser, limits: { model: GFLOPS }, rows: [{ model, device, threads, engine, variant, latencies, first, load, error,
//                 version, bytes, weights, memory, profile? } | { ..., failure }] }
//   stderr:       one line per group, while it works
//
// The engines of a group take turns, one load or run each, so that what else the machine does falls on all alike; each has
// a page of its own. Groups never overlap: an engine's idle threads may spin. `memory` is the most that the page's
// process, of which nothing else is part, has had in RAM at once (on Linux). A page is opened once the browser rests: for
// half a second after it makes a context, Chromium loads pages of its own into it, as at a start, which would be part of
// the first load of every engine.

import { readFile } from "node:fs/promises";
import { startBrowser } from "../tests/browser/chromium.mjs";
import { startServer } from "../tests/browser/server.mjs";

const PAUSE_MS = 30; // lets the threads of the engine before fall asleep
const WARM = { runs: 40, ms: 2000 }; // of all together, whichever ends first: until then V8 may still optimise a small model
const LOAD_LIMIT_MS = 180_000;
const REST = { ms: 100, share: 0.05, tries: 50 }; // so long, using no more of a core; an engine's idle threads may never rest

const WEIGHTS = /\.(safetensors|onnx)$|\/constants-\d+\.bin$/;
const SCAFFOLDING = /^\/bench\/|\/data\.json$|\/(inputs|outputs)-\d+\.bin$/;

/** The browser's processes: { type, id, cpuTime }, in seconds. */
async function processesOf(browser) {
  const session = await browser.newBrowserCDPSession();
  const { processInfo } = await session.send("SystemInfo.getProcessInfo");
  await session.detach();
  return processInfo;
}

/** The operating system's numbers of the processes that hold pages. */
async function renderers(browser) {
  return (await processesOf(browser)).filter(({ type }) => type === "renderer").map(({ id }) => id);
}

/** Resolves when the browser has nothing to do. */
async function rest(browser) {
  const used = async () => (await processesOf(browser)).reduce((sum, { cpuTime }) => sum + cpuTime, 0);
  let before = await used();
  for (let i = 0; i < REST.tries; i++) {
    await new Promise((resolve) => setTimeout(resolve, REST.ms));
    const now = await used();
    if ((now - before) * 1000 <= REST.share * REST.ms) return;
    before = now;
  }
}

/** Bytes at a process's peak; null where the system does not say. */
async function peakMemory(pid) {
  const status = await readFile(`/proc/${pid}/status`, "utf8").catch(() => "");
  const peak = /^VmHWM:\s+(\d+) kB/m.exec(status);
  return peak && Number(peak[1]) * 1024;
}

async function openPage(browser, server, group, { engine, variant }) {
  const others = new Set(await renderers(browser));
  const context = await browser.newContext();
  const page = await context.newPage();
  page.setDefaultTimeout(LOAD_LIMIT_MS);
  const heard = [];
  page.on("console", (message) => heard.push(message.text()));
  page.on("pageerror", (error) => heard.push(String(error)));
  const firstRequest = server.requests.length;
  const { model, device, threads } = group;
  const query = new URLSearchParams({ engine, model, device, threads: String(threads), ...(variant && { variant }) });
  try {
    await rest(browser);
    await page.goto(`${server.origin}/bench/index.html?${query}`);
    const facts = await page.evaluate(async () => {
      const { load, first, error, version, variant } = await globalThis.bench;
      return { load, first, error, version, variant };
    });
    const sent = server.requests.slice(firstRequest).filter(({ path }) => !SCAFFOLDING.test(path));
    const sum = (requests) => requests.reduce((total, { bytes }) => total + bytes, 0);
    const processes = (await renderers(browser)).filter((pid) => !others.has(pid));
    return { context, page, processes, ...facts, bytes: sum(sent), weights: sum(sent.filter(({ path }) => WEIGHTS.test(path))) };
  } catch (error) {
    await context.close();
    throw new Error([String(error?.message ?? error).split("\n")[0], ...heard.slice(-3)].join(" | "));
  }
}

/** Load every engine `loads` times, in turn and in fresh contexts; the last page of each stays open. */
async function openPages(browser, server, group, rows, loads) {
  const pages = new Map();
  for (let i = 0; i < loads; i++) {
    for (const [number, row] of rows.entries()) {
      if (row.failure) continue;
      await pages.get(row)?.context.close();
      pages.delete(row);
      try {
        const { context, page, processes, first, load, ...facts } = await openPage(browser, server, group, group.engines[number]);
        Object.assign(row, facts, { first: [...(row.first ?? []), first], load: [...(row.load ?? []), load] });
        pages.set(row, { row, page, context, processes });
      } catch (error) {
        row.failure = error.message;
      }
    }
  }
  return [...pages.values()];
}

/** Milliseconds of every step, one list per profile. */
async function profile(page, times) {
  const profiles = [];
  for (let i = 0; i < times; i++) profiles.push(await page.evaluate(async () => (await globalThis.bench).profile()));
  return profiles[0].map(({ kernel, device, origin }, i) => ({ kernel, device, origin, milliseconds: profiles.map((p) => p[i].milliseconds) }));
}

async function measureGroup(browser, server, job, group) {
  const { model, device, threads, engines } = group;
  const rows = engines.map((engine) => ({ model, device, threads, ...engine }));
  const pages = await openPages(browser, server, group, rows, job.loads);
  for (const { row } of pages) row.latencies = [];
  for (let round = 0, timed = 0, spent = 0; timed < job.runs; round++) {
    const warms = round < job.warmup || (round < WARM.runs && spent < WARM.ms);
    if (!warms) timed++;
    pages.push(...pages.splice(0, 1)); // nobody always runs after the same one
    for (const { row, page } of pages) {
      if (row.failure) continue;
      await page.waitForTimeout(PAUSE_MS);
      try {
        const latency = await page.evaluate(async () => (await globalThis.bench).run());
        spent += latency;
        if (!warms) row.latencies.push(latency);
      } catch (error) {
        row.failure = error.message;
      }
    }
  }
  for (const { row, page, context, processes } of pages) {
    if (!row.failure && group.device === "wasm") row.memory = Math.max(...(await Promise.all(processes.map(peakMemory)))) || null;
    if (!row.failure && row === rows[0] && group.device === "wasm" && group.threads === 1) row.profile = await profile(page, job.profiles);
    await context.close();
  }
  return rows;
}

async function measureLimit(browser, server, flops) {
  const context = await browser.newContext();
  const page = await context.newPage();
  await page.goto(`${server.origin}/bench/limit.html`);
  const limit = await page.evaluate(async (n) => (await import("/bench/fma_limit.js")).measureLimit(n), flops);
  await context.close();
  return limit;
}

async function main() {
  let input = "";
  for await (const chunk of process.stdin) input += chunk;
  const job = JSON.parse(input);
  // Every load has a context, and so a cache, of its own: within it, a file is downloaded once, as for a visitor.
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

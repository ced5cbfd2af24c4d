// Time engines side by side in one Chromium.
//
//   in (stdin):   { mounts, runs, warmup, loads, groups: [{ model, device, threads, engines: [...] }] }
//   out (stdout): [{ model, device, threads, engine, latencies, first, error, version, bytes, weights } | { ..., failure }]
//   stderr:       one line per group, while it works
//
// The engines of a group take turns, one run each, so that what else the machine does falls on all alike; each has
// a page of its own. Groups never overlap: an engine's idle threads may spin.

import { startBrowser, startServer } from "../tests/browser/chromium.mjs";

const PAUSE_MS = 30; // lets the threads of the engine before fall asleep
const LOAD_LIMIT_MS = 180_000;

const WEIGHTS = /\.(safetensors|onnx)$|\/constants-\d+\.bin$/;
const SCAFFOLDING = /^\/bench\/|\/data\.json$|\/(inputs|outputs)-\d+\.bin$/;

async function openPage(browser, server, group, engine) {
  const context = await browser.newContext();
  const page = await context.newPage();
  page.setDefaultTimeout(LOAD_LIMIT_MS);
  const heard = [];
  page.on("console", (message) => heard.push(message.text()));
  page.on("pageerror", (error) => heard.push(String(error)));
  const firstRequest = server.requests.length;
  const query = new URLSearchParams({ engine, model: group.model, device: group.device, threads: String(group.threads) });
  try {
    await page.goto(`${server.origin}/bench/index.html?${query}`);
    const facts = await page.evaluate(async () => {
      const { first, error, version } = await globalThis.bench;
      return { first, error, version };
    });
    const sent = server.requests.slice(firstRequest).filter(({ path }) => !SCAFFOLDING.test(path));
    const sum = (requests) => requests.reduce((total, { bytes }) => total + bytes, 0);
    return { context, page, ...facts, bytes: sum(sent), weights: sum(sent.filter(({ path }) => WEIGHTS.test(path))) };
  } catch (error) {
    await context.close();
    throw new Error([String(error?.message ?? error).split("\n")[0], ...heard.slice(-3)].join(" | "));
  }
}

/** Load an engine `loads` times in fresh contexts; the last page stays open. */
async function openEngine(browser, server, group, engine, loads) {
  const first = [];
  let opened;
  for (let i = 0; i < loads; i++) {
    await opened?.context.close();
    opened = await openPage(browser, server, group, engine);
    first.push(opened.first);
  }
  return { ...opened, first };
}

async function measureGroup(browser, server, job, group) {
  const rows = [];
  const pages = [];
  for (const engine of group.engines) {
    const row = { model: group.model, device: group.device, threads: group.threads, engine };
    rows.push(row);
    try {
      const { context, page, ...facts } = await openEngine(browser, server, group, engine, job.loads);
      Object.assign(row, facts, { latencies: [] });
      pages.push({ row, page, context });
    } catch (error) {
      row.failure = error.message;
    }
  }
  for (let round = -job.warmup; round < job.runs; round++) {
    for (const { row, page } of pages) {
      if (row.failure) continue;
      await page.waitForTimeout(PAUSE_MS);
      try {
        const latency = await page.evaluate(async () => (await globalThis.bench).run());
        if (round >= 0) row.latencies.push(latency);
      } catch (error) {
        row.failure = error.message;
      }
    }
  }
  for (const { context } of pages) await context.close();
  return rows;
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
    for (const group of job.groups) {
      console.error(`measuring ${group.model} on ${group.device}, ${group.threads} thread(s): ${group.engines.join(", ")}`);
      rows.push(...(await measureGroup(browser, server, job, group)));
    }
    process.stdout.write(JSON.stringify(rows));
  } finally {
    await browser.close();
    await server.close();
  }
}

await main();

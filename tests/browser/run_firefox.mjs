// Use pages in Firefox, and use them again when their server has ended. The server sends no isolation headers.
//
//   in (stdin):   { mounts, visits: [{ path, use }] }
//   out (stdout): [{ online, offline, errors } | { error, errors }, ...]
//
// `use` names a function of firefox_uses.mjs, whose result for the page is `online` first and `offline` later.

import { text } from "node:stream/consumers";
import { start } from "../hosts/drive_firefox.mjs";
import * as USES from "./firefox_uses.mjs";
import { startServer } from "./server.mjs";

const PAGE_MS = 60_000;

/** Use a page, and add the result to its report. */
async function visit(browser, origin, { path, use }, report, when) {
  if (report.error) return;
  const page = await browser.open(new URL(path, origin).href);
  try {
    report[when] = await USES[use](page.page);
  } catch (error) {
    report.error = `${when}: ${error?.stack ?? error}`;
  } finally {
    report.errors.push(...page.errors);
    await page.close();
  }
}

const { mounts, visits } = JSON.parse(await text(process.stdin));
const browser = await start({ protocolTimeout: PAGE_MS });
const server = await startServer(mounts, { isolated: false });
const reports = visits.map(() => ({ errors: [] }));
for (const [index, job] of visits.entries()) await visit(browser, server.origin, job, reports[index], "online");
await server.close();
for (const [index, job] of visits.entries()) await visit(browser, server.origin, job, reports[index], "offline");
await browser.close();
process.stdout.write(`${JSON.stringify(reports)}\n`);

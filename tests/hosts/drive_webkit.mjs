// Control WebKitGTK's MiniBrowser on a virtual display, through WebDriver (W3C, "WebDriver"), which needs no library. WebDriver
// reports neither the console of a page nor its uncaught errors, so `errors` stays empty.

import { spawn } from "node:child_process";
import { once } from "node:events";
import { readdirSync } from "node:fs";
import { createServer } from "node:net";
import path from "node:path";
import { findExecutable } from "./executables.mjs";

const LIBRARIES = "/usr/lib";
const START_MS = 20_000; // the time after which WebKitWebDriver must listen
const RETRY_MS = 50;
const SCRIPT_MS = 600_000; // the time limit of a script; run_jobs.mjs has a lower limit

/** Find MiniBrowser. Its path in Debian contains the architecture of the machine. */
function findMiniBrowser() {
  const paths = readdirSync(LIBRARIES).map((folder) => path.join(LIBRARIES, folder, "webkit2gtk-4.1", "MiniBrowser"));
  return findExecutable("WebKitGTK", "webkit2gtk-driver", paths.filter((file) => file.includes("-linux-gnu")));
}

/** Start a virtual display. It writes its number to file descriptor 3. */
async function startDisplay() {
  const server = spawn(findExecutable("WebKitGTK", "xvfb", ["/usr/bin/Xvfb"]), ["-displayfd", "3", "-nolisten", "tcp"], {
    stdio: ["ignore", "ignore", "ignore", "pipe"],
  });
  const [number] = await once(/** @type {import("node:stream").Readable} */ (server.stdio[3]), "data");
  return { server, display: `:${String(number).trim()}` };
}

/** A free port of the loopback interface. WebKitWebDriver cannot choose one itself. */
async function freePort() {
  const server = createServer().listen(0, "127.0.0.1");
  await once(server, "listening");
  const { port } = /** @type {import("node:net").AddressInfo} */ (server.address());
  server.close();
  await once(server, "close");
  return port;
}

/**
 * Send a WebDriver command, and return its value.
 * @param {string} method
 * @param {string} url
 * @param {unknown} [body]
 */
async function command(method, url, body) {
  const response = await fetch(url, { method, body: JSON.stringify(body) });
  const { value } = /** @type {any} */ (await response.json());
  if (!response.ok) throw new Error(`WebDriver: ${value.error}: ${value.message}`);
  return value;
}

/** Wait until WebKitWebDriver listens. @param {string} address */
async function untilReady(address) {
  const deadline = Date.now() + START_MS;
  for (;;) {
    try {
      return await command("GET", `${address}/status`);
    } catch (error) {
      if (Date.now() > deadline) throw new Error("WebKitWebDriver does not answer", { cause: error });
      await new Promise((resolve) => setTimeout(resolve, RETRY_MS));
    }
  }
}

/** Runs inside a page, and returns errors as text, because WebDriver loses their messages and stacks. */
const REPORT = `const report = arguments[arguments.length - 1];
  CALL.then((value) => report({ value }), (error) => report({ error: \`\${error}\\n\${error?.stack}\` }));`;

/** @param {string} session @param {string} url */
async function openPage(session, url) {
  await command("POST", `${session}/url`, { url });
  return {
    errors: [],
    async evaluate(callable, arg) {
      const script = REPORT.replace("CALL", () => `(${callable})(arguments[0])`);
      const { value, error } = await command("POST", `${session}/execute/async`, { script, args: [arg] });
      if (error) throw new Error(error);
      return value;
    },
    close: () => command("POST", `${session}/url`, { url: "about:blank" }),
  };
}

export async function start() {
  const binary = findMiniBrowser();
  const program = findExecutable("WebKitGTK", "webkit2gtk-driver", ["/usr/bin/WebKitWebDriver"]);
  const { server, display } = await startDisplay();
  const port = await freePort();
  const environment = { ...process.env, DISPLAY: display, GDK_BACKEND: "x11" };
  const driver = spawn(program, ["--host=127.0.0.1", `--port=${port}`], { stdio: "ignore", env: environment });
  const address = `http://127.0.0.1:${port}`;
  await untilReady(address);
  const capabilities = { alwaysMatch: { "webkitgtk:browserOptions": { binary, args: ["--automation"] } } };
  const sessionData = await command("POST", `${address}/session`, { capabilities });
  const session = `${address}/session/${sessionData.sessionId}`;
  await command("POST", `${session}/timeouts`, { script: SCRIPT_MS });
  return {
    version: sessionData.capabilities.browserVersion,
    open: (url) => openPage(session, url),
    async close() {
      await command("DELETE", session);
      driver.kill();
      server.kill();
    },
  };
}

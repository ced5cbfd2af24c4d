// Find the programs of hosts.

import { existsSync } from "node:fs";

/**
 * The first of the paths that exists. Throws an error that names the Debian package to install.
 * @param {string} host
 * @param {string} debianPackage
 * @param {string[]} paths
 */
export function findExecutable(host, debianPackage, paths) {
  const executable = paths.find((path) => existsSync(path));
  if (!executable) throw new Error(`${host}: there is no ${paths.join(", no ")}; install Debian's ${debianPackage}`);
  return executable;
}

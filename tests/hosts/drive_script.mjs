// Node, Deno or Bun: this process is the host.

const { Deno, process } = /** @type {any} */ (globalThis);

export async function start() {
  return {
    version: Deno?.version.deno ?? process.versions.bun ?? process.versions.node,
    open: async () => ({ errors: [], evaluate: async (callable, arg) => callable(arg), close: async () => {} }),
    close: async () => {},
  };
}

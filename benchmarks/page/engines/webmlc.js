// webmlc: the package that `webmlc build` wrote, through its own runtime.

/** @param {import("../bench.js").Options} options */
export async function create({ model, device, threads, variant }) {
  const { load } = await import(`${model}package/webmlc.js`);
  const loaded = await load(new URL(`${model}package/`, location.href).href, { device, threads, variant });
  if (loaded.device !== device || (device === "wasm" && loaded.threads !== threads)) {
    throw new Error(`asked for ${device} with ${threads} threads, got ${loaded.device} with ${loaded.threads}`);
  }
  return {
    version: "",
    variant: loaded.variant,
    async run(/** @type {any} */ inputs) {
      const outputs = await loaded.run(inputs);
      return Object.fromEntries(Object.entries(outputs).map(([name, { data }]) => [name, data]));
    },
    profile: (/** @type {any} */ inputs) => loaded.profile(inputs),
  };
}

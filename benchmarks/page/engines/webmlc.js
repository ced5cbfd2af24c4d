// webmlc: the package that `webmlc build` wrote, in its runtime.

/** @param {import("../bench.js").Options} options */
export async function create({ model, device, threads, variant, folder = "package" }) {
  const { load } = await import(`${model}${folder}/webmlc.js`);
  const instance = await load(new URL(`${model}${folder}/`, location.href).href, { device, threads, variant });
  if (instance.device !== device || (device === "wasm" && instance.threads !== threads)) {
    throw new Error(`asked for ${device} with ${threads} threads, got ${instance.device} with ${instance.threads}`);
  }
  return {
    version: "",
    variant: instance.variant,
    async run(/** @type {any} */ inputs) {
      const outputs = await instance.run(inputs);
      return Object.fromEntries(Object.entries(outputs).map(([name, { data }]) => [name, data]));
    },
    profile: (/** @type {any} */ inputs) => instance.profile(inputs),
  };
}

// End a load when a signal of the caller is aborted.
//
//   in:  a base, the options of `load`, and the function that opens the model
//   out: the model, or the signal's reason at once; what the load had opened by then is disposed of
//
// Files that are being downloaded are not waited for. Other work of the load, such as compiling shaders, ends by itself.

import { throwIfAborted, checkSignal } from "./run_options.js";

/** @import { Base } from "./types.d.ts" */
/** @import { LoadOptions } from "./webmlc.js" */

/**
 * Open a model, unless the signal among the options is aborted before.
 * @template {{ dispose(): unknown }} M
 * @param {Base} base
 * @param {LoadOptions} options
 * @param {(base: Base, options: LoadOptions) => Promise<M>} open
 * @returns {Promise<M>}
 */
export async function unlessAborted(base, { signal, ...options }, open) {
  checkSignal(signal);
  if (!signal) return open(base, options);
  throwIfAborted(signal);
  /** The signal during the load. A model that is loaded may open files again. @type {AbortSignal | undefined} */
  let current = signal;
  const { onProgress } = options;
  const opening = open(
    {
      ...base,
      open: async (path) => {
        throwIfAborted(current);
        return base.open(path, current);
      },
    },
    { ...options, onProgress: onProgress && ((progress) => void (current?.aborted || onProgress(progress))) },
  );
  let onAbort = () => {};
  const abortion = new Promise((_, reject) => {
    onAbort = () => reject(signal.reason);
    signal.addEventListener("abort", onAbort);
  });
  try {
    const model = await Promise.race([opening, abortion]);
    current = undefined;
    return /** @type {M} */ (model);
  } catch (error) {
    opening.then((model) => model.dispose(), () => {});
    throw signal.aborted ? signal.reason : error;
  } finally {
    signal.removeEventListener("abort", onAbort);
  }
}

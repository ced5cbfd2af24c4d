// Read the options of pipelines, which are those of transformers.js. docs/pipeline.md lists them.

import { InputError } from "../errors.js";

/** @import { LoadOptions } from "../webmlc.js" */
/** @import { PipelineOptions } from "./pipeline.js" */

/** The options that decide at build time what they decide in transformers.js when a model is loaded. */
const AT_BUILD = "webmlc build decides it";
/** @type {Record<string, string>} */
const IGNORED = {
  dtype: `${AT_BUILD}: --quantise int8 or int4`,
  config: AT_BUILD,
  model_file_name: "a package is one model",
  subfolder: "a package is a folder: name it",
  revision: "a package has no revisions: name its folder",
  use_external_data_format: "packages hold their weights in files of their own",
  cache_dir: "`keepFiles: true` keeps the files in the browser's cache",
  local_files_only: "the package is where its URL says",
  session_options: "use `threads` instead",
};
/** The names of devices in transformers.js. @type {Record<string, LoadOptions["device"]>} */
const DEVICES = { auto: "auto", wasm: "wasm", cpu: "wasm", webgpu: "webgpu", gpu: "webgpu" };

/** Warn of an option that has no effect. @param {string} name @param {string} reason */
function warn(name, reason) {
  console.warn(`webmlc: pipeline ignores \`${name}\`: ${reason}`);
}

/**
 * Warn of the options of a call that have no effect. `null`, `undefined` and the values of `neutral` are not worth a warning.
 * @param {string} task
 * @param {Record<string, unknown>} options
 * @param {readonly string[]} honoured
 * @param {Record<string, unknown>} [neutral]
 */
export function warnOfOthers(task, options, honoured, neutral = {}) {
  for (const [name, value] of Object.entries(options)) {
    if (value === null || value === undefined || honoured.includes(name) || neutral[name] === value) continue;
    warn(name, `${task} does not have it`);
  }
}

/**
 * The options of `load`, with the events of `progress_callback`.
 * @param {string} task
 * @param {string} name  of the model
 * @param {PipelineOptions} options
 * @returns {LoadOptions}
 */
export function loadOptions(task, name, { device = "auto", progress_callback: report, ...others }) {
  const { threads, variant, shaders, inlineMilliseconds, keepFiles, onProgress, ...rest } = /** @type {any} */ (others);
  if (typeof device !== "string") throw new InputError('device is not a text: "auto", "wasm" or "webgpu"');
  if (!DEVICES[device]) warn("device", `${device} is none of ${Object.keys(DEVICES).join(", ")}`);
  for (const [option, value] of Object.entries(rest)) {
    if (value !== undefined && value !== null && value !== "auto") warn(option, IGNORED[option] ?? `${task} does not have it`);
  }
  const event = { name, file: "package" };
  let hasBegun = false;
  const progress = (/** @type {{ loaded: number, total: number }} */ sizes) => {
    onProgress?.(sizes);
    if (!hasBegun) report?.({ status: "download", ...event });
    hasBegun = true;
    report?.({ status: "progress", ...event, ...sizes, progress: sizes.total ? (100 * sizes.loaded) / sizes.total : 100 });
  };
  report?.({ status: "initiate", ...event });
  return { device: DEVICES[device] ?? "auto", threads, variant, shaders, inlineMilliseconds, keepFiles, onProgress: progress };
}

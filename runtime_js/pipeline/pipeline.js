// Pipelines with the names and results of transformers.js:  import { pipeline } from "./pipeline.js";
//
//   const classify = await pipeline("image-classification", "./build/model/");
//   await classify(image);   // [{ label: "tabby", score: 0.83 }, ...]

import { InputError } from "../errors.js";
import { load } from "../language/webmlc.js";
import { imageClassification } from "./classify_images.js";
import { objectDetection } from "./detect_objects.js";
import { featureExtraction } from "./extract_features.js";
import { textGeneration } from "./generate_text.js";
import { loadOptions } from "./pipeline_options.js";
import { automaticSpeechRecognition } from "./recognise_speech.js";

export { TextStreamer } from "./generate_text.js";
export { Tensor } from "./tensor.js";

/** The functions that make a pipeline of a model. @type {Record<string, (model: any) => Promise<any>>} */
const TASKS = {
  "automatic-speech-recognition": automaticSpeechRecognition,
  "feature-extraction": featureExtraction,
  "image-classification": imageClassification,
  "object-detection": objectDetection,
  "text-generation": textGeneration,
};

/**
 * Load a package, or take a model that is loaded, for a task. See pipeline.d.ts.
 * @param {string} task
 * @param {string | URL | any} model
 * @param {import("./pipeline.js").PipelineOptions} [options]
 */
export async function pipeline(task, model, options = {}) {
  if (!TASKS[task]) throw new InputError(`there is no pipeline for ${JSON.stringify(task)}; there are ${Object.keys(TASKS).join(", ")}`);
  const isLoaded = typeof model?.run === "function";
  const name = isLoaded ? model.name : String(model);
  const report = options.progress_callback;
  const ofLoad = isLoaded ? {} : loadOptions(task, name, options);
  const loaded = isLoaded ? model : await load(model, ofLoad);
  /** @type {any} */
  let call;
  try {
    call = await TASKS[task](loaded);
  } catch (error) {
    if (!isLoaded) loaded.dispose();
    throw error;
  }
  if (!isLoaded) report?.({ status: "done", name, file: "package" });
  report?.({ status: "ready", task, model: name });
  return Object.assign(call, { task, model: loaded, deviceReason: loaded.deviceReason, dispose: async () => loaded.dispose() });
}

// All parts of the runtime, for scripts that must not or cannot import them on demand. A service worker must not.

import { findAdapter } from "../adapter.js";
import { openFastest } from "../fastest_device.js";
import { withKeptFiles } from "../file_cache.js";
import { runAlone, statelessRuns, withStates } from "../run_alone.js";
import { openSession } from "../session.js";
import { withTexts } from "../texts.js";
import { GpuPictures } from "../typed/gpu_pixels.js";
import { readSamples } from "../typed/samples.js";
import { withTypedValues } from "../typed/typed_model.js";
import { WebGpuDevice } from "../webgpu_device.js";
import { ThisThread } from "./this_thread.js";

/** @import { Base, WorkerSource } from "../types.d.ts" */

/** The parts of a base. @type {Pick<Base, "adapter" | "webgpuDevice" | "session" | "runAlone" | "fileCache" | "fastestDevice" | "samples" | "gpuPixels" | "texts" | "typedValues">} */
export const PARTS = {
  adapter: async () => ({ findAdapter }),
  webgpuDevice: async () => ({ WebGpuDevice }),
  session: async () => ({ openSession }),
  runAlone: async () => ({ runAlone, statelessRuns, withStates }),
  fileCache: async () => ({ withKeptFiles }),
  fastestDevice: async () => ({ openFastest }),
  samples: async () => ({ readSamples }),
  gpuPixels: async () => ({ GpuPictures }),
  texts: async () => ({ withTexts }),
  typedValues: async () => ({ withTypedValues }),
};

/** The model runs in the thread that loads it. @type {WorkerSource} */
export const THIS_THREAD = { areThisThread: true, ways: [() => new ThisThread()], script: "of this thread", remedy: "" };

// The script of each worker of a model.

import { ModelThread } from "./model_thread.js";
import { parentPort } from "./platform.js";

new ModelThread(parentPort());

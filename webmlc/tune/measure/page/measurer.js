// Measure trials in a thread, which is replaced if it fails or hangs.

import { openThread } from "./threads.js";

/** @import { Thread } from "./threads.js" */
/** @import { Outcome, Progress, Trial } from "./types.d.ts" */

const SILENCE_MS = 120_000; // without progress in this time the thread hangs: software adapters compile shaders for a minute

export class Measurer {
  /** @type {Thread | null} */
  thread = null;
  /** @type {(outcome: Outcome) => void} */
  settle = () => {};
  /** @type {(progress: Progress) => void} */
  onProgress = () => {};
  /** @type {ReturnType<typeof setTimeout> | undefined} */
  timeout;

  /**
   * Measure a trial.
   * @param {Trial} trial
   * @param {(progress: Progress) => void} onProgress
   * @returns {Promise<Outcome>}
   */
  measure(trial, onProgress) {
    return new Promise((resolve) => {
      this.settle = resolve;
      this.onProgress = onProgress;
      this.thread ??= openThread((answer) => this.#receive(answer), (message) => this.#fail(message));
      this.#watch();
      this.thread.post(trial);
    });
  }

  stop() {
    clearTimeout(this.timeout);
    this.thread?.stop();
    this.thread = null;
  }

  /** @param {{ progress: Progress } | Outcome} answer */
  #receive(answer) {
    this.#watch();
    if ("progress" in answer) return this.onProgress(answer.progress);
    clearTimeout(this.timeout);
    return this.settle(answer);
  }

  /** Give the thread time until its next sign of life. */
  #watch() {
    clearTimeout(this.timeout);
    this.timeout = setTimeout(() => this.#fail(`no progress in ${SILENCE_MS / 1000} s`), SILENCE_MS);
  }

  /** @param {string} error */
  #fail(error) {
    this.stop();
    this.settle({ error });
  }
}

// A thread for hosts without workers, such as service workers: the model runs in the thread that loads it.
//
// It has the methods of a worker that workers.js uses. Messages are passed on, not copied: both sides transfer what they post.

import { ModelThread } from "../model_thread.js";

export class ThisThread {
  /** @type {(event: { data: any }) => void} */
  onmessage = () => {};
  /** @type {(message: any) => void} */
  #handle = () => {};

  constructor() {
    const post = (/** @type {any} */ message) => queueMicrotask(() => this.onmessage({ data: message }));
    const listen = (/** @type {(message: any) => void} */ handler) => {
      this.#handle = handler;
    };
    new ModelThread({ post, listen }, false);
  }

  /** @param {any} message */
  postMessage(message) {
    queueMicrotask(() => this.#handle(message));
  }

  terminate() {
    this.#handle = () => {};
  }
}

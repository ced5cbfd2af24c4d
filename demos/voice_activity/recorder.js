// An audio worklet that passes the samples of the microphone to the page.

const BATCH = 2048; // samples of a message, at the rate of the context

class Recorder extends AudioWorkletProcessor {
  #samples = new Float32Array(BATCH);
  #count = 0;

  process([[channel]]) {
    for (const sample of channel ?? []) {
      this.#samples[this.#count++] = sample;
      if (this.#count < BATCH) continue;
      this.port.postMessage(this.#samples, [this.#samples.buffer]);
      this.#samples = new Float32Array(BATCH);
      this.#count = 0;
    }
    return true;
  }
}

registerProcessor("recorder", Recorder);

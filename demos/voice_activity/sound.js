// Sounds at the rate of the model: from a file, and from the microphone.

import { RATE } from "./speech.js";

/** Decode a recording. Several channels become their mean. @param {Blob} file */
export async function decode(file) {
  const data = await file.arrayBuffer();
  const buffer = await new OfflineAudioContext(1, 1, RATE).decodeAudioData(data).catch(() => {
    throw new Error("This browser cannot decode the file.");
  });
  const samples = new Float32Array(buffer.length);
  for (let channel = 0; channel < buffer.numberOfChannels; channel++) {
    buffer.getChannelData(channel).forEach((sample, index) => (samples[index] += sample / buffer.numberOfChannels));
  }
  return samples;
}

/** Listen to the microphone. @param {(samples: Float32Array) => void} onSamples @returns {Promise<() => void>} ends it */
export async function listen(onSamples) {
  if (!navigator.mediaDevices) throw new Error("This browser gives no microphone to this address: it must begin with https, or be local.");
  const stream = await navigator.mediaDevices.getUserMedia({ audio: { channelCount: 1 } });
  const context = new AudioContext({ sampleRate: RATE });
  const stop = () => {
    stream.getTracks().forEach((track) => track.stop());
    void context.close();
  };
  try {
    await context.audioWorklet.addModule(new URL("./recorder.js", import.meta.url));
    const recorder = new AudioWorkletNode(context, "recorder", { numberOfOutputs: 0 });
    recorder.port.onmessage = ({ data }) => onSamples(data);
    context.createMediaStreamSource(stream).connect(recorder);
  } catch (error) {
    stop();
    throw error;
  }
  return stop;
}

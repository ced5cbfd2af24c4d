// The page that shows where somebody speaks. `build.py` writes the package into model/, and speech.wav beside this file.

import { openDemo } from "../shared/demo.js";
import { acceptFiles } from "../shared/drop.js";
import { create, element } from "../shared/elements.js";
import { median, showTime } from "../shared/figures.js";
import { load } from "./model/webmlc.js";
import { decode, listen } from "./sound.js";
import { findSpeech, RATE, WINDOW, windowsOf } from "./speech.js";
import { drawWave } from "./wave.js";

const WINDOWS = 256; // of a run: 8 seconds, so that a long recording shows up bit by bit
const SHOWN = 10 * RATE; // samples of the microphone that the page shows
const LATEST = 50; // runs whose median the page shows
const EXAMPLE = "President Kennedy, 1961";

// A small model whose steps follow each other: the CPU computes it faster than a GPU starts its kernels.
const demo = await openDemo(load, { model: "./model/" }, "the recording", "wasm");
const player = element("player");

let sound = { samples: new Float32Array(1), probabilities: /** @type {number[]} */ ([]), spans: findSpeech([], 0), position: -1 };
/** @type {(() => void) | null} Ends the microphone. */
let stop = null;
let sounds = 0; // counts the sounds: only the latest one is shown

const zeros = () => ({ dtype: "float32", shape: [1, 1, 128], data: new Float32Array(128) });
const draw = () => drawWave(element("wave"), sound);
const seconds = (/** @type {number} */ samples) => (samples / RATE).toFixed(2);

/** @param {string} text @param {boolean} isSpeech */
function showState(text, isSpeech = false) {
  element("state").textContent = text;
  element("state").className = isSpeech ? "speech" : "soft";
}

/** Find the speech in a recording. @param {Blob} file @param {string} name */
async function openRecording(file, name) {
  endMicrophone();
  const current = ++sounds;
  element("name").textContent = name;
  showState("Decoding…");
  const samples = await decode(file);
  if (current !== sounds) return;
  sound = { samples, probabilities: [], spans: [], position: -1 };
  URL.revokeObjectURL(player.src);
  player.src = URL.createObjectURL(file);
  player.hidden = false;
  const count = Math.ceil(samples.length / WINDOW);
  await demo.task(async () => {
    let [h, c] = [zeros(), zeros()];
    for (let first = 0; first < count && current === sounds; first += WINDOWS) {
      const outputs = await demo.run("model", { input: windowsOf(samples, first, Math.min(WINDOWS, count - first)), h, c });
      sound.probabilities.push(.../** @type {Float32Array} */ (outputs.speech_probs.data));
      sound.spans = findSpeech(sound.probabilities, samples.length);
      [h, c] = [outputs.hn, outputs.cn];
      draw();
    }
  });
  if (current !== sounds) return;
  const total = sound.spans.reduce((sum, { start, end }) => sum + end - start, 0);
  showState(`Speech in ${seconds(total)} of ${seconds(samples.length)} s`);
  element("spans").replaceChildren(...sound.spans.map(({ start, end }) => {
    const button = create("button", "", `${seconds(start)} – ${seconds(end)} s`);
    button.addEventListener("click", () => {
      player.currentTime = start / RATE;
      void player.play();
    });
    return create("li", "", button);
  }));
  element("announcement").textContent = `${sound.spans.length} spans of speech`;
}

/** Show the microphone until the button is pressed again. */
async function openMicrophone() {
  const current = ++sounds;
  player.pause();
  player.hidden = true;
  element("spans").replaceChildren();
  element("name").textContent = "Microphone";
  showState("Waiting for the microphone…");
  sound = { samples: new Float32Array(SHOWN), probabilities: new Array(Math.ceil(SHOWN / WINDOW)).fill(0), spans: [], position: -1 };
  let [h, c] = [zeros(), zeros()];
  let pending = new Float32Array(WINDOW); // begins with the last window that the model has heard, which is context
  let queue = Promise.resolve();
  const times = /** @type {number[]} */ ([]);

  async function hear(/** @type {number} */ count) {
    if (current !== sounds) return;
    const input = windowsOf(pending, 1, count);
    sound.samples.copyWithin(0, count * WINDOW);
    sound.samples.set(pending.subarray(WINDOW, (count + 1) * WINDOW), SHOWN - count * WINDOW);
    pending = pending.slice(count * WINDOW);
    const begin = performance.now();
    const outputs = await demo.models.model.run({ input, h, c });
    times.push((performance.now() - begin) / count);
    if (times.length > LATEST) times.shift();
    [h, c] = [outputs.hn, outputs.cn];
    sound.probabilities.push(.../** @type {Float32Array} */ (outputs.speech_probs.data));
    sound.probabilities.splice(0, count);
    sound.spans = findSpeech(sound.probabilities, SHOWN);
    const isSpeech = sound.probabilities[sound.probabilities.length - 1] >= 0.5;
    showState(`${isSpeech ? "Speech" : "Silence"} · ${showTime(median(times))} per ${(1000 * WINDOW) / RATE} ms`, isSpeech);
    draw();
  }

  const end = await listen((samples) => {
    const all = new Float32Array(pending.length + samples.length);
    all.set(pending);
    all.set(samples, pending.length);
    pending = all;
    queue = queue.then(() => (pending.length < 2 * WINDOW ? undefined : hear(Math.floor(pending.length / WINDOW) - 1))).catch(fail);
  });
  if (current !== sounds) return end();
  stop = end;
  element("microphone").setAttribute("aria-pressed", "true");
  element("microphone").textContent = "Stop the microphone";
}

function endMicrophone() {
  stop?.();
  stop = null;
  sounds++;
  element("microphone").setAttribute("aria-pressed", "false");
  element("microphone").textContent = "Use the microphone";
}

/** @param {unknown} error */
function fail(error) {
  showState("");
  demo.facts.fail(error);
}

/** Move the line of the position while the recording plays. */
function follow() {
  sound.position = player.paused && !player.currentTime ? -1 : player.currentTime * RATE;
  draw();
  if (!player.paused) requestAnimationFrame(follow);
}

element("microphone").addEventListener("click", () => (stop ? endMicrophone() : openMicrophone().catch(fail)));
acceptFiles(element("drop"), element("files"), ([file]) => openRecording(file, file.name).catch(fail));
for (const event of ["play", "pause", "seeked"]) player.addEventListener(event, follow);
new ResizeObserver(draw).observe(element("wave"));
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
fetch("./recorder.js").catch(() => {}); // for the microphone without a network
try {
  await openRecording(await (await fetch("./speech.wav")).blob(), EXAMPLE);
} catch (error) {
  fail(error);
} finally {
  element("files").disabled = element("microphone").disabled = false;
}

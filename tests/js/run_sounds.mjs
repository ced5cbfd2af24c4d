// Run a package that takes a sound, with sounds of several rates.
//   in (stdin):   { package, sounds: [{ sampleRate, channels: [[samples]] }] }
//   out (stdout): { outputs: [[samples]], errors: [messages], tensor: [samples] }

import { pathToFileURL } from "node:url";

import { load } from "../../runtime_js/webmlc.js";

let input = "";
for await (const chunk of process.stdin) input += chunk;
const { package: folder, sounds } = JSON.parse(input);
const model = await load(pathToFileURL(`${folder}/`), { device: "wasm", threads: 1 });
const run = async (audio) => Array.from((await model.run({ audio })).y.data);

/** The part of an AudioBuffer that is read. Node lacks the class. */
const buffer = ({ sampleRate, channels }) => ({
  sampleRate,
  numberOfChannels: channels.length,
  length: channels[0].length,
  getChannelData: (i) => Float32Array.from(channels[i]),
});

const outputs = [];
for (const sound of sounds) outputs.push(await run(buffer(sound)));
const [{ sampleRate, channels }] = sounds;
const mono = await run({ sampleRate, data: Float32Array.from(channels[0]) });
const tensor = await run({ dtype: "float32", shape: [2, 2], data: Float32Array.of(1, 2, 3, 4) });
const errors = [];
for (const wrong of ["sound.wav", { data: new Float32Array(3) }, new Float32Array(3)]) {
  await model.run({ audio: wrong }).catch(({ name, message }) => errors.push(`${name}: ${message}`));
}
model.dispose();
process.stdout.write(JSON.stringify({ outputs, mono, tensor, errors }));

// A stub of webmlc.js for the chat page: a model that answers every question in capital letters, one word at a time.

const WORD_MILLISECONDS = 30;

export async function load(url, { onProgress }) {
  for (const file of ["manifest.json", "weights.safetensors"]) {
    const response = await fetch(file);
    await response.arrayBuffer();
  }
  onProgress({ loaded: 60e6, total: 98e6 });
  if (new URLSearchParams(location.search).has("slow")) await new Promise((resolve) => (globalThis.endLoad = resolve));
  globalThis.calls = [];
  return {
    name: "SmolLM2 135M Instruct",
    device: "wasm",
    deviceReason: "the package has no webgpu program",
    threads: 2,
    threadsReason: "the machine has 2 logical cores",
    hasChatTemplate: !new URLSearchParams(location.search).has("complete"),
    memoryBytes: 123e6,
    resources: { weights: 98e6, memory: null, download: 98.4e6 },
    generate(prompt, options) {
      globalThis.calls.push({ prompt: structuredClone(prompt), temperature: options.temperature, limit: options.max_new_tokens });
      const question = prompt.at(-1).content;
      if (question.includes("too long")) throw new Error("the prompt has 9000 tokens, but the context holds 2048");
      const usage = { completion_tokens: 0, context_tokens: 20, capacity: 2048, prompt_seconds: 0.21, tokens_per_second: 0, finish_reason: null };
      const generation = {
        usage,
        text: "",
        async *[Symbol.asyncIterator]() {
          for (const word of question.toUpperCase().split(/(?<=\s)/)) {
            await new Promise((resolve) => setTimeout(resolve, WORD_MILLISECONDS));
            if (options.signal.aborted) {
              usage.finish_reason = "interrupted";
              return;
            }
            usage.completion_tokens++;
            usage.context_tokens += 20;
            usage.tokens_per_second = 42.5;
            generation.text += word;
            yield word;
          }
          usage.finish_reason = "stop";
        },
      };
      return generation;
    },
  };
}

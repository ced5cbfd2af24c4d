// Join a search: describe this engine, then fetch trials, measure them and post the results, until there are none.
//
//   const session = new Session(new URL("/", location.href), measureTrial, (state) => show(state));
//   await session.run(await describe());
//
// The calls are those of webmlc/tune/listen.py.

/** @typedef {import("./types.d.ts").Trial} Trial */
/** @typedef {import("./types.d.ts").Measurement} Measurement */
/** @typedef {{ measurement?: Measurement, error?: string }} Outcome */
/** @typedef {{ phase: "joining" | "measuring" | "waiting" | "done" | "refused", title?: string, trials: number, candidates: number, best: number, message?: string }} State */

const RETRY_MS = 2000;
const RETRIES = 5; // after which a server that does not answer is gone

export class Session {
  /** @type {State} */
  state = { phase: "joining", trials: 0, candidates: 0, best: 1 };

  /**
   * @param {URL} server
   * @param {(trial: Trial) => Promise<Outcome>} measureTrial
   * @param {(state: State) => void} show
   */
  constructor(server, measureTrial, show) {
    this.server = server;
    this.measureTrial = measureTrial;
    this.show = show;
  }

  /** Measure until there is nothing left. @param {Record<string, any>} platform */
  async run(platform) {
    for (;;) {
      const { worker, error } = await this.#post("join", platform);
      if (error) return this.#change({ phase: "refused", message: error });
      if (await this.#measureAll(worker)) return this.#change({ phase: "done" });
    }
  }

  /** Returns false if the server gave this worker up. @param {string} worker */
  async #measureAll(worker) {
    for (;;) {
      const answer = await this.#post("next", { worker });
      if (answer.done) return true;
      if (answer.error) return false;
      if (answer.wait !== undefined) {
        this.#change({ phase: "waiting" });
        await new Promise((resolve) => setTimeout(resolve, answer.wait));
        continue;
      }
      this.#change({ phase: "measuring", title: answer.title });
      const outcome = await this.measureTrial(answer.trial);
      if ((await this.#post("result", { worker, id: answer.id, ...outcome })).error) return false;
      this.#count(outcome);
    }
  }

  /** @param {Outcome} outcome */
  #count({ measurement }) {
    const [control, ...others] = measurement?.milliseconds ?? [[1]];
    const gains = others.filter(({ length }) => length).map((times) => Math.min(...control) / Math.min(...times));
    this.#change({
      trials: this.state.trials + 1,
      candidates: this.state.candidates + others.length,
      best: Math.max(this.state.best, ...gains),
    });
  }

  /** @param {Partial<State>} changes */
  #change(changes) {
    this.state = { ...this.state, ...changes };
    this.show(this.state);
  }

  /** @param {string} call @param {Record<string, any>} body @returns {Promise<any>} */
  async #post(call, body) {
    for (let attempt = 1; ; attempt++) {
      try {
        const response = await fetch(new URL(`api/${call}`, this.server), { method: "POST", body: JSON.stringify(body) });
        return await response.json();
      } catch {
        if (attempt === RETRIES) return { done: true, error: "the search has ended: its server does not answer" };
        await new Promise((resolve) => setTimeout(resolve, RETRY_MS));
      }
    }
  }
}

// (module (func (param v128 v128 v128) (result v128) (f32x4.relaxed_madd (local.get 0) (local.get 1) (local.get 2))))
const RELAXED_PROBE = "AGFzbQEAAAABCAFgA3t7ewF7AwIBAAoNAQsAIAAgASAC/YUCCw==";

/** What this engine is, for the records of the search. */
export async function describe() {
  const { navigator } = globalThis;
  const bytes = Uint8Array.from(atob(RELAXED_PROBE), (character) => character.charCodeAt(0));
  const adapter = await /** @type {any} */ (navigator)?.gpu?.requestAdapter({ powerPreference: "high-performance" });
  const { vendor, architecture, device, description } = adapter?.info ?? {};
  return {
    engine: engineName(),
    cpu: {
      architecture: /** @type {any} */ (navigator)?.userAgentData?.platform ?? navigator?.platform ?? "unknown",
      cores: navigator?.hardwareConcurrency ?? 1,
      features: WebAssembly.validate(bytes) ? ["relaxed"] : ["simd128"],
    },
    adapter: adapter ? { vendor, architecture, device, description } : null,
    threads: typeof SharedArrayBuffer !== "undefined",
  };
}

/** The engine's name and version. */
function engineName() {
  const versions = /** @type {any} */ (globalThis).process?.versions;
  if (versions?.bun) return `bun ${versions.bun}`;
  if (versions?.node) return `node ${versions.node}`;
  const agent = navigator.userAgent;
  for (const [name, pattern] of Object.entries({ firefox: /Firefox\/(\d+)/, chromium: /Chrome\/(\d+)/, safari: /Version\/([\d.]+).*Safari/ })) {
    const version = pattern.exec(agent);
    if (version) return `${name} ${version[1]}`;
  }
  return "unknown";
}

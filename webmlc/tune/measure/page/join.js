// Join a search: fetch trials, measure them and post the results, until there are none. The calls are those of webmlc/tune/measure/listen.py.
//
//   const session = new Session(new URL("./", location.href), new Measurer(), (state) => show(state));
//   await session.run(await describe());

/** @import { Measurer } from "./measurer.js" */
/** @import { Outcome, Platform, State, Trial } from "./types.d.ts" */

const RETRY_MS = 1000;
const RETRIES = 10; // a search whose server does not answer so often has ended
const GONE = 410; // the server's status for a worker that it gave up

/** A request that the server refuses. */
class Refusal extends Error {
  /** @param {number} status @param {string} message */
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

/** The server does not answer any more. */
class Silence extends Error {}

export class Session {
  /** @type {State} */
  state = { phase: "joining", title: "", progress: { done: 0, candidates: 0 }, candidates: 0, gains: [], message: "" };

  /**
   * @param {URL} server
   * @param {Measurer} measurer
   * @param {(state: State) => void} onChange
   */
  constructor(server, measurer, onChange) {
    this.server = server;
    this.measurer = measurer;
    this.onChange = onChange;
  }

  /** Take part until the search ends. Resolves with the last state. @param {Platform} platform */
  async run(platform) {
    try {
      this.#change({ phase: "joining" });
      while (!(await this.#takePart(platform)));
      this.#change({ phase: "done" });
    } catch (error) {
      const { message } = /** @type {Error} */ (error);
      const hasEnded = error instanceof Silence && this.state.candidates > 0;
      this.#change({ phase: hasEnded ? "done" : "refused", message });
    } finally {
      this.measurer.stop();
    }
    return this.state;
  }

  /** Join, and measure what there is. Returns false if the server gave this worker up. @param {Platform} platform */
  async #takePart(platform) {
    const { worker } = await this.#post("join", platform);
    try {
      for (;;) {
        const answer = await this.#post("next", { worker });
        if (answer.done) return true;
        if (answer.wait !== undefined) {
          this.#change({ phase: "waiting" });
          await sleep(answer.wait);
        } else {
          await this.#post("result", { worker, id: answer.id, ...(await this.#measure(answer.trial, answer.title)) });
        }
      }
    } catch (error) {
      if (error instanceof Refusal && error.status === GONE) return false;
      throw error;
    }
  }

  /** @param {Trial} trial @param {string} title @returns {Promise<Outcome>} */
  async #measure(trial, title) {
    this.#change({ phase: "measuring", title, progress: { done: 0, candidates: trial.candidates } });
    const outcome = await this.measurer.measure(trial, (progress) => this.#change({ progress }));
    if ("error" in outcome) {
      this.#change({ message: `${title}: ${outcome.error}` });
      return outcome;
    }
    const { milliseconds } = outcome.measurement;
    const fastest = milliseconds.filter(({ length }) => length).map((times) => Math.min(...times));
    this.#change({ candidates: this.state.candidates + fastest.length });
    this.#count(title, fastest.length, fastest[0] / Math.min(...fastest));
    return outcome;
  }

  /** Record the gain of a kernel, which may be measured several times. @param {string} title @param {number} candidates @param {number} gain */
  #count(title, candidates, gain) {
    const { gains } = this.state;
    const row = gains.find((other) => other.title === title) ?? { title, gain: 1, candidates: 0 };
    const newRow = { title, gain: Math.max(row.gain, gain), candidates: row.candidates + candidates };
    this.#change({ gains: [newRow, ...gains.filter((other) => other !== row)] });
  }

  /** @param {Partial<State>} changes */
  #change(changes) {
    this.state = { ...this.state, ...changes };
    this.onChange(this.state);
  }

  /** Call the server, again if it does not answer. @param {string} call @param {Record<string, any>} body @returns {Promise<any>} */
  async #post(call, body) {
    const request = { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body) };
    const { phase } = this.state;
    for (let retries = 0; retries <= RETRIES; retries++) {
      const response = await fetch(new URL(`api/${call}`, this.server), request).catch(() => null);
      if (response) {
        if (retries) this.#change({ phase });
        const answer = await response.json();
        if (!response.ok) throw new Refusal(response.status, answer.error);
        return answer;
      }
      this.#change({ phase: "retrying" });
      await sleep(RETRY_MS);
    }
    throw new Silence(`the search at ${this.server.href} does not answer`);
  }
}

/** @param {number} milliseconds */
function sleep(milliseconds) {
  return new Promise((resolve) => setTimeout(resolve, milliseconds));
}

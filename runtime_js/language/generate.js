// Generate text with a language model.
//
// The twin of webmlc/generate/generate.py. Only packages of language models hold this file.
//
//   in:  a model with sessions, and the files of its package
//   out: an async iterator over pieces of text
//
// If the most likely token is the next one, the model itself finds it: a run returns `next_token`, not the logits. The session keeps the tokens of the last generation. A prompt that begins with the same tokens runs only the others.

import { InputError } from "../errors.js";
import { bindMembers } from "../members.js";
import { Detokeniser } from "./detokenise.js";
import { readOptions } from "./options.js";
import { RandomNumbers } from "./random_numbers.js";
import { checked, sample } from "./sampling.js";
import { StopStrings } from "./stop_strings.js";

/** @import { GenerateOptions, Prompt, Session, Usage } from "../webmlc.js" */
/** @import { Options } from "./options.js" */
/** @typedef {{ device: "wasm" | "webgpu", outputs: readonly { name: string }[], session: (options: { capacity: number }) => Promise<Session> }} Sessions */
/** @typedef {"next_token" | "logits"} Output */

const CHUNK_TOKENS = { wasm: 72, webgpu: 256 }; // the tokens of a prompt that one run processes, by device
const FIRST_CAPACITY = 2048; // of a session, unless the caller or the model's context says otherwise

/**
 * An answer while it is generated. `usage` and `text` tell about the pieces so far. The generator returns the usage.
 * @implements {AsyncGenerator<string, Usage, void>}
 */
export class Generation {
  #pieces;
  text = "";

  /** @param {AsyncGenerator<string, Usage, void>} pieces @param {Usage} usage */
  constructor(pieces, usage) {
    this.#pieces = pieces;
    this.usage = usage;
    bindMembers(this);
  }

  async next() {
    const result = await this.#pieces.next();
    if (!result.done) this.text += result.value;
    return result;
  }

  /** @param {Usage | PromiseLike<Usage>} [value] */
  return(value = this.usage) {
    return this.#pieces.return(value);
  }

  /** @param {unknown} error */
  throw(error) {
    return this.#pieces.throw(error);
  }

  [Symbol.asyncIterator]() {
    return this;
  }

  /** Generate to the end, and return the whole text. */
  async complete() {
    while (!(await this.next()).done);
    return this.text;
  }
}

/** The generations of one model, one at a time, over one session. */
export class TextGenerator {
  #model;
  #hasNextToken;
  /** @type {Session | null} */
  #session = null;
  /** @type {number[]} The tokens in the session. */
  #tokens = [];
  /** @type {Usage | null} Of the generation that may run. */
  #latest = null;
  /** @type {Promise<unknown>} The run that was started last. */
  #running = Promise.resolve();

  /** @param {Sessions} model @param {import("./prompt.js").TextCodec} codec */
  constructor(model, codec) {
    this.#model = model;
    this.#hasNextToken = model.outputs.some(({ name }) => name === "next_token");
    this.codec = codec;
  }

  /**
   * Start a generation. It ends any other of this model. Throws InputError if an option is wrong, or if the prompt does not fit.
   * @param {Prompt} prompt
   * @param {GenerateOptions} [given]
   */
  generate(prompt, given = {}) {
    const options = readOptions(this.codec.config, given);
    const tokens = this.codec.tokensOf(prompt, options.template_arguments);
    if (!tokens.length) throw new InputError("the prompt is empty: at least one token is needed");
    const capacity = this.#capacity(tokens.length, options);
    /** @type {Usage} */
    const usage = {
      prompt_tokens: tokens.length,
      cached_tokens: 0,
      completion_tokens: 0,
      context_tokens: 0,
      capacity,
      prompt_seconds: 0,
      completion_seconds: 0,
      tokens_per_second: 0,
      seed: options.seed,
      finish_reason: null,
    };
    this.#latest = usage;
    return new Generation(this.#pieces(tokens, options, usage), usage);
  }

  /** Forget the tokens of the session, and free its memory. */
  async reset() {
    const session = this.#session;
    this.#session = this.#latest = null;
    this.#tokens = [];
    await session?.dispose();
  }

  /** The capacity of a session for a prompt of `count` tokens. @param {number} count @param {Options} options */
  #capacity(count, { capacity, max_new_tokens }) {
    const limit = this.codec.config.max_length ?? Infinity;
    if (capacity !== undefined && capacity > limit) {
      throw new InputError(`capacity is ${capacity}, but the model's context holds ${limit} tokens; give at most as many`);
    }
    const enough = 2 ** Math.ceil(Math.log2(count + max_new_tokens));
    const size = capacity ?? Math.min(Math.max(FIRST_CAPACITY, enough), limit);
    if (count < size) return size;
    throw new InputError(
      `the prompt has ${count} tokens, but the context holds ${size}, the answer included. ` +
        "Shorten the prompt, or start a new conversation.",
    );
  }

  /** The last session, or a new one if that does not fit. @param {number} count @param {Options} options @param {Usage} usage */
  async #open(count, { capacity, max_new_tokens }, usage) {
    await this.#running;
    const session = this.#session;
    const least = Math.min(count + max_new_tokens, usage.capacity);
    if (session && (capacity === undefined ? session.capacity >= least : session.capacity === capacity)) return session;
    this.#session = null;
    this.#tokens = [];
    await session?.dispose();
    return (this.#session = await this.#model.session({ capacity: usage.capacity }));
  }

  /**
   * Yield the pieces of an answer that are not empty, and keep the usage up to date.
   * @param {number[]} tokens
   * @param {Options} options
   * @param {Usage} usage
   * @returns {AsyncGenerator<string, Usage, void>}
   */
  async *#pieces(tokens, options, usage) {
    this.#checkLatest(usage);
    const start = performance.now();
    const session = await this.#open(tokens.length, options, usage);
    usage.capacity = session.capacity;
    usage.cached_tokens = Math.min(commonLength(this.#tokens, tokens), tokens.length - 1);
    const random = new RandomNumbers(options.seed);
    const detokeniser = new Detokeniser((ids) => this.codec.decode(ids));
    const stops = new StopStrings(options.stop);
    const history = [...tokens];
    let fresh = tokens.slice(usage.cached_tokens);
    let first = 0;
    const isGreedy = !options.do_sample && options.repetition_penalty === 1;
    const output = isGreedy && this.#hasNextToken ? "next_token" : "logits";
    const shown = (/** @type {string} */ text) => {
      if (text) options.streamer?.(text);
      return text;
    };
    while (!usage.finish_reason) {
      const result = await this.#run(session, history.length - fresh.length, fresh, output, options, usage);
      if (!result) {
        usage.finish_reason = "interrupted";
        break;
      }
      const token = result instanceof Float32Array ? sample(result, history, options, random) : checked(Number(result.at(-1)));
      const now = performance.now();
      first ||= now;
      usage.completion_tokens++;
      usage.prompt_seconds = (first - start) / 1000;
      usage.completion_seconds = (now - first) / 1000;
      usage.tokens_per_second = now > first ? (usage.completion_tokens - 1) / usage.completion_seconds : 0;
      history.push(token);
      fresh = [token];
      if (this.codec.endTokens.has(token)) {
        usage.finish_reason = "stop";
        break;
      }
      const piece = shown(stops.add(detokeniser.add(token)));
      if (piece) yield piece;
      if (stops.isFound) usage.finish_reason = "stop";
      else if (usage.completion_tokens >= options.max_new_tokens) usage.finish_reason = "length";
      else if (history.length > session.capacity) usage.finish_reason = "context";
    }
    const end = stops.isFound ? "" : shown(stops.add(detokeniser.finish()));
    if (end) yield end;
    const held = stops.isFound ? "" : shown(stops.finish());
    if (held) yield held;
    return usage;
  }

  /**
   * Run tokens in chunks, with `place` tokens before them. Returns the last row of an output, or null if the signal is aborted.
   * @param {Session} session
   * @param {number} place
   * @param {number[]} tokens
   * @param {Output} output
   * @param {Options} options
   * @param {Usage} usage
   */
  async #run(session, place, tokens, output, options, usage) {
    /** @type {Float32Array | BigInt64Array} */
    let row = new Float32Array();
    const most = CHUNK_TOKENS[this.#model.device];
    for (let begin = 0; begin < tokens.length; begin += most) {
      this.#checkLatest(usage);
      if (options.signal?.aborted) return null;
      const chunk = tokens.slice(begin, begin + most);
      const length = place + begin;
      this.#tokens.length = length;
      if (session.length !== length) await session.truncate(length);
      const input = { dtype: "int64", shape: [1, chunk.length], data: BigInt64Array.from(chunk, BigInt) };
      const isLast = begin + most >= tokens.length;
      const run = session.run({ input_ids: input }, { outputs: isLast ? [output] : [] });
      this.#running = run.catch(() => {});
      const { [output]: rows } = await run.catch((error) => this.#discard(session, error));
      this.#tokens.push(...chunk);
      usage.context_tokens = this.#tokens.length;
      if (!isLast) continue;
      const size = output === "logits" ? Number(rows.shape.at(-1)) : 1;
      row = /** @type {Float32Array | BigInt64Array} */ (rows.data).subarray(-size);
    }
    return row;
  }

  /** Dispose of a session whose run failed: it may be too large for the memory, or lost. Throws the error. @param {Session} session @param {unknown} error @returns {Promise<never>} */
  async #discard(session, error) {
    if (this.#session === session) {
      this.#session = null;
      this.#tokens = [];
    }
    await Promise.resolve(session.dispose()).catch(() => {}); // the device may be lost
    throw error;
  }

  /** @param {Usage} usage */
  #checkLatest(usage) {
    if (usage !== this.#latest) throw new InputError("another generation of this model has started, and ended this one");
  }
}

/** The number of tokens with which both begin. @param {number[]} first @param {number[]} second */
function commonLength(first, second) {
  const end = first.findIndex((token, i) => token !== second[i]);
  return end < 0 ? first.length : end;
}

// The runtime's leader, which lies beside it as plain_wasm_leader.js, with a red zone around each buffer: the zones are
// filled when symbols are bound and checked after each run, as webmlc/host/red_zones.py does it.

import { InternalError } from "./errors.js";
import { RED_ZONE } from "./memory_plan.js";
import { Leader as PlainLeader } from "./plain_wasm_leader.js";

const PATTERN = 0xfe;

export class Leader extends PlainLeader {
  /** The module's functions; `run` is replaced by one that checks. The base class assigns them. */
  set exports(plain) {
    const run = (...steps) => {
      if (this.bound !== this.filled) for (const [, zone] of this.#zones()) zone.fill(PATTERN);
      this.filled = this.bound;
      plain.run(...steps);
      for (const [name, zone] of this.#zones()) {
        if (zone.some((byte) => byte !== PATTERN)) throw new InternalError(`bytes beside buffer ${name} were written in steps ${steps}`);
      }
    };
    this.checked = { run, warm: plain.warm };
  }

  get exports() {
    return this.checked;
  }

  /** The buffers that steps write, each twice: with the bytes before it, and with those behind it. */
  #zones() {
    const { offsets, constants, sizes } = this.bound.layout;
    const derived = this.program.buffers.flatMap(({ name, kind }) => (kind === "derived" && constants.has(name) ? [[name, constants.get(name)]] : []));
    return [...offsets, ...derived].flatMap(([name, address]) => {
      const end = address + sizes.get(name);
      return [
        [name, this.bytes.subarray(address - RED_ZONE, address)],
        [name, this.bytes.subarray(end, end + RED_ZONE)],
      ];
    });
  }
}

// A leader that checks red zones: bytes before and behind each buffer, which no kernel may write. They are filled when symbols are
// bound, and checked after each run, as in webmlc/host/red_zones.py. The leader of the runtime is beside this file, as
// plain_wasm_leader.js.

import { InternalError } from "./errors.js";
import { RED_ZONE } from "./memory_plan.js";
import { Leader as PlainLeader } from "./plain_wasm_leader.js";

const PATTERN = 0xfe;

export class Leader extends PlainLeader {
  constructor(open) {
    super(open);
    // The base class has a field of this name, so an accessor of this class would be hidden.
    let { exports } = this;
    Object.defineProperty(this, "exports", {
      get: () => exports,
      set: (plain) => {
        exports = { run: (...steps) => this.#run(plain, steps), warm: plain.warm };
      },
    });
  }

  /** Run steps of the module, and check the zones. */
  #run(plain, steps) {
    if (this.binding !== this.zonesBinding) for (const [, zone] of this.#zones()) zone.fill(PATTERN);
    this.zonesBinding = this.binding;
    plain.run(...steps);
    for (const [name, zone] of this.#zones()) {
      if (zone.some((byte) => byte !== PATTERN)) throw new InternalError(`bytes beside buffer ${name} were written in steps ${steps}`);
    }
  }

  /** The red zones of the buffers that steps write: two for each buffer, with the buffer's name. */
  #zones() {
    const { offsets, constants, sizes } = this.binding.layout;
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

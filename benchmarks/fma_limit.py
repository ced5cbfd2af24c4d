"""Emit a WebAssembly loop that measures the machine's limit: fused multiply-adds on registers
alone.

In: nothing. Out: a module whose `run(n)` performs `FLOPS * n` operations.

    path.write_bytes(module())
"""

from __future__ import annotations

from webmlc.target.wasm.assemble import assemble

ACCUMULATORS = 12
"""The independent sums: more than latency times throughput, and with two operands 14 registers."""
FLOPS = ACCUMULATORS * 4 * 2
"""The operations of one iteration of the loop."""


def module() -> bytes:
    """The binary of the module. It returns the sum, so that no optimiser removes the loop."""
    names = [f"$c{i}" for i in range(ACCUMULATORS)]
    steps = "\n".join(
        f"(local.set {c} (f32x4.relaxed_madd (local.get $a) (local.get $b) (local.get {c})))"
        for c in names
    )
    total = f"(local.get {names[0]})"
    for c in names[1:]:
        total = f"(f32x4.add {total} (local.get {c}))"
    return assemble(f"""(module (func (export "run") (param $n i32) (result f32)
      (local $a v128) (local $b v128) {" ".join(f"(local {c} v128)" for c in names)}
      (local.set $a (f32x4.splat (f32.convert_i32_s (local.get $n))))
      (local.set $b (f32x4.splat (f32.const 1e-9)))
      (loop $turns
        {steps}
        (br_if $turns (local.tee $n (i32.sub (local.get $n) (i32.const 1)))))
      (f32x4.extract_lane 0 {total})))""")

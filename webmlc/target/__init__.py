"""Targets: from a scheduled loop function to text. `lower` is shared; `wasm/` and `webgpu/`
legalise and print.

`targets.lower(function, machine)` returns the same loop IR in the **lowered form**, which every
printer may rely on and `loops.interp` runs:

- **No `Block`.** Bindings are substituted, a predicate is an `If` around the body, an `init` that
  was not decomposed is an `If` on "all reduce axes are zero" before it. `Seq`, `For`, `If`, `Let`,
  `Store`, `Barrier` remain.
- **Loops** are `serial`, `parallel` or `thread_binding`; vectorized and unrolled ones are expanded.
  Names stay unique: copies made by expansion are renamed (`k`, `k_1`, ...). A `For` whose extent is
  the literal 1 is gone, except a `parallel` or `thread_binding` one.
- **Memory buffers** (`global`, `shared`, and `local` arrays that could not become registers) have
  rank 1, in elements: `shape == (size,)`, the size possibly symbolic; every load and store has one
  index. Allocations are shrunk to the region that is live at once (`compact_buffers`).
- **Registers** are `local` allocations that stand for a WASM local or a WGSL variable, mutable, one
  value each: a scalar register has shape `()` and is accessed as `r[()]` (`Load(r, ())`); a vector
  register has shape `(4,)` and is accessed only as `r[T.ramp(0, 1, 4)]`.
  `registers.register_lanes(function)` maps each register to its lanes.
- **Vectors** have 4 lanes (`VECTOR_LANES`); a vectorized loop of 8 became two stores of 4, the
  element dtypes are float32, int32 and uint32 (bool only as a mask between a comparison and a
  `select`). Every operand of a vector `Call` is a vector: scalars are under an explicit
  `Broadcast`. A vector load or store has the index `Ramp(base, stride, 4)` with a scalar base and
  stride; stride `Const(1)` is contiguous (16 bytes), anything else is a gather or scatter. A loop
  that cannot be expressed so (a predicate or an index that is not affine in the vectorized
  variable, other dtypes, a symbolic extent) was unrolled or made serial instead: no printer meets
  anything wider.
- **`Let`s** bind scalars only, are immutable, and stand just before the first use; a vector that is
  used more than once is a vector register stored once. Common subexpressions (loads included, where
  no store intervenes) and loop invariants have been bound so; a value used once stays in place.
  Index expressions are in `core.simplify`'s canonical form over loop variables, symbols and lets:
  no index arithmetic is bound by shared passes, it is the target's affair.
- Statement order is the schedule: printers keep it.

Only WASM goes on (`wasm.reduce_strength`): indices become pointer registers, bumped by the loops.
For the 6x8 GEMM tile:

    for k in range(480):
        b0[T.ramp(0, 1, 4)] = B[T.ramp(no * 3840 + k * 8, 1, 4)]
        b1[T.ramp(0, 1, 4)] = B[T.ramp(no * 3840 + k * 8 + 4, 1, 4)]
        a0[T.ramp(0, 1, 4)] = T.broadcast(A[mo * 2880 + k], 4)
        C_0[T.ramp(0, 1, 4)] = T.fma(a0[T.ramp(0, 1, 4)], b0[T.ramp(0, 1, 4)], C_0[T.ramp(0, 1, 4)])
        C_1[T.ramp(0, 1, 4)] = T.fma(a0[T.ramp(0, 1, 4)], b1[T.ramp(0, 1, 4)], C_1[T.ramp(0, 1, 4)])
        ...
"""

from __future__ import annotations

VECTOR_LANES = 4
"""Lanes of every vector in the lowered form: `v128` of 32-bit elements, WGSL `vec4`."""

"""The targets lower a scheduled loop function and print it as text. `targets.lower` is shared;
`wasm/` and `webgpu/` legalise and print.

`targets.lower(function, machine)` returns the same loop IR in the **lowered form**. Every printer
may rely on this form, and `loops.interp` runs it:

- **No `Block`.** Bindings are substituted. A predicate is an `If` around the body. An `init` that
  was not decomposed is an `If` on "all reduce axes are zero" before the body. `Seq`, `For`, `If`,
  `Let`, `Store` and `Barrier` remain.
- **Loops** are `serial`, `parallel` or `thread_binding`; vectorized and unrolled loops are
  expanded. Names stay unique: the copies that expansion makes are renamed (`k`, `k_1`, ...). A
  `For` whose extent is the literal 1 is removed, unless it is `parallel` or `thread_binding`.
- **Memory buffers** (`global`, `shared`, and `local` arrays that could not become registers) have
  rank 1. Their shape is `(size,)` in elements, and the size may be symbolic. Every load and store
  has one index. Allocations are shrunk to the region that is live at once (`compact_buffers`).
- **Registers** are `local` allocations that stand for a WASM local or a WGSL variable. They are
  mutable and hold one value each. A scalar register has shape `()` and is accessed as `r[()]`
  (`Load(r, ())`). A vector register has shape `(4,)` and is accessed only as `r[T.ramp(0, 1, 4)]`.
  `registers.register_lanes(function)` maps each register to its lanes. In the end, WASM also has
  pairs of shape `(2,)`, set as `r[T.ramp(0, 1, 2)]` and read as `r[0]` and `r[1]` (`pair_loads`).
- **Vectors** have 4 lanes (`VECTOR_LANES`): a vectorized loop of 8 became two stores of 4. The
  element dtypes are float32, int32 and uint32; bool appears only as a mask between a comparison and
  a `select`. Every operand of a vector `Call` is a vector: scalars are under an explicit
  `Broadcast`. A vector load or store has the index `Ramp(base, stride, 4)` with a scalar base and
  stride. Stride `Const(1)` is contiguous (16 bytes); any other stride is a gather or scatter. A
  loop that has no such form was unrolled or made serial instead, so no printer sees a wider vector.
  (Its predicate or index is not affine in the vectorized variable, its extent is symbolic, or it
  uses other dtypes.)
- **`Let`s** bind scalars only, are immutable, and stand just before the first use. A vector that is
  used more than once is a vector register stored once. Common subexpressions (loads included, where
  no store intervenes) and loop invariants are bound in this way; a value used once stays in place.
  Index expressions are in `core.simplify`'s canonical form over loop variables, symbols and lets.
  The shared passes bind no index arithmetic: each target does that in its own way.
- Statement order is the schedule: printers keep it.

WASM lowers further (`wasm.reduce_strength`): indices become pointer registers, which the loops
increment. The 6x8 GEMM tile in the lowered form:

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
"""The lanes of every vector in the lowered form: a `v128` of 32-bit elements, a WGSL `vec4`."""

"""Machines: what a schedule rule and a lowering may assume of the hardware and of the engine that
runs the code.

A `Machine` is plain numbers, so that the same rules make different schedules for different
machines:

    >>> RELAXED.tile, SIMD128.tile
    (Tile(rows=6, columns=8), Tile(rows=4, columns=8))
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

Device = Literal["wasm", "webgpu"]
"""What runs a kernel: the CPU, through WebAssembly, or the GPU, through WebGPU."""

Features = Literal["dot", "relaxed", "simd128"]
"""The feature sets of WebAssembly modules."""

ADDRESSABLE_BYTES = 1 << 32
"""What a 32-bit WebAssembly memory can hold."""

PAGE_BYTES = 4096
"""Bytes of a page of memory, to the end of which processors fetch ahead."""

MAX_BINDINGS = 8
"""The storage buffers that a kernel can bind on every WebGPU device: the default limit
`maxStorageBuffersPerShaderStage`."""

MAX_BINDING_BYTES = 128 << 20
"""The bytes of one binding on every WebGPU device: the default limit
`maxStorageBufferBindingSize`."""

MAX_INVOCATIONS = 256
"""The invocations of one workgroup on every WebGPU device: the default limit
`maxComputeInvocationsPerWorkgroup`."""


@dataclass(frozen=True, slots=True)
class Tile:
    """A register tile: `rows` of one operand times `columns` contiguous elements of the other."""

    rows: int
    columns: int


@dataclass(frozen=True, slots=True)
class Machine:
    """What the compiler assumes of one target.

    `features` says which instructions may be emitted ("relaxed": FMA; "dot": a relaxed dot
    product of unsigned and signed bytes that is exact);
    `lanes` is the width of a vector of 32-bit elements; `vector_registers` how many of them the
    engine allocates without spilling; `tile` the register tile of contractions, `narrow_tile` that
    of one or two rows; `l1_bytes` and `l2_bytes` the caches to block for; `parallel_operations` the
    scalar operations below which waking threads costs more than it saves. Of a GPU also:
    `workgroup_size` invocations of a workgroup, and `shared_bytes` of workgroup memory to tile
    contractions through, 0 where registers alone are faster (software adapters).
    """

    device: Device
    features: frozenset[str]
    lanes: int
    vector_registers: int
    tile: Tile
    narrow_tile: Tile
    l1_bytes: int
    l2_bytes: int
    parallel_operations: int
    workgroup_size: int = 1
    shared_bytes: int = 0


RELAXED = Machine(
    device="wasm",
    features=frozenset({"relaxed"}),
    lanes=4,
    vector_registers=15,
    tile=Tile(6, 8),  # 12 accumulators + 2 of B + 1 splat
    narrow_tile=Tile(1, 32),
    l1_bytes=32 << 10,
    l2_bytes=512 << 10,
    parallel_operations=100_000,
)
"""WebAssembly with relaxed SIMD: one instruction multiplies and adds."""

SIMD128 = Machine(
    device="wasm",
    features=frozenset(),
    lanes=4,
    vector_registers=15,
    tile=Tile(4, 8),  # the product needs a register of its own
    narrow_tile=Tile(1, 32),
    l1_bytes=32 << 10,
    l2_bytes=512 << 10,
    parallel_operations=100_000,
)
"""WebAssembly with baseline SIMD, for engines that reject relaxed opcodes."""

DOT = replace(RELAXED, features=RELAXED.features | {"dot"})
"""Relaxed SIMD where `i32x4.relaxed_dot_i8x16_i7x16_add_s` is exact for a second operand of all
eight bits, taken as unsigned (x86 with VNNI). The specification leaves that open: hosts try it out.
"""

WASM_MACHINES: Mapping[str, Machine] = {"dot": DOT, "relaxed": RELAXED, "simd128": SIMD128}
"""The modules of a package, by the feature name in their file names; `dot` where there is anything
to gain.
"""

WEBGPU = Machine(
    device="webgpu",
    features=frozenset(),
    lanes=4,
    vector_registers=64,  # drivers keep what they can in registers: nothing is worth recomputing
    tile=Tile(8, 8),  # per thread; 8 rows halve the loads of 4, 16 spill on software adapters
    narrow_tile=Tile(1, 8),
    l1_bytes=16 << 10,
    l2_bytes=1 << 20,
    parallel_operations=0,
    workgroup_size=64,
)
"""Any WebGPU adapter, on the default limits: register tiles without workgroup memory."""

"""Machines: the numbers that rules and lowerings may assume of the hardware and its engine.

A `Machine` holds plain numbers, so that the same rules build different schedules for different
machines:

    >>> RELAXED.tile, SIMD128.tile
    (Tile(rows=6, columns=8), Tile(rows=4, columns=8))
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

Device = Literal["wasm", "webgpu"]
"""The device that runs a kernel: the CPU through WebAssembly, or the GPU through WebGPU."""

Features = Literal["dot", "relaxed", "simd128"]
"""The feature sets of WebAssembly variants."""

ADDRESSABLE_BYTES = 1 << 32
"""The bytes that a 32-bit WebAssembly memory can hold: 2³², from the specification."""

PAGE_BYTES = 4096
"""The bytes of a page of memory. Hardware prefetchers stop at the end of a page.

Derived from the page size of x86 and most ARM systems.
"""

MAX_BINDINGS = 8
"""The number of storage buffers that a kernel can bind on every WebGPU device.

From the specification: the default limit `maxStorageBuffersPerShaderStage`.
"""

MAX_BINDING_BYTES = 128 << 20
"""The largest binding on every WebGPU device, in bytes.

From the specification: the default limit `maxStorageBufferBindingSize`.
"""

MAX_INVOCATIONS = 256
"""The largest number of invocations of one workgroup on every WebGPU device.

From the specification: the default limit `maxComputeInvocationsPerWorkgroup`.
"""


@dataclass(frozen=True, slots=True)
class Tile:
    """A register tile: `rows` of one operand times `columns` contiguous elements of the other."""

    rows: int
    columns: int


@dataclass(frozen=True, slots=True)
class Machine:
    """The numbers that the compiler assumes of one variant of a device.

    - `features`: the instructions that may be emitted. "relaxed" permits FMA; "dot" permits an
      exact relaxed dot product of unsigned and signed bytes.
    - `lanes`: the width of a vector, in 32-bit elements.
    - `vector_registers`: the number of vectors that the engine allocates without spilling.
    - `tile`: the register tile of contractions; `narrow_tile`: that of one or two rows.
    - `l1_bytes`, `l2_bytes`: the sizes of the caches to block for.
    - `parallel_operations`: a kernel of fewer scalar operations runs on one thread, because waking
      the helper threads would cost more than it saves.
    - `workgroup_size` (GPU): the number of invocations of a workgroup.
    - `shared_bytes` (GPU): the workgroup memory to tile contractions through, in bytes. It is 0 if
      registers alone are faster, as on software adapters.
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
"""WebAssembly with relaxed SIMD, where one instruction multiplies and adds.

The registers are those of x86-64 less one that the engine reserves. The caches and
`parallel_operations` are chosen by hand, for a desktop core.
"""

SIMD128 = Machine(
    device="wasm",
    features=frozenset(),
    lanes=4,
    vector_registers=15,
    tile=Tile(4, 8),  # smaller than 6 x 8: each product needs an additional register
    narrow_tile=Tile(1, 32),
    l1_bytes=32 << 10,
    l2_bytes=512 << 10,
    parallel_operations=100_000,
)
"""WebAssembly with baseline SIMD, for engines that reject relaxed opcodes."""

DOT = replace(RELAXED, features=RELAXED.features | {"dot"})
"""Relaxed SIMD with an exact dot product of bytes, as on x86 with VNNI.

`i32x4.relaxed_dot_i8x16_i7x16_add_s` is exact there even if its second operand uses all eight bits,
as unsigned bytes. The specification leaves that open, so hosts try it out.
"""

WASM_MACHINES: Mapping[str, Machine] = {"dot": DOT, "relaxed": RELAXED, "simd128": SIMD128}
"""The variants of a package's module, by the feature name in their file names.

A package has the variant `dot` only if some kernel has dot products of bytes.
"""

WEBGPU = Machine(
    device="webgpu",
    features=frozenset(),
    lanes=4,
    vector_registers=64,  # drivers allocate registers themselves: recomputing never pays
    tile=Tile(8, 8),  # per thread; 8 rows halve the loads of 4, 16 spill on software adapters
    narrow_tile=Tile(1, 8),
    l1_bytes=16 << 10,
    l2_bytes=1 << 20,
    parallel_operations=0,
    workgroup_size=64,
)
"""Any WebGPU adapter, on the default limits: register tiles without workgroup memory.

The numbers are chosen by hand.
"""

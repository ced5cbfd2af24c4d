"""Machines: the numbers that rules and lowerings may assume of the hardware and its engine.

Graph passes, schedule rules, lowerings and the search of schedules read these numbers.

A machine is a `Cpu` or a `Gpu`: plain numbers, so that the same rules build different schedules for
different machines.

    >>> RELAXED.tile, SIMD128.tile
    (Tile(rows=6, columns=8), Tile(rows=4, columns=8))
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

Device = Literal["wasm", "webgpu"]
"""The device that runs a kernel: the CPU through WebAssembly, or the GPU through WebGPU."""


@dataclass(frozen=True, slots=True)
class DeviceFacts:
    """The facts about a device that the planner, the hosts and the search need.

    - `alignment`: the alignment of buffers in its arena, in bytes.
    - `runs_steps`: one module runs the steps of all programs, in one linear memory with a table of
      slots. Otherwise, a host starts each kernel, and binds its buffers.
    - `has_adapters`: machines differ in the adapter that runs the kernels, and not in the number of
      threads.
    """

    alignment: int
    runs_steps: bool
    has_adapters: bool


DEVICES: Mapping[Device, DeviceFacts] = {
    "wasm": DeviceFacts(alignment=64, runs_steps=True, has_adapters=False),
    "webgpu": DeviceFacts(alignment=256, runs_steps=False, has_adapters=True),
}
"""Every device. The alignments are derived: a cache line, and the default limit
`minStorageBufferOffsetAlignment` of WebGPU."""

Features = Literal["dot", "pairs", "relaxed", "simd128"]
"""The names of WebAssembly variants, each after the feature that distinguishes it. `Cpu.features`
lists all features that a variant may use."""

AdapterKind = Literal["gpu", "software", "software-subgroups", "subgroups", "f16", "f16-subgroups"]
"""The kinds of adapters that shaders are made for (`ADAPTERS`)."""

SHADER_FEATURES = frozenset({"shader-f16", "subgroups"})
"""The optional features of WebGPU that shaders may use, by their names in its specification."""

ADDRESSABLE_BYTES = 1 << 32
"""The bytes that a 32-bit WebAssembly memory can hold: 2³², from the specification."""

PAGE_BYTES = 4096
"""The bytes of a page of memory. Hardware prefetchers stop at the end of a page.

Derived from the page size of x86 and most ARM systems.
"""

TYPICAL_SIZE = 32
"""The value of a symbolic dimension where a rough count of operations is enough, in elements.

Chosen by hand.
"""

EXPENSIVE_COST = 4
"""The least cost of a scalar operator that is not computed again for each of several readers.

Unit: additions (`ScalarOperator.cost`). Chosen by hand: the cost of a division or a square root.
"""

POLYNOMIAL_COST = 16
"""The least cost of a scalar operator that takes a polynomial, such as an exponential.

Unit: additions (`ScalarOperator.cost`). It decides whether code is repeated for each register of a
tile. Chosen by hand: the cost of the cheapest such operators.
"""

MAX_BINDINGS = 8
"""The number of storage buffers that a kernel can bind on every WebGPU device.

From the specification: the default limit `maxStorageBuffersPerShaderStage`.
"""

MAX_BINDING_BYTES = 128 << 20
"""The largest binding on every WebGPU device, in bytes.

From the specification: the default limit `maxStorageBufferBindingSize`.
"""

QUAD = 4
"""Threads of a quad, from the specification of WGSL."""

WORD_BYTES = 4
"""Bytes of the smallest element that WGSL addresses, and of an element that quads exchange."""

MAX_INVOCATIONS = 256
"""The largest number of invocations of one workgroup on every WebGPU device.

From the specification: the default limit `maxComputeInvocationsPerWorkgroup`.
"""

MAX_WORKGROUP_BYTES = 16 << 10
"""The workgroup memory of one workgroup on every WebGPU device, in bytes.

From the specification: the default limit `maxComputeWorkgroupStorageSize`.
"""

VARIABLE_BYTES = 16
"""The bytes of a variable in workgroup memory count as a multiple of this.

From the specification of WebGPU: the limit `maxComputeWorkgroupStorageSize`.
"""


@dataclass(frozen=True, slots=True)
class Tile:
    """A register tile: `rows` of one operand times `columns` contiguous elements of the other."""

    rows: int
    columns: int


@dataclass(frozen=True, slots=True)
class AlgorithmCosts:
    """The costs of the algorithms for convolutions and products, compared with a direct product.

    The unit is a multiply-add in the inner loop of a product, unless a field says otherwise.
    """

    loop_entry_iterations: int = 4
    """Fixed cost of one entry of a contraction's inner loop, in iterations of that loop. An
    algorithm with more and shorter products pays it more often (chosen by hand)."""
    l2_resident_bytes: int = 2_000_000
    """Bytes of planes or weights that the next kernel still finds in a second-level cache. Larger
    planes or weights come from further away. This number chooses Winograd's forms (checked in
    Chromium, one thread, on basic_pitch, ResNet-18, ResNet-50 and SqueezeNet)."""
    weight_stream_rows: int = 10
    """Rows of a product that take as long as the weights take to arrive from memory. A register
    tile of fewer rows waits for the weights. This number chooses Winograd's forms (chosen by
    hand)."""
    weight_wait_rows: int = 5
    """Rows of a product that take as long as the wait for weights, where each of several register
    tiles reads the weights from memory. This number chooses Winograd's forms (chosen by hand)."""
    runs_bands: bool = True
    """Whether one kernel runs all stages of Winograd's algorithm on a band of tiles before the next
    band. The dispatches of a GPU cannot wait for each other between the stages of a band."""
    binding_bytes: int = ADDRESSABLE_BYTES
    """Bytes of the largest buffer that a kernel can bind."""
    dispatch_operations: int = 0
    """Multiply-adds that a GPU computes in the time of one more dispatch. Winograd's form has two
    more dispatches than a direct convolution."""
    copy_operations: int = 0
    """Multiply-adds that a GPU computes in the time of writing an element and reading it again.
    An element of Winograd's planes takes at least that time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cpu:
    """The assumptions of the compiler about a CPU and the engine that compiles WebAssembly."""

    device: ClassVar[Device] = "wasm"
    name: str
    """The name of the variant of modules for this machine, after its distinguishing feature."""
    features: frozenset[str]
    """The instructions that may be emitted. "relaxed": relaxed SIMD, such as FMA. "dot": the
    relaxed dot product of four unsigned and four signed bytes, which is exact here. "pairs": the
    dot product of two bytes each, with sums of 16 bits, is faster than that instruction."""
    lanes: int = 4
    """32-bit elements of a vector, fixed by the instruction set (WASM's v128)."""
    vector_registers: int = 15
    """Vectors that the engine keeps in registers without spilling (derived: x86-64 has 16 vector
    registers, and V8 reserves one)."""
    tile: Tile
    """The largest register tile of a contraction, and the columns of a packed panel. Its
    accumulators, the vectors of a panel's row and one broadcast element fit `vector_registers`."""
    narrow_tile: Tile = Tile(1, 32)
    """The register tile of a single row: enough columns for 8 multiply-adds in flight (a latency of
    4 cycles, 2 a cycle)."""
    l1_bytes: int = 32 << 10
    """Bytes of the first-level cache. Panels that all tiles of a block read stay in half of the
    cache (chosen by hand, for a desktop core)."""
    l2_bytes: int = 512 << 10
    """Bytes of the second-level cache of one core. A block of rows stays there beside a panel
    (chosen by hand, for a desktop core)."""
    way_bytes: int = 4096
    """Bytes of one way of the first-level cache (32 KiB in 8 ways). Addresses at this distance
    share a set (measured on Winograd's planes: at this distance they took five times as long)."""
    parallel_operations: int = 100_000
    """Scalar operations below which a kernel stays on one thread. Waking the other threads would
    cost more than they save (chosen by hand, for a desktop core)."""
    parallel_iterations: int = 8
    """Iterations that a parallel loop should have, so that threads finish at about the same time
    (an estimate: two for each of four threads)."""
    shared_loop_operations: int = 2048
    """Scalar operations below which a loop is not fused into the parallel loop around it. Dividing
    the fused index would cost as much as the few instructions of an iteration (measured on Magika,
    and on Llama's keys: 5 instead of 55 microseconds to pack the keys of a layer)."""
    shared_nest_operations: int = 16384
    """Scalar operations below which one thread finishes a nest sooner than two threads, such as
    slabs of padding (measured on ShuffleNet with two threads: 3.4 instead of 3.55 ms)."""
    inner_nest_operations: int = 1 << 20
    """Scalar operations of a nest that is worth a barrier in each iteration of the loop around it
    (measured on PP-OCR and DeiT with two threads)."""
    section_keys: int = 48
    """Keys of a section of attention whose queries fill no register tile: threads share sections.
    A multiple of the tiles of 2, 3, 6 or 12 keys. The keys and values of a section of three heads
    of 64 elements take 72 KiB and stay in the second-level cache (derived)."""
    l3_resident_bytes: int = 8_000_000
    """Bytes of planes that a third-level cache keeps while every pair of panels reads them again.
    Strassen's algorithm is not used for larger planes (checked in Chromium, one thread, on
    DeiT-tiny and Whisper-tiny's encoder)."""
    costs: AlgorithmCosts = AlgorithmCosts()


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """The assumptions of the compiler about a WebGPU adapter, which is hardware or software."""

    device: ClassVar[Device] = "webgpu"
    name: str
    """The name of the variant of shaders for this machine (`AdapterKind`)."""
    features: frozenset[str] = frozenset()
    """The features that shaders may use: WebGPU's (`SHADER_FEATURES`), and "quads": four
    neighbouring threads share loads, by `subgroups`."""
    lanes: int = 4
    """32-bit elements of a vector, fixed by the language (WGSL's vec4)."""
    vector_registers: int
    """The most vectors of a tile that a search tries. Drivers allocate the registers."""
    tile: Tile
    """The largest register tile of a contraction."""
    workgroup_size: int
    """Invocations of a workgroup: a multiple of the threads that run in lockstep (32 or 64)."""
    shared_bytes: int
    """Bytes of workgroup memory of the adapter. 0: operands of contractions are not copied to
    workgroup memory, because registers alone are faster (software adapters)."""
    has_slow_barriers: bool
    """Whether a barrier is so slow that each thread of a workgroup should fold by itself. It is on
    software adapters, which switch from one thread's stack to the next (measured on SwiftShader: a
    product of 128×1024×256 took 3 and 9 times as long with 4 and 16 threads, and 20 times as long
    to compile)."""
    compiles_slowly: bool
    """Whether compiling a shader takes longer than its first run, as on software adapters (measured
    on SwiftShader: 50 to 500 ms). Kernels that differ in numbers only share a shader there, and
    loops that store the rows of a register tile are not unrolled. On a GPU, the numbers stay
    constants, which its compiler uses."""
    multiplies_words: bool
    """Whether an adapter multiplies words of four bytes faster than bytes that a tile unpacks once.
    GPUs do (measured on a product of 196×1152×128 bytes: compared with single bytes, SwiftShader
    took 13 % longer by words, and 8 % less with unpacked words; lavapipe took the same time)."""
    filling_threads: int = 8192
    """Threads that fill a GPU. With fewer threads, reductions are divided into two dispatches (an
    estimate)."""
    product_threads: int
    """Threads of a product that fill a GPU. With fewer threads, the threads divide reductions. Half
    this number fills a GPU if the operands cannot be copied to workgroup memory."""
    divided_threads: int
    """Threads of a dispatch that fill a GPU where the threads of a workgroup divide a reduction:
    each thread then has few independent instructions. With fewer threads, a rule takes smaller
    tiles (chosen on products on an H200; an estimate for software adapters)."""
    divided_tile: Tile
    """The largest register tile, in elements, where threads divide a reduction."""
    divided_workgroup: int
    """Threads of a workgroup that divides reductions: of a product, and by estimate of a tile of
    attention. Chosen with `divided_threads`."""
    reads_lines: bool
    """Whether neighbouring threads should read neighbouring elements, because the hardware joins
    their loads, as GPUs do. A thread of a software adapter is fastest by itself."""
    thread_iterations: int
    """Iterations that the loops of one thread may take together, at most. A kernel whose rows are
    longer shares each row among threads, or becomes several dispatches. A product whose depth is a
    symbol is the exception: its threads loop over the whole depth."""
    short_fold: int
    """Elements that one thread folds as fast as a workgroup whose threads wait for each other (an
    estimate)."""
    row_threads: int
    """Threads that fold a long row together."""
    fold_radix: int
    """Results of threads that one thread folds at each level of a tree."""
    fold_steps: int
    """Iterations of a fold that are unrolled, at most, so that their loads do not wait for each
    other. An engine that bounds its loops runs the iterations of a loop one after another."""
    attention_threads: int
    """Threads that compute a single row of attention, if the number of rows is known only at run
    time. Each step takes one key for each thread, and waits for the keys, then for the values."""
    product_words: int
    """Packed words of a column that a thread of a single row reads at once, at most. Each word
    takes the instructions of eight multiply-adds of vectors."""
    private_elements: int = 256
    """Elements of private temporaries of a thread. More elements would spill to memory (an
    estimate: 1 KiB of private memory)."""
    costs: AlgorithmCosts


Machine = Cpu | Gpu
"""A machine that kernels are scheduled for."""

RELAXED = Cpu(
    name="relaxed",
    features=frozenset({"relaxed"}),
    tile=Tile(6, 8),  # 12 accumulators + 2 of B + 1 splat
)
"""WebAssembly with relaxed SIMD, where one instruction multiplies and adds."""

SIMD128 = Cpu(
    name="simd128",
    features=frozenset(),
    tile=Tile(4, 8),  # fewer rows than RELAXED: without FMA, a product needs a register of its own
)
"""WebAssembly with baseline SIMD, for engines that reject relaxed opcodes."""

DOT = replace(RELAXED, name="dot", features=RELAXED.features | {"dot"})
"""Relaxed SIMD with an exact dot product of bytes, as on x86 with VNNI.

`i32x4.relaxed_dot_i8x16_i7x16_add_s` is exact there even if its second operand uses all eight bits,
as unsigned bytes. The specification leaves that case open, so hosts test the instruction.
"""

PAIRS = replace(RELAXED, name="pairs", features=RELAXED.features | {"pairs"})
"""Relaxed SIMD on x86 without VNNI, or with an engine that does not use it.

An engine needs three instructions and a load for `i32x4.relaxed_dot_i8x16_i7x16_add_s` there, but
one instruction for `i16x8.relaxed_dot_i8x16_i7x16_s`. On ARM the first takes one instruction, and
the second takes three.
"""

SOFTWARE = Gpu(
    name="software",
    vector_registers=64,
    tile=Tile(8, 8),  # per thread; 8 rows halve the loads of 4, 16 spill
    workgroup_size=64,
    shared_bytes=0,
    has_slow_barriers=True,
    compiles_slowly=True,
    multiplies_words=False,
    product_threads=256,  # four workgroups
    divided_threads=8192,
    divided_tile=Tile(8, 8),
    divided_workgroup=64,
    reads_lines=False,
    thread_iterations=1 << 15,  # half of llvmpipe's limit: it ends all loops after 65,535
    short_fold=256,
    row_threads=64,
    fold_radix=8,
    fold_steps=1,
    attention_threads=64,
    product_words=1,
    costs=AlgorithmCosts(
        runs_bands=False,
        binding_bytes=MAX_BINDING_BYTES,
        dispatch_operations=200_000,  # 50 us at 4 GMAC/s
    ),
)
"""An adapter that runs shaders on the CPU, such as SwiftShader or lavapipe, on the default limits.

Measured with both: tiles in registers are several times as fast as tiles in workgroup memory. The
numbers are chosen by hand.
"""

SOFTWARE_SUBGROUPS = replace(
    SOFTWARE,
    name="software-subgroups",
    features=frozenset({"quads"}),
    vector_registers=128,
    tile=Tile(16, 8),
)
"""A software adapter whose subgroups are the four threads that it computes at once.

The tile is taller than the tile of `SOFTWARE`, because threads share the loads of its rows. Only
large products have this tile (`contraction_defaults`).
"""

WEBGPU = Gpu(
    name="gpu",
    vector_registers=64,
    tile=Tile(8, 8),
    workgroup_size=64,
    shared_bytes=MAX_WORKGROUP_BYTES,
    has_slow_barriers=False,
    compiles_slowly=False,
    multiplies_words=True,
    product_threads=24_000,
    divided_threads=48_000,
    divided_tile=Tile(8, 4),
    divided_workgroup=128,
    reads_lines=True,
    thread_iterations=1 << 14,  # loads of 0.8 us each: 13 ms, less than a frame of 60 Hz
    short_fold=64,
    row_threads=128,
    fold_radix=4,
    fold_steps=16,
    attention_threads=256,
    product_words=4,
    costs=AlgorithmCosts(
        runs_bands=False,
        binding_bytes=MAX_BINDING_BYTES,
        dispatch_operations=50_000_000,  # 3.5 us at the rate of a product of 2048³
        copy_operations=140,  # the largest of the classes in `core/adapters.py`, from the M2
    ),
)
"""A GPU, on the default limits of WebGPU.

These numbers, and the choices that follow from `shared_bytes`, were measured on an H200
(`benchmarks/gpu_results.md`).
"""

SUBGROUPS = replace(WEBGPU, name="subgroups", features=frozenset({"subgroups"}))
"""A GPU whose threads exchange values within a subgroup of any size."""

F16 = replace(WEBGPU, name="f16", features=frozenset({"shader-f16"}))
"""A GPU that loads and stores halves. It computes with them in float32."""

F16_SUBGROUPS = replace(WEBGPU, name="f16-subgroups", features=F16.features | SUBGROUPS.features)
"""A GPU with both features."""

WASM_MACHINES: Mapping[str, Cpu] = {m.name: m for m in (DOT, PAIRS, RELAXED, SIMD128)}
"""The machines that modules are made for, by the names of the variants."""

ADAPTERS: Mapping[str, Gpu] = {
    m.name: m for m in (WEBGPU, SOFTWARE, SOFTWARE_SUBGROUPS, SUBGROUPS, F16, F16_SUBGROUPS)
}
"""The machines that shaders are made for, by the names of the variants. Machines without features
come first, and the machine with the most features comes last.
"""

SOFTWARE_MACHINES = (SOFTWARE, SOFTWARE_SUBGROUPS)
"""The machines of software adapters."""

SOFTWARE_ADAPTERS = tuple(n for n, machine in ADAPTERS.items() if machine in SOFTWARE_MACHINES)
"""The variants for software adapters, which `--adapter software` builds."""

PLAIN_ADAPTERS = tuple(name for name, machine in ADAPTERS.items() if not machine.features)
"""The kinds of adapters whose shaders run on every adapter."""

MACHINES: Mapping[str, Machine] = {**WASM_MACHINES, **ADAPTERS}
"""Every machine that kernels are scheduled for, by its name."""
DEFAULT_MACHINES: Mapping[Device, str] = {"wasm": "relaxed", "webgpu": "gpu"}
"""The name of the machine that a device's kernels are scheduled for unless a user names another."""

"""Classes of GPU adapters: their published figures, to find the bound of a dispatch without a GPU.

In: nothing. Out: one `Adapter` per class, from a data centre's to a phone's. No schedule depends on
adapters: rules choose by the numbers of a `Machine`. An adapter tells the cost of such a choice on
its class.

    >>> f"{ADAPTERS[0].name}: {ADAPTERS[0].flops / 1e12:.1f} TFLOPS, {ADAPTERS[0].lanes} lanes"
    'H100: 66.9 TFLOPS, 16896 lanes'
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Adapter:
    """The figures of a class of GPUs."""

    name: str
    cores: int
    """The units that each run whole workgroups."""
    lanes: int
    """The float32 multiply-adds that all cores together start in a cycle. A dispatch of fewer
    invocations leaves some of them idle."""
    clock: float
    """Cycles per second."""
    memory_rate: float
    """Bytes per second from and to the memory of the device."""
    load_bytes: int
    """Bytes per cycle that a core loads from its first-level cache or its workgroup memory."""
    launch_seconds: float
    """Seconds between two dispatches, if the second dispatch reads what the first one wrote."""

    @property
    def flops(self) -> float:
        """Float32 operations per second. A multiply-add counts as two."""
        return 2 * self.lanes * self.clock

    @property
    def load_rate(self) -> float:
        """Bytes per second that all cores together load from caches and workgroup memory."""
        return self.cores * self.load_bytes * self.clock


H100 = Adapter(
    name="H100",
    cores=132,
    lanes=132 * 128,
    clock=1.98e9,
    memory_rate=3.35e12,
    load_bytes=128,
    launch_seconds=4e-6,
)
"""A GPU of a data centre: NVIDIA H100 SXM5.

Sources: NVIDIA's white papers on the architectures of the H100 (cores, lanes, 66.9 TFLOPS, memory)
and the V100 (128 bytes per cycle and core). `launch_seconds` was measured on an H200: its shortest
dispatch took that long (`benchmarks/gpu_results.md`).
"""

M2 = Adapter(
    name="M2",
    cores=10,
    lanes=10 * 128,
    clock=1.4e9,
    memory_rate=100e9,
    load_bytes=64,
    launch_seconds=5e-6,
)
"""A GPU of a laptop: Apple M2 with 10 cores.

Source: Apple's announcement of the M2 (3.6 TFLOPS, 100 GB/s, 10 cores). Lanes and clock follow from
these with 128 lanes per core. `load_bytes` and `launch_seconds` are estimates.
"""

ADRENO = Adapter(
    name="Adreno",
    cores=12,
    lanes=12 * 128,
    clock=0.68e9,
    memory_rate=67e9,
    load_bytes=64,
    launch_seconds=20e-6,
)
"""A GPU of a phone: Adreno 740 of the Snapdragon 8 Gen 2.

Source: Qualcomm's product brief (LPDDR5X at 4,200 MHz, 64 bits wide). Qualcomm publishes neither
lanes nor clock: both are from reviews. `load_bytes` and `launch_seconds` are estimates.
"""

INTEL = Adapter(
    name="Intel",
    cores=6,
    lanes=6 * 128,
    clock=1.35e9,
    memory_rate=68e9,
    load_bytes=64,
    launch_seconds=5e-6,
)
"""An integrated GPU of a laptop: Intel Iris Xe with 96 execution units.

Sources: Intel's data sheet of the Core i7-1185G7 (96 units, 1.35 GHz, LPDDR4X-4267 of 128 bits),
and Intel's guide to the Xe-LP architecture (8 lanes per unit, 16 units and 64 bytes per cycle in a
subslice). `launch_seconds` is an estimate.
"""

ADAPTERS = (H100, M2, ADRENO, INTEL)
"""The classes that `webmlc inspect` and `webmlc report` show."""

"""The kernel that measures the limit of a machine: multiply-adds on registers alone.

Out: a schedule of a tensor program, for each target. Each row holds `CHAINS` independent sums, and
no operand is in memory while they grow, so no kernel of float32 does more operations in a second.

    kernel = webmlc.compile(multiply_adds("wasm"), "wasm")
"""

from __future__ import annotations

from webmlc.core.machine import DEVICES, Device
from webmlc.programs.script import Program, from_source
from webmlc.programs.tir import Schedule

LANES = 4
"""The elements of a vector."""
CHAINS = 12
"""The vectors of sums of a row. A processor starts two multiply-adds in a cycle and waits four
cycles for each, so 8 sums keep it busy; 12 and two operands fit the 15 registers of V8.
"""
CPU_SIZES = (256, 1 << 13)
"""The rows and the steps on a CPU: 200 million operations, which take a core about 4 ms. Browsers
round times to 0.1 ms.
"""
GPU_SIZES = (1 << 15, 1 << 10)
"""The rows and the steps on a GPU: each thread has a row, and the threads fill a large GPU. These
are 3.2 billion operations, which take software adapters less than a second.
"""
THREADS = 64
"""The threads of a workgroup."""


def multiply_adds(device: Device, parallel: bool = False) -> Schedule:
    """The schedule of the kernel: inputs `A` and `B` of four elements, the sums as output.
    `parallel` lets all threads of a CPU take part.
    """
    on_cpu = DEVICES[device].runs_steps
    schedule = Schedule(_program(*(CPU_SIZES if on_cpu else GPU_SIZES)))
    row, column, step = schedule.get_loops("Y")
    schedule.reverse_compute_at("C", row)
    chain, lane = schedule.split(column, [CHAINS, LANES])
    schedule.reorder(step, chain, lane)
    schedule.decompose_reduction("Y", step)
    copied = schedule.get_loops("C")[-1]
    schedule.split(copied, [CHAINS, LANES])
    for block in ("Y_init", "Y", "C"):
        *_, chain, lane = schedule.get_loops(block)
        schedule.vectorize(lane)
        schedule.unroll(chain)
    if not on_cpu:
        group, thread = schedule.split(row, [None, THREADS])
        schedule.bind(group, "blockIdx.x")
        schedule.bind(thread, "threadIdx.x")
    elif parallel:
        schedule.parallel(row)
    return schedule


def _program(rows: int, steps: int) -> Program:
    names = {"rows": rows, "steps": steps, "columns": CHAINS * LANES, "lanes": LANES}
    return from_source(
        """
        def multiply_adds(
            X: T.Buffer((columns,), "float32"),
            A: T.Buffer((lanes,), "float32"),
            B: T.Buffer((lanes,), "float32"),
            C: T.Buffer((rows, columns), "float32"),
        ):
            Y = T.alloc_buffer((rows, columns), "float32", scope="local")
            for i, j, k in T.grid(rows, columns, steps):
                with T.block("Y"):
                    vi, vj, vk = T.axis.remap("SSR", [i, j, k])
                    with T.init():
                        Y[vi, vj] = X[vj]
                    Y[vi, vj] = T.fma(Y[vi, vj], A[vj % lanes], B[vj % lanes])
            for i, j in T.grid(rows, columns):
                with T.block("C"):
                    vi, vj = T.axis.remap("SS", [i, j])
                    C[vi, vj] = Y[vi, vj]
        """,
        names,
    )

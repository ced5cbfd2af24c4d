"""What a kernel computes and moves, beside the least that it could move.

In: a kernel as its meaning (the naive function) and as its code (the lowered one). Out: a
`KernelWork`: operations and least bytes from the meaning, bytes moved from the code.

    kernel_work(kernel, {"batch": 1}).moved
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from webmlc.core.rewrite import evaluate
from webmlc.loops.count_work import Work, count_work
from webmlc.loops.ir import Buffer, LoopFunction
from webmlc.target.registers import register_lanes


@dataclass(frozen=True, slots=True)
class Kernel:
    """A kernel before it is scheduled, and after it is lowered."""

    meaning: LoopFunction
    code: LoopFunction


@dataclass(frozen=True, slots=True)
class KernelWork:
    """Operations of one run; bytes that its loads and stores move between memory (caches included)
    and registers; and the `least`: every element of an input that is needed read once, every
    element of an output written once.
    """

    flops: int
    moved: int
    least: int


def kernel_work(kernel: Kernel, sizes: Mapping[str, int]) -> KernelWork:
    """The work of one run with these values of the symbols; a symbol without one is 1."""
    meaning = count_work(kernel.meaning, sizes)
    code = count_work(kernel.code, sizes)
    registers = register_lanes(kernel.code)
    memory = (code.read.keys() | code.written.keys()) - registers.keys()
    return KernelWork(
        meaning.flops,
        sum(code.moved(buffer) for buffer in memory),
        _least(kernel.meaning, meaning, sizes),
    )


def _least(function: LoopFunction, work: Work, sizes: Mapping[str, int]) -> int:
    """A buffer that is only read in part (a gather's table) counts with what is read of it."""
    inputs = len(function.params) - function.outputs
    known = {symbol.name: sizes.get(symbol.name, 1) for symbol in function.symbols}

    def least(buffer: Buffer, moved: int) -> int:
        whole = math.prod(int(evaluate(d, known)) for d in buffer.shape) * buffer.dtype.bytes
        return min(whole, moved)

    read = sum(least(b, work.read.get(b, 0)) for b in function.params[:inputs])
    return read + sum(least(b, work.written.get(b, 0)) for b in function.params[inputs:])

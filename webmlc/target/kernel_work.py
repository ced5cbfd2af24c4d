"""Count the operations of a kernel, the bytes it moves, and the fewest bytes it could move.

In: a kernel as its meaning (the naive function) and as its code (the lowered function). Out: a
`KernelWork`. Its operations and least bytes follow from the meaning, the bytes moved from the code.

    kernel_work(kernel, {"batch": 1}).moved
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from webmlc.loops.count_work import Work, buffer_bytes, count_work
from webmlc.loops.ir import Buffer, LoopFunction
from webmlc.target.registers import register_lanes


@dataclass(frozen=True, slots=True)
class Kernel:
    """A kernel before it is scheduled. `lowered` returns it after it is lowered, for which it may
    have to be compiled once more.
    """

    meaning: LoopFunction
    lowered: Callable[[], LoopFunction]


@dataclass(frozen=True, slots=True)
class KernelWork:
    """The work of one run: operations, and bytes by the level of memory that holds them.

    - `flops`: the operations of the meaning.
    - `least`: the least bytes: every input element that is needed is read once, and every output
      element is written once.
    - `executed`: the operations of the code, which computes some values several times.
    - `registers`, `workgroup`, `storage`: the bytes that the code reads and writes in registers, in
      workgroup memory, and in all other memory (caches included).
    """

    flops: int = 0
    least: int = 0
    executed: int = 0
    registers: int = 0
    workgroup: int = 0
    storage: int = 0

    @property
    def moved(self) -> int:
        """The bytes that loads and stores move between memory (caches included) and registers."""
        return self.workgroup + self.storage


def kernel_work(kernel: Kernel, sizes: Mapping[str, int]) -> KernelWork:
    """The work of one run with these values of the symbols. A symbol without a value is 1."""
    meaning = count_work(kernel.meaning, sizes)
    lowered = kernel.lowered()
    code = count_work(lowered, sizes)
    registers = register_lanes(lowered)
    levels = {"registers": 0, "workgroup": 0, "storage": 0}
    for buffer in code.read.keys() | code.written.keys():
        is_shared = buffer.scope == "shared"
        level = "registers" if buffer in registers else "workgroup" if is_shared else "storage"
        levels[level] += code.moved(buffer)
    least = _least(kernel.meaning, meaning, sizes)
    return KernelWork(meaning.flops, least, code.flops, **levels)


def least_bytes(function: LoopFunction, sizes: Mapping[str, int]) -> int:
    """The least bytes of one run of a naive function (see `KernelWork.least`)."""
    return _least(function, count_work(function, sizes), sizes)


def _least(function: LoopFunction, work: Work, sizes: Mapping[str, int]) -> int:
    """The least bytes of a run. Of a table that a gather reads in part, the part counts."""
    inputs = len(function.params) - function.outputs
    symbol_values = {symbol.name: sizes.get(symbol.name, 1) for symbol in function.symbols}

    def least(buffer: Buffer, moved: int) -> int:
        return min(buffer_bytes(buffer, symbol_values), moved)

    input_bytes = sum(least(b, work.read.get(b, 0)) for b in function.params[:inputs])
    return input_bytes + sum(least(b, work.written.get(b, 0)) for b in function.params[inputs:])

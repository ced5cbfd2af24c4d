"""Candidates: schedules of a task as code.

    control = candidate(task, task.match.default())
    other = candidate(task, task.match.space().random(Random(0)))

Two candidates with the same `text` are the same code, so only one is measured.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from webmlc.core.combination import Combination
from webmlc.core.errors import InternalError, WebmlcError
from webmlc.core.expr import Call, Const
from webmlc.core.machine import DEVICES
from webmlc.core.rewrite import walk
from webmlc.loops.ir import LoopFunction, expressions, walk_statements
from webmlc.target.wasm.emit_module import print_function
from webmlc.target.wasm.printer import Printed
from webmlc.target.webgpu.emit_shaders import Shaders, emit_shaders
from webmlc.tune.measure.features import features
from webmlc.tune.tasks import Task

KERNEL = "kernel"
"""The name of the kernel in the shaders of a candidate."""
FRACTION = 2**-10
"""Small multiples of this are exact in any order of sums and products."""
_EXACT = {"add", "sub", "mul", "fma", "min", "max", "relaxed_max", "neg", "abs", "sign", "floor",
          "ceil", "trunc", "round", "select"}  # fmt: skip
"""Operators that give small multiples of a power of two for small multiples of a power of two."""


Code = Printed | Shaders
"""A kernel in a WebAssembly module or as a shader."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A member of a task's space, its lowered kernel, its code, which trials take as it is, and its
    features for the cost model.
    """

    member: Any
    kernel: LoopFunction
    code: Code
    features: NDArray[np.float32]

    @property
    def text(self) -> str:
        """The text of the code: candidates with the same text are the same."""
        return self.code.text


@dataclass(frozen=True, slots=True)
class Refusal:
    """The reason why a member of a space, with or without its proofs, cannot be built."""

    reason: str


def candidate(task: Task, member: Any) -> Candidate:
    """Build a member of the task's space. Raises `InternalError` if a primitive refuses it."""
    kernel = task.lower(member)
    return Candidate(member, kernel, code_of(task, kernel), features(kernel, task.all_sizes))


def code_of(task: Task, kernel: LoopFunction) -> Code:
    """The code of a lowered kernel of a task."""
    if DEVICES[task.device].runs_steps:
        return print_function(kernel, task.machine)
    return emit_shaders({KERNEL: kernel}, {KERNEL: task.constants})


def try_candidate(task: Task, member: Any) -> Candidate | Refusal:
    """Build a member of the task's space, or say why that is not possible."""
    try:
        return candidate(task, member)
    except InternalError as error:
        reason = error.__cause__ or error  # the step that a primitive refused
    except Exception as error:  # a bug of a rule costs one member, not the search
        reason = error
    name = "" if isinstance(reason, WebmlcError) else f"{type(reason).__name__}: "
    return Refusal(name + (str(reason).splitlines() or [""])[0])


def is_exact(function: LoopFunction) -> bool:
    """True if small integers make every float of a kernel exact, in any order of operations."""
    for stmt in walk_statements(function.body):
        for root in expressions(stmt):
            for node in walk(root):
                if not node.dtype.is_float:
                    continue
                match node:
                    case Call(op=op) if op not in _EXACT:
                        return False
                    case Const(value=value) if math.isfinite(value) and value % FRACTION:
                        return False
                    case Combination(matrix=matrix) if any(
                        c % FRACTION for row in matrix for c in row
                    ):
                        return False
    return True

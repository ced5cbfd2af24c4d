"""Define the record that holds everything that differs between the devices a model is compiled for.

`targets.TARGETS` lists the records. The compiler iterates over them and compares no device's name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from webmlc.core.machine import Device, Machine
from webmlc.graph.fuse.fusion_limits import FusionLimits
from webmlc.graph.ir import Module
from webmlc.loops.ir import LoopFunction
from webmlc.target.lower import Lowering

M = TypeVar("M", bound=Machine)
Need = Callable[[LoopFunction], bool]
"""True for a kernel that has what sets a variant apart from another one."""
ModulePass = tuple[str, Callable[[Module], Module]]
"""A title for people to read, and the function that rewrites a module."""


@dataclass(frozen=True, slots=True)
class Variant(Generic[M]):
    """A form of a target's code: a module or a text of shaders for machines with some features.

    `otherwise`: a kernel without a need has the code of the variant beside the need, so that equal
    code is compiled once. A package leaves out a variant that `is_optional` if it would equal
    another one.
    """

    machine: M
    otherwise: tuple[tuple[Need, Variant[M]], ...] = ()
    is_optional: bool = False

    def machine_of(self, kernel: LoopFunction) -> M:
        """The machine to compile a kernel of this variant for."""
        for need, other in self.otherwise:
            if not need(kernel):
                return other.machine_of(kernel)
        return self.machine


@dataclass(frozen=True, slots=True)
class Target(Generic[M]):
    """A device, and how a model becomes its kernels.

    `variants` are listed by their names in the package. `passes` lead from the graph that all
    targets share to a module whose kernels can each be scheduled. `alternatives` names what these
    passes could do for each layer instead (`Module.algorithms`), the default first. `limits` bound
    its fusion. `lowering` gives the passes from a scheduled kernel to the form that the target's
    printer prints.
    """

    device: Device
    variants: Mapping[str, Variant[M]]
    limits: FusionLimits
    passes: tuple[ModulePass, ...]
    alternatives: Callable[[Module], Mapping[str, tuple[str, ...]]]
    lowering: Lowering[M]


AnyTarget = Target[Any]

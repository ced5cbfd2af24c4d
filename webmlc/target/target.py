"""What differs between the devices that a model is compiled for, as one record for each.

`targets.TARGETS` lists them. The compiler iterates over it and compares no device's name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from webmlc.core.machine import Device, Machine
from webmlc.graph.fuse.fuse import FusionLimits
from webmlc.graph.ir import Module
from webmlc.target.lower import Lowering

ModulePass = tuple[str, Callable[[Module], Module]]
"""A title, for people, and what rewrites a module."""


@dataclass(frozen=True, slots=True)
class Target:
    """A device, and how a model becomes its kernels.

    `variants` are the machines that kernels are scheduled for, by the name of the feature set that
    tells their modules or shaders apart. `passes` lead from the graph that all targets share to a
    module whose kernels can each be scheduled; `limits` are those of its fusion. `lowering` gives
    the passes from a scheduled kernel to what the target's printer prints.
    """

    device: Device
    variants: Mapping[str, Machine]
    limits: FusionLimits
    passes: tuple[ModulePass, ...]
    lowering: Lowering

"""Define the record that holds everything that differs between the devices a model is compiled for.

`targets.TARGETS` lists the records. The compiler iterates over them and compares no device's name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from webmlc.core.machine import Device, Machine
from webmlc.graph.fuse.fusion_limits import FusionLimits
from webmlc.graph.ir import Module
from webmlc.target.lower import Lowering

ModulePass = tuple[str, Callable[[Module], Module]]
"""A title for people to read, and the function that rewrites a module."""


@dataclass(frozen=True, slots=True)
class Target:
    """A device, and how a model becomes its kernels.

    `variants` maps the name of each feature set to the machine that its kernels are scheduled for:
    a variant is a module or shader. `passes` lead from the graph that all targets share to a module
    whose kernels can each be scheduled. `alternatives` names what these passes could do for each
    layer instead (`Module.algorithms`), the default first. `limits` bound its fusion. `lowering`
    gives the passes from a scheduled kernel to the form that the target's printer prints.
    """

    device: Device
    variants: Mapping[str, Machine]
    limits: FusionLimits
    passes: tuple[ModulePass, ...]
    alternatives: Callable[[Module], Mapping[str, tuple[str, ...]]]
    lowering: Lowering

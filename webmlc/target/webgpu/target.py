"""Define the WebGPU target: kernels run on the GPU, or on the CPU where the GPU cannot run them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

from webmlc.core.dtypes import DType
from webmlc.core.machine import (
    F16,
    F16_SUBGROUPS,
    MAX_BINDING_BYTES,
    MAX_BINDINGS,
    SOFTWARE,
    SOFTWARE_SUBGROUPS,
    SUBGROUPS,
    Gpu,
)
from webmlc.core.machine import WEBGPU as MACHINE
from webmlc.graph.algorithms.attention.use_attention import use_attention
from webmlc.graph.algorithms.winograd.use_winograd import use_winograd, winograd_alternatives
from webmlc.graph.fuse.fuse import fuse
from webmlc.graph.fuse.fusion_limits import FusionLimits
from webmlc.graph.fuse.merge_siblings import merge_siblings
from webmlc.graph.fuse.split_large_constants import split_large_constants
from webmlc.graph.fuse.split_operands import split_operands
from webmlc.graph.fuse.write_in_place import append_in_place, concat_in_place
from webmlc.graph.ir import Module
from webmlc.graph.quantise.join_shifts import join_shifts
from webmlc.graph.quantise.use_byte_products import use_byte_products
from webmlc.graph.quantise.use_float_products import use_float_products
from webmlc.loops.ir import LoopFunction
from webmlc.loops.kernel_form import GPU_FORM
from webmlc.loops.lower_module import lower_module
from webmlc.schedule.analysis import reduces
from webmlc.schedule.rules import match_kernel
from webmlc.target.factor_reductions import factor_reductions, reduction_alternatives
from webmlc.target.split_kernels import fits_dispatch, split_kernels
from webmlc.target.target import Alternatives, ModulePass, Need, Target, Task, Variant
from webmlc.target.wasm.target import split_for_scratch
from webmlc.target.webgpu.emit_shaders import Shaders, join_shaders
from webmlc.target.webgpu.lowering import lowering
from webmlc.target.webgpu.printer import Shader, emit_shader


def has_halves(kernel: LoopFunction) -> bool:
    """True if a parameter of a kernel is of float16."""
    return any(buffer.dtype is DType.float16 for buffer in kernel.params)


def folds_in_subgroups(kernel: LoopFunction, machine: Gpu) -> bool:
    """True if the schedule of a kernel folds the values of a workgroup's threads in subgroups."""
    match = match_kernel(kernel, machine)
    return match is not None and getattr(match.facts, "has_subgroups", False)


def is_for_software(kernel: LoopFunction, machine: Gpu) -> bool:
    """True if a kernel has a schedule for a software adapter, and its threads take no more
    iterations than such an adapter runs. Also true if the schedule for a GPU takes too many
    iterations, too.
    """
    match = match_kernel(kernel, machine)
    if match is None or match.is_bounded:
        return match is not None
    other = match_kernel(kernel, MACHINE)
    return other is None or not other.is_bounded


def _on_subgroups(machine: Gpu, other: Variant[Gpu]) -> tuple[Need, Variant[Gpu]]:
    return partial(folds_in_subgroups, machine=machine), other


def _on_software(machine: Gpu) -> tuple[Need, Variant[Gpu]]:
    return partial(is_for_software, machine=machine), _GPU


_GPU = Variant(MACHINE, "plain")
_SOFTWARE = Variant(SOFTWARE, "shared", (_on_software(SOFTWARE),))
_SUBGROUPS = Variant(SUBGROUPS, "plain", (_on_subgroups(SUBGROUPS, _GPU),), is_optional=True)
_F16 = Variant(F16, "plain", ((has_halves, _GPU),), is_optional=True)
SOFTWARE_VARIANTS = {
    "software": _SOFTWARE,
    "software-subgroups": Variant(
        SOFTWARE_SUBGROUPS,
        "shared",
        ((reduces, _SOFTWARE), _on_software(SOFTWARE_SUBGROUPS)),
        is_optional=True,
    ),
}
"""The variants of a package's shaders for software adapters."""
VARIANTS = {
    "gpu": _GPU,
    **SOFTWARE_VARIANTS,
    "subgroups": _SUBGROUPS,
    "f16": _F16,
    "f16-subgroups": Variant(
        F16_SUBGROUPS,
        "plain",
        ((has_halves, _SUBGROUPS), _on_subgroups(F16_SUBGROUPS, _F16)),
        is_optional=True,
    ),
}
"""The variants of a package's shaders. They have the same steps and buffers, because the passes of
the target choose by the numbers of one machine.
"""


def print_code(kernel: LoopFunction, task: Task, shows_stages: bool = False) -> Shader:
    """The text of a lowered kernel."""
    machine = task.machine
    assert isinstance(machine, Gpu)
    return emit_shader(
        kernel,
        task.constants,
        machine.features,
        is_software=machine.compiles_slowly,
        shows_stages=shows_stages,
    )


def join(
    kernels: Mapping[str, Shader], _steps: Sequence[object], alternatives: Alternatives, form: str
) -> Shaders:
    """The text of all kernels. In the form "shared", kernels that differ in numbers only share an
    entry point, unless some machines have other kernels.
    """
    return join_shaders(kernels, shares=form == "shared" and not alternatives)


def webgpu_target(
    limits: FusionLimits, variants: Mapping[str, Variant[Gpu]], adapter: Gpu = MACHINE
) -> Target[Gpu]:
    """The target for devices with these limits. The numbers of `adapter` choose the algorithms of
    convolutions and attention. Kernels are cut for GPUs, and run on every adapter.
    """
    to_kernels: tuple[ModulePass, ...] = (
        ("use winograd", partial(use_winograd, machine=adapter)),
        ("use float products", use_float_products),
        (
            "use attention",
            partial(use_attention, operands="plain", apart=adapter.has_slow_barriers),
        ),
        ("use byte products", partial(use_byte_products, operator="dot_i8")),
        ("join shifts", join_shifts),
        ("split operands", partial(split_operands, limits=limits)),
        ("fuse", partial(fuse, limits=limits)),
        ("concat in place", partial(concat_in_place, limits=limits)),
        ("append in place", append_in_place),
        ("merge siblings", partial(merge_siblings, limits=limits)),
        ("split large constants", partial(split_large_constants, limits=limits)),
        ("lower", partial(lower_module, form=GPU_FORM)),
    )

    def alternatives(module: Module) -> dict[str, tuple[str, ...]]:
        """The algorithms of convolutions, and the numbers of parts of reductions."""
        convolutions = winograd_alternatives(module, adapter)
        for _, transform in to_kernels:
            module = transform(module)
        return convolutions | reduction_alternatives(module, MACHINE)

    return Target(
        device="webgpu",
        variants=variants,
        limits=limits,
        to_kernels=to_kernels,
        kernel_passes=(
            ("factor reductions", partial(factor_reductions, machine=MACHINE)),
            ("split kernels", partial(split_kernels, machine=MACHINE, passes=fits_dispatch)),
            ("split for scratch", split_for_scratch),
        ),
        alternatives=alternatives,
        lowering=lowering,
        print_kernel=print_code,
        join=join,
        declares_constants=True,
        stem="kernels",
        language="wgsl",
        comment="//",
    )


_LIMITS = FusionLimits(
    buffers=MAX_BINDINGS,
    binding_bytes=MAX_BINDING_BYTES,
    pads="always",
    joins_operands=True,
    joins_transposes=True,
    binds_once=True,
    copied_parts=1,
)
"""The limits on the bindings of every device, from WebGPU's defaults."""
WEBGPU = webgpu_target(_LIMITS, VARIANTS)
"""The target for any device. Its algorithms are chosen for GPUs."""
SOFTWARE_WEBGPU = webgpu_target(_LIMITS, SOFTWARE_VARIANTS, SOFTWARE)
"""The target for software adapters alone."""
BY_ADAPTER: Mapping[str, Target[Gpu]] = {
    "gpu": replace(WEBGPU, variants={"gpu": _GPU}),
    "software": SOFTWARE_WEBGPU,
    "software-subgroups": replace(
        SOFTWARE_WEBGPU, variants={"software-subgroups": SOFTWARE_VARIANTS["software-subgroups"]}
    ),
    "all": WEBGPU,
}
"""The target of a package for each kind of adapter (`BuildOptions.adapter`)."""

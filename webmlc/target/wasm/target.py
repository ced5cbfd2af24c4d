"""Define the WebAssembly target, whose kernels run on the CPU."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

from webmlc.core.disk_cache import active_cache
from webmlc.core.expr import as_int
from webmlc.core.machine import DOT, PAIRS, RELAXED, SIMD128, Cpu
from webmlc.graph.algorithms.attention.tile_rows import tile_rows
from webmlc.graph.algorithms.attention.use_attention import use_attention
from webmlc.graph.algorithms.strassen.use_strassen import strassen_alternatives, use_strassen
from webmlc.graph.algorithms.winograd.use_winograd import use_winograd, winograd_alternatives
from webmlc.graph.fuse.choose_padding import padding_alternatives
from webmlc.graph.fuse.fuse import fuse
from webmlc.graph.fuse.fusion_limits import FusionLimits
from webmlc.graph.fuse.merge_siblings import merge_siblings
from webmlc.graph.fuse.split_operands import split_operands
from webmlc.graph.fuse.write_in_place import append_in_place, concat_in_place
from webmlc.graph.ir import Module
from webmlc.graph.quantise.join_shifts import join_shifts
from webmlc.graph.quantise.use_byte_products import use_byte_products
from webmlc.loops.content import kernel_key
from webmlc.loops.ir import LoopFunction
from webmlc.loops.kernel_form import CPU_FORM
from webmlc.loops.lower_module import lower_module
from webmlc.loops.name_dimensions import name_dimensions
from webmlc.schedule.analysis import (
    multiplies_bytes,
    reduces_products,
    sums_in_pairs,
    updates_others,
)
from webmlc.schedule.rules import schedule_kernel
from webmlc.target.split_kernels import split_kernels
from webmlc.target.target import Alternatives, Target, Task, Variant, run_passes
from webmlc.target.wasm.emit_module import Module as WasmModule
from webmlc.target.wasm.emit_module import Step, join_functions, print_function
from webmlc.target.wasm.lowering import lowering
from webmlc.target.wasm.printer import Printed


def fits_scratch(function: LoopFunction, machine: Cpu) -> bool:
    """True where every allocation of the lowered kernel has a constant size, because scratch memory
    has.

    An intermediate keeps its symbolic size where no rule computes the producer at its consumer,
    which would leave only a tile, and where a block updates elements that others write or read. The
    cache of builds keeps the answer: to schedule and lower a kernel takes long.
    """
    if updates_others(function):
        return False
    if _has_constant_sizes(function):
        return True
    cache = active_cache()
    if cache is None:
        return _is_lowered_to_constant_sizes(function, machine)
    key = kernel_key("fits scratch", function, machine)
    answer = cache.get(key)
    if answer is not None:
        return bytes(answer) == b"yes"
    fits = _is_lowered_to_constant_sizes(function, machine)
    cache.put(key, b"yes" if fits else b"no")
    return fits


def _is_lowered_to_constant_sizes(function: LoopFunction, machine: Cpu) -> bool:
    """True where every allocation has a constant size after scheduling and lowering."""
    named = name_dimensions(function).function
    return _has_constant_sizes(
        run_passes(schedule_kernel(named, machine).function, lowering(machine))
    )


def _has_constant_sizes(function: LoopFunction) -> bool:
    return all(as_int(size) is not None for b in function.allocations for size in b.shape)


LIMITS = FusionLimits(pads="chosen", quantises_rows=True)
"""The limits of fusion: a kernel may pad its input itself, and quantise the rows that it makes."""


_RELAXED = Variant(RELAXED, "relaxed")
_OPTIONAL = {"is_optional": True, "is_explained": False}
VARIANTS = {
    variant.machine.name: variant
    for variant in (
        Variant(DOT, "relaxed", ((multiplies_bytes, _RELAXED),), **_OPTIONAL),
        Variant(PAIRS, "relaxed", ((sums_in_pairs, _RELAXED),), **_OPTIONAL),
        _RELAXED,
        Variant(SIMD128, "simd128", ((reduces_products, _RELAXED),), is_explained=False),
    )
}
"""The variants of a package's module. Products have smaller register tiles without relaxed SIMD."""


def split_for_scratch(module: Module) -> Module:
    """Split the CPU kernels whose intermediates have no fixed size (see `fits_scratch`)."""
    return split_kernels(module, RELAXED, fits_scratch)


def cpu_alternatives(module: Module) -> dict[str, tuple[str, ...]]:
    """The algorithms of convolutions and products, and the places of paddings."""
    winograd = winograd_alternatives(module, RELAXED)
    return winograd | strassen_alternatives(module, RELAXED) | padding_alternatives(module)


def print_code(kernel: LoopFunction, task: Task, shows_stages: bool = False) -> Printed:
    """The text of a lowered kernel."""
    return print_function(kernel, task.form, shows_stages=shows_stages)


def join(
    kernels: Mapping[str, Printed], steps: Sequence[Step], alternatives: Alternatives, _form: str
) -> WasmModule:
    """The module of all kernels and steps."""
    return join_functions(kernels, steps, alternatives)


WASM = Target(
    device="wasm",
    variants=VARIANTS,
    limits=LIMITS,
    to_kernels=(
        ("use winograd", partial(use_winograd, machine=RELAXED)),
        ("use attention", partial(use_attention, operands="packed")),
        ("tile rows", partial(tile_rows, machine=RELAXED)),
        ("use byte products", partial(use_byte_products, operator="dot_u8_i8")),
        ("join shifts", join_shifts),
        ("use strassen", partial(use_strassen, machine=RELAXED)),
        ("split operands", partial(split_operands, limits=LIMITS)),
        ("fuse", partial(fuse, limits=LIMITS)),
        ("concat in place", concat_in_place),
        ("append in place", append_in_place),
        ("merge siblings", merge_siblings),
        ("lower", partial(lower_module, form=CPU_FORM)),
    ),
    kernel_passes=(("split for scratch", split_for_scratch),),
    alternatives=cpu_alternatives,
    lowering=lowering,
    print_kernel=print_code,
    join=join,
    declares_constants=False,
    stem="model",
    language="wat",
    comment=";;",
)
"""The target for the CPU."""

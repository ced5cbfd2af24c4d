"""Register intrinsics of one's own, which `tir.Schedule.tensorize` puts in the place of loop nests.

In: a name, a description, and the text of an instruction for each target, or an implementation in
the language of kernels. Out: a row of the table of intrinsics, like the rows of the compiler.

    @webmlc.kernel
    def madd(A: T.Buffer((4,)), B: T.Buffer((4,)), C: T.Buffer((4,))):
        for j in range(4):
            with T.block("C"):
                vj = T.axis.spatial(4, j)
                with T.init():
                    C[vj] = T.float32(0)
                C[vj] = C[vj] + A[vj] * B[vj]

    tir.TensorIntrin.register("madd", madd, wasm="(f32x4.relaxed_madd {A} {B} {C})",
                              webgpu="fma({A}, {B}, {C})", feature="relaxed")
    schedule.tensorize(j1, "madd")

`{A}` is the operand of the parameter `A`: a vector of four 32-bit elements for the shape (4,), one
element for the shape (). `{C}` is the result so far, if the description adds to it. The description
is the meaning: the interpreter runs it, and so do machines that lack the instruction.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from webmlc.core.errors import UserError
from webmlc.core.expr import as_int
from webmlc.core.instruction import Text
from webmlc.core.machine import MACHINES, Device
from webmlc.loops.interp import run
from webmlc.loops.ir import LoopFunction
from webmlc.programs.script import Program, read_update
from webmlc.schedule.describe_instruction import nest_of, update_of
from webmlc.schedule.intrinsics import INTRINSICS, Intrinsic, add_intrinsic, intrinsic_of_texts
from webmlc.schedule.schedule import forget_steps
from webmlc.target.wasm.instructions import from_text, get_local

Kernel = Program | Callable[..., Any]
Arrays = dict[str, np.ndarray[Any, Any]]
_SEED = 0
_TOLERANCE = 1e-4
"""The relative difference that the results of an implementation and of its description may have: a
sum of a tile's floats in another order differs by less.
"""


class TensorIntrin:
    """The intrinsics by name, as TVM's class of this name."""

    @staticmethod
    def register(
        name: str,
        desc: Kernel,
        impl: Kernel | None = None,
        *,
        wasm: str | None = None,
        webgpu: str | None = None,
        feature: str | None = None,
        override: bool = False,
    ) -> None:
        """Register an intrinsic: `desc` says what it computes; `impl`, or the texts, how.

        - `desc` is a kernel of one nest of loops around one store. An init says from which value a
          reduction starts, and is no part of the intrinsic. A function without a decorator is read
          as a kernel that may add to its output.
        - `impl` is a kernel of the same parameters. It is run and compared with `desc`.
        - `wasm` is WebAssembly text, `webgpu` is WGSL; both are expressions of operands in braces.
        - `feature` is a feature of machines that the text needs (`core.machine`).

        Raises `UserError` if the name is taken and not to be overridden, if the description is no
        such nest, if an implementation computes something else, or if no machine has the feature.
        """
        if name in INTRINSICS and not override:
            raise UserError(f"there is an intrinsic {name!r}: pass override=True to replace it")
        by_device: Mapping[Device, str | None] = {"wasm": wasm, "webgpu": webgpu}
        texts = _texts({d: text for d, text in by_device.items() if text is not None}, feature)
        if (impl is None) is not bool(texts):
            raise UserError(f"the intrinsic {name!r} needs texts or an implementation, not both")
        if impl is None:
            row = intrinsic_of_texts(name, _function(desc), *texts)
            if wasm is not None:
                _check_wasm(row, wasm)
        else:
            row = Intrinsic(name, nest_of(_function(desc)), update_of(_function(impl)))
            _compare(row)
        add_intrinsic(row)
        forget_steps()

    @staticmethod
    def get(name: str) -> Intrinsic:
        """The intrinsic of a name. Raises `UserError` if there is none."""
        if name not in INTRINSICS:
            raise UserError(f"no intrinsic {name!r}; there are {', '.join(INTRINSICS)}")
        return INTRINSICS[name]


def _function(kernel: Kernel) -> LoopFunction:
    return kernel.function if isinstance(kernel, Program) else read_update(kernel)


def _texts(texts: Mapping[Device, str], feature: str | None) -> tuple[Text, ...]:
    """The texts, of which those for the devices of the feature need it."""
    features = {device: _features(device) for device in texts}
    every_feature = sorted(frozenset[str]().union(*features.values()))
    if feature is not None and feature not in every_feature:
        names = ", ".join(every_feature)
        raise UserError(f"no machine has the feature {feature!r}: choose one of {names or 'none'}")
    return tuple(
        Text(device, text, feature if feature in features[device] else None)
        for device, text in texts.items()
    )


def _check_wasm(row: Intrinsic, text: str) -> None:
    """Raise `UserError` if the WebAssembly text of a row is not one folded instruction."""
    assert row.instruction is not None  # a row of texts has one
    names = [*(p.name for p in row.instruction.parameters), row.instruction.sum or ""]
    from_text(text, {name: get_local(name) for name in names})


def _features(device: Device) -> frozenset[str]:
    """The features that machines of a device may have."""
    machines = (machine for machine in MACHINES.values() if machine.device == device)
    return frozenset[str]().union(*(machine.features for machine in machines))


def _compare(row: Intrinsic) -> None:
    """Raise `UserError` if the implementation of a row computes something else than its
    description.
    """
    description, implementation = row.semantics, row.implementation
    ports = (description.params, description.outputs)
    if ports != (implementation.params, implementation.outputs):
        name = description.name
        raise UserError(f"the implementation of {row.name!r} has other parameters than {name}")
    generator = np.random.default_rng(_SEED)
    expected = {
        buffer.name: buffer.dtype.random(generator, tuple(as_int(n) or 0 for n in buffer.shape))
        for buffer in description.params
    }
    actual = {name: array.copy() for name, array in expected.items()}
    run(description, expected)
    run(implementation, actual)
    for name, array in expected.items():
        if not np.allclose(array, actual[name], rtol=_TOLERANCE, atol=_TOLERANCE):
            raise UserError(f"the implementation of {row.name!r} computes another {name}")

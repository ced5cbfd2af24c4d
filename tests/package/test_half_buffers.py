"""Test which buffers of a GPU program are stored as halves."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from msgspec import structs

from tests.schedule.rules import kernels as k
from webmlc.core.dtypes import DType
from webmlc.core.machine import PLAIN_ADAPTERS
from webmlc.graph.ir import Function, Module
from webmlc.package.half_buffers import HalfBuffers, half_buffers, stores_halves
from webmlc.package.manifest import Bind, Buffer, Manifest, Port, Step
from webmlc.package.write import ProgramParts
from webmlc.target.webgpu.target import VARIANTS

SHAPE = (3, 4)
NAMES = ("x", "a", "b", "c", "d", "y")
KERNEL = replace(k.transpose((0, 1), 3, 4), name="copy")
SOURCE, TARGET = (buffer.name for buffer in KERNEL.params)


def chosen(
    *body: Step | Bind,
    halves: tuple[str, ...] = NAMES,
    displacements: Mapping[int, tuple[int, ...]] | None = None,
) -> HalfBuffers:
    """The values that a program with these steps stores as halves, of those that it may."""
    kernels = {name: replace(KERNEL, name=name) for name in ("copy", "other")}
    main = Function("main", (), (), (), {}, {})
    module = Module("m", {"main": main}, kernels, halves=frozenset(halves))
    used = {name for item in body if isinstance(item, Step) for name in item.arguments}
    buffers = [
        Buffer(name, SHAPE, kind="input" if name == "x" else "scratch")
        for name in NAMES
        if name in used
    ]
    ports = [Port(name, DType.float32, SHAPE, name) for name in ("x", "y")]
    signature = Manifest("m", "", inputs=(ports[0],), outputs=(ports[1],))
    program = ProgramParts(buffers, body, displacements=displacements or {})
    return half_buffers(program, module, signature, "webgpu")


def call(source: str, target: str, kernel: str = "copy", **changes: object) -> Step:
    """A step that copies a buffer."""
    return structs.replace(Step("webgpu", kernel, (source, target)), **changes)


def test_what_only_kernels_on_the_gpu_use_is_stored_as_halves() -> None:
    result = chosen(call("x", "a"), call("a", "b", "other"))
    parameters = {"copy": frozenset({TARGET}), "other": frozenset({SOURCE, TARGET})}
    assert result == HalfBuffers(frozenset({"a", "b"}), parameters)


def test_inputs_outputs_and_what_a_host_reads_stay_as_they_are() -> None:
    steps = [call("x", "a"), call("a", "b", "other")]
    assert chosen(*steps).buffers == {"a", "b"}
    assert chosen(*steps, Bind("b", ("n",), (0,))).buffers == {"a"}
    on_cpu = call("b", "c", "third", device="wasm")
    assert chosen(*steps, on_cpu).buffers == {"a"}
    displaced = call("b", "c", "third")
    assert chosen(*steps, displaced, displacements={2: (0, 16)}).buffers == {"a"}
    assert chosen(*steps, halves=("a",)).buffers == {"a"}


def test_all_calls_of_a_kernel_have_the_same_parameters() -> None:
    steps = [call("x", "a", "other"), call("a", "b"), call("c", "y")]
    assert chosen(*steps) == HalfBuffers(
        frozenset({"a", "c"}), {"other": frozenset({TARGET}), "copy": frozenset({SOURCE})}
    )
    assert chosen(*steps, halves=("a", "b")).buffers == frozenset()


def test_only_variants_with_the_feature_store_halves() -> None:
    names = {name for name, variant in VARIANTS.items() if stores_halves({name: variant})}
    assert names == {"f16", "f16-subgroups"}
    assert names.isdisjoint(PLAIN_ADAPTERS)

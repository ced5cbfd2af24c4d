"""Prepare the CPU program of a package to run inside the page of a report, step by step.

In: a package on disk, and a value for every symbol. Out: the memory addresses of all buffers, the
module, and the constants whose values matter. The page needs no other file, and no runtime:

    plan = measurable(manifest, folder, symbols)
    plan["slots"], plan["steps"]        # the slots that a host fills in, and the steps it calls

Large weights are replaced by random numbers of the same type, which take the same time. So the
report of a large model stays small. Small tensors are real, and so are integers that may be
indices. Very large tensors of integers become zeros, which are valid indices of every tensor.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import wasmtime

from webmlc.core.dtypes import DType
from webmlc.package.manifest import Buffer, Manifest, Program
from webmlc.package.memory_plan import Layout, layout, scratch_stride
from webmlc.package.placement import align
from webmlc.report.programs import module_number

REAL_BYTES = 1 << 12
"""Tensors of at most this many bytes keep their values. Chosen by hand: scales, axes and biases are
small, and a report of a hundred layers stays below some hundred kilobytes.
"""
LARGEST_MEMORY = 1 << 30
"""The most bytes of memory that a page measures with: a phone gives no more to one page."""
REAL_INDEX_BYTES = 1 << 16
"""Tensors of indices of at most this many bytes keep their values; larger tensors become zeros.

Chosen by hand.
"""
_INDICES = (DType.int32, DType.int64)
"""The types of tensors that may hold indices or sizes, which random numbers would break."""
_VARIANTS = frozenset({"relaxed", "simd128"})
"""The variants of a module that a report holds: `relaxed` is the fastest on most engines, and every
engine runs `simd128`.
"""
_PEAK = """(module
  (memory (export "memory") 512)
  (func (export "multiply") (param $n i32) (result f32) {locals}
    (local.set $x (f32x4.splat (f32.const 0.9)))
    (loop $again
      {steps}
      (br_if $again (local.tee $n (i32.sub (local.get $n) (i32.const 1)))))
    {results})
  (func (export "read") (param $end i32) (result f32)
    (local $p i32) (local $a v128) (local $b v128)
    (loop $again
      (local.set $a (f32x4.add (local.get $a) (v128.load (local.get $p))))
      (local.set $b (f32x4.add (local.get $b) (v128.load offset=16 (local.get $p))))
      (local.set $a (f32x4.add (local.get $a) (v128.load offset=32 (local.get $p))))
      (local.set $b (f32x4.add (local.get $b) (v128.load offset=48 (local.get $p))))
      (local.set $p (i32.add (local.get $p) (i32.const 64)))
      (br_if $again (i32.lt_u (local.get $p) (local.get $end))))
    (f32x4.extract_lane 0 (f32x4.add (local.get $a) (local.get $b)))))
"""
"""The module that measures the limits of a roofline: multiplications and reads, without stalls."""
ACCUMULATORS = 12
"""Independent sums of `multiply`, as many as a register tile of a product has."""


def measurable(
    manifest: Manifest, folder: Path, symbols: Mapping[str, int]
) -> tuple[dict[str, Any], dict[str, str]]:
    """The plan that the page follows, and the binary parts as base64 by name.

    The plan has only a `reason` if the page cannot run the program.
    """
    if "wasm" not in manifest.programs:
        return {"reason": "The package has no program for the CPU."}, {}
    program = manifest.programs["wasm"]
    if reason := _obstacle(program):
        return {"reason": reason}, {}
    plan = layout(manifest, "wasm", "wasm", symbols)
    states = align(plan.total, 256)
    total = states + plan.state_bytes
    if total > LARGEST_MEMORY:
        return {"reason": f"It takes {total:,} bytes of memory, too much for this page."}, {}
    contents, chunks, fills = _constants(manifest, folder, plan)
    scratch = [plan.scratch, scratch_stride(program.resources.scratch_per_thread)]
    names = [*(symbol.name for symbol in manifest.symbols), *program.bound]
    slots = [_address(b, plan, states) for b in program.buffers] + [symbols[n] for n in names]
    inputs = {port.buffer for port in manifest.inputs}
    fills += [
        [_address(b, plan, states), plan.sizes[b.name], str(b.dtype)]
        for b in program.buffers
        if b.name in inputs and b.dtype.is_float
    ]
    modules = ((v, path) for v, path in program.modules.items() if v in _VARIANTS)
    parts = {f"module-{variant}": _base64(folder / path) for variant, path in modules}
    parts |= {"constants": base64.b64encode(b"".join(contents)).decode(), **_peaks()}
    return {
        "total": total,
        "slots": slots,
        "scratch": scratch,
        "constants": chunks,
        "fills": fills,
        "steps": [module_number(program, i) for i in range(len(program.steps))],
        "accumulators": ACCUMULATORS,
    }, parts


def _obstacle(program: Program) -> str:
    """The reason why the page cannot run the program, or ""."""
    if program.bound:
        return "Its sizes depend on data, which the runtime reads between its steps."
    if program.has_jumps or any(step.control for step in program.steps):
        return "Its steps depend on data: it has branches or loops."
    return ""


def _address(buffer: Buffer, plan: Layout, states: int) -> int:
    """The address of a buffer in memory. A state is in the block at `states`."""
    if buffer.name in plan.states:
        return states + plan.states[buffer.name]
    return plan.offsets.get(buffer.name, plan.constants.get(buffer.name, 0))


def _constants(
    manifest: Manifest, folder: Path, plan: Layout
) -> tuple[list[bytes], list[list[int]], list[list[Any]]]:
    """The bytes of real constants, their addresses and sizes, and the places to fill with random
    numbers.
    """
    contents: list[bytes] = []
    chunks: list[list[int]] = []
    fills: list[list[Any]] = []
    for address, dtype, path, begin, end in _places(manifest, folder, plan):
        if end - begin > (REAL_INDEX_BYTES if dtype in _INDICES else REAL_BYTES):
            if dtype not in _INDICES:
                fills.append([address, end - begin, str(dtype)])
            continue
        with path.open("rb") as file:
            file.seek(begin)
            contents.append(file.read(end - begin))
        chunks.append([address, end - begin])
    return contents, chunks, fills


def _places(
    manifest: Manifest, folder: Path, plan: Layout
) -> Iterator[tuple[int, DType, Path, int, int]]:
    """The address, the type and the bytes in a file of each constant in memory."""
    buffers: dict[int, Buffer] = {}
    for buffer in manifest.programs["wasm"].buffers:
        if buffer.tensor is not None and buffer.name in plan.constants:
            buffers.setdefault(plan.constants[buffer.name], buffer)
    for file in manifest.weights:
        for address, buffer in buffers.items():
            if buffer.tensor is not None and buffer.tensor in file.tensors:
                begin, end = file.tensors[buffer.tensor]
                yield address, buffer.dtype, folder / file.path, begin, end


def _base64(path: Path) -> str:
    return base64.b64encode(path.read_bytes()).decode()


def _peaks() -> dict[str, str]:
    """The modules that measure the limits, with a fused multiply-add and without."""
    steps = {
        "relaxed": "(f32x4.relaxed_madd {x} {a} {x})",
        "simd128": "(f32x4.add (f32x4.mul {x} {a}) {x})",
    }
    parts = {}
    for variant, step in steps.items():
        names = [f"$a{i}" for i in range(ACCUMULATORS)]
        reads = [f"(local.get {name})" for name in names]
        sets = [
            f"(local.set {name} {step.format(x='(local.get $x)', a=read)})"
            for name, read in zip(names, reads, strict=True)
        ]
        result = reads[0]
        for read in reads[1:]:
            result = f"(f32x4.add {result} {read})"
        text = _PEAK.format(
            locals="".join(f"(local {name} v128)" for name in ("$x", *names)),
            steps="\n".join(sets),
            results=f"(f32x4.extract_lane 0 {result})",
        )
        binary = bytes(wasmtime.wat2wasm(text))
        parts[f"peak-{variant}"] = base64.b64encode(binary).decode()
    return parts

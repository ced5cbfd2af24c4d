"""Small packages written by hand: what the compiler would write, without the compiler.

`scaled(folder)` computes `y = max(x * w, 0)` for `x: float32[n, 4]` in two steps, with a scratch
buffer between them, on wasm and on webgpu. `mixed(folder)` adds a webgpu program whose second
step runs on the CPU. Module steps: 0 and 1 are the wasm program's, 2 the webgpu program's CPU step.
"""

from dataclasses import replace
from pathlib import Path

import numpy as np
import wasmtime
from msgspec import structs

from webmlc.core.dtypes import DType
from webmlc.core.machine import Device
from webmlc.package.manifest import Buffer, Launch, Manifest, Port, Step, Symbol
from webmlc.package.write import Parts, ProgramParts, write_package

W = np.array([1, -2, 0.5, 3], np.float32)

TRAP_ROWS = 7

# Slots: x, w, t, y, n, as the buffers of the programs below.
WAT = """
(module
  (import "env" "memory" (memory 1 65536 shared))
  (func $slot (param $s i32) (result i32)
    (i32.load offset=1024 (i32.shl (local.get $s) (i32.const 2))))
  (func $scale (param $x i32) (param $w i32) (param $t i32) (param $n i32) (local $i i32)
    (block $done (loop $rows
      (br_if $done (i32.ge_u (local.get $i) (local.get $n)))
      (v128.store (i32.add (local.get $t) (i32.shl (local.get $i) (i32.const 4)))
        PRODUCT)
      (local.set $i (i32.add (local.get $i) (i32.const 1)))
      (br $rows))))
  (func $relu (param $t i32) (param $y i32) (param $n i32) (local $i i32)
    (block $done (loop $rows
      (br_if $done (i32.ge_u (local.get $i) (local.get $n)))
      (v128.store (i32.add (local.get $y) (i32.shl (local.get $i) (i32.const 4)))
        (f32x4.pmax (v128.const f32x4 0 0 0 0)
          (v128.load (i32.add (local.get $t) (i32.shl (local.get $i) (i32.const 4))))))
      (local.set $i (i32.add (local.get $i) (i32.const 1)))
      (br $rows))))
  (func (export "run") (param $first i32) (param $last i32) (param $tid i32) (param $threads i32)
    (if (local.get $tid) (then (return)))  ;; the leader does it all
    (loop $steps
      (if (i32.ge_s (local.get $first) (local.get $last)) (then (return)))
      (if (local.get $first)
        (then (call $relu (call $slot (i32.const 2)) (call $slot (i32.const 3))
          (call $slot (i32.const 4))))
        (else (call $scale (call $slot (i32.const 0)) (call $slot (i32.const 1))
          (call $slot (i32.const 2)) (call $slot (i32.const 4)))))
      (local.set $first (i32.add (local.get $first) (i32.const 1)))
      (br $steps)))
  (func (export "warm") (param $loop i32) (param $calls i32) (result i32)
    (i32.const 0)))  ;; no loop is parallel
"""
ROW = "(v128.load (i32.add (local.get $x) (i32.shl (local.get $i) (i32.const 4))))"
PRODUCTS = {
    "relaxed": f"(f32x4.relaxed_madd {ROW} (v128.load (local.get $w)) (v128.const f32x4 0 0 0 0))",
    "simd128": f"(f32x4.mul {ROW} (v128.load (local.get $w)))",
}

WGSL = """
struct Symbols { values: array<vec4<i32>, 1> }
// scale: what both kernels use stands above, each kernel below a comment
@group(0) @binding(0) var<storage, read_write> scale_x: array<vec4<f32>>;
@group(0) @binding(1) var<storage, read> scale_w: array<vec4<f32>>;
@group(0) @binding(2) var<storage, read_write> scale_t: array<vec4<f32>>;
@group(0) @binding(3) var<uniform> scale_symbols: Symbols;
@compute @workgroup_size(8)
fn scale(@builtin(global_invocation_id) id: vec3<u32>) {
  if (id.x < u32(scale_symbols.values[0].x)) { scale_t[id.x] = scale_x[id.x] * scale_w[0]; }
}
// relu
@group(0) @binding(0) var<storage, read_write> relu_t: array<vec4<f32>>;
@group(0) @binding(1) var<storage, read_write> relu_y: array<vec4<f32>>;
@group(0) @binding(2) var<uniform> relu_symbols: Symbols;
@compute @workgroup_size(8)
fn relu(@builtin(global_invocation_id) id: vec3<u32>) {
  if (id.x < u32(relu_symbols.values[0].x)) { relu_y[id.x] = max(relu_t[id.x], vec4<f32>(0.0)); }
}
"""

BUFFERS = (
    Buffer("x", ("n", 4), kind="input"),
    Buffer("w", (4,), kind="constant", tensor="weight"),
    Buffer("t", ("n", 4)),
    Buffer("y", ("n", 4)),
)
LAUNCH = Launch((["floordiv", ["add", "n", 7], 8], 1, 1))


def step(device: Device, kernel: str, *arguments: str) -> Step:
    launches = {"gpu": LAUNCH} if device == "webgpu" else {}
    return Step(device, kernel, arguments, 1, ("n",), launches, origin=(f"/{kernel}",))


def expected(x: np.ndarray) -> np.ndarray:
    return np.maximum(x * W, 0)


def parts(*, mixed: bool = False) -> Parts:
    """The package's contents: `mixed` puts the webgpu program's second step on the CPU."""
    scale = ("scale", "x", "w", "t")
    relu = ("relu", "t", "y")
    return Parts(
        manifest=Manifest(
            name="scaled",
            compiler="hand",
            symbols=(Symbol("n", "x", 0),),
            inputs=(Port("x", DType.float32, ("n", 4), "x"),),
            outputs=(Port("y", DType.float32, ("n", 4), "y"),),
        ),
        programs={
            "wasm": ProgramParts(BUFFERS, (step("wasm", *scale), step("wasm", *relu))),
            "webgpu": ProgramParts(
                BUFFERS,
                (step("webgpu", *scale), step("wasm" if mixed else "webgpu", *relu)),
            ),
        },
        constants={"weight": W},
        modules={
            v: bytes(wasmtime.wat2wasm(WAT.replace("PRODUCT", p))) for v, p in PRODUCTS.items()
        },
        shaders={"gpu": WGSL},
    )


def scaled(folder: Path) -> Manifest:
    """Write the package whose two programs each stay on their device."""
    return write_package(folder, parts())


def trapping(folder: Path) -> Manifest:
    """Write the package whose first step traps if there are `TRAP_ROWS` rows."""
    check = f"(if (i32.eq (call $slot (i32.const 4)) (i32.const {TRAP_ROWS})) (then (unreachable)))"
    wat = WAT.replace("(loop $steps", f"{check} (loop $steps")
    codes = {v: wasmtime.wat2wasm(wat.replace("PRODUCT", p)) for v, p in PRODUCTS.items()}
    return write_package(folder, replace(parts(), modules={v: bytes(c) for v, c in codes.items()}))


def mixed(folder: Path) -> Manifest:
    """Write the package whose webgpu program ends on the CPU."""
    return write_package(folder, parts(mixed=True))


def begun_on_cpu(folder: Path) -> Manifest:
    """Write a package that computes Relu twice, first on the CPU, then on the GPU."""
    x, w, t, y = BUFFERS
    steps = (step("wasm", "relu", "x", "t"), step("webgpu", "relu", "t", "y"))
    wat = WAT.replace("(if (local.get $first)", "(if (i32.const 1)")  # slots 2 and 3: x and t
    codes = {v: wasmtime.wat2wasm(wat.replace("PRODUCT", p)) for v, p in PRODUCTS.items()}
    return write_package(
        folder,
        replace(
            parts(),
            programs={"webgpu": ProgramParts((y, w, x, t), steps)},
            modules={v: bytes(c) for v, c in codes.items()},
        ),
    )


def fixed(folder: Path) -> Manifest:
    """Write a package that runs no step: one output is the input, the other a constant."""
    given = parts()
    port = Port("x", DType.float32, ("n", 4), "x")
    weight = Port("w", DType.float32, (4,), "w")
    return write_package(
        folder,
        replace(
            given,
            manifest=structs.replace(
                given.manifest, inputs=(port,), outputs=(structs.replace(port, name="same"), weight)
            ),
            programs={d: ProgramParts(BUFFERS[:2], ()) for d in given.programs},
            modules={},
            shaders={},
        ),
    )

"""The runtime and the compiler plan the same stages and addresses, on random programs."""

import json
import random
from pathlib import Path
from typing import Any

from tests.node import answer_once
from webmlc.core.dtypes import DType
from webmlc.core.expr import Expr, Var, const, maximum, minimum
from webmlc.package.manifest import (
    Bind,
    Buffer,
    Device,
    File,
    Manifest,
    Port,
    Program,
    Run,
    Segment,
    Step,
    Symbol,
    WeightFile,
)
from webmlc.package.manifest_from_json import from_json
from webmlc.package.manifest_to_json import to_json
from webmlc.package.memory_plan import LARGE, layout, place_constants, place_derived
from webmlc.package.resources import Resources
from webmlc.package.transfers import segments_of, stages

SCRIPT = Path(__file__).parent / "plan.mjs"
DEVICES: tuple[Device, ...] = ("wasm", "webgpu")
N, M, LENGTH = Var("n"), Var("m"), Var("past")
BOUND = tuple(Var(f"k{i}") for i in range(4))
DTYPES = (DType.float32, DType.int64, DType.bool, DType.float16)


def random_bytes(choose: random.Random) -> int:
    """A few bytes, or about as many as weights need to be aligned to a page."""
    return choose.choice([0, 0, LARGE - 2000]) + choose.randint(0, 3000)


def random_size(choose: random.Random, bound: list[Var]) -> Expr:
    k = const(choose.randint(0, 40))
    symbol = choose.choice([N, *bound])
    return choose.choice(
        [k, k, N, symbol * k + 1, (symbol + 7) // 8 * 8, N % 5, minimum(N, k), maximum(M, k), M - N]
    )


def random_manifest(seed: int) -> tuple[Manifest, Device]:
    """A program of random steps over random buffers, on one device or on both.

    The first steps may run at load. Sometimes the program binds a symbol, and the sizes of later
    buffers depend on it.
    """
    choose = random.Random(seed)
    target = choose.choice(DEVICES)
    inputs = [Port(f"x{i}", DType.float32, (N, M), f"x{i}") for i in range(choose.randint(1, 3))]
    buffers = [Buffer(p.buffer, p.dtype, p.shape, "input") for p in inputs]
    tensors = {}
    place = 256
    for i in range(choose.randint(0, 5)):
        size = random_bytes(choose)
        name = f"w{choose.randint(0, i)}" if i and choose.random() < 0.2 else f"w{i}"
        if name not in tensors:
            tensors[name] = (place, place + size)
            place += -(-size // 256) * 256
        buffers.append(Buffer(f"c{i}", DType.uint8, (const(size),), "constant", name))
    body: list[Step | Bind] = []
    bound: list[Var] = []
    resident = [b for b in buffers if b.is_resident]
    once = choose.randint(0, 3) if resident else 0
    for i in range(once):
        reads = choose.sample(resident, choose.randint(1, min(2, len(resident))))
        size = const(random_bytes(choose))
        result = Buffer(f"d{i}", choose.choice(DTYPES), (size,), "derived")
        body.append(Step(target, f"o{i}", (*(b.name for b in reads), result.name), 1))
        resident.append(result)
        buffers.append(result)
    for i in range(choose.choice([0, 0, 3])):
        rows = (LENGTH + N, const(choose.randint(1, 40)))
        buffers.append(Buffer(f"s{i}", choose.choice(DTYPES), rows, "state"))
    for i in range(choose.randint(0, 25)):
        device = choose.choice(DEVICES) if target == "webgpu" else "wasm"
        reads = choose.sample(buffers, choose.randint(1, min(4, len(buffers))))
        results = []
        for j in range(choose.randint(1, 2)):
            shape = tuple(random_size(choose, bound) for _ in range(choose.randint(0, 3)))
            results.append(Buffer(f"t{i}_{j}", choose.choice(DTYPES), shape))
        earlier = [b for b in buffers if b.kind == "scratch" and b not in reads]
        if earlier and choose.random() < 0.1:  # a second writer of an earlier buffer
            results.append(choose.choice(earlier))
        buffers += [b for b in results if b not in buffers]
        names = (*(b.name for b in reads), *(b.name for b in results))
        body.append(Step(device, f"k{i}", names, len(results)))
        if len(bound) < len(BOUND) and choose.random() < 0.2:
            bound.append(BOUND[len(bound)])
            body.append(Bind(choose.choice(names), (bound[-1].name,), (0,), ("node",)))
    outputs = choose.sample(buffers, min(len(buffers), choose.randint(1, 3)))
    scratch = choose.choice([0, 4, 100, 4096])
    program = Program(
        tuple(buffers),
        tuple(item for item in body if isinstance(item, Step)),
        segments_of(body, once=once),
        Resources(0, {}, None, None, scratch),
    )
    file = WeightFile("weights.safetensors", place, "", 1 << 22, "", tensors)
    manifest = Manifest(
        name="random",
        compiler="test",
        symbols=(Symbol("n", "x0", 0), Symbol("m", "x0", 1), Symbol("past", "", 0)),
        inputs=tuple(inputs),
        outputs=tuple(Port(f"y{i}", b.dtype, b.shape, b.name) for i, b in enumerate(outputs)),
        weights=(file,),
        files={file.path: File(file.bytes, file.sha256)},
        programs={target: program},
    )
    return manifest, target


def segment_text(segment: Segment) -> Any:
    match segment:
        case Run(_, first, last, module_first, module_last):
            return [first, last, module_first, module_last]
        case Bind(buffer=buffer):
            return buffer


def by_compiler(manifest: Manifest, target: Device, symbols: dict[str, int], threads: int) -> Any:
    program = manifest.programs[target]
    layouts = {d: layout(manifest, target, d, symbols, threads) for d in DEVICES}
    return {
        "stages": [
            {
                "segment": segment_text(stage.segment),
                "uploads": list(stage.uploads),
                "downloads": list(stage.downloads),
            }
            for stage in stages(program, [o.buffer for o in manifest.outputs], target)
        ],
        "loading": [
            *(place_constants(manifest, target, "webgpu", 0, at_load) for at_load in (False, True)),
            place_derived(manifest, target),
        ],
        "layouts": {
            device: {
                "offsets": dict(plan.offsets),
                "sizes": dict(plan.sizes),
                "arena": plan.arena,
                "constants": dict(plan.constants),
                "scratch": plan.scratch,
                "total": plan.total,
                "states": dict(plan.states),
                "stateBytes": plan.state_bytes,
            }
            for device, plan in layouts.items()
        },
    }


def test_both_plans_are_equal() -> None:
    cases = []
    expected = []
    for seed in range(300):
        manifest, target = random_manifest(seed)
        symbols = {"n": seed % 17, "m": 20 + seed % 3, "past": seed % 13}
        symbols |= {
            name.name: 3 * seed % 29 for name in BOUND[: seed % 5]
        }  # the symbols that are bound so far
        text = to_json(manifest)
        assert from_json(text) == manifest
        threads = 1 + seed % 3
        cases.append(
            {"manifest": json.loads(text), "target": target, "symbols": symbols, "threads": threads}
        )
        expected.append(by_compiler(manifest, target, symbols, threads))
    for seed, (python, javascript) in enumerate(
        zip(expected, answer_once(SCRIPT, cases), strict=True)
    ):
        assert json.loads(json.dumps(python)) == javascript, f"seed {seed}"
    assert sum(len(e["stages"]) > 2 for e in expected) > 50  # many programs change the device often
    assert sum(bool(places) for e in expected for places, _ in e["loading"][1:]) > 50

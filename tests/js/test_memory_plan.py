"""The runtime and the compiler plan the same stages and addresses, on random programs."""

import json
import random
from itertools import combinations
from pathlib import Path
from typing import Any

from msgspec import structs

from tests.node import answer_once
from webmlc.core.dtypes import DType
from webmlc.core.machine import Device
from webmlc.package.manifest import (
    Bind,
    Buffer,
    File,
    Launch,
    Manifest,
    Memory,
    Port,
    Program,
    Resources,
    Step,
    Symbol,
    WeightFile,
)
from webmlc.package.manifest_json import from_json, to_json
from webmlc.package.memory_plan import (
    LARGE,
    RED_ZONE,
    Layout,
    buffer_bytes,
    layout,
    place_in_order,
)
from webmlc.package.plan_memory import Spans, lifetimes, load_lifetimes, plan_memory
from webmlc.package.sizes import Size
from webmlc.package.transfers import segments_of, select_segments, with_transfers
from webmlc.package.write import with_named_sizes

SCRIPT = Path(__file__).parent / "plan.mjs"
DEVICES: tuple[Device, ...] = ("wasm", "webgpu")
BOUND = tuple(f"k{i}" for i in range(4))
LAUNCH = Launch(("n", 1, 1))
DTYPES = (DType.float32, DType.int64, DType.bool, DType.float16)


def random_bytes(choose: random.Random) -> int:
    """A few bytes, or about as many as weights need to be aligned to a page."""
    return choose.choice([0, 0, LARGE - 2000]) + choose.randint(0, 3000)


def random_size(choose: random.Random, bound: list[str]) -> Size:
    k = choose.randint(0, 40)
    symbol = choose.choice(["n", *bound])
    rounded = ["mul", ["floordiv", ["add", symbol, 7], 8], 8]
    sums: list[Size] = [["add", ["mul", symbol, k], 1], rounded, ["floormod", "n", 5]]
    return choose.choice([k, k, "n", *sums, ["min", "n", k], ["max", "m", k], ["sub", "m", "n"]])


def random_manifest(seed: int) -> tuple[Manifest, Device]:
    """A program of random steps over random buffers, on one device or on both.

    The first steps may run at load. Sometimes the program binds a symbol, and the sizes of later
    buffers depend on it.
    """
    choose = random.Random(seed)
    target = choose.choice(DEVICES)
    inputs = [
        Port(f"x{i}", DType.float32, ("n", "m"), f"x{i}") for i in range(choose.randint(1, 3))
    ]
    buffers = [Buffer(p.buffer, p.shape, kind="input") for p in inputs]
    tensors = {}
    place = 256
    for i in range(choose.randint(0, 5)):
        size = random_bytes(choose)
        name = f"w{choose.randint(0, i)}" if i and choose.random() < 0.2 else f"w{i}"
        if name not in tensors:
            tensors[name] = (place, place + size)
            place += -(-size // 256) * 256
        buffers.append(Buffer(f"c{i}", (size,), DType.uint8, "constant", name))
    body: list[Step | Bind] = []
    bound: list[str] = []
    resident = [b for b in buffers if b.is_resident]
    once = choose.randint(0, 3) if resident else 0
    for i in range(once):
        reads = choose.sample(resident, choose.randint(1, min(2, len(resident))))
        result = Buffer(f"d{i}", (random_bytes(choose),), choose.choice(DTYPES), "derived")
        body.append(step(target, f"o{i}", *(b.name for b in reads), result.name))
        resident.append(result)
        buffers.append(result)
    for i in range(choose.choice([0, 0, 3])):
        rows = (["add", "past", "n"], choose.randint(1, 40))
        buffers.append(Buffer(f"s{i}", rows, choose.choice(DTYPES), "state"))
    for i in range(choose.randint(0, 25)):
        device = choose.choice(DEVICES) if target == "webgpu" else "wasm"
        reads = choose.sample(buffers, choose.randint(1, min(4, len(buffers))))
        results = []
        for j in range(choose.randint(1, 2)):
            shape = tuple(random_size(choose, bound) for _ in range(choose.randint(0, 3)))
            results.append(Buffer(f"t{i}_{j}", shape, choose.choice(DTYPES)))
        earlier = [b for b in buffers if b.kind == "scratch" and b not in reads]
        if earlier and choose.random() < 0.1:  # a second writer of an earlier buffer
            results.append(choose.choice(earlier))
        buffers += [b for b in results if b not in buffers]
        names = (*(b.name for b in reads), *(b.name for b in results))
        body.append(step(device, f"k{i}", *names, outputs=len(results)))
        if len(bound) < len(BOUND) and choose.random() < 0.2:
            bound.append(BOUND[len(bound)])
            body.append(Bind(choose.choice(names), (bound[-1],), (0,), ("node",)))
    outputs = choose.sample(buffers, min(len(buffers), choose.randint(1, 3)))
    scratch = choose.choice([0, 4, 100, 4096])
    program = Program(
        tuple(buffers),
        tuple(item for item in body if isinstance(item, Step)),
        segments_of(body, once=once),
        Resources(scratch_per_thread=scratch),
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
    )
    segments = with_transfers(program, manifest.results, target)
    program = with_named_sizes(structs.replace(program, segments=segments))
    manifest = structs.replace(manifest, programs={target: program})
    planned = structs.replace(program, memory=plan_memory(manifest, target))
    return structs.replace(manifest, programs={target: planned}), target


def step(device: Device, kernel: str, *arguments: str, outputs: int = 1) -> Step:
    launches = {"gpu": LAUNCH} if device == "webgpu" else {}
    return Step(device, kernel, arguments, outputs, launches=launches)


def by_compiler(case: dict[str, Any], manifest: Manifest) -> Any:
    target = case["target"]
    program = manifest.programs[target]
    options = (case["symbols"], case["threads"], case["redZone"])
    memory = program.memory.get("webgpu", Memory())
    parts = (memory.constants, memory.temporary, memory.derived)
    alone = structs.replace(manifest, files={}, weights=(), programs={
        target: structs.replace(program, segments=select_segments(program, case["outputs"]))
    })  # fmt: skip
    return {
        "segments": [plain(segment) for segment in alone.programs[target].segments],
        "loading": [place_in_order(program, p, buffer_bytes(program, {})) for p in parts],
        "layouts": {
            device: layout_json(layout(manifest, target, device, *options)) for device in DEVICES
        },
    }


def plain(segment: Any) -> dict[str, Any]:
    """A segment as the runtime has it, with defaults."""
    kind = "bind" if isinstance(segment, Bind) else "run"
    return {"type": kind} | structs.asdict(segment)


def layout_json(plan: Layout) -> dict[str, Any]:
    return {
        "offsets": dict(plan.offsets),
        "sizes": dict(plan.sizes),
        "arena": plan.arena,
        "constants": dict(plan.constants),
        "scratch": plan.scratch,
        "total": plan.total,
        "states": dict(plan.states),
        "stateBytes": plan.state_bytes,
        "replacedStates": sorted(plan.replaced_states),
    }


def cases_of(count: int) -> list[tuple[dict[str, Any], Manifest]]:
    """Random programs, with symbols of which some are not bound."""
    cases = []
    for seed in range(count):
        manifest, target = random_manifest(seed)
        symbols = {"n": seed % 17, "m": 20 + seed % 3, "past": seed % 13}
        symbols |= {name: 3 * seed % 29 for i, name in enumerate(BOUND) if seed >> i & 1}
        results = [*manifest.results]
        case = {
            "target": target,
            "symbols": symbols,
            "threads": 1 + seed % 3,
            "redZone": RED_ZONE * (seed % 4 == 0),
            "outputs": random.Random(seed).sample(results, seed % (len(results) + 1)),
        }
        cases.append((case, manifest))
    return cases


def test_both_plans_are_equal() -> None:
    cases = cases_of(300)
    texts = [to_json(manifest) for _, manifest in cases]
    for text, (_, manifest) in zip(texts, cases, strict=True):
        assert from_json(text) == manifest
    expected = [by_compiler(case, manifest) for case, manifest in cases]
    jobs = [
        case | {"manifest": json.loads(text)} for text, (case, _) in zip(texts, cases, strict=True)
    ]
    for seed, (python, javascript) in enumerate(
        zip(expected, answer_once(SCRIPT, jobs), strict=True)
    ):
        assert json.loads(json.dumps(python)) == javascript, f"seed {seed}"
    assert sum(len(e["segments"]) > 2 for e in expected) > 50
    assert sum(bool(places) for e in expected for places, _ in e["loading"][1:]) > 50


def places_apart(plan: Layout, device: Device, spans: Spans) -> dict[str, int]:
    """The places of the buffers that have one. Those that live together must lie apart."""
    arena = dict(plan.offsets) if device == "webgpu" else {**plan.constants, **plan.offsets}
    places = {n: arena[n] for n in spans if n in arena}
    for (first, a), (second, b) in combinations(places.items(), 2):
        (begin, end), (start, stop) = spans[first], spans[second]
        if begin <= stop and start <= end:
            apart = a + plan.sizes[first] <= b or b + plan.sizes[second] <= a
            assert apart, (first, second)
    return places


def spans_of(manifest: Manifest, target: Device, device: Device) -> Spans:
    program = manifest.programs[target]
    spans = lifetimes(program, device, target)
    return spans | load_lifetimes(program, manifest.results, target, device)


def test_buffers_that_live_together_never_overlap_and_none_moves() -> None:
    """For sizes that are far from those with which the order was chosen."""
    for seed in range(200):
        manifest, target = random_manifest(seed)
        program = manifest.programs[target]
        for device in program.memory:
            spans = spans_of(manifest, target, device)
            symbols: dict[str, int] = {"n": seed % 4, "m": 2 * seed, "past": 2}
            before: dict[str, int] = {}
            for name in (None, *BOUND):
                symbols |= {} if name is None else {name: seed % 13}
                places = places_apart(layout(manifest, target, device, symbols), device, spans)
                assert before.items() <= places.items(), "a place moved when a symbol was bound"
                before = places


def test_buffers_never_overlap_whichever_symbols_are_bound() -> None:
    """A branch of the host that is not taken binds no symbols, and its buffers have no places."""
    for seed in range(200):
        manifest, target = random_manifest(seed)
        bound = random.Random(seed).sample(BOUND, seed % len(BOUND))
        symbols = {"n": seed % 7, "m": 2 * seed, "past": 2} | dict.fromkeys(bound, 5 * seed % 31)
        for device in manifest.programs[target].memory:
            spans = spans_of(manifest, target, device)
            places_apart(layout(manifest, target, device, symbols), device, spans)

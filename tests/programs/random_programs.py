"""Draw random programs from tensor expressions, and random steps of schedules."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

from webmlc import T, te, tir
from webmlc.core.expr import Expr
from webmlc.graph.compute import Tensor
from webmlc.programs.script import Program

SIZES = (1, 2, 3, 4, 6, 8)
FACTORS = (2, 3, 4)


def random_program(rng: random.Random) -> Program:
    """One to four stages over tensors of rank 1 to 3: elementwise, shifted, broadcast, transposed
    or reduced. A size may be a symbol.
    """
    rank = rng.randint(1, 3)
    sizes: list[Any] = [rng.choice(SIZES) for _ in range(rank)]
    if rng.random() < 0.3:
        sizes[0] = T.symbol("n")
    inputs = [te.placeholder(tuple(sizes), name=f"x{i}") for i in range(rng.randint(1, 2))]
    stages: list[Tensor] = []
    for number in range(rng.randint(1, 4)):
        source = rng.choice((stages or inputs)[-2:])
        stages.append(_stage(f"s{number}", source, [*inputs, *stages], rng))
    return te.create_prim_func([*inputs, stages[-1]], name="program")


def _stage(name: str, source: Tensor, tensors: Sequence[Tensor], rng: random.Random) -> Tensor:
    shape = source.shape
    other = rng.choice([t for t in tensors if t.shape == shape])
    kinds = ["map", "map", "pair"] + ["reduce", "transpose"] * (len(shape) > 1)
    match rng.choice(kinds):
        case "map":
            function = rng.choice(_FUNCTIONS)
            return te.compute(shape, lambda *i: function(source[i]), name=name)
        case "pair":
            return te.compute(shape, lambda *i: source[i] * 0.5 + other[i], name=name)
        case "transpose":
            flipped = tuple(reversed(shape))
            return te.compute(flipped, lambda *i: source[tuple(reversed(i))] + 1.0, name=name)
        case _:
            axis = rng.randrange(len(shape))
            k = te.reduce_axis((0, shape[axis]), name="k")
            rest = shape[:axis] + shape[axis + 1 :]
            fold = rng.choice((te.sum, te.max))

            def body(*i: Any) -> Expr:
                return fold(source[(*i[:axis], k, *i[axis:])], axis=k)

            return te.compute(rest, body, name=name)


_FUNCTIONS: tuple[Callable[[Expr], Expr], ...] = (
    lambda x: te.max(x, 0.0),
    lambda x: x * x + 1.0,
    lambda x: te.if_then_else(x > 0.5, x, 0.1 * x),
    te.sigmoid,
)


def random_step(schedule: tir.Schedule, rng: random.Random) -> set[str]:
    """Try a random primitive; returns its name if the program accepts it."""
    blocks = schedule.blocks()
    block = rng.choice(blocks)
    loops = schedule.get_loops(block)
    loop = rng.choice(loops) if loops else ""
    other_loops = schedule.get_loops(rng.choice(blocks)) or [""]
    buffers = [buffer.name for buffer in schedule.function.params] or [""]
    steps: dict[str, Callable[[], Any]] = {
        "split": lambda: schedule.split(loop, factors=[None, rng.choice(FACTORS)]),
        "reorder": lambda: schedule.reorder(*rng.sample(loops, len(loops))),
        "fuse": lambda: schedule.fuse(*loops[-2:]),
        "vectorize": lambda: schedule.vectorize(loops[-1] if loops else ""),
        "unroll": lambda: schedule.unroll(loop),
        "parallel": lambda: schedule.parallel(loops[0] if loops else ""),
        "compute_at": lambda: schedule.compute_at(block, rng.choice(other_loops)),
        "reverse_compute_at": lambda: schedule.reverse_compute_at(block, rng.choice(other_loops)),
        "compute_inline": lambda: schedule.compute_inline(block),
        "reverse_compute_inline": lambda: schedule.reverse_compute_inline(block),
        "decompose_reduction": lambda: schedule.decompose_reduction(block, loop),
        "rfactor": lambda: schedule.rfactor(loop, 0),
        "cache_read": lambda: schedule.cache_read(block, rng.choice(buffers), "local"),
        "cache_write": lambda: schedule.cache_write(block, "local"),
        "add_unit_loop": lambda: schedule.add_unit_loop(block),
        "fission": lambda: schedule.fission(loop),
        "blockize": lambda: schedule.blockize(loop),
        "partition": lambda: schedule.partition(loop, 1),
    }
    name = rng.choice(list(steps))
    try:
        steps[name]()
    except tir.ScheduleError:
        return set()
    return {name}

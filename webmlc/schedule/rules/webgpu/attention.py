"""Attention: scores, an online softmax and the product with the values in one dispatch.

Rows that read the same keys form tiles, each of which a workgroup computes (`attention_tiles.py`):
it reads keys and values once for all of them. On a GPU, it copies the keys, and its threads keep
what they compute (`attention_registers.py`). The rows left over, or a single row, have a workgroup
each (`attention_rows.py`), which shares out keys to its threads. Both run in steps of keys.

    m[i] = max(l[i, :]); e = exp(l - m); s[i] = sum(e[i, :]); p[i, d] = sum(e[i, :] * v[:, d])
    ->  for tile in range(m // 16) (workgroups): for step in range(ceil(n / 64)): 16 rows, 64 keys
        for row in range(m % 16) (workgroups):   for step in range(ceil(n / 64)): one row, 64 keys
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from math import prod

from webmlc.core.expr import as_int
from webmlc.core.machine import Gpu
from webmlc.core.simplify import simplify
from webmlc.graph.algorithms.attention.operators import FEWEST_COLUMNS, FEWEST_KEYS
from webmlc.loops.ir import LoopFunction
from webmlc.schedule.rules.rule import Rule, accepts, proven
from webmlc.schedule.rules.space import Space
from webmlc.schedule.rules.tiling.sections import is_zero
from webmlc.schedule.rules.webgpu.attention_facts import (
    Facts,
    Loops,
    attention_facts,
    final_loops,
)
from webmlc.schedule.rules.webgpu.attention_memory import Row, fits, row_memory
from webmlc.schedule.rules.webgpu.attention_register_rows import (
    key_threads_of,
    schedule_register_row,
)
from webmlc.schedule.rules.webgpu.attention_registers import (
    HEIGHTS as REGISTER_HEIGHTS,
)
from webmlc.schedule.rules.webgpu.attention_registers import (
    STAGES,
    longest_stage,
    schedule_register_tile,
    shape_of,
)
from webmlc.schedule.rules.webgpu.attention_rows import (
    MAX_UNROLLED,
    RADIX,
    Writing,
    schedule_row,
)
from webmlc.schedule.rules.webgpu.attention_tiles import (
    HEIGHTS,
    LOGIT_ROWS,
    MOST_THREADS,
    STEPS,
    schedule_tile,
    tile_threads,
)
from webmlc.schedule.rules.webgpu.rows import producers_of
from webmlc.schedule.rules.webgpu.threads import workgroup_sizes
from webmlc.schedule.schedule import Schedule

PROMPT_HEIGHTS = (16, 8)
"""The rows of a tile where only a run knows how many there are: a prompt."""
PROMPT_LOGIT_ROWS = 2
"""Rows of the logits of a thread of such a tile: prompts may be short, so that each tile has more
threads (an estimate)."""
KEYS_PER_THREAD = 2
"""Keys of a step whose logits a thread of a single row keeps, by default (measured on an H100 with
9 heads of 64 elements: 4 took 4 % longer for 256 keys, and 5 % less for 2000)."""
REGISTER_RADIX = 16
"""Results that one thread of a single row folds at each level of a tree where threads keep logits:
256 threads take two levels (measured with `KEYS_PER_THREAD`)."""
REGISTER_STEPS = 8
"""Steps of a reduction that a thread of a tile that copies keys writes out, by default (measured on
an H200 with 1500 keys of 64 elements: 4 took 8 % longer)."""
DEFAULT_STAGE = 4
"""Vectors of each key that a tile copies at once, at least, by default: with fewer, threads would
wait for each other too often, so that a lower tile is better (an estimate)."""


@dataclass(frozen=True, slots=True)
class Parameters:
    """How workgroups compute rows."""

    workgroup: int
    """Threads, and keys of a step, at most, of a workgroup with one row."""
    rows: int
    """Rows of a tile; 1: there are no tiles."""
    radix: int = RADIX
    """Results of threads that one thread of a single row folds at each level of a tree."""
    steps: int = STEPS
    """Steps of a reduction that a thread of a tile writes out."""
    logit_rows: int = LOGIT_ROWS
    """Rows of the logits that a thread of a tile computes together."""
    unrolled: int = MAX_UNROLLED
    """Iterations of a loop that a thread of a single row writes out, at most."""
    fold_steps: int = 1
    """Iterations of the trees of a single row that a thread writes out, at most."""
    stage: int = 0
    """Vectors of each key that a tile copies to workgroup memory at once; 0: none."""
    keys_per_thread: int = 0
    """Keys of a step whose logits a thread of a single row keeps, at most. 0: it keeps none, and
    stores that of one key."""
    key_threads: int = 1
    """Threads that share the product of a single row and a key."""

    @property
    def single(self) -> Row:
        """How a workgroup computes a single row."""
        return Row(self.workgroup, self.keys_per_thread, self.key_threads, self.radix)


def match(function: LoopFunction, machine: Gpu) -> Facts | None:
    """Matches a softmax along the rows of a product, and a product of its result."""
    facts = attention_facts(function, machine)
    if facts is None or 2 * facts.vectors > max(workgroup_sizes(machine)):
        return None
    if facts.columns < FEWEST_COLUMNS or (facts.keys or FEWEST_KEYS) < FEWEST_KEYS:
        return None
    for height in (*reversed(_heights(facts)), 1):
        trial = replace(facts, tallest=height)
        if accepts(partial(build, trial, default(trial, machine))):
            return _with_copies(trial, machine)
    return None


def _with_copies(facts: Facts, machine: Gpu) -> Facts:
    """The facts, which say whether tiles can copy keys."""
    if facts.key_vectors is None:
        return facts
    trial = replace(facts, copies_keys=True)
    for height in REGISTER_HEIGHTS:
        parameters = default(facts, machine)
        stage = longest_stage(trial, height, LOGIT_ROWS, parameters.single)
        parameters = replace(parameters, rows=height, stage=stage)
        if stage and (facts.rows is None or facts.rows >= height):
            return trial if accepts(partial(build, trial, parameters)) else facts
    return facts


def space(facts: Facts, machine: Gpu) -> Space:
    """Threads: enough for two parts of a step. Tiles: those that fit a workgroup."""
    sizes = (size for size in workgroup_sizes(machine) if size >= 2 * facts.vectors)
    heights = {height for height in _heights(facts) if height <= facts.tallest}
    choices = (
        Space.of(
            workgroup=tuple(sizes),
            rows=(1, *sorted(heights | set(_register_heights(facts)))),
            radix=(RADIX, 4, 16),
            steps=(STEPS, 2, 8),
            logit_rows=(LOGIT_ROWS, 2, 8),
            unrolled=(MAX_UNROLLED, 8, 16, 32),
            fold_steps=(1, 4, 16),
            stage=(0, *STAGES) if facts.copies_keys else (0,),
            keys_per_thread=(0, 1, 2, 4) if machine.reads_lines else (0,),
            key_threads=(1, 2, 4) if facts.key_vectors is not None else (1,),
        )
        .where(
            "tiles, and the rows left over, fit the memory of a workgroup",
            lambda workgroup, rows, stage, keys_per_thread, key_threads, radix: _fits(
                facts,
                rows if stage == 0 else 1,
                Row(workgroup, keys_per_thread, key_threads, radix),
            ),
        )
        .where(
            "threads that keep logits share keys",
            lambda workgroup, keys_per_thread, key_threads: (
                key_threads == 1
                or (keys_per_thread > 0 and key_threads in key_threads_of(facts, workgroup))
            ),
        )
        .where(
            "only tiles have steps that are written out",
            lambda rows, steps: rows > 1 or steps == STEPS,
        )
        .where(
            "the threads of a tile share its logits evenly",
            lambda workgroup, rows, logit_rows, stage, keys_per_thread, key_threads, radix: (
                logit_rows == LOGIT_ROWS and stage == 0
                if rows == 1
                else shape_of(
                    facts,
                    rows,
                    logit_rows,
                    stage,
                    Row(workgroup, keys_per_thread, key_threads, radix),
                )
                is not None
                if stage
                else rows in heights and tile_threads(facts, rows, logit_rows) is not None
            ),
        )
    )
    return proven(choices, build, facts, default(facts, machine))


def default(facts: Facts, machine: Gpu) -> Parameters:
    """The machine's workgroup, or the next one that has enough threads; the tallest tiles of which
    there are enough. A tile loads keys less often, but there are fewer of them than of rows.
    """
    return replace(_threads_and_tiles(facts, machine), fold_steps=machine.fold_steps)


def _threads_and_tiles(facts: Facts, machine: Gpu) -> Parameters:
    """The threads of a single row, and the rows of a tile, by default. Of a run-time number of
    rows, most often there is one: its threads come first, then the tallest tile beside them.
    """
    needed = max(machine.workgroup_size, 2 * facts.vectors)
    workgroup = min(size for size in workgroup_sizes(machine) if size >= needed)
    if facts.rows is None and machine.attention_threads > workgroup:
        sizes = (n for n in workgroup_sizes(machine) if workgroup < n <= machine.attention_threads)
        for size in sorted(sizes, reverse=True):
            single = _single_row(facts, machine, size)
            heights = (h for h in HEIGHTS if h <= facts.tallest and _fits(facts, h, single.single))
            height = 1 if facts.tallest == 1 else max(heights, default=None)
            if height is not None:
                return _prompt_tiles(facts, single) or replace(single, rows=height)
    single = _single_row(facts, machine, workgroup)
    if not machine.reads_lines or facts.rows is None:
        return replace(single, rows=facts.tallest)
    result = facts.function.params[-1]
    rows = prod(as_int(size) or 1 for size in result.shape) // facts.columns
    for height in reversed(_register_heights(facts)):
        stage = longest_stage(facts, height, LOGIT_ROWS, single.single)
        threads = rows // height * machine.divided_workgroup
        if stage >= DEFAULT_STAGE and threads >= machine.divided_threads:
            return replace(single, rows=height, stage=stage, steps=REGISTER_STEPS)
    for height in reversed(_heights(facts)):
        if height <= facts.tallest and rows // height * MOST_THREADS >= machine.divided_threads:
            return replace(single, rows=height)
    is_long = facts.keys is None or facts.keys > machine.row_threads
    return _single_row(
        facts, machine, max(workgroup, machine.row_threads) if is_long else workgroup
    )


def _single_row(facts: Facts, machine: Gpu, workgroup: int) -> Parameters:
    """The parameters of a single row, without tiles. On a GPU, threads keep the logits of as many
    keys as the memory of a workgroup allows, and neighbours share a key.
    """
    parameters = Parameters(workgroup, 1)
    if not machine.reads_lines:
        return parameters
    threads = max(key_threads_of(facts, workgroup))
    for keys in (KEYS_PER_THREAD, 1):
        trial = replace(parameters, radix=REGISTER_RADIX, keys_per_thread=keys, key_threads=threads)
        if _fits(facts, 1, trial.single):
            return trial
    return parameters


def _prompt_tiles(facts: Facts, single: Parameters) -> Parameters | None:
    """The tallest tiles that copy keys beside single rows of so many threads, if there are any."""
    for height in PROMPT_HEIGHTS:
        stage = longest_stage(facts, height, PROMPT_LOGIT_ROWS, single.single)
        if stage:
            return replace(single, rows=height, logit_rows=PROMPT_LOGIT_ROWS, stage=stage)
    return None


def _fits(facts: Facts, height: int, row: Row) -> bool:
    """True where the memory of a workgroup holds a single row, and a tile of some height."""
    if height == 1:
        return fits(facts, row_memory(facts, row))
    is_small = row.workgroup <= max(MOST_THREADS, 2 * facts.vectors) and not row.keys_per_thread
    return is_small or tile_threads(facts, height, row=row) is not None


def _heights(facts: Facts) -> tuple[int, ...]:
    """The heights of tiles that fit a workgroup, and of which there is one."""
    fits = (height for height in HEIGHTS if tile_threads(facts, height) is not None)
    return tuple(height for height in fits if facts.rows is None or facts.rows >= height)


def _register_heights(facts: Facts) -> tuple[int, ...]:
    """The heights of tiles that copy keys, of which there is one."""
    if facts.key_vectors is None:
        return ()
    return tuple(n for n in REGISTER_HEIGHTS if facts.rows is None or facts.rows >= n)


def build(facts: Facts, parameters: Parameters) -> Schedule:
    """Give each tile of rows, and each row left over, to a workgroup."""
    schedule = Schedule(facts.function)
    loops = final_loops(schedule.function, facts)
    unit = schedule.add_unit_loop(facts.final)
    rows = () if loops.row is None else (loops.row,)
    schedule.reorder(*rows, unit, *loops.batch, *loops.columns)
    loops = replace(loops, batch=(unit, *loops.batch))
    for block in producers_of(schedule.function, schedule.block(facts.final)):
        schedule.compute_at(block.name, loops.batch[-1])
    tiles, single = _split_rows(schedule, facts, loops, parameters.rows)
    if tiles is not None:
        height, steps, logit_rows = parameters.rows, parameters.steps, parameters.logit_rows
        if parameters.stage:
            shape = shape_of(facts, height, logit_rows, parameters.stage, parameters.single)
            assert shape is not None
            schedule_register_tile(schedule, *tiles, shape, steps)
        else:
            schedule_tile(schedule, *tiles, height, steps, logit_rows)
    if single is not None:
        writing = Writing(parameters.radix, parameters.unrolled, parameters.fold_steps)
        workgroup, keys = parameters.workgroup, parameters.keys_per_thread
        if keys:
            threads = parameters.key_threads
            schedule_register_row(schedule, *single, workgroup, writing, keys, threads)
        else:
            schedule_row(schedule, *single, workgroup, writing)
    return schedule


ATTENTION = Rule("attention", match, space, default, build, is_product=True)


def _split_rows(
    schedule: Schedule, facts: Facts, loops: Loops, height: int
) -> tuple[tuple[Facts, Loops] | None, tuple[Facts, Loops] | None]:
    """The blocks and loops of whole tiles of rows, and of the rows left over."""
    if loops.row is None or height == 1:
        return None, (facts, loops)
    extent = simplify(schedule.extent(loops.row))
    whole = simplify(extent // height * height)
    if as_int(whole) == 0:
        return None, (facts, loops)
    if is_zero(extent - whole):
        return (facts, loops), None
    before = schedule.loops(facts.final)
    first, last = schedule.partition(loops.row, whole)
    names = [name for name in schedule.blocks() if first in schedule.loops(name)]
    tails = [name for name in schedule.blocks() if last in schedule.loops(name)]
    renamed = dict(zip(names, tails, strict=True))
    single = replace(
        facts,
        logits=renamed[facts.logits],
        maximum=renamed[facts.maximum],
        exponentials=renamed[facts.exponentials],
        total=renamed[facts.total],
        product=renamed[facts.product],
        final=renamed[facts.final],
    )
    tail = dict(zip(before, schedule.loops(single.final), strict=True))
    single_loops = Loops(
        last,
        tuple(tail[loop] for loop in loops.batch),
        tuple(tail[loop] for loop in loops.columns),
    )
    return (facts, loops), (single, single_loops)

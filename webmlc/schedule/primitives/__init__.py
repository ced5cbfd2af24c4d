"""The schedule primitives: one file a verb, one row each in `PRIMITIVES`.

A primitive takes a loop function and plain arguments (names of loops and blocks, numbers) and
returns the changed function, alone or with the names of the new loops or blocks. A primitive never
changes the function's results.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from webmlc.schedule.primitives.add_unit_loop import add_unit_loop
from webmlc.schedule.primitives.bind import bind
from webmlc.schedule.primitives.blockize import blockize
from webmlc.schedule.primitives.cache_read import cache_read
from webmlc.schedule.primitives.cache_write import cache_write
from webmlc.schedule.primitives.compute_at import compute_at
from webmlc.schedule.primitives.compute_inline import compute_inline
from webmlc.schedule.primitives.decompose_reduction import decompose_reduction
from webmlc.schedule.primitives.fission import fission
from webmlc.schedule.primitives.fuse import fuse
from webmlc.schedule.primitives.overlap import overlap
from webmlc.schedule.primitives.parallel import parallel
from webmlc.schedule.primitives.partition import partition
from webmlc.schedule.primitives.prefetch import prefetch
from webmlc.schedule.primitives.reorder import reorder
from webmlc.schedule.primitives.reuse_buffer import reuse_buffer
from webmlc.schedule.primitives.reverse_compute_at import reverse_compute_at
from webmlc.schedule.primitives.reverse_compute_inline import reverse_compute_inline
from webmlc.schedule.primitives.rfactor import rfactor
from webmlc.schedule.primitives.roll_maximum import roll_maximum
from webmlc.schedule.primitives.round_up import round_up
from webmlc.schedule.primitives.set_scope import set_scope
from webmlc.schedule.primitives.split import split
from webmlc.schedule.primitives.split_dimension import split_dimension
from webmlc.schedule.primitives.tensorize import tensorize
from webmlc.schedule.primitives.unroll import unroll
from webmlc.schedule.primitives.vectorize import vectorize

PRIMITIVES: dict[str, Callable[..., Any]] = {
    primitive.__name__: primitive
    for primitive in (
        add_unit_loop,
        bind,
        blockize,
        cache_read,
        cache_write,
        compute_at,
        compute_inline,
        decompose_reduction,
        fission,
        fuse,
        overlap,
        parallel,
        partition,
        prefetch,
        reorder,
        reuse_buffer,
        reverse_compute_at,
        reverse_compute_inline,
        rfactor,
        roll_maximum,
        round_up,
        set_scope,
        split,
        split_dimension,
        tensorize,
        unroll,
        vectorize,
    )
}

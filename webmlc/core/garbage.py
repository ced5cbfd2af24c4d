"""Collect garbage rarely while millions of nodes are made.

IRs are immutable and without cycles, so reference counts free almost everything that a pass
replaces. Python's collector looks at the young objects after every 700 new objects by default. It
walks the living objects in vain.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

THRESHOLDS = 5_000_000, 20, 50
"""New objects between two collections of the youngest generation, and collections of each
generation between two collections of the next. In most builds, fewer objects stay. Measured with
`gc.callbacks` on a build of ResNet-50 for both targets: a collection after every 500,000 objects
took 0.25 s of 5.4 s, and freed 3 % of the objects, 1 MB. 2,500,000 objects take some 500 MB."""


@contextmanager
def collect_rarely() -> Iterator[None]:
    """Apply `THRESHOLDS`, and restore the caller's thresholds afterwards."""
    before = gc.get_threshold()
    gc.set_threshold(*THRESHOLDS)
    try:
        yield
    finally:
        gc.set_threshold(*before)

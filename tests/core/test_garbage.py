"""A build is followed by no collection of all objects that it made."""

from __future__ import annotations

import gc

from webmlc.core.garbage import THRESHOLDS, collect_rarely

COUNT = 100_000


def test_new_objects_count_as_old_afterwards() -> None:
    before = gc.get_threshold()
    with collect_rarely():
        assert gc.get_threshold() == THRESHOLDS
        objects = [[number] for number in range(COUNT)]
    assert gc.get_threshold() == before
    assert len(objects) == COUNT
    assert gc.get_freeze_count() == 0
    young = {id(value) for value in gc.get_objects(generation=0)}
    assert young.isdisjoint(map(id, objects))


def test_frozen_objects_stay_frozen() -> None:
    gc.freeze()
    try:
        frozen = gc.get_freeze_count()
        with collect_rarely():
            pass
        assert gc.get_freeze_count() > frozen // 2 > 0  # references still free some of them
    finally:
        gc.unfreeze()

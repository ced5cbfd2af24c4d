"""Damaged GGUF models are computed right, or refused with one clear error."""

from __future__ import annotations

import random

import pytest

from tests.users.mutations.gguf_container import parse
from tests.users.mutations.gguf_family import BASES, GgufFamily, whole_file
from tests.users.mutations.worker import Worker

COUNT = 40
"""The mutants of a test run. `python -m tests.users.mutations --family gguf` judges any number."""


@pytest.mark.parametrize("name", BASES)
def test_records_are_the_whole_file(name: str) -> None:
    assert parse(whole_file(name)).data() == whole_file(name)


def test_mutants_differ() -> None:
    family = GgufFamily()
    mutants = [family.draw(random.Random(number)) for number in range(COUNT)]
    assert len({mutant.files["model.gguf"] for mutant in mutants}) > COUNT // 2
    assert mutants[7] == family.draw(random.Random(7))


def test_mutants() -> None:
    worker = Worker("gguf")
    outcomes = [worker.judge(0, number, "wasm") for number in range(COUNT)]
    worker.close()
    bad = {number: outcome for number, outcome in enumerate(outcomes) if not outcome.is_allowed}
    assert not bad
    kinds = {outcome.kind for outcome in outcomes}
    assert {"right", "refused"} <= kinds

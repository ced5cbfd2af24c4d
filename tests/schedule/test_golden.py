"""The result of each primitive, and its refusals: golden files, one a case.

A file in `golden/` holds the function before, the steps, and the function after or the drawn
refusal of the last step. `WEBMLC_UPDATE_GOLDEN=1` rewrites the last part.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from webmlc.loops.text import parse_function, print_function
from webmlc.loops.verify import verify
from webmlc.schedule.check_step import check_step
from webmlc.schedule.errors import ScheduleError
from webmlc.schedule.schedule import PRIMITIVES, Schedule
from webmlc.schedule.trace import arguments_of

FOLDER = Path(__file__).parent / "golden"
CASES = sorted(path.stem for path in FOLDER.glob("*.txt"))


@pytest.mark.parametrize("case", CASES)
def test_golden(case: str) -> None:
    path = FOLDER / f"{case}.txt"
    before, steps, expected = (part.strip("\n") for part in path.read_text().split("\n----\n"))
    function = parse_function(before)
    verify(function)
    schedule = Schedule(function)
    try:
        for line in steps.splitlines():
            step = json.loads(line)
            schedule.apply(step["primitive"], *arguments_of(step))
        got = print_function(schedule.function).strip("\n")
        check_step(function, schedule.function, {"case": case}, run=True)
    except ScheduleError as error:
        got = str(error).strip("\n")
    if os.environ.get("WEBMLC_UPDATE_GOLDEN"):
        path.write_text("\n----\n".join((before, steps, got)) + "\n")
    assert got == expected


def test_every_primitive_has_a_golden_result_and_a_golden_refusal() -> None:
    own = {"cache_read", "compute_inline", "reverse_compute_inline", "rfactor", "blockize"}
    done: dict[bool, set[str]] = {True: set(), False: set()}
    for case in CASES:
        _, steps, after = (FOLDER / f"{case}.txt").read_text().split("\n----\n")
        last = json.loads(steps.strip().splitlines()[-1])["primitive"]
        done[after.startswith("@T.kernel")].add(last)
    tested_elsewhere = own | {"tensorize", "fission"}
    for kind in (True, False):
        assert PRIMITIVES.keys() - tested_elsewhere <= done[kind]

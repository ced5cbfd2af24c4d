"""A program that failed is opened again, once for all runs that wait for it."""

import json
from pathlib import Path

from tests.node import script
from tests.packages import scaled

SCRIPT = Path(__file__).parent / "reopen.mjs"


def test_runs_that_overlap_open_a_program_once(tmp_path: Path) -> None:
    """Three of eight runs have begun when the program fails."""
    scaled(tmp_path)
    manifest = json.loads((tmp_path / "manifest.json").read_text())
    answer = script(SCRIPT).ask({"manifest": manifest, "runs": 8})
    assert answer["outcomes"] == ["InternalError"] * 3 + [3, 4, 5, 6, 7]
    assert (answer["opened"], answer["disposed"]) == (1, 2)

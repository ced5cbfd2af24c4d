"""Repetitions in the manifest: folded lists give back the same items."""

from __future__ import annotations

import json
import random
import subprocess
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from webmlc.core.errors import PackageError
from webmlc.package.repetitions import fold, unfold

REPETITIONS_JS = Path(__file__).parents[2] / "runtime_js" / "repetitions.js"


def layer(i: int) -> list[dict[str, Any]]:
    return [
        {"name": f"layer.{i}.weight_{7 * i * i}", "shape": [4, "n"], "arguments": [3, 10 - 2 * i]},
        {"name": f"layer.{i}.out", "share": 0.5, "once": True, "origin": [f"/m/{i}/MatMul_1"]},
    ]


def test_layers_are_said_once() -> None:
    items = [{"name": "x1"}, *(item for i in range(5) for item in layer(i)), {"name": "y"}]
    folded = fold(items)
    assert folded == [
        {"name": "x1"},
        {
            "count": 10,
            "items": [
                {
                    "name": "layer.{0+1}.weight_{0,7,28,63,112}",
                    "shape": [4, "n"],
                    "arguments": [3, "{#10+-2}"],
                },
                {
                    "name": "layer.{0+1}.out",
                    "share": 0.5,
                    "once": True,
                    "origin": ["/m/{0+1}/MatMul_1"],
                },
            ],
        },
        {"name": "y"},
    ]
    assert unfold(folded) == items


def test_the_last_layer_may_be_incomplete() -> None:
    items = [*(item for i in range(5) for item in layer(i)), layer(5)[0], {"name": "y"}]
    folded = fold(items)
    assert folded[0]["count"] == 11
    assert folded[0]["items"][0]["name"] == "layer.{0+1}.weight_{0,7,28,63,112,175}"
    assert folded[1:] == [{"name": "y"}]
    assert unfold(folded) == items


def test_blocks_of_a_stage_are_folded_rather_than_two_stages() -> None:
    """Each stage of a network has blocks that repeat, and the stages repeat, too."""
    block = [{"kernel": "conv", "arguments": [-1, 0]}, {"kernel": "relu", "arguments": [-1, 0]}]
    stage = [{"kernel": "pool", "arguments": [-3, 0]}, *block * 6]
    assert fold(stage + stage) == [
        stage[0],
        {"count": 12, "items": block},
        stage[0],
        {"count": 12, "items": block},
    ]


@given(st.lists(st.sampled_from([["a", 1], ["b1", 2], ["b2", 5], {"c": [1, "d"]}]), max_size=40))
def test_folding_loses_nothing_and_never_lengthens(items: list[Any]) -> None:
    assert unfold(fold(items)) == items
    assert len(json.dumps(fold(items))) <= len(json.dumps(items))


@pytest.mark.parametrize(
    "items",
    [
        [["a", i / 2] for i in range(5)],  # numbers that are no integers
        [[f"a{i:03}", 1] for i in range(5)],  # leading zeros
        [["{0+1}", 1]] * 5,
        [["a", True], ["a", False]] * 4,
        [["a", -i] for i in range(5)],
        [],
    ],
)
def test_what_is_no_pattern_comes_back_unchanged(items: list[Any]) -> None:
    assert unfold(fold(items)) == items


def test_the_runtime_unfolds_the_same_items() -> None:
    choose = random.Random(0)
    cases = []
    for _ in range(50):
        period = [layer(choose.randint(0, 9))[choose.randint(0, 1)] for _ in range(3)]
        items = [item for i in range(choose.randint(1, 6)) for item in (*layer(i), *period)]
        assert unfold(fold(items)) == items
        cases.append((items, fold(items)))
    assert unfolded_by_the_runtime([folded for _, folded in cases]) == [items for items, _ in cases]


def unfolded_by_the_runtime(lists: list[Any]) -> list[Any]:
    """The unfolded lists, or the text of the error for each list that the runtime refuses."""
    code = f"""import {{ unfold }} from "{REPETITIONS_JS.as_uri()}";
      let text = ""; for await (const chunk of process.stdin) text += chunk;
      const attempt = (items) => {{
        try {{ return unfold(items); }} catch (error) {{ return error.message; }}
      }};
      process.stdout.write(JSON.stringify(JSON.parse(text).map(attempt)));"""
    process = subprocess.run(
        ["node", "--input-type=module", "-e", code],
        input=json.dumps(lists),
        capture_output=True,
        text=True,
        check=True,
    )
    return list(json.loads(process.stdout))


MALFORMED_MARKS = [{"count": 3, "items": [{"name": mark}]} for mark in ("{1+}", "{,}", "{1,2}")]
MALFORMED_COUNTS = [
    {"count": -5, "items": [1]},
    {"count": 0, "items": [1]},
    {"count": 2.5, "items": [1]},
    {"count": True, "items": [1]},
    {"count": "2", "items": [1]},
    {"count": None, "items": [1]},
    {"count": 2, "items": []},
    {"count": 2},
    {"count": 1_000_001, "items": [1]},
]


@pytest.mark.parametrize("repetition", MALFORMED_MARKS + MALFORMED_COUNTS)
def test_a_malformed_repetition_is_refused(repetition: Any) -> None:
    with pytest.raises(PackageError, match="malformed"):
        unfold([repetition])


def test_the_runtime_refuses_malformed_counts() -> None:
    for message in unfolded_by_the_runtime([[repetition] for repetition in MALFORMED_COUNTS]):
        assert "malformed" in message


def test_no_negative_count_hides_a_huge_list() -> None:
    items = [{"count": 10**12, "items": [1]}, {"count": -(10**12), "items": [1]}]
    with pytest.raises(PackageError, match="malformed"):
        unfold(items)
    assert "malformed" in unfolded_by_the_runtime([items])[0]

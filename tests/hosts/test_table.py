"""The tables of hosts say what the results say, and the page holds them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.hosts.hosts import HOSTS
from tests.hosts.packages import PACKAGES
from tests.hosts.table import (
    BEGIN,
    END,
    PAGE,
    Load,
    Results,
    long_table,
    read_results,
    reasons,
    short_table,
    write,
)

ISOLATED = Load(
    "chromium", "1.2", "isolated", "digits", "wasm", 1, "wasm", "requested", "relaxed", 1,
    "requested", 0.125, None,
)  # fmt: skip
AUTO = replace(
    ISOLATED,
    wanted_device="auto",
    wanted_threads=None,
    device_reason="no adapter",
    threads=2,
    threads_reason="2 cores",
    milliseconds=None,
)
LACKING = replace(
    AUTO, wanted_device="webgpu", variant=None, error="AdapterError: no GPU; use a CPU"
)


def results() -> Results:
    """Every host, as if all were alike: shared memory in isolated pages, no GPU."""
    loads = []
    for host in HOSTS.values():
        for headers in ("isolated", "plain") if host.is_browser else ("none",):
            for package in PACKAGES:
                variant = "dot" if package == "quantised" else "relaxed"
                place = {"host": host.name, "headers": headers, "package": package}
                one = replace(ISOLATED, **place, variant=variant)
                threads = 1 if headers == "plain" else 2
                two = replace(one, wanted_threads=2, threads=threads, milliseconds=0.0625)
                loads += [one, two, replace(AUTO, **place, variant=variant)]
                loads.append(replace(LACKING, **place))
    return Results({"cores": 2, "architecture": "a", "date": "d"}, loads)


def test_the_short_table_has_a_row_a_host() -> None:
    lines = short_table(results()).splitlines()
    assert len(lines) == 2 + len(HOSTS)
    choices = "`relaxed`, quantised `dot`"
    assert lines[2] == f"| Chromium 1.2 | {choices} | 2 / 1 | no: no GPU | 0.12 / 0.06 |"
    assert lines[-1] == f"| Bun 1.2 | {choices} | 2 | no: no GPU | 0.12 / 0.06 |"


def test_the_long_table_has_a_row_a_kind_of_page() -> None:
    lines = long_table(results()).splitlines()
    row = "| Chromium 1.2 | other page | `relaxed`, quantised `dot` | 1 | no: no GPU "
    assert f"{row}| 0.12 | 0.12 | 0.12 |" in lines
    assert len(lines) == 2 + sum(2 if host.is_browser else 1 for host in HOSTS.values())


def test_reasons_are_those_of_loads_without_options() -> None:
    table = reasons(results())
    assert "| `deviceReason` | no adapter | Chromium 1.2 (isolated page, other page); " in table
    assert "requested" not in table


def test_only_what_is_between_the_markers_is_written(tmp_path: Path) -> None:
    document = tmp_path / "a.md"
    document.write_text(f"before\n\n{BEGIN}\n\nold\n\n{END}\n\nafter\n")
    write(document, ["new", "newer"])
    assert document.read_text() == f"before\n\n{BEGIN}\n\nnew\n\nnewer\n\n{END}\n\nafter\n"
    document.write_text("no markers")
    with pytest.raises(ValueError, match="has no markers"):
        write(document, ["new"])


def test_results_of_some_hosts_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "hosts.json"
    path.write_text('{"machine": {}, "loads": []}')
    with pytest.raises(ValueError, match=r"without .*'bun', 'digits'.*make test-browsers"):
        read_results(path)


def test_the_page_holds_every_host() -> None:
    table = PAGE.read_text().partition(BEGIN)[2].partition(END)[0]
    for host in HOSTS.values():
        assert table.count(f"\n| {host.title} ") > 1  # in the short table and in the long one

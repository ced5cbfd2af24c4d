"""`webmlc tune` and `webmlc build --tuned`, as a user meets them."""

from __future__ import annotations

import json
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import pytest

import webmlc
from tests import command_line
from tests.tune.small_search import MODEL
from webmlc.core.machine import SOFTWARE_MACHINES, Machine
from webmlc.schedule.rules import Selection
from webmlc.schedule.rules.rule import Match
from webmlc.schedule.rules.space import plain
from webmlc.schedule.tuning import Tuning
from webmlc.tune import json_lines
from webmlc.tune.choose import TunedChooser
from webmlc.tune.database import AlgorithmRecord, Database, Record
from webmlc.tune.json_lines import shipped
from webmlc.tune.measure.platforms import Platform
from webmlc.tune.measure.workers import local_platform
from webmlc.tune.tasks import read_graph

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """A function that runs the command line: its exit code, its output, and its messages without
    line breaks.
    """

    def run(*arguments: object) -> tuple[int, str, str]:
        result = command_line.run(monkeypatch, capsys, *arguments)
        return result.code, result.out, " ".join(result.err.split())

    return run


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A matrix product and a softmax."""
    path = tmp_path / "small.onnx"
    onnx.save(onnx.parser.parse_model(MODEL), path)
    return path


def record_of(model: Path, platform: Platform, ratio: float, **changes: object) -> Record:
    """A confirmed record of the model's longest kernel, with some parameters changed."""
    tasks = read_graph(model, "wasm", {}).tasks()
    (task,) = (t for t in tasks if t.match.rule.name == "contraction")
    space = task.match.space()
    member = next(m for m in space.members() if task.match.default() is not None)
    return Record(
        task.key, task.name, "wasm", task.match.rule.name, task.size_bucket, platform,
        {**plain(member), **changes}, "confirmed", 1.0, ratio, 30, "", (), "small", "0",
        "2026-11-25T00:00:00+00:00",
    )  # fmt: skip


def test_a_search_from_the_command_line_to_a_tuned_package(
    run: Run, model: Path, tmp_path: Path
) -> None:
    (tmp_path / "net" / "onnx").mkdir(parents=True)
    model = model.rename(tmp_path / "net" / "onnx" / "model.onnx")
    database = tmp_path / "tuned.db"
    arguments = ("--engine", "wasmtime", "--budget", "6s", "--database", database)
    code, out, _ = run("tune", model, *arguments, "--json")
    assert code == 0
    result = json.loads(out)
    assert result["gain"] > 0.5
    assert all(gain >= 1 for gain in result["model gains"].values())
    assert {kernel["rule"] for kernel in result["kernels"]} <= {"contraction", "rows"}
    assert Path(result["report"]).read_text("utf-8").startswith("<!doctype html>")
    with Database(database, must_exist=True) as records:
        found = list(records.records())
        assert {record.model for record in found} == {"net"}
        states = [record.state for record in found]
        assert "measured" in states  # how many depends on the machine's load
        assert "wrong" not in states
    code, out, _ = run("tune", "--list", "--database", database, "--json")
    assert code == 0
    assert sum(row["candidates"] for row in json.loads(out)) == states.count("measured")
    assert run("tune", "--database", database, "--export", tmp_path / "records.jsonl")[0] == 0
    assert len((tmp_path / "records.jsonl").read_text().splitlines()) == len(states)
    code, _, _ = run("build", model, "--tuned", database, "-o", tmp_path / "p", "--target", "wasm")
    assert code == 0
    inputs = {"a": np.ones((16, 24), np.float32), "b": np.eye(24, 8, dtype=np.float32)}
    outputs = webmlc.load(tmp_path / "p", device="wasm").run(inputs)
    np.testing.assert_allclose(outputs["y"], np.full((16, 8), 0.125), rtol=1e-6)


def test_a_budget_in_which_nothing_is_measured_is_too_short(
    run: Run, model: Path, tmp_path: Path
) -> None:
    database = tmp_path / "tuned.db"
    arguments = ("--engine", "wasmtime", "--budget", "0.0001s", "--database", database)
    code, out, _ = run("tune", model, *arguments)
    assert code == 0
    assert "no kernel was measured in 0.0001 s. Try a longer --budget." in " ".join(out.split())
    with Database(database, must_exist=True) as records:
        assert not list(records.records())


def test_a_record_of_this_machine_changes_the_build_and_the_manifest_says_so(
    run: Run, model: Path, tmp_path: Path
) -> None:
    database = tmp_path / "tuned.db"
    platform = local_platform("wasmtime", 1)
    with Database(database) as records:
        records.add([record_of(model, platform, 0.5)])
    build = ("build", model, "--target", "wasm", "--json", "-o")
    code, out, _ = run(*build, tmp_path / "tuned", "--tuned", database)
    assert code == 0
    (row,) = json.loads(out)["tuned"]
    assert (row["gain"], row["measured on"]) == ("2.00×", platform.key)
    code, out, _ = run(*build, tmp_path / "default")
    assert json.loads(out)["tuned"] == []
    code, out, _ = run(*build, tmp_path / "again")
    for name in ("manifest.json", "model.relaxed.wasm.deflate"):
        default, again, tuned = (
            (tmp_path / folder / name).read_bytes() for folder in ("default", "again", "tuned")
        )
        assert default == again != tuned


def test_records_of_other_machines_need_their_name(run: Run, model: Path, tmp_path: Path) -> None:
    database = tmp_path / "tuned.db"
    phone = Platform("chromium", "140", "A phone", "arm64")
    tablet = Platform("chromium", "140", "A tablet", "arm64 sve")
    with Database(database) as records:
        records.add([record_of(model, phone, 0.5), record_of(model, tablet, 0.25)])
    build = ("build", model, "--target", "wasm", "--json", "--tuned", database, "-o")
    assert json.loads(run(*build, tmp_path / "a")[1])["tuned"] == []
    named = json.loads(run(*build, tmp_path / "b", "--platform", "phone")[1])["tuned"]
    assert [row["gain"] for row in named] == ["2.00×"]
    code, out, _ = run(*build, tmp_path / "c", "--platform", "watch")
    assert code == 2
    message = json.loads(out)["error"]["message"]
    assert "--platform 'watch'" in message
    assert "A phone" in message


def test_records_of_a_browser_come_before_those_of_python(
    run: Run, model: Path, tmp_path: Path
) -> None:
    database = tmp_path / "tuned.db"
    python = local_platform("wasmtime", 1)
    browser = replace(python, engine="chromium")
    with Database(database) as records:
        records.add([record_of(model, python, 0.25), record_of(model, browser, 0.5)])
    build = ("build", model, "--target", "wasm", "--json", "--tuned", database, "-o")
    assert json.loads(run(*build, tmp_path / "a")[1])["tuned"][0]["measured on"] == browser.key
    named = run(*build, tmp_path / "b", "--platform", "wasmtime")[1]
    assert json.loads(named)["tuned"][0]["measured on"] == python.key


def test_exported_records_can_be_merged_and_shipped(
    run: Run, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    database, copy, lines = (tmp_path / n for n in ("tuned.db", "copy.db", "records.jsonl"))
    layer = AlgorithmRecord(
        "conv", "relaxed", local_platform("wasmtime", 1), "direct", 0.9, "", "0", ""
    )
    with Database(database) as records:
        records.add([record_of(model, local_platform("wasmtime", 1), 0.5)])
        records.add_algorithms([layer])
        expected = [*records.records(), *records.algorithms()]
    assert run("tune", "--database", database, "--export", lines)[0] == 0
    assert run("tune", "--database", copy, "--merge", lines)[0] == 0
    with Database(copy, must_exist=True) as records:
        assert [*records.records(), *records.algorithms()] == expected
    monkeypatch.setattr(json_lines, "SHIPPED", lines)
    build = ("build", model, "--tuned", "shipped", "-o", tmp_path / "p", "--json")
    code, out, _ = run(*build, "--target", "wasm")
    assert code == 0
    assert [row["gain"] for row in json.loads(out)["tuned"]] == ["2.00×"]
    for arguments in (build, ("tune", model, "--database", "shipped")):
        time = "--tune" if "build" in arguments else "--budget"
        code, out, error = run(*arguments, time, "1s")
        assert code == 2 and "shipped: the records that come with webmlc cannot" in out + error
    code, _, error = run("tune", "--database", "shipped", "--merge", lines)
    assert code == 2 and "cannot be changed. Name a file" in error
    code, out, _ = run("tune", "--database", "shipped", "--list", "--json")
    assert code == 0 and [row["gain"] for row in json.loads(out)] == ["2.00×"]
    other = tmp_path / "other.db"
    assert "1 records added" in run("tune", "--database", other, "--merge", "shipped")[2]
    code, out, _ = run(*build, "--platform", "watch")
    assert code == 2 and f"{lines} has records of" in json.loads(out)["error"]["message"]
    lines.write_text('{"task": 1}')
    code, _, error = run("tune", "--database", copy, "--merge", lines)
    assert code == 2
    assert "records.jsonl, line 1: not a record" in error


def test_records_that_no_model_uses_are_told_and_dropped(
    run: Run, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    database, lines = tmp_path / "tuned.db", tmp_path / "records.jsonl"
    platform = local_platform("wasmtime", 1)
    used = record_of(model, platform, 0.5)
    older = replace(used, task="a key of an older compiler", name="older kernel")
    other_rule = replace(used, parameters={"a parameter of an older rule": 1})
    layer = AlgorithmRecord("a layer of no model", "relaxed", platform, "direct", 0.9, "", "0", "")
    with Database(database) as records:
        records.add([used, older, other_rule])
        records.add_algorithms([layer])
        lines.write_text(json_lines.to_lines(records), "utf-8")
    _, out, _ = run("tune", "--list", "--database", database, "--json")
    assert sorted(row["candidates"] for row in json.loads(out)) == [0, 0]
    _, out, _ = run("tune", model, "--list", "--database", database, "--json")
    (row,) = json.loads(out)
    assert row["gain"] == "2.00×"
    monkeypatch.setattr(json_lines, "SHIPPED", lines)
    assert json_lines.drop_unused([model]) == 3
    with shipped() as records:
        assert [*records.records(), *records.algorithms()] == [used]


def test_the_shipped_records_can_be_read() -> None:
    with shipped() as records:
        assert all(r.state == "confirmed" and (r.ratio or 1) < 1 for r in records.records())


def test_parameters_that_the_rule_no_longer_has_are_ignored(
    run: Run, model: Path, tmp_path: Path
) -> None:
    database = tmp_path / "tuned.db"
    with Database(database) as records:
        records.add([record_of(model, local_platform("wasmtime", 1), 0.5, old_parameter=3)])
    code, out, _ = run(
        "build", model, "--tuned", database, "-o", tmp_path / "p", "--target", "wasm", "--json"
    )
    assert code == 0
    assert json.loads(out)["tuned"] == []


def foreign(path: Path) -> None:
    """A SQLite file of somebody else."""
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE songs (title TEXT)")


def other_version(path: Path) -> None:
    """A database of a later webmlc."""
    Database(path).close()
    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA user_version = 99")


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE record SET parameters = '{'",
        "UPDATE record SET features = 'x'",
        "UPDATE platform SET description = '{\"engine\": '",
        "UPDATE platform SET description = '[]'",
    ],
)
def test_damaged_records_are_one_clear_error(
    run: Run, model: Path, tmp_path: Path, statement: str
) -> None:
    database = tmp_path / "tuned.db"
    with Database(database) as records:
        records.add([record_of(model, local_platform("wasmtime", 1), 0.5)])
    with sqlite3.connect(database) as connection:
        connection.execute(statement)
    code, out, error = run("tune", "--list", "--database", database)
    assert (code, out) == (2, "")
    assert "tuned.db: not a usable database (" in error
    assert "Name another file" in error


def test_a_build_that_searches_for_no_time_names_its_option(
    run: Run, model: Path, tmp_path: Path
) -> None:
    build = ("build", model, "--tuned", tmp_path / "tuned.db", "-o", tmp_path / "p")
    code, _, error = run(*build, "--tune", "0s")
    assert code == 2
    assert "--tune: a search needs more than no time; try --tune 5m" in error


@pytest.mark.parametrize(
    ("arguments", "prepare", "message"),
    [
        (("--budget", "0"), None, "--budget: a search needs more than no time"),
        (("--budget", "soon"), None, "'soon' is not a time: write 90s, 10m or 1h"),
        (("--engine", "netscape"), None, "kernels on wasm are measured by chromium, node"),
        (("--engine", "wgpu"), None, "kernels on wasm are measured by"),
        (("--strategy", "luck"), None, "--strategy luck: choose one of auto"),
        (("--dim", "batch=2"), None, "no dimension is named 'batch'"),
        (("--listen", "here"), None, "--listen 'here': write HOST:PORT"),
        (("--device", "webgpu", "--threads", "2"), None, "--threads: a GPU has its own"),
        ((), foreign, "not a database of `webmlc tune`"),
        ((), lambda path: path.write_bytes(b"no database" * 100), "not a usable database"),
        ((), other_version, "a database of version 99"),
    ],
)
def test_one_clear_error_each(
    run: Run,
    model: Path,
    tmp_path: Path,
    arguments: tuple[str, ...],
    prepare: Callable[[Path], object] | None,
    message: str,
) -> None:
    database = tmp_path / "tuned.db"
    if prepare is not None:
        prepare(database)
    before = database.read_bytes() if database.exists() else None
    code, _, error = run("tune", model, "--database", database, *arguments)
    assert code == 2
    assert message in error
    assert before is None or database.read_bytes() == before


def test_a_script_without_a_guard_is_one_clear_error(model: Path, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import webmlc\n"
        f"webmlc.tune({str(model)!r}, database={str(tmp_path / 'tuned.db')!r},"
        " engine='wasmtime', seconds=1)\n"
    )
    command = [sys.executable, str(script)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode != 0
    assert 'call it under `if __name__ == "__main__":`' in done.stderr


def test_a_missing_database_says_how_to_make_one(run: Run, model: Path, tmp_path: Path) -> None:
    code, _, error = run("build", model, "--tuned", tmp_path / "none.db", "-o", tmp_path / "p")
    assert code == 2
    assert "webmlc tune MODEL --database" in error
    assert not (tmp_path / "p").exists()


def test_a_tuned_package_is_checked(
    run: Run, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tunings: list[Tuning | None] = []
    choose = TunedChooser.__call__

    def noting(self: TunedChooser, match: Match) -> Selection:
        selection = choose(self, match)
        tunings.append(selection.tuning)
        return selection

    monkeypatch.setattr(TunedChooser, "__call__", noting)
    database = tmp_path / "tuned.db"
    platform = local_platform("wasmtime", 1)
    with Database(database) as records:
        records.add([record_of(model, platform, 0.5)])
    code, out, _ = run("check", model, "--tuned", database, "--platform", "wasmtime", "--json")
    assert code == 0
    assert json.loads(out)["verdict"] == "passed"
    assert any(tuning is not None for tuning in tunings), "the check is of a tuned kernel"
    code, _, error = run("check", model, "--platform", "wasmtime")
    assert code == 2
    assert "--platform: it chooses among the records of --tuned FILE" in error


def test_a_package_for_a_software_adapter_is_checked(
    run: Run, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machines: set[Machine] = set()
    choose = TunedChooser.__call__

    def noting(self: TunedChooser, match: Match) -> Selection:
        machines.add(match.machine)
        return choose(self, match)

    monkeypatch.setattr(TunedChooser, "__call__", noting)
    database = tmp_path / "tuned.db"
    Database(database).close()
    options = ("--device", "webgpu", "--adapter", "software", "--tuned", database, "--json")
    code, out, _ = run("check", model, *options)
    assert code == 0
    assert json.loads(out)["verdict"] == "passed"
    assert machines == {*SOFTWARE_MACHINES}

"""The database: what is added is written by a thread, and nothing of it is lost."""

from __future__ import annotations

import sqlite3
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest

from tests.tune.small_search import PLATFORM
from webmlc.core.errors import UserError
from webmlc.tune.database import Database, Record

WAIT_SECONDS = 30.0
"""Seconds in which a record must be written."""


def record(number: int) -> Record:
    """The record of a candidate."""
    return Record(
        "task", "matmul", "wasm", "contraction", "", PLATFORM, {"rows": number}, "measured", 1.0,
        1.0, 12, "", (1.5,), "model", "0", f"2026-11-26T00:00:{number:02}",
    )  # fmt: skip


def test_what_was_added_is_read_at_once(tmp_path: Path) -> None:
    with Database(tmp_path / "t.db") as database:
        for number in range(20):
            database.add([record(number)])
            assert list(database.records())[-1] == record(number)


def test_nothing_that_several_threads_add_is_lost(tmp_path: Path) -> None:
    path = tmp_path / "t.db"
    with Database(path) as database, ThreadPoolExecutor(8) as threads:
        list(threads.map(lambda number: database.add([record(number)]), range(60)))
    with Database(path, must_exist=True) as database:
        assert list(database.records()) == [record(number) for number in range(60)]


def test_records_are_written_although_nobody_waits_for_them(tmp_path: Path) -> None:
    path = tmp_path / "t.db"
    with Database(path) as database, closing(sqlite3.connect(path, timeout=WAIT_SECONDS)) as other:
        deadline = time.monotonic() + WAIT_SECONDS
        for number in range(3):
            database.add([record(number)])
            while other.execute("SELECT count(*) FROM record").fetchone() != (number + 1,):
                assert time.monotonic() < deadline
                time.sleep(0.02)


def test_what_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    database = Database(tmp_path / "t.db")
    database.connection.execute("PRAGMA query_only = ON")
    database.add([record(0)])
    with pytest.raises(UserError, match="not a usable database"):
        database.close()


@pytest.mark.parametrize("version", [1, 2, 4])
def test_a_database_of_another_version_is_refused(tmp_path: Path, version: int) -> None:
    path = tmp_path / "old.db"
    Database(path).close()
    with sqlite3.connect(path) as connection:
        connection.execute(f"PRAGMA user_version = {version}")
    reason = f"a database of version {version}. This webmlc reads version 3. Tune again"
    with pytest.raises(UserError, match=reason):
        Database(path)

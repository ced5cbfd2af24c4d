"""The database of measurements: one SQLite file.

    with Database(Path("tuned.db")) as database:
        database.add(record)
        database.records(task=record.task, state="confirmed")

A record is one candidate of one task, measured on one platform beside the default schedule. A
thread writes each record as soon as the candidate was measured, so that an interrupted search loses
nothing and the cost model learns from all records. A search ends with records whose state is
"confirmed": the winner, measured once more with more rounds. Only confirmed records change a build.
"""

from __future__ import annotations

import json
import sqlite3
import threading
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Literal

import numpy as np

from webmlc.core.errors import UserError
from webmlc.core.machine import MACHINES, Device
from webmlc.tune.measure.platforms import Platform, platform_of

APPLICATION_ID = 0x776D6C63
"""The number in the header of the file that marks it as ours: "wmlc" in ASCII."""
SCHEMA_VERSION = 3
"""The version of the tables and of the parameters in them. A file of another version is refused."""
GATHER_SECONDS = 0.3
"""Seconds that the writer waits for more records before it writes. Records of one transaction share
the pages that are written: a record among 500 takes half the processor time of a record among 80
(measured on a Zen 4 class core, 2026-11-27). A search that is killed loses the records of this
time."""

State = Literal["measured", "confirmed", "wrong", "failed"]

_SCHEMA = """
CREATE TABLE platform (key TEXT PRIMARY KEY, description TEXT NOT NULL) STRICT;
CREATE TABLE task (
  key TEXT PRIMARY KEY, name TEXT NOT NULL, device TEXT NOT NULL, rule TEXT NOT NULL
) STRICT;
CREATE TABLE record (
  task TEXT NOT NULL REFERENCES task, platform TEXT NOT NULL REFERENCES platform,
  sizes TEXT NOT NULL, parameters TEXT NOT NULL, state TEXT NOT NULL,
  milliseconds REAL, ratio REAL, rounds INTEGER NOT NULL, reason TEXT NOT NULL,
  features TEXT NOT NULL, model TEXT NOT NULL, compiler TEXT NOT NULL, date TEXT NOT NULL,
  PRIMARY KEY (task, platform, sizes, parameters, state)
) STRICT;
CREATE TABLE algorithm (
  layer TEXT NOT NULL, machine TEXT NOT NULL, platform TEXT NOT NULL REFERENCES platform,
  name TEXT NOT NULL, ratio REAL NOT NULL, model TEXT NOT NULL, compiler TEXT NOT NULL,
  date TEXT NOT NULL, PRIMARY KEY (layer, machine, platform)
) STRICT;
"""


@dataclass(frozen=True, slots=True)
class Record:
    """One candidate of one task on one platform.

    - `task`, `name`, `device`, `rule`: of the kernel (see `tasks.Task`).
    - `sizes`: the bucket of its symbolic sizes.
    - `parameters`: the candidate's member of the task's space, as JSON data (`space.plain`).
    - `milliseconds`: the median of the rounds; `ratio`: the median over the rounds of its time
      divided by the default's time, below 1 if the candidate is faster. Both are `None` if it was
      disqualified.
    - `features`: of the lowered kernel, for the cost model; empty if not computed.
    - `model`: the model whose search found the candidate.
    - `date`: in ISO 8601, UTC.
    """

    task: str
    name: str
    device: Device
    rule: str
    sizes: str
    platform: Platform
    parameters: Any
    state: State
    milliseconds: float | None
    ratio: float | None
    rounds: int
    reason: str
    features: tuple[float, ...]
    model: str
    compiler: str
    date: str


@dataclass(frozen=True, slots=True)
class AlgorithmRecord:
    """The fastest algorithm of a layer on a platform.

    `layer` and `name` are the layer and the algorithm in `Target.alternatives`. `machine` is the
    name of the machine that the layer's kernels are scheduled for (`core.machine.MACHINES`).
    `ratio` is the time of these kernels over the time of the default algorithm's kernels; 1 if the
    default is the fastest.
    """

    layer: str
    machine: str
    platform: Platform
    name: str
    ratio: float
    model: str
    compiler: str
    date: str

    @property
    def device(self) -> Device:
        """The device that runs the layer's kernels."""
        return MACHINES[self.machine].device


class Database:
    """An open file of records.

    A separate thread writes and commits new records, so that a search on a large cluster never
    waits for the disk. The thread gathers the records of `GATHER_SECONDS`, unless a reader waits
    for them.

    Several threads may use a database, one at a time.
    """

    def __init__(self, path: Path, *, must_exist: bool = False) -> None:
        """Open the file at `path`, or create it.

        Raises `UserError` if the file is not a database of this version of webmlc, cannot be read,
        or does not exist although it must.
        """
        self.path = path
        self._writer = ThreadPoolExecutor(1)
        self._unwritten: list[Record] = []
        self._lock = threading.Lock()
        self._last: Future[None] | None = None
        self._is_awaited = threading.Event()
        if must_exist and not path.is_file():
            raise UserError(f"{path}: no such file; `webmlc tune MODEL --database {path}` makes it")
        with self._typed_errors():
            self.connection = sqlite3.connect(path, timeout=30, check_same_thread=False)
            self.connection.row_factory = sqlite3.Row
            self._check()

    def __enter__(self) -> Database:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Write all added records, and close the file. Raises `UserError` if this is impossible."""
        try:
            self._finish_writing()
        finally:
            self._writer.shutdown()
            self.connection.close()

    def add(self, records: Iterable[Record]) -> None:
        """Add records; a record of the same candidate and state is replaced. The records are
        written after this call returns, and before any record is read.

        Raises `UserError` if earlier records could not be written.
        """
        if self._last is not None and self._last.done():
            self._last.result()
        with self._lock:
            is_idle = not self._unwritten
            self._unwritten += records
            if is_idle and self._unwritten:
                self._last = self._writer.submit(self._write)

    def _write(self) -> None:
        """Write all records that were added, in one transaction."""
        self._is_awaited.wait(GATHER_SECONDS)
        with self._lock:
            records, self._unwritten = self._unwritten, []
        with self._typed_errors(), self.connection:
            for platform in {r.platform for r in records}:
                self._add_platform(platform)
            for key, name, device, rule in {(r.task, r.name, r.device, r.rule) for r in records}:
                self._insert("task", {"key": key, "name": name, "device": device, "rule": rule})
            for record in records:
                self._insert("record", _row(record))

    def _finish_writing(self) -> None:
        """Wait until all records are written. Raises `UserError` if they could not be."""
        if self._last is not None:
            self._is_awaited.set()
            try:
                self._last.result()
            finally:
                self._is_awaited.clear()

    def records(self, **conditions: str) -> Iterator[Record]:
        """The records whose columns have these values, in the order in which they were measured."""
        where = " AND ".join(f"{name} = ?" for name in conditions) or "TRUE"
        query = (
            "SELECT record.*, name, device, rule, description FROM record"
            " JOIN task ON task.key = record.task JOIN platform ON platform.key = record.platform"
            f" WHERE {where} ORDER BY date, record.rowid"
        )
        self._finish_writing()
        with self._typed_errors():
            for row in self.connection.execute(query, tuple(conditions.values())):
                yield _record(row)

    def add_algorithms(self, records: Iterable[AlgorithmRecord]) -> None:
        """Add the algorithms of layers; one of the same layer, machine and platform is replaced."""
        self._finish_writing()
        with self._typed_errors(), self.connection:
            for record in records:
                self._add_platform(record.platform)
                self._insert("algorithm", _row(record))

    def algorithms(self) -> Iterator[AlgorithmRecord]:
        """The algorithms of all layers on all platforms."""
        query = (
            "SELECT algorithm.*, description FROM algorithm"
            " JOIN platform ON platform.key = algorithm.platform ORDER BY layer"
        )
        self._finish_writing()
        with self._typed_errors():
            for row in self.connection.execute(query):
                yield AlgorithmRecord(**_fields(row))

    def platforms(self, device: Device | None = None) -> list[Platform]:
        """The platforms of all records, or of the records of one device."""
        records = "SELECT platform FROM record JOIN task ON task.key = record.task"
        where = "" if device is None else f" WHERE key IN ({records} WHERE device = ?)"
        query = f"SELECT description FROM platform{where} ORDER BY key"
        self._finish_writing()
        with self._typed_errors():
            rows = self.connection.execute(query, () if device is None else (device,))
            return [_platform(row["description"]) for row in rows]

    def merge(self, other: Database) -> int:
        """Add all records of another file; returns how many it has."""
        records = list(other.records())
        self.add(records)
        self.add_algorithms(list(other.algorithms()))
        return len(records)

    def _add_platform(self, platform: Platform) -> None:
        description = json.dumps(asdict(platform), sort_keys=True)
        self._insert("platform", {"key": platform.key, "description": description})

    def _insert(self, table: str, row: Mapping[str, object]) -> None:
        """Add a row; a row with the same key is replaced."""
        places = ", ".join(f":{name}" for name in row)
        self.connection.execute(
            f"INSERT OR REPLACE INTO {table} ({', '.join(row)}) VALUES ({places})", row
        )

    def _check(self) -> None:
        """Create the tables of an empty file; refuse a file that is not ours."""
        (application,) = self.connection.execute("PRAGMA application_id").fetchone()
        (version,) = self.connection.execute("PRAGMA user_version").fetchone()
        (tables,) = self.connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
        if application == 0 and tables == 0:
            with self.connection as connection:
                connection.executescript(_SCHEMA)
                connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
                connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
        elif application != APPLICATION_ID:
            raise UserError(f"{self.path}: a SQLite file, but not a database of `webmlc tune`")
        elif version != SCHEMA_VERSION:
            raise UserError(
                f"{self.path}: a database of version {version}. This webmlc reads version "
                f"{SCHEMA_VERSION}. Tune again into another file."
            )

    @contextmanager
    def _typed_errors(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.DatabaseError as error:
            raise UserError(
                f"{self.path}: not a usable database ({error}). Name another file, or restore a "
                "copy of this one."
            ) from error


_OF_TASK = ("name", "device", "rule")
"""The fields of a record that are columns of its task."""


def _row(record: Record | AlgorithmRecord) -> dict[str, object]:
    """A record as a row of its table. Platforms are named by their keys."""
    row = {f.name: getattr(record, f.name) for f in fields(record)}
    row["platform"] = record.platform.key
    if isinstance(record, Record):
        row["parameters"] = json.dumps(record.parameters, sort_keys=True)
        row["features"] = json.dumps(np.round(record.features, 4).tolist())
        row = {name: value for name, value in row.items() if name not in _OF_TASK}
    return row


def _fields(row: sqlite3.Row) -> dict[str, Any]:
    """The columns of a row, by the names of a record's fields."""
    values: dict[str, Any] = {key: row[key] for key in row.keys()}  # noqa: SIM118
    values["platform"] = _platform(values.pop("description"))
    return values


def _record(row: sqlite3.Row) -> Record:
    values = _fields(row)
    values["parameters"] = _parsed(values["parameters"])
    values["features"] = tuple(_parsed(values["features"]))
    return Record(**values)


def _platform(description: str) -> Platform:
    """The platform in a column. Raises `sqlite3.DataError` where there is none."""
    try:
        return platform_of(_parsed(description))
    except UserError as error:
        raise sqlite3.DataError(str(error)) from error


def _parsed(text: str) -> Any:
    """The JSON data in a column. Raises `sqlite3.DataError` where there is none."""
    try:
        return json.loads(text)
    except ValueError as error:
        raise sqlite3.DataError(f"a column is damaged: {error}") from error

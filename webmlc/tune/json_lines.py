"""Records as lines of JSON, for `webmlc tune --export` and for the records that come with webmlc.

    path.write_text(to_lines(database), "utf-8")
    add_lines(database, path)
    with open_records(Path("shipped")) as database: ...   # webmlc build MODEL --tuned shipped

`shipped.jsonl` holds the schedules that were confirmed on machines of webmlc's developers, for the
kernels of the benchmark models:

    python -m webmlc.tune.json_lines tuned.db            # add the records of a file
    python -m webmlc.tune.json_lines --models A.onnx ... # drop records that no model uses any more
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path

from msgspec import convert

from webmlc.core.errors import UserError
from webmlc.tune.database import AlgorithmRecord, Database, Record
from webmlc.tune.usage import usage_of

SHIPPED = Path(__file__).parent / "shipped.jsonl"
"""The file of the records that come with webmlc."""
SHIPPED_NAME = Path("shipped")
"""The name that users write for these records in place of a database to read."""


def to_lines(database: Database) -> str:
    """Every record of a database, and the algorithm of every layer, a line of JSON each."""
    return _lines([*database.records(), *database.algorithms()])


def add_lines(database: Database, path: Path) -> int:
    """Add the records of a file of lines to a database; returns how many it has.

    Raises `UserError` if a line is not a record.
    """
    records: list[Record] = []
    algorithms: list[AlgorithmRecord] = []
    for number, line in enumerate(path.read_text("utf-8").splitlines(), 1):
        try:
            data = json.loads(line)
            if "layer" not in data:
                records.append(convert(data, Record))
            elif "machine" in data:  # a line without it is of an earlier webmlc
                algorithms.append(convert(data, AlgorithmRecord))
        except (ValueError, TypeError) as error:
            raise UserError(f"{path}, line {number}: not a record ({error!r})") from error
    database.add(records)
    database.add_algorithms(algorithms)
    return len(records)


def shipped() -> Database:
    """The records that come with webmlc, in memory."""
    database = Database(Path(":memory:"))
    database.path = SHIPPED
    add_lines(database, SHIPPED)
    return database


def open_records(path: Path) -> Database:
    """Open a database to read it: a file, or the records that come with webmlc.

    Raises `UserError` if the file does not exist, or is no database.
    """
    return shipped() if path == SHIPPED_NAME else Database(path, must_exist=True)


def open_to_change(path: Path) -> Database:
    """Open a file of records, or create it.

    Raises `UserError` for the records that come with webmlc, and where the file is no database.
    """
    if path == SHIPPED_NAME:
        raise UserError(
            f"{path}: the records that come with webmlc cannot be changed. Name a file instead, "
            "such as tuned.db."
        )
    return Database(path)


def drop_unused(models: Sequence[Path]) -> int:
    """Drop the shipped records that serve no kernel and no layer of some models; returns how many.
    `models` must be all models for which records ship.
    """
    with shipped() as database:
        usage = usage_of(models, database)
        records, algorithms = list(database.records()), list(database.algorithms())
    kernels = [record for record in records if usage.has_kernel(record)]
    layers = [record for record in algorithms if usage.has_layer(record)]
    SHIPPED.write_text(_lines([*kernels, *layers]), "utf-8")
    return len(records) + len(algorithms) - len(kernels) - len(layers)


def _lines(records: Sequence[Record | AlgorithmRecord]) -> str:
    return "".join(f"{json.dumps(asdict(record), sort_keys=True)}\n" for record in records)


def _ship(path: Path) -> None:
    """Add to the shipped records the schedules of a database that were confirmed to be faster than
    the default.
    """
    with shipped() as database, open_records(path) as other:
        confirmed = other.records(state="confirmed")
        gains = (r for r in confirmed if r.ratio is not None and r.ratio < 1)
        database.add(replace(record, features=()) for record in gains)
        database.add_algorithms(a for a in other.algorithms() if a.ratio < 1)
        SHIPPED.write_text(to_lines(database), "utf-8")


def _main() -> None:
    """Change the records that come with webmlc."""
    parser = argparse.ArgumentParser(description=_main.__doc__)
    parser.add_argument("database", type=Path, nargs="?", help="add what it confirmed")
    help_text = "drop what none of these ONNX files uses: name all that records ship for"
    parser.add_argument("--models", type=Path, nargs="+", help=help_text)
    options = parser.parse_args()
    if options.database is not None:
        _ship(options.database)
    if options.models:
        print(f"{drop_unused(options.models)} records dropped")


if __name__ == "__main__":
    _main()

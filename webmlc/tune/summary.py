"""The contents of a database, as rows to print."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from webmlc.tune.database import Database, Record
from webmlc.tune.usage import Usage


def summary(database: Database, usage: Usage | None = None) -> list[dict[str, Any]]:
    """A row for each task and platform: the measurements, and the confirmed gain. With a usage,
    only records that serve its models count. The time of the default is `None` if no record has
    it.
    """
    groups: dict[tuple[str, str, str], list[Record]] = defaultdict(list)
    for record in database.records():
        if usage is not None and not usage.has_kernel(record):
            continue
        groups[record.task, record.sizes, record.platform.key].append(record)
    rows = []
    for (_, sizes, platform), records in sorted(groups.items(), key=lambda item: item[0][2]):
        confirmed = [r.ratio for r in records if r.state == "confirmed" and r.ratio is not None]
        times = [r.milliseconds for r in records if r.ratio == 1.0 and r.milliseconds is not None]
        rows.append(
            {
                "platform": platform,
                "kernel": records[-1].name,
                "rule": records[-1].rule,
                "sizes": sizes or "–",
                "model": records[-1].model,
                "candidates": sum(r.state == "measured" for r in records),
                "default ms": min(times, default=None),
                "gain": f"{1 / min(confirmed):.2f}×" if confirmed else "–",
                "date": max(r.date for r in records)[:10],
            }
        )
    return rows

"""The tables of docs/hosts.md, written from the results of `make test-browsers`.

make test-browsers            # writes build/hosts.json, as `python -m pytest tests/hosts` does
python -m tests.hosts.table   # writes the tables, between their markers

Two tests at a time take up both cores of a small machine: times that are published come from
`pytest tests/hosts` alone.
"""

from __future__ import annotations

import json
import os
import platform
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

from tests.hosts.hosts import HOSTS, ROOT, RunningHost
from tests.hosts.packages import PACKAGES

RESULTS = ROOT / "build" / "hosts.json"
BEGIN = "<!-- Written by `python -m tests.hosts.table` from results of `make test-browsers`. -->"
END = "<!-- End of what it writes. -->"

WHERE = {
    "isolated": "isolated page",
    "plain": "other page",
    "policy": "isolated page with a policy",
    "none": "no page",
}
"""Where a package runs, by the name of the headers, in words."""


@dataclass(frozen=True, slots=True)
class Load:
    """The options of a `load`, its choices and reasons, and a warm run's milliseconds."""

    host: str
    version: str
    headers: str
    package: str
    wanted_device: str
    wanted_threads: int | None
    device: str | None
    device_reason: str | None
    variant: str | None
    threads: int | None
    threads_reason: str | None
    milliseconds: float | None
    error: str | None

    @staticmethod
    def of(
        running: RunningHost,
        headers: str,
        package: str,
        setting: Mapping[str, Any],
        report: Mapping[str, Any],
    ) -> Load:
        """The record of a report of page.js."""
        return Load(
            host=running.host.name,
            version=running.version,
            headers=headers,
            package=package,
            wanted_device=setting["device"],
            wanted_threads=setting.get("threads"),
            device=report.get("device"),
            device_reason=report.get("deviceReason"),
            variant=report.get("variant"),
            threads=report.get("threads"),
            threads_reason=report.get("threadsReason"),
            milliseconds=report.get("milliseconds"),
            error=report.get("error"),
        )

    @property
    def title(self) -> str:
        """The host with its version."""
        host = HOSTS[self.host]
        return f"{host.title} {self.version}" + (f", {host.note}" if host.note else "")


@dataclass(frozen=True, slots=True)
class Results:
    """All loads of a test run, and the machine that they ran on."""

    machine: Mapping[str, Any]
    loads: list[Load]


def machine() -> dict[str, Any]:
    """This machine, in a few words."""
    return {
        "architecture": platform.machine(),
        "cores": os.cpu_count(),
        "date": date.today().isoformat(),
    }


def read_results(path: Path = RESULTS) -> Results:
    """The results in a file. Raises `ValueError` unless every host ran every package."""
    data = json.loads(path.read_text("utf-8"))
    loads = [Load(**load) for load in data["loads"]]
    pairs = {(load.host, load.package) for load in loads}
    missing = {(host, package) for host in HOSTS for package in PACKAGES} - pairs
    if missing:
        raise ValueError(f"{path}: without {sorted(missing)}; run `make test-browsers`")
    return Results(data["machine"], loads)


def short_table(results: Results) -> str:
    """A row a host: modules, threads of a load that asks for two, WebGPU, one package's latency."""
    head = ("host", "module", "threads: isolated / other page", "WebGPU", "ms, 1 / 2 threads")
    rows = []
    for host in HOSTS:
        loads = _where(results.loads, host=host)
        threads = " / ".join(
            _threads(_where(loads, headers=headers))
            for headers in ("isolated", "plain", "none")
            if _where(loads, headers=headers)
        )
        latency = _latency(loads, "attention")
        rows.append((loads[0].title, _variants(loads), threads, _webgpu(loads), latency))
    return _markdown(head, rows)


def long_table(results: Results) -> str:
    """A row a host and kind of page, with the latencies of all packages."""
    head = ("host", "where", "module", "threads", "WebGPU", *(f"{name}, ms" for name in PACKAGES))
    rows = []
    for host in HOSTS:
        for headers, words in WHERE.items():
            loads = _where(results.loads, host=host, headers=headers)
            if loads:
                latencies = (_latency(loads, package) for package in PACKAGES)
                choices = (_variants(loads), _threads(loads), _webgpu(loads))
                rows.append((loads[0].title, words, *choices, *latencies))
    return _markdown(head, rows)


def reasons(results: Results) -> str:
    """The texts of `threadsReason` and `deviceReason` without options, and their hosts."""
    places: dict[tuple[str, str], dict[str, list[str]]] = {}
    for load in _where(results.loads, wanted_device="auto"):
        for name, reason in (
            ("threadsReason", load.threads_reason),
            ("deviceReason", load.device_reason),
        ):
            hosts = places.setdefault((f"`{name}`", reason or ""), {})
            pages = hosts.setdefault(load.title, [])
            if WHERE[load.headers] not in pages:
                pages.append(WHERE[load.headers])
    rows = [
        (name, reason, "; ".join(f"{host} ({', '.join(pages)})" for host, pages in hosts.items()))
        for (name, reason), hosts in sorted(places.items())
    ]
    return _markdown(("property", "text", "where"), rows)


def caption(results: Results) -> str:
    """One sentence on how the figures came about."""
    day, cores, architecture = (results.machine[k] for k in ("date", "cores", "architecture"))
    return (
        f"Measured on {day} on a shared machine of {cores} cores ({architecture}).\n"
        "Latencies are medians of warm runs, with one thread / with two."
    )


def write(path: Path, parts: Iterable[str]) -> None:
    """Put the parts between the markers of a document. Raises `ValueError` without markers."""
    before, begin, after = path.read_text("utf-8").partition(BEGIN)
    _, end, after = after.partition(END)
    if not (begin and end):
        raise ValueError(f"{path}: has no markers for the table of hosts")
    path.write_text("\n\n".join([before + begin, *parts, end + after]), "utf-8")


def _where(loads: Iterable[Load], **values: object) -> list[Load]:
    """The loads whose fields have these values."""
    return [load for load in loads if all(getattr(load, k) == v for k, v in values.items())]


def _variants(loads: Sequence[Load]) -> str:
    """The modules that ran: of the floating-point packages, and of the quantised one if another."""
    variants = {load.package: load.variant for load in loads if load.variant}
    floats, quantised = variants["attention"], variants["quantised"]
    return f"`{floats}`" if floats == quantised else f"`{floats}`, quantised `{quantised}`"


def _threads(loads: Sequence[Load]) -> str:
    """The threads of a load that asks for two."""
    return str(_where(loads, wanted_threads=2)[0].threads)


def _webgpu(loads: Iterable[Load]) -> str:
    """Whether WebGPU runs; or the start of the error, without its name."""
    load = _where(loads, wanted_device="webgpu")[0]
    return f"no: {load.error.partition(': ')[2].partition(';')[0]}" if load.error else "yes"


def _latency(loads: Iterable[Load], package: str) -> str:
    """A package's milliseconds with one thread and with two, if it had two; in the first page."""
    times: dict[int | None, float] = {}
    for load in _where(loads, package=package):
        if load.milliseconds is not None and load.threads == load.wanted_threads:
            times.setdefault(load.threads, load.milliseconds)
    return " / ".join(f"{milliseconds:.2f}" for milliseconds in times.values())


def _markdown(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


PAGE = ROOT / "docs" / "hosts.md"
"""The page that has the tables."""


def parts(results: Results) -> tuple[str, ...]:
    """The paragraphs and tables between the markers of the page."""
    return (
        caption(results),
        short_table(results),
        "### All packages",
        long_table(results),
        "### Reasons",
        reasons(results),
    )


def main() -> None:
    """Write the tables into the page."""
    try:
        write(PAGE, parts(read_results()))
    except (OSError, ValueError) as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()

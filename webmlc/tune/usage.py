"""Tell which records of a database serve the kernels and layers of some models.

In: models and a database. Out: a `Usage` of the models, which judges records and algorithms.

    usage = usage_of([Path("model.onnx")], database)
    unused = [record for record in database.records() if not usage.has_kernel(record)]

A record serves nothing once a kernel has another loop nest, or its rule other parameters.
`summary` lists the records of a database, or those that serve some models.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from webmlc.core.machine import MACHINES, Device, Machine
from webmlc.schedule.rules.rule import Match
from webmlc.target.targets import target_of
from webmlc.tune.database import AlgorithmRecord, Database, Record
from webmlc.tune.tasks import Graph, read_graph


@dataclass(frozen=True, slots=True)
class Usage:
    """The kernels of some models on all machines, by their keys, and the layers on each device."""

    kernels: Mapping[str, Match]
    layers: frozenset[tuple[Device, str]]

    def has_kernel(self, record: Record) -> bool:
        """True if a kernel has the record's key, and its rule the record's parameters."""
        match = self.kernels.get(record.task)
        if match is None or match.rule.name != record.rule:
            return False
        return match.space().read(record.parameters) is not None

    def has_layer(self, record: AlgorithmRecord) -> bool:
        """True if a layer of the models is the record's."""
        return (record.device, record.layer) in self.layers


def usage_of(models: Iterable[Path], database: Database) -> Usage:
    """The kernels and layers of models on the devices of a database: kernels with the default
    algorithms, and with the database's algorithms for a platform.
    """
    devices = {r.device for r in database.records()} | {a.device for a in database.algorithms()}
    algorithms = _algorithms(database)
    kernels: dict[str, Match] = {}
    layers: set[tuple[Device, str]] = set()
    for model in models:
        for device in sorted(devices):
            machines = [machine for machine in MACHINES.values() if machine.device == device]
            for graph in graphs_of_targets(read_graph(model, device, {}), machines):
                alternatives = graph.alternatives()
                layers |= {(device, layer) for layer in alternatives}
                for chosen in ({}, *algorithms[device]):
                    other = {layer: name for layer, name in chosen.items() if layer in alternatives}
                    if chosen and not other:
                        continue
                    tasks = graph.tasks(other, machines)
                    kernels |= {task.key: task.match for task in tasks}
    return Usage(kernels, frozenset(layers))


def graphs_of_targets(graph: Graph, machines: Iterable[Machine]) -> list[Graph]:
    """The graph for the first machine of each target, because the passes of targets make different
    kernels.
    """
    graphs: list[Graph] = []
    for machine in machines:
        if all(target_of(machine) is not target_of(other.machine) for other in graphs):
            graphs.append(replace(graph, machine=machine))
    return graphs


def _algorithms(database: Database) -> Mapping[Device, list[dict[str, str]]]:
    """For each device, the algorithms of layers that each machine of each platform has."""
    groups: dict[tuple[Device, str, str], dict[str, str]] = defaultdict(dict)
    for record in database.algorithms():
        groups[record.device, record.platform.key, record.machine][record.layer] = record.name
    by_device: dict[Device, list[dict[str, str]]] = defaultdict(list)
    for (device, _, _), chosen in groups.items():
        by_device[device].append(chosen)
    return by_device


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

"""Judge the tuner's cost model on kernels of models that it did not learn from.

In: a database of measurements of several models on one platform. Out: for each model, Spearman's
rank correlation between the predicted and the measured times of its candidates, when the model was
left out of training: over all its candidates, and the mean within its kernels (which is what a
search needs: it ranks the candidates of one kernel).

    python benchmarks/cost_model.py build/tuned.db
"""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from webmlc.tune.database import Record
from webmlc.tune.json_lines import open_records
from webmlc.tune.search.cost_model import CostModel

FEWEST = 8
"""Candidates of a kernel whose order says something."""


def ranks(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """The rank of each value; equal values share the mean of their ranks."""
    order = np.argsort(values, kind="stable")
    result = np.empty(len(values))
    result[order] = np.arange(len(values))
    for value in np.unique(values):
        same = values == value
        result[same] = result[same].mean()
    return result


def spearman(a: NDArray[np.float64], b: NDArray[np.float64]) -> float:
    """Spearman's rank correlation."""
    return float(np.corrcoef(ranks(a), ranks(b))[0, 1])


def main(database: Annotated[Path, typer.Argument()]) -> None:
    """Leave each model of the database out in turn."""
    by_model: dict[str, list[Record]] = defaultdict(list)
    with open_records(database) as records:
        for record in records.records(state="measured"):
            if record.features and record.milliseconds is not None:
                by_model[record.model].append(record)
    if len(by_model) < 2:
        raise typer.BadParameter(
            f"{database} has measured candidates of {len(by_model)} models, and the cost model "
            "learns from all but one: tune two or more into it. The shipped records have none."
        )
    table = Table(title="Spearman's correlation on models left out of training")
    for heading in ("model", "candidates", "all candidates", "within kernels", "kernels"):
        table.add_column(heading)
    overall, within_all = [], []
    for model, left_out in by_model.items():
        seen = {record.task for record in left_out}
        training = [
            r for other, rs in by_model.items() if other != model for r in rs if r.task not in seen
        ]
        learned = CostModel(_matrix(training), [r.milliseconds or 0.0 for r in training])
        predicted = learned.predict(_matrix(left_out))
        measured = np.array([r.milliseconds for r in left_out], np.float64)
        kernels: dict[str, list[int]] = defaultdict(list)
        for position, record in enumerate(left_out):
            kernels[record.task].append(position)
        inside = [
            spearman(predicted[rows], measured[rows])
            for rows in kernels.values()
            if len(rows) >= FEWEST
        ]
        overall.append(spearman(predicted, measured))
        within_all += inside
        cells = (f"{overall[-1]:.3f}", f"{np.mean(inside):.3f}" if inside else "–")
        table.add_row(model, str(len(left_out)), *cells, str(len(inside)))
    table.add_row("mean", "", f"{np.mean(overall):.3f}", f"{np.mean(within_all):.3f}")
    Console().print(table)


def _matrix(records: list[Record]) -> NDArray[np.float32]:
    return np.array([record.features for record in records], np.float32)


if __name__ == "__main__":
    typer.run(main)

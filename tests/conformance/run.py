"""Run ONNX's own operator tests: passed, failed and unsupported per operator.

    python -m tests.conformance.run [--device wasm|webgpu|numpy] [--operator Conv] [--pin]

`--pin` writes the passing tests to `passing_<device>.txt`, which `test_conformance.py` keeps.
"""

from __future__ import annotations

import argparse
import multiprocessing
import warnings
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
from onnx.backend.test.case.node import collect_testcases
from onnx.backend.test.case.test_case import TestCase
from rich.progress import track

from tests.conformance.backend import WebmlcBackend, to_array
from webmlc.core.errors import ModelError, UnsupportedError

DEVICES = {"wasm": "CPU", "webgpu": "CUDA", "numpy": "NUMPY"}
FOLDER = Path(__file__).parent


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one test: `passed`, `failed` or `unsupported`, and why."""

    test: str
    operator: str
    state: str
    reason: str = ""


@cache
def all_cases() -> dict[str, tuple[str, TestCase]]:
    """(operator, test) by name; an expanded test belongs to the operator it expands."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = collect_testcases(None)
    cases: dict[str, tuple[str, TestCase]] = {}
    for case in found:
        plain = case.name.partition("_expanded")[0]
        operator = cases[plain][0] if plain in cases else case.model.graph.node[0].op_type
        cases[case.name] = (operator, case)
    return cases


def run_case(name: str, device: str) -> Outcome:
    """Run one test on a device (`wasm`, `webgpu`, `numpy`)."""
    operator, case = all_cases()[name]
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            check(case, device)
    except (UnsupportedError, ModelError) as error:
        lines = str(error).splitlines()
        return Outcome(name, operator, "unsupported", lines[min(1, len(lines) - 1)].strip())
    except Exception as error:
        text = " ".join(str(error).split())
        return Outcome(name, operator, "failed", f"{type(error).__name__}: {text[:200]}")
    return Outcome(name, operator, "passed")


def check(case: TestCase, device: str) -> None:
    """Raises `AssertionError` where an output differs from the expected one."""
    rep = WebmlcBackend.prepare(case.model, DEVICES[device])
    for inputs, expected in case.data_sets:
        actual = rep.run(list(inputs))
        assert len(actual) == len(expected), "the number of outputs"
        for got, want in zip(actual, expected, strict=True):
            compare(got, to_array(want), case)


def compare(got: Any, want: Any, case: TestCase) -> None:
    """As ONNX's own runner compares: dtype, shape, then values within the test's tolerance."""
    if isinstance(want, list) or want is None:
        assert type(got) is type(want), f"{got}, expected {want}"
        for one, other in zip(got or (), want or (), strict=True):
            compare(one, other, case)
        return
    assert got.dtype == want.dtype, f"dtype {got.dtype}, expected {want.dtype}"
    assert got.shape == want.shape, f"shape {got.shape}, expected {want.shape}"
    if got.dtype.kind == "f":
        np.testing.assert_allclose(got, want, rtol=case.rtol, atol=case.atol)
    elif got.dtype.kind == "V":  # bfloat16
        wide = (got.astype(np.float32), want.astype(np.float32))
        np.testing.assert_allclose(*wide, rtol=case.rtol, atol=case.atol)
    else:
        np.testing.assert_array_equal(got, want)


def run_all(names: list[str], device: str, jobs: int) -> Iterator[Outcome]:
    """Outcomes in order; `jobs` processes share the work."""
    task = partial(run_case, device=device)
    if jobs == 1:
        yield from map(task, names)
        return
    with multiprocessing.get_context("spawn").Pool(jobs) as pool:
        yield from pool.imap(task, names, chunksize=8)


def report(outcomes: list[Outcome]) -> None:
    """One line an operator, then the total."""
    table: dict[str, Counter[str]] = defaultdict(Counter)
    for outcome in outcomes:
        table[outcome.operator][outcome.state] += 1
    print(f"{'operator':30} {'passed':>7} {'failed':>7} {'unsupported':>12}")
    for operator, counts in sorted(table.items()):
        print(f"{operator:30} {counts['passed']:7} {counts['failed']:7} {counts['unsupported']:12}")
    total = Counter(outcome.state for outcome in outcomes)
    print(f"{'all':30} {total['passed']:7} {total['failed']:7} {total['unsupported']:12}")


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--device", choices=sorted(DEVICES), default="wasm")
    parser.add_argument("--operator", help="only the tests of this operator")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--verbose", action="store_true", help="say why each test did not pass")
    parser.add_argument("--pin", action="store_true", help="write the list of passing tests")
    arguments = parser.parse_args()
    names = [
        name
        for name, (operator, _) in all_cases().items()
        if arguments.operator in (None, operator)
    ]
    running = run_all(names, arguments.device, arguments.jobs)
    outcomes: list[Outcome] = []
    for outcome in track(running, "Running", len(names), transient=True):
        outcomes.append(outcome)
        if arguments.verbose and outcome.state != "passed":
            print(f"{outcome.state:12} {outcome.test}: {outcome.reason}", flush=True)
    report(outcomes)
    if arguments.pin and arguments.operator is None:
        passing = sorted(o.test for o in outcomes if o.state == "passed")
        (FOLDER / f"passing_{arguments.device}.txt").write_text("\n".join(passing) + "\n")


if __name__ == "__main__":
    main()

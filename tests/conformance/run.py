"""Run ONNX's own operator tests: passed, failed and unsupported per operator.

    python -m tests.conformance.run [--device wasm|webgpu|numpy] [--operator Conv] [--pin]
    python -m tests.conformance.run --as-is           # nothing specialised: see backend.py
    python -m tests.conformance.run --group simple    # models with data instead of operators
    python -m tests.conformance.run --json FILE       # results, for tests.conformance.support_table

"as is" counts the passing tests that `webmlc.build` and `webmlc.load` take as they are, no input
built in; on webgpu, "gpu only" those of which no step ran on the CPU. `--pin` writes the passing
tests to `passing_<device>.txt`, which `test_conformance.py` checks.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import warnings
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from onnx.backend.test.case.node import collect_testcases
from onnx.backend.test.case.test_case import TestCase
from rich.progress import track

from tests.conformance.backend import WebmlcBackend, WebmlcRep, to_array
from tests.conformance.model_cases import GROUPS, load_group
from webmlc.core.errors import ModelError, UnsupportedError

if TYPE_CHECKING:
    from webmlc.build_options import TargetName

DEVICES = {"wasm": "CPU", "webgpu": "CUDA", "numpy": "NUMPY"}
FOLDER = Path(__file__).parent


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of one test: `passed`, `failed` or `unsupported`, and why.

    `built_in`: the inputs that the model was specialised on. `on_cpu`: of a webgpu program, the
    kernels that ran on the CPU.
    """

    test: str
    operator: str
    state: str
    reason: str = ""
    built_in: tuple[str, ...] = ()
    on_cpu: tuple[str, ...] = ()

    @property
    def pin(self) -> str:
        """The line of `passing_<device>.txt` that says how a test passed.

        >>> Outcome("test_stft", "STFT", "passed", built_in=("frame_step", "frame_length")).pin
        'test_stft [frame_step, frame_length]'
        >>> Outcome("test_det_2d", "Det", "passed", on_cpu=("det",)).pin
        'test_det_2d (CPU)'
        """
        built_in = f" [{', '.join(self.built_in)}]" if self.built_in else ""
        return self.test + built_in + (" (CPU)" if self.on_cpu else "")


@cache
def all_cases(group: str = "node") -> dict[str, tuple[str, TestCase]]:
    """(operator, test) by name; an expanded test belongs to the operator it expands, the models of
    other groups to their group.
    """
    if group != "node":
        return {name: (group, case) for name, case in load_group(group).items()}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        test_cases = collect_testcases(None)
    cases: dict[str, tuple[str, TestCase]] = {}
    for case in test_cases:
        plain = case.name.partition("_expanded")[0]
        operator = cases[plain][0] if plain in cases else case.model.graph.node[0].op_type
        cases[case.name] = (operator, case)
    return cases


def run_case(
    name: str,
    device: str,
    group: str = "node",
    *,
    as_is: bool = False,
    target: TargetName | None = None,
) -> Outcome:
    """Run one test on a device (`wasm`, `webgpu`, `numpy`). With `as_is`, its model is never
    specialised. With the target "both", the next run may use the package on the other device.
    """
    operator, case = all_cases(group)[name]
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            rep = check(case, device, as_is, target)
    except (UnsupportedError, ModelError) as error:
        lines = str(error).splitlines()
        return Outcome(name, operator, "unsupported", lines[min(1, len(lines) - 1)].strip())
    except Exception as error:
        text = " ".join(str(error).split())
        return Outcome(name, operator, "failed", f"{type(error).__name__}: {text[:200]}")
    return Outcome(name, operator, "passed", built_in=rep.built_in, on_cpu=rep.on_cpu)


def check(case: TestCase, device: str, as_is: bool, target: TargetName | None = None) -> WebmlcRep:
    """The model after its runs. Raises `AssertionError` if an output differs from the expected
    one.
    """
    rep = WebmlcBackend.prepare(case.model, DEVICES[device], as_is=as_is, target=target)
    for inputs, expected in case.data_sets:
        actual = rep.run(list(inputs))
        assert len(actual) == len(expected), "the number of outputs"
        for got, want in zip(actual, expected, strict=True):
            compare(got, to_array(want), case)
    return rep


def compare(got: Any, want: Any, case: TestCase) -> None:
    """As ONNX's own runner compares: dtype, shape, then values within the test's tolerance."""
    if isinstance(want, list) or want is None:
        if isinstance(want, list) and isinstance(got, np.ndarray):
            got = list(got)  # the stacked elements of a sequence
        assert type(got) is type(want), f"{got}, expected {want}"
        for one, other in zip(got or (), want or (), strict=True):
            compare(one, other, case)
        return
    assert got.dtype == want.dtype, f"dtype {got.dtype}, expected {want.dtype}"
    assert got.shape == want.shape, f"shape {got.shape}, expected {want.shape}"
    if got.dtype.kind == "f":
        np.testing.assert_allclose(got, want, rtol=case.rtol, atol=case.atol)
    elif got.dtype.kind == "V":  # ml_dtypes' own: bfloat16, float8, int4, ...
        wide = (got.astype(np.float32), want.astype(np.float32))
        np.testing.assert_allclose(*wide, rtol=case.rtol, atol=case.atol)
    else:
        np.testing.assert_array_equal(got, want)


def run_all(names: list[str], device: str, jobs: int, group: str, as_is: bool) -> Iterator[Outcome]:
    """Outcomes in order; `jobs` processes share the work."""
    task = partial(run_case, device=device, group=group, as_is=as_is)
    if jobs == 1:
        yield from map(task, names)
        return
    with multiprocessing.get_context("spawn").Pool(jobs) as pool:
        yield from pool.imap(task, names, chunksize=8)


def report(outcomes: list[Outcome], device: str) -> None:
    """One line an operator, then the total."""
    columns = ["passed", "as is", *(["gpu only"] if device == "webgpu" else [])]
    columns += ["failed", "unsupported"]
    table: dict[str, Counter[str]] = defaultdict(Counter)
    for outcome in outcomes:
        for row in (outcome.operator, "all"):
            table[row][outcome.state] += 1
            table[row]["as is"] += outcome.state == "passed" and not outcome.built_in
            table[row]["gpu only"] += outcome.state == "passed" and not outcome.on_cpu
    total = table.pop("all", Counter())
    print(f"{'operator':30}" + "".join(f"{column:>12}" for column in columns))
    for operator, counts in (*sorted(table.items()), ("all", total)):
        print(f"{operator:30}" + "".join(f"{counts[column]:12}" for column in columns))


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--device", choices=sorted(DEVICES), default="wasm")
    parser.add_argument("--group", choices=("node", *GROUPS), default="node")
    parser.add_argument("--as-is", action="store_true", help="specialise no model")
    parser.add_argument("--operator", help="only the tests of this operator")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--verbose", action="store_true", help="say why each test did not pass")
    parser.add_argument("--json", type=Path, help="write the results to this file")
    parser.add_argument("--pin", action="store_true", help="write the list of passing tests")
    arguments = parser.parse_args()
    if arguments.pin and (arguments.operator or arguments.as_is or arguments.group != "node"):
        parser.error("--pin is of all operators' tests, run without --as-is")
    names = [
        name
        for name, (operator, _) in all_cases(arguments.group).items()
        if arguments.operator in (None, operator)
    ]
    options = (arguments.device, arguments.jobs, arguments.group, arguments.as_is)
    running = run_all(names, *options)
    outcomes: list[Outcome] = []
    for outcome in track(running, "Running", len(names), transient=True):
        outcomes.append(outcome)
        if arguments.verbose and outcome.state != "passed":
            print(f"{outcome.state:12} {outcome.test}: {outcome.reason}", flush=True)
        elif arguments.verbose:
            for title, details in (("built in", outcome.built_in), ("on the CPU", outcome.on_cpu)):
                if details:
                    print(f"{title:12} {outcome.test}: {', '.join(details)}", flush=True)
    report(outcomes, arguments.device)
    if arguments.json is not None:
        results = {
            "device": arguments.device,
            "group": arguments.group,
            "outcomes": [asdict(outcome) for outcome in outcomes],
        }
        arguments.json.write_text(json.dumps(results, indent=1) + "\n", "utf-8")
    if arguments.pin:
        passing = sorted(outcome.pin for outcome in outcomes if outcome.state == "passed")
        (FOLDER / f"passing_{arguments.device}.txt").write_text("\n".join(passing) + "\n")


if __name__ == "__main__":
    main()

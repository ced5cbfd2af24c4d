"""Write SUPPORT.md and NOT_PASSING.md, beside this file, from results: what webmlc supports.

    python -m tests.conformance.run --device wasm --json wasm.json
    python -m tests.conformance.run --device webgpu --json webgpu.json
    python -m tests.conformance.support_table wasm.json webgpu.json ...   # any devices and groups

"as is": the test passes through `webmlc.build` and `webmlc.load` alone, no input built in.
An operator's opsets are those of ONNX's schemas that webmlc reads; its types, those of the inputs
and outputs of its tests that pass.
"""

from __future__ import annotations

import argparse
import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import onnx
from onnx import helper

from tests.conformance.run import FOLDER, all_cases
from webmlc.frontend.read_model import NEWEST_OPSET, OLDEST_OPSET
from webmlc.graph.table import OPS

GENERATED = (
    "Written by `python -m tests.conformance.support_table` from results of "
    "`python -m tests.conformance.run`; do not edit.\n"
)
COLUMNS = (
    "Some tests pass only with inputs built in: values that webmlc has to know when it builds the "
    "model. *As is* counts those that pass without. `·`: ONNX has no test for the operator."
)
DEVICES = {"wasm": "WASM", "webgpu": "WebGPU"}


@dataclass(frozen=True, slots=True)
class Result:
    """The outcome of one test on one device (`tests.conformance.run.Outcome`)."""

    device: str
    group: str
    test: str
    operator: str
    state: str
    reason: str
    built_in: tuple[str, ...]
    on_cpu: tuple[str, ...]

    @property
    def is_passed(self) -> bool:
        return self.state == "passed"

    @property
    def is_as_is(self) -> bool:
        return self.is_passed and not self.built_in

    @property
    def is_gpu_alone(self) -> bool:
        return self.device == "webgpu" and self.is_passed and not self.on_cpu


def read_results(paths: Iterable[Path]) -> list[Result]:
    """The results in files that `tests.conformance.run --json` wrote."""
    results: list[Result] = []
    for path in paths:
        data: dict[str, Any] = json.loads(path.read_text("utf-8"))
        for outcome in data["outcomes"]:
            lists = {name: tuple(outcome.pop(name)) for name in ("built_in", "on_cpu")}
            results.append(Result(data["device"], data["group"], **lists, **outcome))
    return results


def support_document(results: Sequence[Result]) -> str:
    """SUPPORT.md: totals by group and device, then a row an operator."""
    lines = ["# What is supported", "", GENERATED]
    totals = ["tests of ONNX", "device", "passed", "as is", "on the GPU alone", "all"]
    lines += _table(totals, _totals(results))
    lines += ["", "Tests that do not pass, and why: [NOT_PASSING.md](NOT_PASSING.md).", ""]
    lines += [COLUMNS, ""]
    heads = ["operator", "opsets", "types in passing tests"]
    heads += ["WASM: passed / all", "as is", "WebGPU: passed / all", "as is", "GPU alone"]
    lines += _table(heads, _operators([r for r in results if r.group == "node"]))
    return "\n".join(lines) + "\n"


def not_passing_document(results: Sequence[Result]) -> str:
    """NOT_PASSING.md: every test that does not pass, by device, with the reason; then those that
    pass with inputs built in.
    """
    lines = ["# Tests that do not pass", "", GENERATED]
    for device, title in DEVICES.items():
        rows = [
            (r.test, r.state, _plain(r.reason))
            for r in sorted(results, key=lambda r: (r.group, r.test))
            if r.device == device and not r.is_passed
        ]
        lines += [f"## {title}: {len(rows)}", ""]
        lines += [*_table(["test", "", "why"], rows), ""] if rows else ["None.", ""]
    specialised = {r.test: ", ".join(r.built_in) for r in results if r.is_passed and r.built_in}
    lines += [f"# Tests that pass with inputs built in: {len(specialised)}", ""]
    lines += [*_table(["test", "inputs"], sorted(specialised.items())), ""]
    return "\n".join(lines)


def _totals(results: Sequence[Result]) -> list[tuple[str, ...]]:
    counts: dict[tuple[str, str], Counter[str]] = defaultdict(Counter)
    for result in results:
        row = counts[result.group, result.device]
        row["all"] += 1
        row["passed"] += result.is_passed
        row["as is"] += result.is_as_is
        row["alone"] += result.is_gpu_alone
    return [
        (
            "operators" if group == "node" else group,
            DEVICES.get(device, device),
            f"{row['passed']:,}",
            f"{row['as is']:,}",
            f"{row['alone']:,}" if device == "webgpu" else "",
            f"{row['all']:,}",
        )
        for (group, device), row in counts.items()
    ]


def _operators(results: Sequence[Result]) -> list[tuple[str, ...]]:
    by_operator: dict[tuple[str, str], list[Result]] = defaultdict(list)
    for result in results:
        by_operator[_domain(result.test), result.operator].append(result)
    ours = {key for key in OPS if key[0] != "webmlc"}
    rows = []
    for domain, name in sorted(ours | by_operator.keys()):
        tests = by_operator[domain, name]
        wasm, webgpu = ([r for r in tests if r.device == device] for device in DEVICES)
        title = f"{domain}.{name}" if domain else name
        counts = (*_counts(wasm), *_counts(webgpu))
        alone = str(sum(r.is_gpu_alone for r in webgpu)) if webgpu else "·"
        types = sorted({t for r in tests if r.is_passed for t in _types(r.test)})
        opsets = _opsets(domain, name) if (domain, name) in ours else "not in the table"
        rows.append((title, opsets, " ".join(types), *counts, alone))
    return rows


def _counts(results: Sequence[Result]) -> tuple[str, str]:
    """Passed of all; and as is."""
    passed, as_is = (sum(r.is_passed for r in results), sum(r.is_as_is for r in results))
    return (f"{passed} / {len(results)}", str(as_is)) if results else ("·", "·")


def _domain(test: str) -> str:
    """The domain of the operator that a test is of."""
    plain = test.partition("_expanded")[0]
    operator, case = all_cases()[plain if plain in all_cases() else test]
    domains = [n.domain for n in case.model.graph.node if n.op_type == operator]
    return domains[0] if domains else ""


def _types(test: str) -> set[str]:
    """The element types of a test's inputs and outputs."""
    graph = all_cases()[test][1].model.graph
    elements = [i.type.tensor_type.elem_type for i in (*graph.input, *graph.output)]
    types = {str(helper.tensor_dtype_to_np_dtype(e)) for e in elements if e}
    return {"string" if type_ == "object" else type_ for type_ in types}


@cache
def _versions() -> dict[tuple[str, str], list[int]]:
    """The opsets at which ONNX changed each operator."""
    versions: dict[tuple[str, str], list[int]] = defaultdict(list)
    for schema in onnx.defs.get_all_schemas_with_history():
        versions[schema.domain, schema.name].append(schema.since_version)
    return versions


def _opsets(domain: str, name: str) -> str:
    """`7–28` for an operator that has been there all the time."""
    versions = _versions().get((domain, name))
    if versions is None:
        return "1"
    newest = onnx.defs.onnx_opset_version() if not domain else max(versions)
    schema = onnx.defs.get_schema(name, max(versions), domain)
    last = schema.since_version - 1 if schema.deprecated else min(newest, NEWEST_OPSET)
    first = max(min(versions), 1 if domain else OLDEST_OPSET)
    return f"{first}–{last}" if first < last else str(last)


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    lines = [heads, ["---"] * len(heads), *rows]
    return [f"| {' | '.join(line)} |" for line in lines]


def _plain(reason: str) -> str:
    """On one line, without folders of the machine that it ran on."""
    text = re.sub(r"(/[\w.@-]+){2,}/", "", " ".join(reason.split()))
    return text.replace("|", "\\|")


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("results", nargs="+", type=Path, help="files of tests.conformance.run")
    parser.add_argument("--out", type=Path, default=FOLDER, help="the folder to write to")
    arguments = parser.parse_args()
    results = read_results(arguments.results)
    for name, text in (
        ("SUPPORT.md", support_document(results)),
        ("NOT_PASSING.md", not_passing_document(results)),
    ):
        (arguments.out / name).write_text(text, "utf-8")
        print(f"wrote {arguments.out / name}")


if __name__ == "__main__":
    main()

"""Write the page of operators: the operator table, beside the results of ONNX's tests."""

from __future__ import annotations

import re

from webmlc.frontend.protos import first_opset
from webmlc.graph.ops.refused import REFUSED
from webmlc.graph.table import OPS

HEAD = """\
# Operators

webmlc compiles these {count} operators. `webmlc ops` prints the same list, and `webmlc ops --json`
prints it for scripts. Operators that ONNX defines by others, such as Attention, run as those. A
build reports all nodes that it cannot compile at once, before it writes a package.

- *Kind* says how the operator can become part of a kernel. Elementwise operators join the
  kernel of what they read.
- *Types* are those of the inputs in ONNX's tests that pass.
- *WASM* and *WebGPU* count ONNX's tests of the operator that pass, of all its tests. Some tests
  pass only with inputs built in. No number: ONNX has no test of the operator.
"""
TABLE_HEAD = "| Operator | Since opset | Kind | Types | WASM | WebGPU |\n|---|---|---|---|---|---|"


def test_results(support: str) -> dict[str, tuple[str, str, str]]:
    """The types, and the results on both devices, by operator, from the text of SUPPORT.md."""
    results = {}
    for line in support.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split(" | ")]
        if len(cells) == 8 and re.fullmatch(r"[\w.]+", cells[0]) and cells[0] != "operator":
            types, wasm, webgpu = (cells[i].replace("·", "") for i in (2, 3, 5))
            results[cells[0]] = (types, wasm, webgpu)
    return results


def operators_page(support: str) -> str:
    """The page: a table for each domain, and one of the refused operators."""
    results = test_results(support)
    rows = {key: row for key, row in sorted(OPS.items()) if key[0] != "webmlc"}
    sections = [HEAD.format(count=len(rows))]
    for domain in sorted({domain for domain, _ in rows}):
        lines = [TABLE_HEAD]
        for (owner, name), row in rows.items():
            if owner == domain:
                types, wasm, webgpu = results.get(f"{domain}.{name}".lstrip("."), ("", "", ""))
                opset = first_opset(domain, name)
                cells = (f"`{name}`", str(opset), row.kind, types, wasm, webgpu)
                lines.append(f"| {' | '.join(cells)} |")
        sections += [f"## {domain or 'ai.onnx'}", "\n".join(lines)]
    lines = ["| Operator | Reason, and what to do |", "|---|---|"]
    lines += [f"| `{name}` | {reason} |" for name, reason in REFUSED.items()]
    sections += ["## Refused", "\n".join(lines)]
    return "\n\n".join(sections) + "\n"

"""The data of a report: every ONNX node leads to a kernel or to a reason, and every kernel to its
lines. What the page runs computes what the package computes.
"""

from __future__ import annotations

import base64
import json
import re
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.parser
import pytest
import wasmtime

from tests.command_line import run
from tests.small_models import model_of, random
from webmlc.build_options import BuildOptions
from webmlc.core.errors import InputError
from webmlc.host.load import load
from webmlc.host.wasm import SharedMemory, instantiate
from webmlc.package.manifest_json import read_manifest
from webmlc.pipeline import build
from webmlc.report.measurable import measurable
from webmlc.report.nodes import FATES
from webmlc.report.programs import all_symbols
from webmlc.report.write_report import Report, write_report
from webmlc.target.wasm.assemble import engine_config

pytestmark = pytest.mark.xdist_group("report")  # one worker builds what the tests share

GRAPH = """
small (float[n, 4] x, bool flag) => (float[n, 2, 2] y, float[n, 4] z) {
  [product] a = MatMul(x, w)
  [sum] b = Add(a, c)
  [clip] d = Relu(b)
  [same] e = Identity(d)
  [axes] shape = Constant<value = int64[3] {-1, 2, 2}>()
  [view] y = Reshape(e, shape)
  [scaled] k = Mul(c, c)
  [part] f = Sub(d, k)
  [dead] u = Neg(b)
  [size] s = Shape(b)
  [rows] r = Slice(s, zero, one)
  [wide] wide = Concat<axis = 0>(r, four)
  [flat] g = Reshape(f, wide)
  [choice] z = If(flag)<
    then_branch = t () => (float[n, 4] p) { [twice] p = Add(g, g) },
    else_branch = u () => (float[n, 4] q) { [negated] q = Neg(g) }
  >
}
"""
WIDE = """
wide (float[n, 64] x) => (float[n, 96] y) {
  [product] a = MatMul(x, w)
  [rest] y = Softmax(a)
}
"""
"""A model whose shaders differ from adapter to adapter."""
DOUBLE = """
double (double[n, 4] x) => (double[n, 4] y) {
  [sum] y = Add(x, x)
}
"""
"""A model whose program for the GPU runs a step on the CPU."""
STATIC = """
static (float[1, 4] x) => (float[1, 4] y) {
  [product] a = MatMul(x, w)
  [sum] b = Add(a, c)
  [clip] y = Relu(b)
}
"""


def weights() -> dict[str, Any]:
    rng = np.random.default_rng(0)
    sizes = {"zero": np.array([0]), "one": np.array([1]), "four": np.array([4])}
    return {"w": random(rng, 4, 4), "c": random(rng, 4), **sizes}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model with a node of every fate."""
    path = tmp_path_factory.mktemp("model") / "small.onnx"
    onnx.save(model_of(GRAPH, weights()), str(path))
    return path


@pytest.fixture(scope="module")
def report(model: Path) -> Report:
    return write_report(model, model.with_name("report.html"), sizes={"n": 3})


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A package whose sizes are known, so that a page can run it."""
    folder = tmp_path_factory.mktemp("static")
    build(model_of(STATIC, weights()), folder / "package", emit_text=True)
    return folder / "package"


def all_names(graph: onnx.GraphProto) -> list[str]:
    """The names of all nodes, also those in sub-graphs."""
    names = []
    for node in graph.node:
        names.append(node.name)
        for attribute in node.attribute:
            names += all_names(attribute.g)
    return names


def test_every_node_has_a_kernel_or_a_reason(model: Path, report: Report) -> None:
    nodes = {node["name"]: number for number, node in enumerate(report.data["nodes"])}
    assert sorted(nodes) == sorted(all_names(onnx.load(str(model)).graph))
    computed = {
        node
        for program in report.data["programs"].values()
        for step in program["steps"]
        for node in step["nodes"]
    }
    fates = {name: report.data["nodes"][n].get("fate", "") for name, n in nodes.items()}
    assert {n for n in nodes if not fates[n]} == {n for n in nodes if nodes[n] in computed}
    assert set(fates.values()) - {""} <= FATES.keys()
    assert fates["product"] == fates["sum"] == fates["clip"] == fates["twice"] == ""
    assert fates["axes"] == "constant"
    assert fates["scaled"] == "folded"
    assert fates["same"] == "removed"
    assert fates["size"] == fates["rows"] == fates["wide"] == "folded"  # it depends on n only
    assert fates["dead"] == "unused"
    stages = {node["name"]: node.get("stage") for node in report.data["nodes"]}
    assert stages["scaled"] == "infer shapes"
    assert stages["same"] == "simplify"


@pytest.mark.parametrize("device", ["wasm", "webgpu"])
def test_a_line_leads_to_the_nodes_that_it_computes(report: Report, device: str) -> None:
    """The product has lines of its own in the kernel that it shares with the sum and the rest."""
    program = report.data["programs"][device]
    names = [node["name"] for node in report.data["nodes"]]
    (step,) = (s for s in program["steps"] if names.index("product") in s["nodes"])
    stages = [{names[node] for node in stage} for stage in step["stages"]]
    assert {"product"} in stages and set.union(*stages) == {names[n] for n in step["nodes"]}
    kernel = program["kernels"][step["kernel"]]
    code = report.data["texts"][kernel["text"]].split("\n")
    first, end = kernel["lines"]
    starts = [run[0] for run in kernel["stages"]]
    assert starts[0] == 0 and starts == sorted(set(starts)) and starts[-1] < end - first
    computed: dict[int, set[str]] = {}
    for (start, *numbers), stop in zip(kernel["stages"], [*starts[1:], end - first], strict=True):
        nodes = set[str]().union(*(stages[number] for number in numbers))
        computed |= dict.fromkeys(range(first + start, first + stop), nodes)
    multiplies = re.compile(r"relaxed_madd|f32\.mul|fma\(|\+=")
    products = [line for line in computed if multiplies.search(code[line])]
    assert products and all(computed[line] == {"product"} for line in products)
    outputs = [line for line in computed if re.search(r"store.*\$out|^ *out\d", code[line])]
    assert outputs and all("clip" in computed[line] for line in outputs)


def test_nodes_of_branches_are_inside_the_branch(report: Report) -> None:
    nodes = report.data["nodes"]
    (inner,) = (node for node in nodes if node["name"] == "twice")
    assert nodes[inner["parent"]]["name"] == "choice"


def function_of(code: dict[str, Any], name: str, texts: dict[str, str]) -> set[tuple[str, int]]:
    """Check that the lines of a kernel's code hold its function, and return them."""
    first, end = code["lines"]
    text = "\n".join(texts[code["text"]].split("\n")[first:end])
    is_module = code["text"] == "relaxed"
    pattern = rf"^\(func \${name}(_cpu)?[ )]" if is_module else rf"^fn {name}\("
    assert len(re.findall(pattern, text, re.MULTILINE)) == 1
    assert text.startswith(("//", ";;", "@", "(func"))
    assert code["rule"] and code["loops"].startswith("@T.kernel")
    return {(code["text"], line) for line in range(first, end)}


@pytest.mark.parametrize("device", ["wasm", "webgpu"])
def test_the_lines_of_a_kernel_hold_its_function(report: Report, device: str) -> None:
    kernels = report.data["programs"][device]["kernels"]
    assert kernels
    taken: set[tuple[str, int]] = set()
    for kernel in kernels:
        lines = function_of(kernel, kernel["name"], report.data["texts"])
        assert taken.isdisjoint(lines)
        taken |= lines
    assert any(kernel["trace"] for kernel in kernels)


def test_a_kernel_has_its_code_in_each_variant_of_the_shaders(tmp_path: Path) -> None:
    model = model_of(WIDE, {"w": random(np.random.default_rng(0), 64, 96)})
    onnx.save(model, str(tmp_path / "wide.onnx"))
    page = tmp_path / "page.html"
    data = write_report(tmp_path / "wide.onnx", page, BuildOptions("webgpu", adapter="all")).data
    variants = ["gpu", "software", "software-subgroups", "subgroups"]
    assert list(data["texts"])[-4:] == variants
    for kernel in data["programs"]["webgpu"]["kernels"]:
        codes = (kernel, *kernel["others"])
        assert [code["text"] for code in codes] == variants
        for code in codes:
            function_of(code, kernel["name"], data["texts"])
    build(model, tmp_path / "package", "webgpu", adapter="all")
    packaged = write_report(tmp_path / "package", page).data
    assert packaged["texts"] == {name: data["texts"][name] for name in variants}
    for kernel in packaged["programs"]["webgpu"]["kernels"]:
        assert kernel["lines"] and all(other["lines"] for other in kernel["others"])


def test_a_kernel_that_the_gpu_leaves_to_the_cpu_is_explained(tmp_path: Path) -> None:
    model, page = tmp_path / "double.onnx", tmp_path / "page.html"
    graph = model_of(DOUBLE, {})
    for port in (*graph.graph.input, *graph.graph.output):
        port.type.tensor_type.shape.dim[0].dim_param = "rows.total"
    onnx.save(graph, str(model))
    data = write_report(model, page, BuildOptions("webgpu"), sizes={"rows.total": 3}).data
    (kernel,), (step,) = (data["programs"]["webgpu"][part] for part in ("kernels", "steps"))
    assert step["device"] == "wasm" and step["flops"] == 12
    function_of(kernel, kernel["name"], data["texts"])
    with pytest.raises(InputError, match="no dimension is named 'rows'; the model's are: rows_tot"):
        write_report(model, page, BuildOptions("webgpu"), sizes={"rows": 3})


@pytest.mark.parametrize("device", ["wasm", "webgpu"])
def test_the_program_of_a_module_calls_the_kernels_of_steps(report: Report, device: str) -> None:
    program = report.data["programs"][device]
    lines = report.data["texts"]["relaxed"].split("\n")
    taken: set[int] = set()
    for step in program["steps"]:
        if step["device"] == "webgpu":
            assert "calls" not in step
            continue
        first, end = step["calls"]
        text = "\n".join(lines[first:end])
        if "control" not in step:
            name = program["kernels"][step["kernel"]]["name"]
            assert re.search(rf"\(call \${re.escape(name)}(_cpu)? ", text)
        assert first < end and taken.isdisjoint(range(first, end))
        taken |= set(range(first, end))
    assert bool(taken) == any(step["device"] == "wasm" for step in program["steps"])


def test_steps_of_several_nodes_name_them_all(report: Report) -> None:
    nodes = report.data["nodes"]
    steps = report.data["programs"]["wasm"]["steps"]
    names = [{nodes[n]["name"] for n in step["nodes"]} for step in steps]
    assert any({"product", "sum", "clip"} <= group for group in names)


def test_memory_does_not_overlap(report: Report) -> None:
    for program in report.data["programs"].values():
        for plan in program["memory"]:
            for number, (_, first, last, offset, size) in enumerate(plan["boxes"]):
                assert offset >= 0 and offset + size <= plan["bytes"]
                for _, other_first, other_last, other, other_size in plan["boxes"][:number]:
                    together = first <= other_last and other_first <= last
                    assert not together or offset + size <= other or other + other_size <= offset


def test_the_page_holds_the_data(model: Path, report: Report) -> None:
    page = model.with_name("report.html").read_text("utf-8")
    (packed,) = re.findall(r'id="part-data">(.*?)</script>', page)
    assert json.loads(zlib.decompress(base64.b64decode(packed))) == json.loads(
        json.dumps(report.data)
    )
    assert "<!-- SCRIPT -->" not in page and "src=" not in page.partition("<script")[0]
    assert "branches" in report.data["run"]["reason"]  # this model cannot run in the page


def test_a_package_has_a_report(package: Path, tmp_path: Path) -> None:
    data = write_report(package, tmp_path / "report.html").data
    assert [node["name"] for node in data["nodes"]] == ["product", "sum", "clip"]
    program = data["programs"]["wasm"]
    kernels = program["kernels"]
    assert all(
        "lines" in kernel for device in data["programs"].values() for kernel in device["kernels"]
    )
    assert all("calls" in step for step in program["steps"])
    assert "flops" not in program["steps"][0] and "trace" not in kernels[0]


def test_the_plan_of_the_page_computes_what_the_package_computes(package: Path) -> None:
    """Follow the plan as `measure_here.js` does, with a real input in place of a random one."""
    host = load(package, device="wasm")
    x = np.array([[1, -2, 3, 0.5]], np.float32)
    expected = host.run({"x": x})["y"]
    manifest = read_manifest(package)
    plan, parts = measurable(manifest, package, all_symbols(manifest, {}))
    binary = zlib.decompress(base64.b64decode(parts["module-simd128"]))
    engine = wasmtime.Engine(engine_config())
    pages = -(-plan["total"] // 65536)
    kind = wasmtime.MemoryType(wasmtime.Limits(pages, pages), shared=True)
    memory = SharedMemory(engine, kind)
    data = memory.bytes

    def write(address: int, values: bytes) -> None:
        data[address : address + len(values)] = np.frombuffer(values, np.uint8)

    write(1024, struct.pack(f"<{len(plan['slots'])}i", *plan["slots"]))
    write(256, struct.pack("<2i", *plan["scratch"]))
    constants = base64.b64decode(parts["constants"])
    for address, size in plan["constants"]:
        write(address, constants[:size])
        constants = constants[size:]
    names = [b.name for b in manifest.programs["wasm"].buffers]
    write(plan["slots"][names.index("x")], x.tobytes())
    run = instantiate(engine, wasmtime.Module(engine, binary), memory)
    for step in plan["steps"]:
        run(step, step + 1, 0, 1)
    address = plan["slots"][names.index(manifest.outputs[0].buffer)]
    actual = data[address : address + expected.nbytes].view(np.float32).reshape(expected.shape)
    np.testing.assert_allclose(actual, expected, rtol=1e-6)


def test_the_command_writes_a_page_of_a_package(
    package: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    page = tmp_path / "page.html"
    result = run(monkeypatch, capsys, "report", package, "-o", page)
    assert result.code == 0 and "page.html" in result.out.replace("\n", "")
    assert "static: report" in page.read_text("utf-8")
    result = run(monkeypatch, capsys, "report", package, "--constant", "x=1", "-o", page)
    assert result.code == 2 and "built already" in result.err

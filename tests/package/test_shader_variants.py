"""Packages with shaders for GPUs of several features, and for software adapters: each host takes
one variant.

All adapters of the tests compute on the CPU, so hosts are also told that theirs is hardware.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import onnx
import onnx.parser
import onnxruntime
import pytest
from onnx import numpy_helper
from onnx.reference import ReferenceEvaluator

import webmlc
from tests.browser.pages import Page, open_pages
from tests.node import answer_once
from tests.package.test_machine_classes import BLANK, Numbering
from webmlc.core.dtypes import DType
from webmlc.core.errors import AdapterError, InputError, PackageError
from webmlc.core.machine import ADAPTERS, PLAIN_ADAPTERS, SHADER_FEATURES, SOFTWARE_ADAPTERS
from webmlc.core.machine_class import MachineClass, adapter_name
from webmlc.host import choose_schedules, webgpu_adapter
from webmlc.host.webgpu_adapter import find_adapter
from webmlc.package.manifest import Program
from webmlc.package.manifest_json import from_json, read_manifest, to_json
from webmlc.package.sizes import evaluate

SCRIPT = Path(__file__).parents[1] / "js" / "choose_shaders.mjs"
PATHS = {kind: f"kernels.{kind}.wgsl.deflate" for kind in ADAPTERS}
SHADERS = {kind: path for kind, path in PATHS.items() if "f16" not in kind}
"""The shaders of a model without halves."""
FEATURES = {
    kind: ("subgroups",) if "quads" in m.features else tuple(sorted(m.features))
    for kind, m in ADAPTERS.items()
    if m.features
}
NEEDS = {kind: features for kind, features in FEATURES.items() if kind in SHADERS}
ROWS = 5


def model_of(steps: str) -> onnx.ModelProto:
    """A model with weights `w`, some of whose kernels differ from adapter to adapter."""
    model = onnx.parser.parse_model(
        f"""<ir_version: 8, opset_import: ["" : 17]>
        g (float[n,64] x) => (float[n,96] y) {{ {steps} }}"""
    )
    w = np.random.default_rng(0).standard_normal((64, 96), np.float32)
    model.graph.initializer.append(numpy_helper.from_array(w, "w"))
    return model


MODEL = model_of("h = MatMul(x, w) y = Softmax <axis = -1> (h)")
X = np.sin(np.arange(ROWS * 64, dtype=np.float32)).reshape(ROWS, 64)


def expected() -> Any:
    return ReferenceEvaluator(MODEL).run(None, {"x": X})[0]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A blank page beside a package with all variants, and one with shaders for GPUs only."""
    root = tmp_path_factory.mktemp("variants")
    (root / "index.html").write_text(BLANK)
    webmlc.build(MODEL, root / "all", adapter="all", emit_text=True)
    webmlc.build(MODEL, root / "gpu")
    return root


def program_of(package: Path) -> Program:
    return read_manifest(package).programs["webgpu"]


def workgroups(program: Program, variant: str) -> list[list[int]]:
    """The workgroups of each step in a variant of the shaders."""
    values = program.values({"n": ROWS})
    sizes = [step.launch_in(variant).workgroups for step in program.steps]
    return [[evaluate(size, values) for size in launch] for launch in sizes]


def in_python(package: Path, shaders: Any = None) -> str | None:
    """Check a run of a package in Python, and return the variant of its shaders."""
    model = webmlc.load(package, device="webgpu", shaders=shaders)
    np.testing.assert_allclose(model.run({"x": X})["y"], expected(), atol=1e-6)
    chosen = model.shaders
    model.dispose()
    return chosen


def test_the_variants_share_all_but_the_shaders_and_the_workgroups(site: Path) -> None:
    every, gpu = (program_of(site / name) for name in ("all", "gpu"))
    assert (every.segments, every.memory, every.resources) == (
        gpu.segments,
        gpu.memory,
        gpu.resources,
    )
    assert workgroups(every, "gpu") == workgroups(gpu, "gpu")
    assert [list(step.launches) for step in every.steps] == [["gpu", *SOFTWARE_ADAPTERS]] * 2
    assert (every.shaders, every.shader_features) == (SHADERS, NEEDS)
    assert (gpu.shaders, gpu.shader_features) == ({"gpu": SHADERS["gpu"]}, {})
    webmlc.build(MODEL, site / "software", adapter="software")
    software = program_of(site / "software")
    assert workgroups(every, "software") == workgroups(software, "software")
    assert software.shaders == {kind: SHADERS[kind] for kind in SOFTWARE_ADAPTERS}
    for kind, package in (("gpu", "gpu"), *((kind, "software") for kind in SOFTWARE_ADAPTERS)):
        path = SHADERS[kind]
        assert (site / "all" / path).read_bytes() == (site / package / path).read_bytes()
    for kind in SHADERS:
        text = (site / "all" / f"kernels.{kind}.wgsl").read_text()
        assert "@compute" in text
        assert [f for f in SHADER_FEATURES if f"enable {f};" in text] == [*NEEDS.get(kind, ())]


def test_equal_variants_are_one_file(tmp_path: Path) -> None:
    webmlc.build(model_of("h = MatMul(x, w) y = Relu(h)"), tmp_path / "differ", adapter="all")
    differing = program_of(tmp_path / "differ").shaders
    assert differing == {kind: SHADERS[kind] for kind in ("gpu", *SOFTWARE_ADAPTERS)}
    model = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["" : 17]> g (float[n,8] x) => (float[n,8] y) {
            y = Relu(x)
        }"""
    )
    manifest = webmlc.build(model, tmp_path / "equal", adapter="all")
    program = manifest.programs["webgpu"]
    assert program.shaders == dict.fromkeys(PLAIN_ADAPTERS, SHADERS["gpu"])
    assert program.shader_features == {}
    assert not {path for kind, path in SHADERS.items() if kind != "gpu"} & manifest.files.keys()
    assert all([*step.launches] == ["gpu"] for step in program.steps)


def test_python_takes_the_shaders_for_its_adapter(site: Path) -> None:
    package = site / "all"
    assert in_python(package) == "software", "the adapter of the tests is software"
    for kind in SHADERS:
        assert in_python(package, kind) == kind
    assert in_python(site / "gpu") == "gpu", "there is no other"
    with patch.object(choose_schedules, "is_software", lambda adapter: False):
        assert in_python(package) == list(SHADERS)[-1], "the adapter of the tests has all features"
        assert in_python(package, "software") == "software"
        with patch.object(choose_schedules, "offered_features", lambda adapter: frozenset()):
            assert in_python(package) == "gpu"
    assert webmlc.load(package, device="wasm").shaders is None


def test_a_program_needs_the_features_of_its_variant(site: Path) -> None:
    for kind, path in SHADERS.items():
        program = choose_schedules.program_in(program_of(site / "all"), kind)
        assert all([*step.launches] == [kind] for step in program.steps)
        assert program.shaders == {kind: path}
        assert program.resources.features == NEEDS.get(kind, ())


def test_an_adapter_without_the_features_is_refused(site: Path) -> None:
    offers_nothing = patch.object(webgpu_adapter, "offered_features", lambda adapter: frozenset())
    for kind, features in NEEDS.items():
        lacking = ", ".join(features)
        with offers_nothing, pytest.raises(AdapterError, match=f"lacks {lacking}, which the"):
            in_python(site / "all", kind)


def test_python_reads_one_file_of_shaders(site: Path, tmp_path: Path) -> None:
    webmlc.build(MODEL, tmp_path, "webgpu", adapter="all")
    (tmp_path / SHADERS["gpu"]).unlink()
    assert in_python(tmp_path) == "software"
    with pytest.raises(PackageError, match=r"kernels\.gpu\.wgsl\.deflate: cannot be read"):
        in_python(tmp_path, "gpu")


def test_python_names_shaders_that_there_are_not(site: Path) -> None:
    with pytest.raises(PackageError, match=r"no 'software' shaders \(it has gpu\); build it with"):
        in_python(site / "gpu", "software")
    with pytest.raises(InputError, match="shaders is 'fast', expected 'gpu' or 'software' or 's"):
        in_python(site / "all", "fast")


def test_each_variant_has_the_schedules_for_a_class_of_machines(tmp_path: Path) -> None:
    machine = MachineClass("webgpu", "wgpu", adapter_name(find_adapter().info))
    text = """<ir_version: 8, opset_import: ["" : 17]> g (float[n,64] x) => (float[n,64] y) {
        one = Constant <value_float = 1000.0> ()
        y = Add(x, one)
    }"""
    model = onnx.parser.parse_model(text)
    webmlc.build(model, tmp_path, "webgpu", adapter="all", choose=Numbering(machine))
    assert {t.variant for t in read_manifest(tmp_path).tuned} == {*PLAIN_ADAPTERS}
    for kind in PLAIN_ADAPTERS:
        loaded = webmlc.load(tmp_path, device="webgpu", shaders=kind)  # type: ignore[arg-type]
        y = loaded.run({"x": np.zeros((ROWS, 64), np.float32)})["y"]
        loaded.dispose()
        assert {*y.ravel().tolist()} == {1001}


QUADS = {"subgroupMinSize": 4, "subgroupMaxSize": 4}
HOSTS: dict[str, tuple[dict[str, Any], str]] = {
    "hardware": ({"info": {"vendor": "nvidia", "architecture": "hopper"}}, "gpu"),
    "subgroups": ({"info": {"vendor": "nvidia"}, "features": ["subgroups"]}, "subgroups"),
    "fallback": ({"info": {"vendor": "google", "isFallbackAdapter": True}}, "software"),
    "SwiftShader": ({"info": {"vendor": "google", "architecture": "swiftshader"}}, "software"),
    "SwiftShader with quads": (
        {"info": {"architecture": "swiftshader", **QUADS}, "features": ["subgroups"]},
        "software-subgroups",
    ),
    "SwiftShader that offers no subgroups": (
        {"info": {"architecture": "swiftshader", **QUADS}},
        "software",
    ),
    "subgroups of several quads": (
        {
            "info": {"isFallbackAdapter": True, **QUADS, "subgroupMaxSize": 8},
            "features": ["subgroups"],
        },
        "software",
    ),
    "lavapipe": ({"info": {"description": "llvmpipe (LLVM 19.1.7, 256 bits)"}}, "software"),
    "a device": ({"adapterInfo": {"architecture": "swiftshader"}}, "software"),
    "an old device": ({}, "gpu"),
}


def in_script(shaders: dict[str, str], choice: str | None = None) -> dict[str, Any]:
    """The choice of the JavaScript runtime on each adapter."""
    adapters = [adapter for adapter, _ in HOSTS.values()]
    job = {"adapters": adapters, "shaders": shaders, "features": NEEDS, "choice": choice}
    return dict(zip(HOSTS, answer_once(SCRIPT, job), strict=True))


def test_javascript_takes_the_shaders_for_its_adapter() -> None:
    results = {
        kind: {
            "shaders": {kind: path},
            "features": [*NEEDS.get(kind, ())],
            "workgroups": [2 if kind == "software" else 8, 1, 1],
            "dtypes": ["float32", "float32"],
            "arena": 1024,
        }
        for kind, path in SHADERS.items()
    }
    assert in_script(SHADERS) == {name: results[kind] for name, (_, kind) in HOSTS.items()}
    for kind in SHADERS:
        assert in_script(SHADERS, kind) == dict.fromkeys(HOSTS, results[kind])
        assert in_script({kind: SHADERS[kind]}) == dict.fromkeys(HOSTS, results[kind])
    missing = in_script({"software": SHADERS["software"]}, "gpu")["hardware"]
    assert missing["code"] == "package"
    assert missing["error"] == (
        "the package has no gpu shaders (it has software); build it with --adapter all"
    )


DEPTH, WIDTH = 6, 64


def deep_model(dtype: type) -> onnx.ModelProto:
    """Layers of a product and a tanh, none of which makes the error of its input larger. Outputs:
    after half of them, and after all.
    """
    element = "float16" if dtype is np.float16 else "float"
    values = ["x", *(f"h{n}" for n in range(1, DEPTH + 1))]
    steps = "".join(
        f"m{n} = MatMul({values[n - 1]}, w{n}) h{n} = Tanh(m{n}) " for n in range(1, DEPTH + 1)
    )
    outputs = ", ".join(f"{element}[{ROWS},{WIDTH}] h{n}" for n in (DEPTH // 2, DEPTH))
    model = onnx.parser.parse_model(
        f"""<ir_version: 8, opset_import: ["" : 17]>
        g ({element}[{ROWS},{WIDTH}] x) => ({outputs}) {{ {steps} }}"""
    )
    rng = np.random.default_rng(0)
    for n in range(1, DEPTH + 1):
        weights, _ = np.linalg.qr(rng.standard_normal((WIDTH, WIDTH)))  # of norm 1
        halves = weights.astype(np.float16).astype(dtype)
        model.graph.initializer.append(numpy_helper.from_array(halves, f"w{n}"))
    return model


@pytest.fixture(scope="module")
def deep(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A package of a model in float16 with all variants."""
    folder = tmp_path_factory.mktemp("deep")
    webmlc.build(deep_model(np.float16), folder, "webgpu", adapter="all")
    return folder


def test_halves_are_stored_where_the_adapter_has_them(deep: Path) -> None:
    program = program_of(deep)
    kinds = ("gpu", *SOFTWARE_ADAPTERS, "f16")
    assert program.shaders == {kind: PATHS[kind] for kind in kinds}
    assert program.halves is not None
    by_kind = {kind: choose_schedules.program_in(program, kind) for kind in program.shaders}
    stored = {b.name for b in by_kind["f16"].buffers if b.dtype is not DType.float16}
    assert stored == set(), "weights and results of all layers are halves"
    assert by_kind["gpu"].buffers == program.buffers
    arenas = {kind: p.resources.arena["webgpu"] or 0 for kind, p in by_kind.items()}
    assert arenas["gpu"] == arenas["software"] > arenas["f16"]
    assert from_json(to_json(read_manifest(deep))) == read_manifest(deep)


@pytest.mark.parametrize("kind", ["gpu", "f16"])
def test_the_error_of_halves_grows_with_the_depth(deep: Path, kind: Any) -> None:
    x = np.random.default_rng(1).standard_normal((ROWS, WIDTH)).astype(np.float16)
    wide = deep_model(np.float32).SerializeToString()
    want = onnxruntime.InferenceSession(wide).run(None, {"x": x.astype(np.float32)})
    model = webmlc.load(deep, device="webgpu", shaders=kind)
    results = model.run({"x": x})
    assert model.shaders == kind
    model.dispose()
    for depth, reference in zip((DEPTH // 2, DEPTH), want, strict=True):
        result = results[f"h{depth}"].astype(np.float64)
        error = np.linalg.norm(result - reference, axis=-1).max()
        # Each layer rounds its result once, by at most 2^-11 of it. No layer makes errors larger.
        rounded = depth if kind == "f16" else 1
        bound = rounded * 2.0**-11 * np.linalg.norm(x.astype(np.float64), axis=-1).max()
        assert 0 < error <= bound, f"{kind}, h{depth}: error {error:.2e}, bound {bound:.2e}"


def test_javascript_stores_halves_where_a_variant_has_them() -> None:
    job = {
        "adapters": [{"features": ["shader-f16"]}, {}],
        "shaders": {kind: PATHS[kind] for kind in ("gpu", "f16")},
        "features": FEATURES,
        "halves": {"buffers": [1], "arena": 512},
    }
    with_halves, without = answer_once(SCRIPT, job)
    assert with_halves["shaders"] == {"f16": PATHS["f16"]}
    assert with_halves["features"] == ["shader-f16"]
    assert (with_halves["dtypes"], with_halves["arena"]) == (["float32", "float16"], 512)
    assert without["shaders"] == {"gpu": PATHS["gpu"]}
    assert (without["dtypes"], without["arena"]) == (["float32", "float32"], 1024)


IN_PAGE = """async ({ shaders, hides }) => {
  const { load } = await import("/all/webmlc.js");
  const hidden = { get: () => ({ vendor: "hidden" }) };
  if (hides) Object.defineProperty(GPUAdapter.prototype, "info", hidden);
  let last;
  const onProgress = (progress) => (last = progress);
  const model = await load("/all/", { device: "webgpu", shaders, onProgress });
  const data = Float32Array.from({ length: ROWS * 64 }, (_, i) => Math.sin(i));
  const { y } = await model.run({ x: { dtype: "float32", shape: [ROWS, 64], data } });
  const { shaders: chosen, resources } = model;
  model.dispose();
  const text = ({ code, message }) => [code, message];
  const error = await load("/all/", { shaders: "fast" }).catch(text);
  const adapter = await navigator.gpu.requestAdapter();
  const offered = [...adapter.features];
  const lanes = [adapter.info.subgroupMinSize, adapter.info.subgroupMaxSize];
  const { download } = resources;
  return { y: Array.from(y.data), chosen, download, last, error, offered, lanes };
}""".replace("ROWS", str(ROWS))


def test_chromium_downloads_the_shaders_for_its_adapter(site: Path) -> None:
    cases = [
        ({}, "software"),
        ({"shaders": "gpu"}, "gpu"),
        ({"hides": True}, "gpu"),
    ]
    reports = open_pages({"/": site}, *(Page("/", IN_PAGE, arg=arg) for arg, _ in cases))
    for report, (arg, kind) in zip(reports, cases, strict=True):
        value = report.value
        if "shaders" not in arg and "subgroups" in value["offered"]:
            kind = {"gpu": "subgroups"}.get(kind, kind)
            if kind == "software" and value["lanes"] == [4, 4]:
                kind = "software-subgroups"
        assert value["chosen"] == kind
        y = np.reshape(value["y"], (ROWS, 96))
        np.testing.assert_allclose(y, expected(), atol=1e-6)
        assert value["last"]["loaded"] == value["last"]["total"] == value["download"]
        fetched = [r["path"] for r in report.requests if ".wgsl" in r["path"]]
        assert fetched == [f"/all/{SHADERS[kind]}"]
        assert value["error"][0] == "input"
        assert value["error"][1].startswith('shaders is "fast", expected "gpu" or "software"')


SIZES = """<ir_version: 8, opset_import: ["" : 17]>
g (float[64,32] x) => (float[64,128] z) {
    y = MatMul(x, a)
    s = Softmax(y)
    z = MatMul(s, b)
}"""


def test_kernels_that_differ_in_sizes_share_an_entry_point(tmp_path: Path) -> None:
    model = onnx.parser.parse_model(SIZES)
    random = np.random.default_rng(0)
    for name, rows in {"a": 32, "b": 128}.items():
        weights = random.standard_normal((rows, 128), np.float32)
        model.graph.initializer.append(numpy_helper.from_array(weights, name))
    x = random.standard_normal((64, 32), np.float32)
    manifest = webmlc.build(model, tmp_path / "model", adapter="software")
    steps = [step for step in manifest.programs["webgpu"].steps if step.launch.integers]
    assert len(steps) == 2
    assert len({step.launch.integers for step in steps}) == 2
    assert {step.entry_in("software") for step in steps} == {steps[0].kernel}
    (z,) = webmlc.load(tmp_path / "model", device="webgpu").run({"x": x}).values()
    (reference,) = ReferenceEvaluator(model).run(None, {"x": x})
    np.testing.assert_allclose(z, reference, rtol=1e-4, atol=1e-5)


ROWS_OF_ANY_NUMBER = """<ir_version: 8, opset_import: ["" : 17]>
g (float[n,64] x) => (float[n,96] y) { h = MatMul(x, w) y = Relu(h) }"""
RUN_ROWS = """async (counts) => {
  const compiled = [], texts = new Map();
  const { createShaderModule, createComputePipelineAsync } = GPUDevice.prototype;
  GPUDevice.prototype.createShaderModule = function (descriptor) {
    const module = createShaderModule.call(this, descriptor);
    texts.set(module, descriptor.code);
    return module;
  };
  GPUDevice.prototype.createComputePipelineAsync = function (descriptor) {
    const text = texts.get(descriptor.compute.module);
    const sections = [...text.matchAll(/^override (\\w+)/gm)].map(([, name]) => name);
    compiled.push(sections.map((name) => Number(text.includes(`if (${name}) {`))));
    return createComputePipelineAsync.call(this, descriptor);
  };
  const { load } = await import("/model/webmlc.js");
  const model = await load("/model/", { device: "webgpu" });
  const run = async (n) => {
    const data = Float32Array.from({ length: n * 64 }, (_, i) => Math.sin(i));
    const { y } = await model.run({ x: { dtype: "float32", shape: [n, 64], data } });
    return { y: Array.from(y.data), pipelines: compiled.length };
  };
  const results = [];
  for (const group of counts) results.push(...await Promise.all(group.map(run)));
  model.dispose();
  return { compiled, results };
}"""


@pytest.mark.parametrize(
    ("groups", "pipelines"),
    [([[1], [1], [64], [65], [1]], [0, 0, 1, 1, 1]), ([[1, 64, 65], [64], [1]], None)],
    ids=["one by one", "at once"],
)
def test_a_pipeline_contains_the_sections_that_runs_need(
    groups: list[list[int]], pipelines: list[int] | None, tmp_path: Path
) -> None:
    """A product of any number of rows has a section of tiles, and one of what is left over. Runs
    that start at once do not replace what another one needs.
    """
    model = onnx.parser.parse_model(ROWS_OF_ANY_NUMBER)
    w = np.random.default_rng(0).standard_normal((64, 96), np.float32)
    model.graph.initializer.append(numpy_helper.from_array(w, "w"))
    (tmp_path / "index.html").write_text(BLANK)
    manifest = webmlc.build(model, tmp_path / "model", adapter="software")
    assert any(len(step.launch.sections) == 2 for step in manifest.programs["webgpu"].steps)
    counts = [n for group in groups for n in group]
    (page,) = open_pages({"/": tmp_path}, Page("/", RUN_ROWS, arg=groups))
    compiled, results = page.value["compiled"], page.value["results"]
    assert [sections for sections in compiled if sections] == [[0, 1], [1, 1]]
    if pipelines is not None:
        assert [r["pipelines"] - results[0]["pipelines"] for r in results] == pipelines
    for n, result in zip(counts, results, strict=True):
        x = np.sin(np.arange(n * 64, dtype=np.float32)).reshape(n, 64)
        expected = np.maximum(x @ w, 0)
        y = np.reshape(result["y"], (n, 96))
        np.testing.assert_allclose(y, expected, rtol=1e-4, atol=1e-5)
        (host,) = webmlc.load(tmp_path / "model", device="webgpu").run({"x": x}).values()
        np.testing.assert_allclose(host, expected, rtol=1e-4, atol=1e-5)

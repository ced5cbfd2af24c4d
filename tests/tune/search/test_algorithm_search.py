"""The search of algorithms: a layer's alternatives, what each adds and removes, and the answer."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import onnx.parser
import pytest

import webmlc
from tests.tune.small_search import PLATFORM, FixedWorker
from webmlc.core.machine import ADAPTERS, SOFTWARE_ADAPTERS
from webmlc.graph.algorithms.cost import DIRECT
from webmlc.graph.fuse.choose_padding import APART, BEFORE
from webmlc.tune.choose import TunedChooser
from webmlc.tune.database import AlgorithmRecord, Database, Record
from webmlc.tune.measure.platforms import Platform
from webmlc.tune.measure.trial import Measurement, Trial
from webmlc.tune.measure.workers import work
from webmlc.tune.search import algorithm_search
from webmlc.tune.search.algorithm_search import Variants, plan
from webmlc.tune.search.search import Search, TaskJob
from webmlc.tune.search.task_search import Options, TaskSearch
from webmlc.tune.tasks import Graph, read_graph
from webmlc.tune.usage import graphs_of_targets

pytestmark = pytest.mark.xdist_group("algorithm_search")  # one worker builds what the tests share

WEIGHTS = np.random.default_rng(0).normal(0, 0.1, (32, 32, 3, 3)).astype(np.float32)
MODEL = onnx.parser.parse_model("""<ir_version: 10, opset_import: ["" : 21]>
    g (float[1,32,20,20] x, float[32,32,3,3] w) => (float[1,32,18,18] y) { y = Conv(x, w) }""")
LAYER = "conv 32 to 32 over 18x18, 3x3"


@pytest.fixture(scope="module")
def graph() -> Graph:
    """A convolution by constant weights."""
    return read_graph(MODEL, "wasm", {}, constants={"w": WEIGHTS})


@pytest.fixture(scope="module")
def variants(graph: Graph) -> Variants:
    """All variants of the convolution."""
    return plan(graph, seconds=60)


def searches_of(variants: Variants, milliseconds: dict[str, float]) -> list[TaskSearch]:
    """Searches whose defaults take some time, by the start of a kernel's name; others take 1 ms."""
    search = Search(variants.tasks, Options(measurements=0))
    search.next_job(PLATFORM)
    searches = search.all_searches()
    for item in searches:
        times = [ms for name, ms in milliseconds.items() if item.task.name.startswith(name)]
        item.least_ms = times[0] if times else 1.0
    return searches


def test_a_convolution_has_forms_of_winograd_and_is_computed_directly(
    graph: Graph, variants: Variants
) -> None:
    names = graph.alternatives()[LAYER]
    assert DIRECT in names
    assert len(names) >= 3
    assert [variant.algorithm for variant in variants.variants] == list(names[1:])
    kernels = {task.name for task in graph.tasks({LAYER: DIRECT})}
    assert not any(name.startswith("winograd") for name in kernels)
    forms = {task.name for task in graph.tasks({LAYER: "winograd 4x4"})}
    assert any(name.startswith("winograd") for name in forms)


def test_no_variant_is_lowered_without_time(graph: Graph) -> None:
    assert plan(graph, seconds=-1).variants == ()


def test_a_layer_whose_variants_are_not_all_lowered_is_left_out(
    graph: Graph, monkeypatch: pytest.MonkeyPatch
) -> None:
    seconds = itertools.count()
    monkeypatch.setattr(algorithm_search, "time", SimpleNamespace(monotonic=seconds.__next__))
    planned = plan(graph, seconds=1.5)  # the second variant would begin after that
    assert next(seconds) == 3
    assert (planned.variants, planned.algorithms, planned.tasks) == ((), {}, ())


def test_the_fastest_algorithm_is_chosen_if_it_is_worth_it(variants: Variants) -> None:
    slow, fast = {"winograd": 10.0, "conv": 1.0}, {"winograd": 0.1, "conv": 100.0}
    default = variants.variants[0].layer
    chosen = variants.choose(searches_of(variants, slow))
    algorithms = {variant.algorithm for variant in variants.variants}
    if DIRECT in algorithms:
        assert chosen[default][0] == DIRECT
        assert chosen[default][1] < 0.95
        assert variants.choose(searches_of(variants, fast)).get(default, ("", 1))[0] != DIRECT
    same = variants.choose(searches_of(variants, {"winograd": math.inf, "conv": math.inf}))
    assert same == {}  # what was not measured is not chosen


@pytest.mark.parametrize("algorithm", [DIRECT, "winograd 2x2", "winograd 4x4", "no such form"])
def test_a_build_follows_the_answer_and_computes_the_same(tmp_path: Path, algorithm: str) -> None:
    x = np.random.default_rng(1).normal(size=(1, 32, 20, 20)).astype(np.float32)
    outputs = []
    for folder, algorithms in (("a", {}), ("b", {LAYER: algorithm})):
        webmlc.build(
            MODEL,
            tmp_path / folder,
            "wasm",
            constants={"w": WEIGHTS},
            algorithms={"wasm": algorithms},
        )
        outputs.append(webmlc.load(tmp_path / folder, device="wasm").run({"x": x})["y"])
    np.testing.assert_allclose(outputs[1], outputs[0], atol=1e-4)


PADDED = onnx.parser.parse_model("""<ir_version: 10, opset_import: ["" : 21]>
    g (float[1,8,40,40] x, float[8,8,1,1] v, float[8,8,3,3] w) => (float[1,8,40,40] y)
    { a = Conv(x, v) b = Relu(a) y = Conv<pads = [1, 1, 1, 1]>(b, w) }""")
"""A pointwise convolution, whose result the next one reads padded."""
PADDING = "pad 1x40x40x8 to 1x42x42x8"


def test_a_feature_map_is_padded_before_or_apart(tmp_path: Path) -> None:
    random = np.random.default_rng(2)
    shapes = {"v": (8, 8, 1, 1), "w": (8, 8, 3, 3)}
    constants = {n: random.normal(size=s).astype(np.float32) for n, s in shapes.items()}
    graph = read_graph(PADDED, "wasm", {}, constants=constants)
    default, other = graph.alternatives()[PADDING]
    assert (default, other) == (APART, BEFORE)
    names = {place: [t.name for t in graph.tasks({PADDING: place})] for place in (default, other)}
    assert any(name.startswith("pad") for name in names[APART])
    assert not any(name.startswith("pad") for name in names[BEFORE])
    x = random.normal(size=(1, 8, 40, 40)).astype(np.float32)
    outputs = []
    for place in (default, other):
        chosen = {"wasm": {PADDING: place}}
        webmlc.build(PADDED, tmp_path / place, "wasm", constants=constants, algorithms=chosen)
        outputs.append(webmlc.load(tmp_path / place, device="wasm").run({"x": x})["y"])
    np.testing.assert_array_equal(*outputs)


def test_a_search_on_the_gpu_tries_winograds_form() -> None:
    graph = read_graph(MODEL, "webgpu", {}, constants={"w": WEIGHTS}, machine="software")
    default, form, *_ = graph.alternatives()[LAYER]
    assert default == DIRECT
    names = {task.match.function.name for task in graph.tasks({LAYER: form})}
    assert {"winogradinput", "winogradproduct"} <= names


def test_records_may_serve_kernels_of_each_target() -> None:
    graph = Graph(read_graph(SUM, "webgpu", {}).module, ADAPTERS["gpu"], {})
    graphs = graphs_of_targets(graph, ADAPTERS.values())
    assert [graph.machine for graph in graphs] == [ADAPTERS["gpu"], ADAPTERS["software"]]


SUM = onnx.parser.parse_model("""<ir_version: 10, opset_import: ["" : 21]>
    g (float[40,64,6] x) => (float[6] y) <int64[2] axes = {0, 1}>
    { y = ReduceSum<keepdims = 0>(x, axes) }""")
REDUCTION = "reduce 40x64 to 6"


@pytest.mark.parametrize("parts", ["1 part", "4 parts", "256 parts", "no such number"])
def test_a_reduction_on_the_gpu_has_several_numbers_of_parts(tmp_path: Path, parts: str) -> None:
    alternatives = read_graph(SUM, "webgpu", {}).alternatives()
    assert {"1 part", "4 parts", "16 parts", "64 parts", "256 parts"} <= {*alternatives[REDUCTION]}
    x = np.random.default_rng(3).integers(-4, 5, (40, 64, 6)).astype(np.float32)
    manifest = webmlc.build(SUM, tmp_path, "webgpu", algorithms={"webgpu": {REDUCTION: parts}})
    assert len(manifest.programs["webgpu"].steps) == (1 if parts == "1 part" else 2)
    y = webmlc.load(tmp_path, device="webgpu").run({"x": x})["y"]
    np.testing.assert_array_equal(y, x.sum((0, 1)))


def record(
    platform: Platform, name: str, ratio: float, layer: str = LAYER, machine: str = "relaxed"
) -> AlgorithmRecord:
    """The algorithm of a layer."""
    return AlgorithmRecord(layer, machine, platform, name, ratio, "", "0", "2026-11-25")


def test_the_database_answers_for_its_platform(tmp_path: Path) -> None:
    other = Platform("chromium", "1", "A phone", "arm64")
    with Database(tmp_path / "t.db") as database:
        database.add_algorithms(
            [
                record(PLATFORM, DIRECT, 0.8),
                record(other, "winograd 6x6", 0.7),
                record(other, "winograd 2x2", 1.0, "conv 1 to 1"),
            ]
        )
        named = TunedChooser(database, "An engine".lower())
        assert named.algorithms() == {"wasm": {LAYER: DIRECT}}
        assert TunedChooser(database, "phone").algorithms() == {"wasm": {LAYER: "winograd 6x6"}}


@pytest.mark.parametrize("adapter", SOFTWARE_ADAPTERS)
def test_a_device_takes_nothing_from_the_algorithms_of_another(
    tmp_path: Path, adapter: str
) -> None:
    gpu = Platform("chromium", "1", "A GPU", "a vendor")
    slow = replace(gpu, hardware="llvmpipe", is_software=True)
    parts = "4 parts"
    with Database(tmp_path / "t.db") as database:
        database.add_algorithms(
            [
                record(PLATFORM, BEFORE, 0.8, PADDING),
                record(PLATFORM, APART, 0.5, PADDING, "simd128"),
                record(gpu, parts, 0.7, REDUCTION, "gpu"),
                record(slow, "16 parts", 0.2, REDUCTION, "gpu"),
                record(slow, "64 parts", 0.6, REDUCTION, adapter),
            ]
        )
        database.add([kernel_record(gpu), kernel_record(slow)])  # a GPU has measured kernels, too
        assert TunedChooser(database).algorithms() == {
            "wasm": {PADDING: BEFORE},
            "webgpu": {REDUCTION: parts},
        }
        software = TunedChooser(database, adapter="software").algorithms()
        assert software["webgpu"] == {REDUCTION: "64 parts"}
        chosen = TunedChooser(database, "llvmpipe").algorithms()
        assert chosen == {"webgpu": {REDUCTION: "16 parts"}}


def kernel_record(platform: Platform) -> Record:
    """A shader that a platform has measured."""
    return Record(
        "a shader", "shader", "webgpu", "rows", "", platform, {}, "measured", 1.0, 1.0, 3, "", (),
        "", "0", "2026-11-25",
    )  # fmt: skip


def test_a_build_for_both_devices_pads_as_each_of_them_was_told(tmp_path: Path) -> None:
    random = np.random.default_rng(2)
    shapes = {"v": (8, 8, 1, 1), "w": (8, 8, 3, 3)}
    constants = {n: random.normal(size=s).astype(np.float32) for n, s in shapes.items()}
    kernels = []
    for algorithms in ({}, {"wasm": {PADDING: BEFORE}}, {"webgpu": {PADDING: APART}}):
        manifest = webmlc.build(
            PADDED, tmp_path, constants=constants, algorithms=algorithms, force=True
        )
        steps = {d: [s.kernel for s in p.steps] for d, p in manifest.programs.items()}
        kernels.append((steps["wasm"], steps["webgpu"]))
    (wasm, webgpu), (wasm_told, webgpu_same), (wasm_same, _) = kernels
    assert wasm == wasm_same != wasm_told
    assert webgpu == webgpu_same


class LayerWorker(FixedWorker):
    """A worker on which every kernel of the default algorithms takes 100 ms and every other one
    1 ms. In one trial, the kernels of another algorithm take `ratio` of the default's time.
    """

    def __init__(self, search: Search, variants: Variants, ratio: float) -> None:
        super().__init__()
        self.search, self.variants, self.ratio = search, variants, ratio
        self.layers: list[str] = []

    def measure(self, trial: Trial, seconds: float) -> Measurement:
        """See `FixedWorker`."""
        (job,) = (job for job in self.search.jobs.values() if job.trial is trial)
        rounds = trial.protocol.rounds
        if not isinstance(job, TaskJob):
            self.layers.append(job.title)
            return Measurement(((1.0,) * rounds, (self.ratio,) * rounds), ("", ""))
        task = job.search.task
        is_default = (task.key, task.size_bucket) in self.variants.default
        return Measurement(((100.0 if is_default else 1.0,) * rounds,), ("",))


@pytest.mark.parametrize("ratio", [0.5, 0.97, 1.1])
def test_an_algorithm_is_chosen_if_it_is_faster_in_one_trial(
    variants: Variants, ratio: float
) -> None:
    search = Search(variants.tasks, Options(measurements=0), compare=variants.contests)
    worker = LayerWorker(search, variants, ratio)
    work(search, worker)
    assert search.is_done
    assert worker.layers == list(variants.algorithms)
    answers = variants.answers(search)
    assert list(answers) == worker.layers
    assert {r for _, r in answers.values()} == {ratio if ratio < 0.95 else 1.0}


def test_layers_whose_variants_were_not_all_measured_have_no_answer(variants: Variants) -> None:
    search = Search(variants.tasks, Options(measurements=0), compare=variants.contests)
    work(search, LayerWorker(search, variants, 1.1))
    assert list(variants.answers(search)) == list(variants.algorithms)
    layer = variants.variants[0].layer
    search.all_searches()[0].passes = 0  # a kernel of the default algorithm
    assert layer not in variants.answers(search)


def test_a_disturbance_of_one_pass_does_not_count(variants: Variants) -> None:
    """Without trials of several kernels, the shortest time of each kernel counts."""
    options = Options(measurements=0, passes=2)
    search = Search(variants.tasks, options, compare=variants.contests)
    worker = DisturbedWorker(slow=range(len(variants.tasks) // 2))
    work(search, worker)
    assert worker.count == 2 * len(variants.tasks)
    assert [s.passes for s in search.all_searches()] == [2] * len(variants.tasks)
    assert [s.least_ms for s in search.all_searches()] == [1.0] * len(variants.tasks)


class DisturbedWorker(FixedWorker):
    """A worker on which some trials take ten times as long as the others."""

    def __init__(self, slow: range) -> None:
        super().__init__()
        self.slow, self.count = slow, 0

    def measure(self, trial: Trial, seconds: float) -> Measurement:
        """See `FixedWorker`."""
        ms = 10.0 if self.count in self.slow else 1.0
        self.count += trial.candidates == 1
        row = (ms,) * trial.protocol.rounds
        return Measurement((row,) * trial.candidates, ("",) * trial.candidates)

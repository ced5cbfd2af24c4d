"""Winograd's form from end to end: its error, any batch, every host; weights derived at load."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import webmlc
from tests.node import as_tensors, in_node
from webmlc.build_options import TargetName
from webmlc.core.machine import RELAXED, AlgorithmCosts
from webmlc.graph.algorithms.winograd.cost_model import Layer
from webmlc.graph.algorithms.winograd.operators import Forms
from webmlc.graph.ops.layout import PACK
from webmlc.package.manifest import MANIFEST
from webmlc.package.manifest_json import from_json
from webmlc.package.memory_plan import layout

CHANNELS, SIZE = 32, 9  # no tile divides the map


@dataclass(frozen=True)
class Case:
    """A convolution of stride `stride` and dilation `dilation`, in tiles of `tile` outputs along
    each dimension, or `down` times `tile`, all at once or by rows of them; and how far it may err.
    """

    tile: int
    kernel: tuple[int, ...] = (3, 3)
    stride: int = 1
    bound: float = 5e-6
    channels: int = CHANNELS
    by_rows: bool = False
    groups: int = 1
    down: int | None = None
    outputs: int = CHANNELS
    dilation: int = 1

    @property
    def tiles(self) -> tuple[int, int]:
        return (self.down or self.tile, self.tile)

    @property
    def name(self) -> str:
        window = f"{'x'.join(map(str, self.kernel))}, stride {self.stride}"
        window += f", dilation {self.dilation}" if self.dilation > 1 else ""
        how = ", by rows" if self.by_rows else ""
        groups = f" in {self.groups} groups" if self.groups > 1 else ""
        tile = self.tile if self.down is None else f"{self.down}x{self.tile}"
        outputs = "" if self.outputs == CHANNELS else f" to {self.outputs}"
        return f"F({tile}) of {window}, {self.channels} channels{outputs}{groups}{how}"

    @property
    def is_residual(self) -> bool:
        return self.stride == 1 and self.outputs == self.channels

    @property
    def size(self) -> int:
        return (SIZE - 1) // self.stride + 1

    def layer(self) -> Layer:
        rank = len(self.kernel)
        holes = [self.dilation if k > 1 else 1 for k in self.kernel]
        sizes, kernel, strides, dilations = (
            (1, *values)[-2:]
            for values in ([self.size] * rank, self.kernel, [self.stride] * rank, holes)
        )
        return Layer(self.channels, self.outputs, sizes, kernel, strides, self.groups, dilations)

    def forms(self) -> Forms:
        """Of windows along one dimension, those along it."""
        found = self.layer().forms(replace(RELAXED, costs=AlgorithmCosts(l2_resident_bytes=0)))
        (wanted,) = (
            forms
            for forms in found
            if all(
                form.tile == (1 if form.kernel == 1 else tile)
                for form, tile in zip(forms, self.tiles, strict=True)
            )
        )
        return wanted

    def pads(self) -> list[int]:
        return [k // 2 * self.dilation for k in self.kernel] * 2

    def sines(self, batch: int, sizes: tuple[int, ...] = ()) -> np.ndarray:
        shape = (batch, self.channels, *(sizes or [SIZE] * len(self.kernel)))
        return np.sin(np.arange(np.prod(shape))).astype(np.float32).reshape(shape)

    def weights(self) -> tuple[np.ndarray, np.ndarray]:
        random = np.random.default_rng(0)
        shape = (self.outputs, self.channels // self.groups, *self.kernel)
        kernel = random.standard_normal(shape) / np.sqrt(np.prod(shape[1:]))
        return kernel.astype(np.float32), random.standard_normal(self.outputs).astype(np.float32)

    def expected(self, x: np.ndarray) -> np.ndarray:
        """The model's meaning in float64."""
        kernel, bias = self.weights()
        rank = len(self.kernel)
        around = list(zip(self.pads()[:rank], self.pads()[rank:], strict=True))
        padded = np.pad(x.astype(np.float64), [(0, 0), (0, 0), *around])
        start = x if self.is_residual else 0.0
        total = start + bias.reshape(-1, *[1] * len(self.kernel))
        for place in np.ndindex(*self.kernel):
            within = zip(place, x.shape[2:], strict=True)
            starts = ((k * self.dilation, n) for k, n in within)
            part = padded[:, :, *(slice(k, k + n, self.stride) for k, n in starts)]
            taps = np.split(kernel[:, :, *place], self.groups)
            terms = zip(taps, np.split(part, self.groups, axis=1), strict=True)
            sums = [np.einsum("oi,ni...->no...", w, channels) for w, channels in terms]
            total = total + np.concatenate(sums, axis=1)
        return np.maximum(total, 0)

    def model(self, sizes: tuple[str | int, ...] = ()) -> onnx.ModelProto:
        """y = relu(conv(x) + x), batch symbolic, and `sizes` if given; without + x where the
        shapes differ.
        """
        conv = helper.make_node(
            "Conv",
            ["x", "w", "b"],
            ["c"],
            pads=self.pads(),
            strides=[self.stride] * len(self.kernel),
            dilations=[self.dilation] * len(self.kernel),
            group=self.groups,
        )
        add = [helper.make_node("Add", ["c", "x"], ["s"])] if self.is_residual else []
        relu = helper.make_node("Relu", ["s" if add else "c"], ["y"])
        values = [
            helper.make_tensor_value_info(
                name, TensorProto.FLOAT, ["batch", count, *(sizes or [size] * len(self.kernel))]
            )
            for name, count, size in (("x", self.channels, SIZE), ("y", self.outputs, self.size))
        ]
        arrays = zip("wb", self.weights(), strict=True)
        constants = [numpy_helper.from_array(a, n) for n, a in arrays]
        graph = helper.make_graph([conv, *add, relu], "g", values[:1], values[1:], constants)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
        onnx.checker.check_model(model)
        return model


CASES = [
    *(Case(tile) for tile in range(2, 7)),
    *(Case(tile, stride=2) for tile in range(2, 7)),
    Case(4, (3, 5), bound=1e-5),
    Case(4, (5, 5), stride=3, bound=1e-5),
    Case(2, (3, 11)),
    Case(4, (3, 11), bound=1e-5),
    Case(3, (9, 7), stride=2, bound=1e-5),
    Case(4, (7, 7), stride=2, bound=1e-5, channels=3),  # folded: 12 channels, 4x4 taps
    Case(2, (3, 5), stride=2, channels=6),
    *(Case(tile, by_rows=True) for tile in (3, 6)),
    Case(4, (3, 5), stride=2, by_rows=True),
    Case(4, groups=2),
    *(Case(tile, (5, 1)) for tile in (4, 6, 8)),
    Case(3, (1, 3), stride=2),
    Case(6, (1, 3), by_rows=True),
    Case(4, (3,)),
    Case(5, (5,)),
    *(Case(tile, (5,)) for tile in (7, 8)),
    Case(3, (5,), stride=2, groups=2),
    Case(2, (5, 3), stride=2, groups=4),
    Case(4, (7, 7), stride=2, bound=1e-5, channels=3, by_rows=True),
    Case(4, down=1),
    Case(3, (5, 3), stride=2, down=1),
    Case(1, down=4, groups=2),
    *(Case(4, outputs=9, by_rows=by_rows) for by_rows in (False, True)),
    Case(3, (5,), outputs=6),
    Case(2, (3,), dilation=2),
    Case(4, (3,), dilation=8),  # only the first of each four outputs is inside the feature map
    Case(3, (11,), dilation=2, bound=1e-5),  # blocks of taps
    Case(2, (3,), dilation=3, groups=2, outputs=16),
    Case(3, (3, 1), dilation=2),
    Case(2, dilation=2),
]


# One worker builds the package of a case, which ten tests share.
@pytest.fixture(
    scope="module",
    params=[pytest.param(c, id=c.name, marks=pytest.mark.xdist_group(c.name)) for c in CASES],
)
def case(request: pytest.FixtureRequest) -> Case:
    chosen: Case = request.param
    return chosen


@pytest.fixture(scope="module")
def package(case: Case, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(case, case.model(), tmp_path_factory.mktemp("winograd"))


def build(case: Case, model: onnx.ModelProto, folder: Path, target: TargetName = "wasm") -> Path:
    """A package in which the convolution has the form of the case. Its shaders are for software
    adapters.
    """
    forms = case.forms()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("webmlc.graph.algorithms.winograd.cost_model.Layer.forms", lambda *_: [forms])
        patch.setattr(
            "webmlc.graph.algorithms.winograd.use_winograd.goes_by_rows", lambda *_: case.by_rows
        )
        patch.setattr(
            "webmlc.graph.algorithms.winograd.cost_model.CODE", -(10**9)
        )  # in a map so small it loses
        webmlc.build(model, folder, target=target, adapter="software")
    return folder


@lru_cache(maxsize=64)
def reference(case: Case, batch: int, sizes: tuple[int, ...] = ()) -> tuple[np.ndarray, np.ndarray]:
    """Inputs of a size, and the model's result for them."""
    x = case.sines(batch, sizes)
    return x, case.expected(x)


def relative_error(actual: np.ndarray, wanted: np.ndarray) -> float:
    return float(np.abs(actual - wanted).max() / np.abs(wanted).max())


@pytest.mark.parametrize("features", ["relaxed", "simd128"])
@pytest.mark.parametrize("threads", [1, 2])
def test_error_is_small_for_any_batch(package: Path, case: Case, features, threads) -> None:
    model = webmlc.load(package, "wasm", threads, features)
    for batch in (1, 3, 1):
        x, wanted = reference(case, batch)
        assert relative_error(model.run({"x": x})["y"], wanted) < case.bound
    model.dispose()


Names = tuple[str | int, ...]
BOTH: Names = ("h", "w")
ONE_OF_TWO: list[Names] = [("h", SIZE), (SIZE, "w")]
"""Which sizes of a feature map are symbols. The windows decide what that changes, not the number of
groups or of outputs.
"""
SYMBOLIC: list[tuple[Case, list[Names]]] = [  # of more outputs, the worst errs more
    *(
        (Case(tile, bound=1e-5, by_rows=by_rows), [BOTH, *ONE_OF_TWO])
        for tile in (3, 4)
        for by_rows in (False, True)
    ),
    (Case(6, bound=2e-5, by_rows=True), [BOTH]),
    (Case(4, (3, 1), bound=1e-5, by_rows=True), [BOTH, *ONE_OF_TWO]),
    (Case(4, (3,), bound=1e-5), [("w",)]),
    (Case(2, (3,), bound=1e-5, dilation=3), [("w",)]),
    (Case(3, bound=1e-5, groups=2), [BOTH]),
    *((Case(3, bound=1e-5, by_rows=by_rows, outputs=9), [BOTH]) for by_rows in (False, True)),
]


@pytest.mark.parametrize(
    ("case", "names_of_sizes"), SYMBOLIC, ids=[case.name for case, _ in SYMBOLIC]
)
def test_error_is_small_for_a_map_of_any_size(
    case: Case, names_of_sizes: list[Names], tmp_path: Path
) -> None:
    for names in names_of_sizes:
        package = build(case, case.model(names), tmp_path / "x".join(map(str, names)))
        program = from_json((package / MANIFEST).read_text()).programs["wasm"]
        assert any(b.kind == "derived" for b in program.buffers)
        for threads, features in ((1, "relaxed"), (2, "relaxed"), (2, "simd128")):
            model = webmlc.load(package, "wasm", threads, features)
            for sizes in ((9, 9), (1, 1), (4, 24), (31, 74), (12, 5)):
                pairs = zip(names, sizes[-len(names) :], strict=True)
                whole = tuple(n if isinstance(name, str) else name for name, n in pairs)
                x, wanted = reference(case, 2, whole)
                assert relative_error(model.run({"x": x})["y"], wanted) < case.bound, sizes
            model.dispose()


@pytest.mark.parametrize("threads", [1, 2])
def test_the_javascript_runtime_derives_the_weights_too(package: Path, case: Case, threads) -> None:
    runs = [reference(case, batch) for batch in (1, 3, 2)]
    results = in_node(package, [as_tensors({"x": x}) for x, _ in runs], threads)
    for (_, wanted), result in zip(runs, results, strict=True):
        output = np.array(result["y"]["data"], np.float32).reshape(result["y"]["shape"])
        assert relative_error(output, wanted) < case.bound


def test_the_package_ships_small_weights(package: Path, case: Case) -> None:
    manifest = from_json((package / MANIFEST).read_text())
    program = manifest.programs["wasm"]
    (derived,) = [b for b in program.buffers if b.kind == "derived"]
    forms = case.forms()
    taps = math.prod(form.blocks * form.taps for form in forms)
    most = taps * case.layer().folded(RELAXED).channels // case.groups
    panels = -(-case.outputs // PACK)
    assert program.resources.weights < 4 * panels * PACK * (most + 2) + 256
    assert [run.once for run in program.runs] == [True, False]
    assert derived.name in program.steps[0].written
    assert [*derived.shape[:2]] == [form.planes for form in forms]


def test_weights_give_their_bytes_to_activations(package: Path) -> None:
    manifest = from_json((package / MANIFEST).read_text())
    program = manifest.programs["wasm"]
    plan = layout(manifest, "wasm", "wasm", {"batch": 8})
    weights, derived = program.steps[0].arguments

    def overlaps(a: str, b: str) -> bool:
        first, second = (plan.constants.get(n, plan.offsets.get(n, 0)) for n in (a, b))
        return first < second + plan.sizes[b] and second < first + plan.sizes[a]

    activations = [b.name for b in program.buffers if not b.is_resident]
    assert any(overlaps(weights, name) for name in activations)
    assert not any(overlaps(derived, name) for name in (weights, *activations))
    other = layout(manifest, "wasm", "wasm", {"batch": 1})
    assert other.constants == plan.constants
    assert other.total - other.arena == plan.total - plan.arena


@pytest.mark.parametrize("threads", [1, 2])
def test_what_is_done_at_load_takes_no_time_of_a_run(package: Path, case: Case, threads) -> None:
    model, (x, wanted) = webmlc.load(package, "wasm", threads), reference(case, 3)
    times = model.profile({"x": x})
    assert [time.seconds == 0 for time in times] == [True, *[False] * (len(times) - 1)]
    assert relative_error(model.run({"x": x})["y"], wanted) < case.bound
    model.dispose()

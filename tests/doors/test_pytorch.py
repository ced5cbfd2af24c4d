"""Models of PyTorch compute what PyTorch computes, and keep their names."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from tests.doors.built import build_and_run
from webmlc.core.errors import InputError, ModelError, UserError
from webmlc.frontend.doors.export_source import export_source


class Residual(nn.Module):
    """Two convolutions, and the input added to their result."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(channels, channels, 3, padding=1, bias=False),
            nn.BatchNorm2d(channels),
            nn.ReLU(),
            nn.Conv2d(channels, channels, 3, padding=1, bias=False),
            nn.BatchNorm2d(channels),
        )

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(x + self.body(x))


class Classifier(nn.Module):
    """A small network in the manner of torchvision's."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 8, 3, stride=2, padding=1), nn.MaxPool2d(2))
        self.layers = nn.Sequential(Residual(8), Residual(8))
        self.head = nn.Linear(8, 5)

    def forward(self, image: Tensor) -> Tensor:
        x = self.layers(self.stem(image))
        return self.head(nn.functional.adaptive_avg_pool2d(x, 1).flatten(1))


class Encoder(nn.Module):
    """An encoder of text in the manner of Hugging Face's: it returns a dictionary."""

    def __init__(self) -> None:
        super().__init__()
        self.embeddings = nn.Embedding(50, 16)
        self.positions = nn.Embedding(32, 16)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(16, 2, 32, activation="gelu", batch_first=True)
            for _ in range(2)
        )

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> dict[str, Tensor]:
        places = torch.arange(input_ids.shape[1])[None]
        x = self.embeddings(input_ids) + self.positions(places)
        for layer in self.layers:
            x = layer(x, src_key_padding_mask=attention_mask == 0)
        mask = attention_mask[..., None].float()
        return {"last_hidden_state": x, "pooled": (x * mask).sum(1) / mask.sum(1)}


def trained(module: nn.Module) -> nn.Module:
    """The module with weights, and statistics of batches, that are not the first ones."""
    torch.manual_seed(0)
    for value in (*module.parameters(), *module.buffers()):
        if value.is_floating_point():
            value.data = value.data + 0.1 * torch.rand(value.shape)
    return module


@pytest.fixture(scope="module")
def classifier() -> nn.Module:
    return trained(Classifier()).eval()


IMAGES = np.random.default_rng(0).standard_normal((3, 3, 16, 16)).astype(np.float32)


def expected(module: nn.Module, *inputs: Any) -> Any:
    with torch.no_grad():
        return module.eval()(*map(torch.from_numpy, inputs))


def test_an_image_classifier_equals_pytorch(classifier: nn.Module) -> None:
    built = build_and_run(
        classifier,
        {"image": IMAGES},
        example_inputs=(torch.zeros(2, 3, 16, 16),),
        dynamic_shapes={"image": {0: "batch"}},
    )
    built.assert_close({"output": expected(classifier, IMAGES)})
    assert built.manifest.name == "Classifier"
    assert built.types()["image"] == "float32[batch, 3, 16, 16]"
    assert "layers.1.body" in str(built.manifest)


def test_an_encoder_of_any_length_equals_pytorch() -> None:
    module = trained(Encoder()).train()
    ids = np.arange(14).reshape(2, 7)
    mask = np.array([[1] * 7, [1] * 4 + [0] * 3])
    ones = torch.ones(2, 5, dtype=torch.long)
    axes = {0: "batch", 1: "sequence"}
    built = build_and_run(
        module,
        {"input_ids": ids, "attention_mask": mask},
        example_inputs={"input_ids": ones, "attention_mask": ones},  # one tensor, two inputs
        dynamic_shapes={"input_ids": axes, "attention_mask": axes},
    )
    assert all(part.training for part in module.modules())
    assert built.types()["input_ids"] == "int64[batch, sequence]"
    wanted = expected(module, ids, mask)
    assert set(built.outputs) == {"last_hidden_state", "pooled"}
    np.testing.assert_allclose(built.outputs["pooled"], wanted["pooled"], 1e-4, 1e-5)
    kept = mask == 1
    hidden = built.outputs["last_hidden_state"][kept]
    np.testing.assert_allclose(hidden, wanted["last_hidden_state"].numpy()[kept], 1e-4, 1e-5)


def test_an_exported_program_and_its_file(classifier: nn.Module, tmp_path: Path) -> None:
    batch = torch.export.Dim("batch")
    program = torch.export.export(
        classifier, (torch.zeros(2, 3, 16, 16),), dynamic_shapes={"image": {0: batch}}
    )
    path = tmp_path / "shapes.pt2"
    torch.export.save(program, path)
    (output,) = build_and_run(path, {"image": IMAGES}).outputs.values()
    np.testing.assert_allclose(output, expected(classifier, IMAGES), 1e-5, 1e-5)
    assert export_source(path).graph.name == "shapes"
    model = export_source(program, dynamic_shapes={"image": {0: "n"}})
    assert model.graph.name == "Classifier"
    assert [p.type.tensor_type.shape.dim[0].dim_param for p in model.graph.input] == ["n"]
    assert "stem.0/conv2d" in [node.name for node in model.graph.node]


def test_a_module_needs_an_example_that_fits(classifier: nn.Module) -> None:
    with pytest.raises(UserError, match="Classifier does not say what its inputs are"):
        export_source(classifier)
    with pytest.raises(InputError, match=r"do not fit Classifier\.forward: missing a required"):
        export_source(classifier, {})
    with pytest.raises(InputError, match=r"no input is named 'img'\. The example's are: image"):
        export_source(classifier, {"image": IMAGES}, {"img": {0: "batch"}})


class Nested(nn.Module):
    """A module with nested inputs and outputs, and an output that is an input."""

    def forward(self, x: Tensor, pasts: list[tuple[Tensor, Tensor]], **options: Any) -> Any:
        presents = [(key + x, value * 2) for key, value in pasts]
        return {"scores": x.relu(), "pasts": presents, "more": (x, options["scale"] * x)}


def test_nested_values_are_named_by_their_paths() -> None:
    x, scale = torch.arange(6.0).view(2, 3) - 3, torch.tensor(3.0)
    pasts = [(x + 1, x + 2), (x + 3, x + 4)]
    axes = {0: "batch"}
    names = [f"pasts.{layer}.{part}" for layer in (0, 1) for part in (0, 1)]
    feeds = dict(zip(names, (p.numpy() for pair in pasts for p in pair), strict=True))
    built = build_and_run(
        Nested(),
        {"x": x.numpy(), "scale": scale.numpy(), **feeds},
        example_inputs={"x": x, "pasts": pasts, "scale": scale},
        dynamic_shapes={"x": axes, "pasts": [(axes, axes)] * 2},
    )
    presents = [f"present.{layer}.{part}" for layer in (0, 1) for part in (0, 1)]
    assert list(built.outputs) == ["scores", *presents, "more.0", "more.1"]
    np.testing.assert_array_equal(built.outputs["present.1.0"], x + pasts[1][0])
    np.testing.assert_array_equal(built.outputs["more.0"], x)
    assert built.types()["pasts.1.0"] == "float32[batch, 3]"


def test_output_names_are_the_callers(classifier: nn.Module) -> None:
    example = torch.zeros(2, 3, 16, 16)
    model = export_source(classifier, example, output_names=["scores"])
    assert [port.name for port in model.graph.output] == ["scores"]
    with pytest.raises(InputError, match="the model has 1 outputs, output"):
        export_source(classifier, example, output_names=["a", "b"])
    with pytest.raises(InputError, match="'image' names another output or an input"):
        export_source(classifier, example, output_names=["image"])


class Functions(nn.Module):
    """Functions that torch.onnx does not translate."""

    def forward(self, x: Tensor, y: Tensor, matrix: Tensor) -> dict[str, Tensor]:
        holes = torch.where(x > 1, torch.nan, x)
        spectrum = torch.linalg.slogdet(matrix)
        median, place = torch.median(x, dim=1)
        return {
            "median": median,
            "place": place,
            "median of all": torch.median(x),
            "median of a NaN": torch.median(holes, dim=0, keepdim=True).values,
            "nanmedian": torch.nanmedian(holes, dim=-1).values,
            "kthvalue": torch.kthvalue(x, 2, dim=0).values,
            "cdist": torch.cdist(x, y),
            "cdist of batches": torch.cdist(x[None], y[None], p=1.0),
            "largest": torch.cdist(x, y, p=torch.inf),
            "cubes": torch.cdist(x, y, p=3.0),
            "pdist": nn.functional.pdist(y),
            "searchsorted": torch.searchsorted(x.sort(1).values, 2 * x, right=True),
            "inverse": torch.linalg.inv(matrix),
            "solve": torch.linalg.solve(matrix, y[:3, :3]),
            "solve a vector": torch.linalg.solve(matrix[0], y[0, :3]),
            "sign": spectrum.sign,
            "logarithm": spectrum.logabsdet,
            "cumprod": torch.cumprod(x, 1),
            "hypot": torch.hypot(x, 1e25 * x),
            "selected": torch.masked_select(x, x > 0),
            "covariances": torch.cov(x) + torch.cov(x[0], correction=0),
            "correlations": y.corrcoef(),
            "sampled": self.sampled(x, y),
        }

    def sampled(self, x: Tensor, y: Tensor) -> Tensor:
        """A picture of the size of `x`, which is not known, turned and scaled."""
        grid = nn.functional.affine_grid(y[None, :2, :3], [1, 1, *x.shape], align_corners=False)
        return nn.functional.grid_sample(x[None, None], grid, align_corners=False)


class Bags(nn.Module):
    """Bags of rows of tables, of one size and of any size."""

    def __init__(self) -> None:
        super().__init__()
        self.means, self.padded = nn.EmbeddingBag(9, 5), nn.EmbeddingBag(9, 5, padding_idx=2)
        self.sums = nn.EmbeddingBag(9, 5, mode="sum")
        self.largest = nn.EmbeddingBag(9, 5, mode="max")

    def forward(self, x: Tensor, flat: Tensor, offsets: Tensor) -> dict[str, Tensor]:
        bags = {"means": self.means(x), "padded": self.padded(x)}
        of_any_size = {"sums": self.sums(flat, offsets), "largest": self.largest(flat, offsets)}
        return bags | of_any_size


def test_bags_of_any_size() -> None:
    module, rng = Bags(), np.random.default_rng(0)
    x, flat = rng.integers(0, 9, (3, 4)), rng.integers(0, 9, 7)
    offsets = np.array([0, 2, 2, 5])
    example = {"x": x, "flat": rng.integers(0, 9, 6), "offsets": np.array([0, 1, 4])}
    axes = {"x": {0: "bags"}, "flat": {0: "rows"}, "offsets": {0: "parts"}}
    feeds = {"x": x, "flat": flat, "offsets": offsets}
    built = build_and_run(module, feeds, example_inputs=example, dynamic_shapes=axes)
    built.assert_close(expected(module, x, flat, offsets))
    assert built.types()["flat"] == "int64[rows]"


def test_functions_that_the_exporter_does_not_translate() -> None:
    rng = np.random.default_rng(0)
    x, y = (rng.standard_normal((rows, 5)).astype(np.float32) for rows in (4, 6))
    matrix = rng.standard_normal((2, 3, 3)).astype(np.float32) + 3 * np.eye(3, dtype=np.float32)
    example = {"x": torch.randn(3, 5), "y": torch.from_numpy(y), "matrix": torch.from_numpy(matrix)}
    built = build_and_run(
        Functions(),
        {"x": x, "y": y, "matrix": matrix},
        example_inputs=example,
        dynamic_shapes={"x": {0: "rows"}},
    )
    built.assert_close(expected(Functions(), x, y, matrix), 2e-5)


class Branches(nn.Module):
    """A module that torch.export refuses: its branch depends on data."""

    def forward(self, x: Tensor) -> Tensor:
        return x + 1 if x.sum() > 0 else x - 1


class Decomposed(nn.Module):
    """An operator that ONNX does not have."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.linalg.qr(x)[1] + 1


@pytest.mark.parametrize(
    ("module", "line", "reason"),
    [
        (Branches(), "return x + 1 if x.sum() > 0 else x - 1", "Replace an `if` on it by torch"),
        (Decomposed(), "return torch.linalg.qr(x)[1] + 1", "linalg_qr has no translation to ONNX"),
    ],
    ids=["branches", "operator"],
)
def test_a_refusal_names_the_line_and_a_way_round(
    module: nn.Module, line: str, reason: str, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(ModelError) as error:
        export_source(module, torch.eye(3))
    message, name = str(error.value), type(module).__name__
    assert message.startswith(f"PyTorch model {name}: torch.onnx cannot export this model. line ")
    assert f"test_pytorch.py, in forward ({line}): " in message and reason in message
    assert len(message) < 700 and "\n" not in message
    assert error.value.__cause__ is None and error.value.__suppress_context__
    assert not any(capfd.readouterr())

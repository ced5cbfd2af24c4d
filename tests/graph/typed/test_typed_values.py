"""Pictures in and labels out, compiled into the package, against Pillow, numpy and onnxruntime."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import numpy_helper, parser
from PIL import Image
from PIL.Image import Resampling

from tests.command_line import run
from tests.node import answer_once
from webmlc.core.errors import InputError, UserError
from webmlc.core.machine import Device
from webmlc.graph.typed.options import Pixels, read_input, read_output, read_texts
from webmlc.host.load import load
from webmlc.package.single_file import write_single_file
from webmlc.pipeline import build

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
NORMALISED = f"mean={list(MEAN)},std={list(STD)}"
RESAMPLING = {
    "bilinear": Resampling.BILINEAR,
    "bicubic": Resampling.BICUBIC,
    "nearest": Resampling.NEAREST,
}
HEADER = '<ir_version: 8, opset_import: ["" : 17]>\n'
SCRIPT = Path(__file__).parents[2] / "js" / "run_typed.mjs"


def copier(shape: str = "batch, 3, 24, 24", dtype: str = "float") -> onnx.ModelProto:
    """A model that returns its input, so that a test sees what is made of the pixels."""
    return parser.parse_model(
        HEADER + f"g ({dtype}[{shape}] image) => ({dtype}[{shape}] y) {{ y = Identity(image) }}"
    )


def classifier() -> onnx.ModelProto:
    """A model of seven classes."""
    model = parser.parse_model(
        HEADER
        + """g (float[batch, 3, 24, 24] image) => (float[batch, 7] logits) {
            kernel = Constant<value_ints = [8, 8]>()
            pooled = AveragePool<kernel_shape = [12, 12], strides = [12, 12]>(image)
            flat = Flatten(pooled)
            logits = MatMul(flat, weights)
        }"""
    )
    weights = np.random.default_rng(0).standard_normal((12, 7)).astype(np.float32) * 9
    model.graph.initializer.append(numpy_helper.from_array(weights, "weights"))
    return model


def picture(height: int, width: int, seed: int = 0) -> np.ndarray[Any, Any]:
    """A picture with edges, noise and gradients, uint8 [height, width, 4]."""
    rng = np.random.default_rng(seed)
    y, x = np.mgrid[:height, :width]
    waves = 128 + 90 * np.sin(x[..., None] / [3, 7, 11, 5]) * np.cos(y[..., None] / [5, 3, 8, 4])
    noise = rng.integers(-30, 31, (height, width, 4))
    return np.clip(waves + noise, 0, 255).astype(np.uint8)


def cropped(pixels: np.ndarray[Any, Any], kind: str, resize: int, crop: int) -> Any:
    """Shrink the shorter side and cut out the middle, with Pillow. Bytes [crop, crop, 3]."""
    image = Image.fromarray(pixels).convert("RGB")
    width, height = image.size
    shorter = min(width, height)
    sizes = (resize * width // shorter, resize * height // shorter)
    left, top = ((n - crop) // 2 for n in sizes)
    resized = image.resize(sizes, RESAMPLING[kind])
    return np.asarray(resized.crop((left, top, left + crop, top + crop)))


def run_copy(
    folder: Path, options: str, pixels: Any, device: Device, model: onnx.ModelProto | None = None
) -> Any:
    """The options turn pixels into the tensor of the model."""
    build(model or copier(), folder, device, inputs={"image": options})
    return load(folder, device).run({"image": pixels})["y"]


@pytest.mark.parametrize("device", ["wasm", "webgpu"])
@pytest.mark.parametrize("kind", list(RESAMPLING))
def test_pictures_of_any_size_are_resized_as_by_pillow(
    tmp_path: Path, kind: str, device: Device
) -> None:
    """Pillow's bilinear weights are rounded, so that a byte in a hundred may differ by one."""
    options = f"pixels=rgb,resize=32,crop=center,filter={kind},{NORMALISED}"
    build(copier(), tmp_path, device, inputs={"image": options})
    model = load(tmp_path, device)
    for height, width in ((50, 70), (20, 24), (32, 32), (24, 31), (301, 333)):
        pixels = picture(height, width)
        y = model.run({"image": pixels})["y"]
        assert y.shape == (1, 3, 24, 24)
        values = (y[0].transpose(1, 2, 0) * np.float32(STD) + np.float32(MEAN)) * 255
        difference = np.abs(values - cropped(pixels, kind, 32, 24))
        assert difference.max() < 1.01
        assert (difference > 0.01).mean() < 0.03
    model.dispose()


def test_a_picture_is_stretched_to_the_size_of_the_model(tmp_path: Path) -> None:
    pixels = picture(40, 61)
    y = run_copy(tmp_path, "pixels=bgr,scale=1", pixels, "wasm", copier("batch, 24, 30, 3"))
    image = Image.fromarray(pixels).convert("RGB").resize((30, 24), Resampling.BILINEAR)
    assert np.abs(y[0] - np.asarray(image)[..., ::-1]).max() < 1.01


def test_gray_is_that_of_pillow(tmp_path: Path) -> None:
    pixels = picture(24, 24)
    y = run_copy(tmp_path, "pixels=gray,scale=1", pixels, "wasm", copier("batch, 1, 24, 24"))
    gray = np.asarray(Image.fromarray(pixels).convert("RGB").convert("L"))
    np.testing.assert_allclose(y[0, 0], gray, atol=1e-4)


@pytest.mark.parametrize("place", ["center", "start"])
def test_a_picture_is_padded(tmp_path: Path, place: str) -> None:
    pixels = picture(40, 61)
    options = f"pixels=rgb,pad=114,place={place},scale=1"
    y = run_copy(tmp_path, options, pixels, "wasm")[0].transpose(1, 2, 0)
    image = Image.fromarray(pixels).convert("RGB").resize((24, 15), Resampling.BILINEAR)
    top = 4 if place == "center" else 0  # (24 - 15) // 2
    expected = np.full((24, 24, 3), 114.0)
    expected[top : top + 15] = np.asarray(image)
    assert np.abs(y - expected).max() < 1.01


def test_a_model_of_bytes_takes_them_as_they_are(tmp_path: Path) -> None:
    pixels = picture(24, 24)
    y = run_copy(tmp_path, "pixels=rgb", pixels, "wasm", copier("24, 24, 3", "uint8"))
    np.testing.assert_array_equal(y, pixels[..., :3])


def test_a_model_of_any_size_keeps_the_shape_of_the_picture(tmp_path: Path) -> None:
    model = copier("batch, 3, height, width")
    build(model, tmp_path, "wasm", inputs={"image": "pixels=rgb,resize=16,scale=1"})
    loaded = load(tmp_path, "wasm")
    for height, width in ((32, 48), (60, 20)):
        assert loaded.run({"image": picture(height, width)})["y"].shape == (
            1, 3, 16 * height // min(height, width), 16 * width // min(height, width)
        )  # fmt: skip


def test_the_name_of_an_input_may_have_any_signs(tmp_path: Path) -> None:
    """Its sizes are symbols, whose names are words."""
    model = copier()
    model.graph.input[0].name = model.graph.node[0].input[0] = "1/image:0"
    build(model, tmp_path, "wasm", inputs={"1/image:0": "pixels=rgb,scale=1"})
    pixels = picture(24, 24)
    y = load(tmp_path, "wasm").run({"1/image:0": pixels})["y"]
    np.testing.assert_array_equal(y[0].transpose(1, 2, 0), pixels[..., :3])


def best_classes(pixels: Any, count: int) -> tuple[Any, Any]:
    """The scores and the numbers of the best classes, by Pillow, onnxruntime and numpy."""
    image = cropped(pixels, "bilinear", 32, 24).astype(np.float32) / 255
    x = ((image - np.float32(MEAN)) / np.float32(STD)).transpose(2, 0, 1)[None]
    session = onnxruntime.InferenceSession(classifier().SerializeToString())
    (logits,) = session.run(None, {"image": x})
    scores = np.exp(logits[0] - logits[0].max())
    scores /= scores.sum()
    order = np.argsort(-scores)[:count]
    return scores[order], order


LABELS = [f"name {i}" for i in range(7)]


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A classifier of pictures for both devices."""
    folder = tmp_path_factory.mktemp("classifier")
    inputs = {"image": f"pixels=rgb,resize=32,crop=center,{NORMALISED}"}
    outputs = {"logits": {"topk": 3, "labels": LABELS}}
    build(classifier(), folder, inputs=inputs, outputs=outputs)
    return folder


@pytest.mark.parametrize("device", ["wasm", "webgpu"])
def test_the_best_classes_are_those_of_onnxruntime(package: Path, device: Device) -> None:
    pixels = picture(50, 70)
    outputs = load(package, device).run({"image": pixels})
    scores, classes = best_classes(pixels, 3)
    np.testing.assert_allclose(outputs["logits_scores"][0], scores, atol=2e-2)
    assert outputs["logits_classes"][0].tolist() == classes.tolist()


@pytest.fixture(scope="module")
def runs(package: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The results of each module that may load the package."""
    script = tmp_path_factory.mktemp("single") / "classifier.mjs"
    write_single_file(package, script)
    jobs = {"package": str(package), "script": str(script), "width": 70, "height": 50}
    jobs["data"] = picture(50, 70).ravel().tolist()
    return dict(answer_once(SCRIPT, jobs))


@pytest.mark.parametrize("module", ["package", "npm", "serviceWorker", "singleFile"])
def test_the_runtime_returns_labels_and_scores(runs: dict[str, Any], module: str) -> None:
    result = runs[module]
    scores, classes = best_classes(picture(50, 70), 3)
    for items in (result["image"], result["tensor"]):
        assert [item["label"] for item in items] == [LABELS[i] for i in classes]
        np.testing.assert_allclose([item["score"] for item in items], scores, atol=2e-2)
    assert result["raw"] == ["logits_classes: int32"]
    assert result["ranked"][0] == result["ranked"][1]
    assert result["steps"] > 1
    assert result["errors"] == [
        'InputError: input "image" takes a picture: ImageData, an ImageBitmap, VideoFrame, canvas,'
        " or an image or video that is loaded",
        'InputError: input "image" has 12 numbers, expected 2 × 2 pixels of 4 bytes, RGBA',
    ]


def test_the_commands_take_the_options_of_values(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    package: Path,
    tmp_path: Path,
) -> None:
    pixels = picture(50, 70)
    onnx.save(classifier(), tmp_path / "model.onnx")
    np.savez(tmp_path / "in.npz", image=pixels)
    image = ("--input", f"image:pixels=rgb,resize=32,crop=center,{NORMALISED}")
    files = ("--inputs", tmp_path / "in.npz", "-o", tmp_path / "out.npz")
    ranked = ("--output", "logits:topk=3")
    assert (
        run(monkeypatch, capsys, "run", tmp_path / "model.onnx", *image, *ranked, *files).code == 0
    )
    outputs = np.load(tmp_path / "out.npz")
    scores, classes = best_classes(pixels, 3)
    np.testing.assert_allclose(outputs["logits_scores"][0], scores, atol=2e-2)
    assert outputs["logits_classes"][0].tolist() == classes.tolist()
    options = (*image, "--target", "wasm", "--stage", "connect")
    result = run(monkeypatch, capsys, "inspect", tmp_path / "model.onnx", *options)
    assert "connect values" in result.out, result.err
    for command in ("run", "bench"):
        result = run(monkeypatch, capsys, command, package, *image)
        assert result.code == 2
        assert "build it again with --input and --output" in " ".join(result.err.split())


def test_scores_without_a_ranking_are_all_classes(tmp_path: Path) -> None:
    build(classifier(), tmp_path, "wasm", outputs={"logits": "scores=sigmoid"})
    x = np.random.default_rng(2).standard_normal((2, 3, 24, 24)).astype(np.float32)
    outputs = load(tmp_path, "wasm").run({"image": x})
    session = onnxruntime.InferenceSession(classifier().SerializeToString())
    (logits,) = session.run(None, {"image": x})
    np.testing.assert_allclose(outputs["logits_scores"], 1 / (1 + np.exp(-logits)), atol=1e-5)


def test_options_are_read_from_texts_and_from_mappings() -> None:
    text = "pixels=rgb,resize=[20,30],crop=7,mean=[0.5,1/2,0],std=2,antialias=false,scale=1/127"
    mapping = {
        "pixels": "rgb", "resize": (20, 30), "crop": 7, "mean": [0.5, 0.5, 0], "std": 2,
        "antialias": False, "scale": 1 / 127,
    }  # fmt: skip
    pixels = read_input("x", text)
    assert pixels == read_input("x", mapping)
    assert isinstance(pixels, Pixels)
    assert (pixels.resize, pixels.crop, pixels.std) == ((20, 30), (7,), (2.0,))
    assert read_texts("--input", ["a:b:pixels=rgb"]) == {"a:b": "pixels=rgb"}


def test_labels_are_read_from_files(tmp_path: Path) -> None:
    (tmp_path / "labels.txt").write_text("a\nb\n")
    (tmp_path / "config.json").write_text('{"id2label": {"0": "a", "1": "b"}}')
    for name in ("labels.txt", "config.json"):
        assert read_output("y", f"labels={tmp_path / name}").labels == ("a", "b")


@pytest.mark.parametrize(
    ("inputs", "outputs", "message"),
    [
        ({"x": "pixels=rgb"}, {}, "the model has no input 'x'; its inputs: 'image'"),
        ({"image": "resize=3"}, {}, "say what it is: pixels=rgb, pixels=bgr or"),
        ({"image": "pixels=cmyk"}, {}, "pixels is rgb or bgr or gray, not 'cmyk'"),
        ({"image": "pixels=rgb,size=3"}, {}, "no option 'size'; there are pixels, resize, crop"),
        ({"image": "pixels=rgb,resize=x"}, {}, "'image': resize=x: invalid literal"),
        ({"image": "pixels=rgb,resize=32"}, {}, "takes 24 × 24 pixels, not 32 × 32. Say crop="),
        ({"image": "pixels=rgb,crop=20"}, {}, "takes 24 × 24 pixels, not 20 × 20"),
        ({"image": "pixels=rgb,resize=20,crop=center"}, {}, "at most the shorter side, 20 pixels"),
        ({"image": "pixels=gray"}, {}, "it has no 1 channels, as pixels=gray has"),
        ({"image": "pixels=rgb,mean=[1,2]"}, {}, "mean has 2 numbers, not 3"),
        ({"image": "pixels=rgb,std=0"}, {}, "std is a divisor, so it is not 0"),
        ({"image": "pixels=rgb,crop=24,pad=0"}, {}, "crop and pad exclude each other"),
        ({}, {"logits": {"topk": 2, "labels": ["a"]}}, "output 'logits': 1 labels for 7 classes"),
        ({}, {"logits": "top_k=2"}, "no option 'top_k'; there are topk, scores, labels"),
    ],
)
def test_mistakes_are_explained(
    tmp_path: Path, inputs: dict[str, str], outputs: dict[str, Any], message: str
) -> None:
    with pytest.raises(InputError) as error:
        build(classifier(), tmp_path, "wasm", inputs=inputs, outputs=outputs)
    assert message in str(error.value)


def test_a_tokenizer_must_be_one(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(UserError, match=r"is no tokenizer.json: it has no key 'model'"):
        build(classifier(), tmp_path / "out", "wasm", tokenizer=tmp_path / "tokenizer.json")

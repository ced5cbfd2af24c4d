"""Masks of pictures, resized in the package, against Pillow and numpy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import parser
from PIL import Image
from PIL.Image import Resampling

from tests.graph.typed.test_typed_values import RESAMPLING, picture
from tests.node import answer_once
from webmlc.core.errors import InputError
from webmlc.core.machine import Device
from webmlc.host.load import load
from webmlc.pipeline import build

SIZE = 24
SCRIPT = Path(__file__).parents[2] / "js" / "run_masks.mjs"
PADDED = {"center": (0, 4, 24, 19), "start": (0, 0, 24, 15)}
"""The part of the model's input, 24 × 24, that shows a picture of 61 × 40: left, top, right, bottom
in pixels. Its 40 rows became 15."""


def segmenter(layout: str = "nchw", pool: int = 1) -> onnx.ModelProto:
    """A model whose scores are the channels of its input, perhaps of a lower resolution."""
    pools = f"kernel_shape = [{pool}, {pool}], strides = [{pool}, {pool}]"
    last = "Transpose<perm = [0, 2, 3, 1]>(small)" if layout == "nhwc" else "Identity(small)"
    return parser.parse_model(
        f"""<ir_version: 8, opset_import: ["" : 17]>
        g (float[batch, 3, {SIZE}, {SIZE}] image) => (float[p, q, r, s] scores) {{
            small = AveragePool<{pools}>(image)
            scores = {last}
        }}"""
    )


def resized(pixels: Any, mask: Any, kind: Resampling, box: tuple[float, ...]) -> Any:
    """The mask in the size of the picture, by Pillow."""
    size = (pixels.shape[1], pixels.shape[0])
    return np.asarray(Image.fromarray(mask, "F").resize(size, kind, box))


def channels(pixels: Any, box: tuple[int, int, int, int]) -> Any:
    """The channels of the picture in its place in the model's input, [3, 24, 24], by Pillow."""
    image = Image.fromarray(pixels).convert("RGB")
    part = image.resize((box[2] - box[0], box[3] - box[1]), Resampling.BILINEAR)
    result = np.zeros((SIZE, SIZE, 3), np.float32)
    result[box[1] : box[3], box[0] : box[2]] = np.asarray(part)
    return result.transpose(2, 0, 1) / 255


def run_mask(
    folder: Path, model: onnx.ModelProto, image: str, scores: str, device: Device, pixels: Any
) -> Any:
    build(model, folder, device, inputs={"image": image}, outputs={"scores": scores})
    (result,) = load(folder, device).run({"image": pixels}).values()
    return result


def check_soft(alpha: Any, scores: Any) -> None:
    """A byte of the picture that differs by one moves the alpha by one."""
    assert alpha.shape == scores.shape and alpha.dtype == np.uint8
    difference = np.abs(alpha.astype(float) - np.floor(scores.clip(0, 1) * 255 + 0.5))
    assert difference.max() <= 2 and (difference > 0).mean() < 0.03


@pytest.mark.parametrize("device", ["wasm", "webgpu"])
@pytest.mark.parametrize("kind", ["bilinear", "bicubic"])
def test_a_mask_has_the_size_of_the_picture(tmp_path: Path, device: Device, kind: str) -> None:
    """One package for pictures that are larger and smaller than the mask, of 12 × 12 pixels."""
    options = f"alpha,foreground=1,filter={kind}"
    build(segmenter(pool=2), tmp_path, device, inputs={"image": "pixels=rgb"},
          outputs={"scores": options})  # fmt: skip
    model = load(tmp_path, device)
    for height, width in ((40, 61), (9, 7), (12, 12)):
        pixels = picture(height, width)
        whole = channels(pixels, (0, 0, SIZE, SIZE))[1]
        mask = whole.reshape(12, 2, 12, 2).mean((1, 3))
        scores = resized(pixels, mask, RESAMPLING[kind], (0, 0, 12, 12))
        check_soft(model.run({"image": pixels})["scores_alpha"], scores)
    model.dispose()


@pytest.mark.parametrize("place", list(PADDED))
def test_the_padding_is_no_part_of_the_mask(tmp_path: Path, place: str) -> None:
    pixels = picture(40, 61)
    image, scores = f"pixels=rgb,pad=0,place={place}", "alpha,foreground=[0]"
    alpha = run_mask(tmp_path, segmenter("nhwc", 2), image, f"{scores},layout=nhwc", "wasm", pixels)
    mask = channels(pixels, PADDED[place])[0].reshape(12, 2, 12, 2).mean((1, 3))
    box = tuple(side / 2 for side in PADDED[place])
    check_soft(alpha, resized(pixels, mask, Resampling.BILINEAR, box))


def test_classes_compete_by_softmax(tmp_path: Path) -> None:
    pixels = picture(SIZE, SIZE)
    options = "alpha,activation=softmax,foreground=[0,2]"
    alpha = run_mask(tmp_path, segmenter(), "pixels=rgb,scale=1/50", options, "wasm", pixels)
    scores = np.exp(pixels[..., :3] / 50)
    check_soft(alpha, (scores / scores.sum(-1, keepdims=True))[..., [0, 2]].sum(-1))


def test_the_runtime_returns_the_foreground(tmp_path: Path) -> None:
    """With a threshold, pixels are opaque or transparent."""
    pixels = picture(40, 61)
    options = "alpha,foreground=1,threshold=0.5,result=pixels"
    result = run_mask(tmp_path, segmenter(), "pixels=rgb", options, "wasm", pixels)
    scores = resized(pixels, channels(pixels, (0, 0, SIZE, SIZE))[1], Resampling.BILINEAR,
                     (0, 0, SIZE, SIZE))  # fmt: skip
    np.testing.assert_array_equal(result[..., :3], pixels[..., :3])
    is_clear = np.abs(scores - 0.5) > 0.01
    np.testing.assert_array_equal(result[..., 3][is_clear], 255 * (scores >= 0.5)[is_clear])
    assert set(np.unique(result[..., 3])) == {0, 255} and is_clear.mean() > 0.9
    job = {"package": str(tmp_path), "width": 61, "height": 40, "data": pixels.ravel().tolist()}
    shown = answer_once(SCRIPT, job)
    assert (shown["width"], shown["height"], shown["names"]) == (61, 40, ["scores_pixels"])
    data = np.array(shown["data"]).reshape(40, 61, 4)
    np.testing.assert_array_equal(data[is_clear], result[is_clear])
    assert "  scores: ImageData;\n" in (tmp_path / "model.d.ts").read_text()


@pytest.mark.parametrize(
    ("image", "scores", "message"),
    [
        ("pixels=rgb", "alpha", "output 'scores' has 3 classes; say which one is in front"),
        ("pixels=rgb", "alpha,foreground=3", "foreground is less than 3, the classes"),
        ("pixels=rgb", "alpha,foreground=1,result=png", "result is alpha or pixels, not 'png'"),
        ("pixels=rgb", "alpha,input=x", "output 'scores': a mask needs one input of pixels"),
        ("pixels=rgb,resize=32,crop=center", "alpha,foreground=1",
         "output 'scores': the model sees what crop leaves of a picture. Resize or pad it."),
    ],
)  # fmt: skip
def test_mistakes_are_explained(tmp_path: Path, image: str, scores: str, message: str) -> None:
    with pytest.raises(InputError) as error:
        build(segmenter(), tmp_path, "wasm", inputs={"image": image}, outputs={"scores": scores})
    assert message in str(error.value)

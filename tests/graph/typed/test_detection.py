"""Boxes of detectors, decoded in the package, against numpy and onnxruntime's NonMaxSuppression."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper, numpy_helper, parser

from tests.graph.typed.test_typed_values import picture
from tests.node import answer_once
from webmlc.core.errors import InputError
from webmlc.core.machine import Device
from webmlc.host.load import load
from webmlc.pipeline import build

SIZE, CLASSES, LEVELS = 32, 3, (8, 16)
BOXES = sum((SIZE // stride) ** 2 for stride in LEVELS)
HEIGHT, WIDTH = 50, 80
SCRIPT = Path(__file__).parents[2] / "js" / "run_detection.mjs"


def detector(values: Any, name: str = "found", **others: Any) -> onnx.ModelProto:
    """A model whose outputs are constants, but for a zero that depends on the picture."""
    outputs = {name: values, **others}
    shapes = {n: ", ".join(map(str, a.shape)) for n, a in outputs.items()}
    lines = "\n".join(f"{n} = Add({n}_values, zero)" for n in outputs)
    model = parser.parse_model(
        f"""<ir_version: 8, opset_import: ["" : 17]>
        g (float[1, 3, {SIZE}, {SIZE}] image) =>
          ({", ".join(f"float[{shapes[n]}] {n}" for n in outputs)}) {{
            least = ReduceMin<keepdims = 0>(image)
            none = Constant<value_float = 0.0>()
            zero = Mul(least, none)
            {lines}
        }}"""
    )
    for n, array in outputs.items():
        model.graph.initializer.append(numpy_helper.from_array(array, f"{n}_values"))
    return model


def values_of(seed: int, columns: int) -> Any:
    """Numbers of boxes that overlap: centres near one another, sizes, then likelihoods."""
    rng = np.random.default_rng(seed)
    centres = rng.uniform(4, 28, (BOXES, 2))
    sizes = rng.uniform(5, 14, (BOXES, 2))
    likelihoods = rng.uniform(0, 1, (BOXES, columns - 4)) ** 2
    return np.concatenate([centres, sizes, likelihoods], axis=1).astype(np.float32)[None]


def suppressed(corners: Any, scores: Any, threshold: float, overlap: float) -> list[Any]:
    """The rows (box, class) that onnxruntime keeps; each box only has its best class."""
    best = np.where(scores == scores.max(1, keepdims=True), scores, -1).astype(np.float32)
    names = ["boxes", "scores", "max", "iou", "score"]
    node = helper.make_node("NonMaxSuppression", names, ["y"])
    types = [1, 1, 7, 1, 1]
    inputs = [helper.make_tensor_value_info(n, t, None) for n, t in zip(names, types, strict=True)]
    output = helper.make_tensor_value_info("y", 7, ["m", 3])
    graph = helper.make_graph([node], "nms", inputs, [output])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    feeds = {
        "boxes": corners[None].astype(np.float32),
        "scores": np.ascontiguousarray(best.T)[None],
        "max": np.array([100]),
        "iou": np.array([overlap], np.float32),
        "score": np.array([threshold], np.float32),
    }
    session = onnxruntime.InferenceSession(model.SerializeToString())
    (rows,) = session.run(None, feeds)
    return [(int(box), int(kind)) for _, kind, box in rows]


def objects(corners: Any, scores: Any, kept: list[Any], place: Any) -> list[Any]:
    """(class, score, box in the picture) of the kept rows, the likeliest first."""
    limits = np.array([WIDTH, HEIGHT] * 2)
    rows = [(k, scores[b, k], np.clip(place(corners[b]), 0, limits)) for b, k in kept]
    return sorted(rows, key=lambda row: -row[1])


def cut(corners: Any) -> Any:
    """From the model's input to the picture, which was cropped: 50 rows became 32."""
    resized = SIZE * WIDTH // HEIGHT
    start, ratio = (resized - SIZE) // 2, (WIDTH / resized, HEIGHT / SIZE)
    return (corners + np.array([start, 0] * 2)) * np.array(ratio * 2)


def padded(corners: Any) -> Any:
    """From the model's input to the picture, which was padded: 80 columns became 32."""
    resized = SIZE * HEIGHT // WIDTH
    start, ratio = (SIZE - resized) // 2, (WIDTH / SIZE, HEIGHT / resized)
    return (corners - np.array([0, start] * 2)) * np.array(ratio * 2)


def found(outputs: Any) -> list[Any]:
    rows = zip(
        outputs["found_classes"], outputs["found_scores"], outputs["found_boxes"], strict=True
    )
    return sorted(((int(k), s, b) for k, s, b in rows), key=lambda row: -row[1])


def assert_same(actual: list[Any], expected: list[Any]) -> None:
    assert [row[0] for row in actual] == [row[0] for row in expected]
    assert len(expected) > 1
    for (_, score, box), (_, expected_score, expected_box) in zip(actual, expected, strict=True):
        assert score == pytest.approx(expected_score, abs=1e-5)
        np.testing.assert_allclose(box, expected_box, atol=2e-3)


def corners_of(rows: Any) -> Any:
    return np.concatenate([rows[:, :2] - rows[:, 2:4] / 2, rows[:, :2] + rows[:, 2:4] / 2], axis=1)


@pytest.mark.parametrize("device", ["wasm", "webgpu"])
def test_boxes_in_channels_are_those_of_onnxruntime(tmp_path: Path, device: Device) -> None:
    """As of YOLOv8: [1, 4 + classes, boxes]."""
    values = values_of(0, 4 + CLASSES)
    model = detector(np.ascontiguousarray(values.transpose(0, 2, 1)))
    options = "boxes=cxcywh,channels=first,threshold=0.3,overlap=0.4"
    inputs, outputs = {"image": f"pixels=rgb,resize={SIZE},crop=center"}, {"found": options}
    build(model, tmp_path, device, inputs=inputs, outputs=outputs)
    corners, scores = corners_of(values[0]), values[0, :, 4:]
    kept = suppressed(corners, scores, 0.3, 0.4)
    result = load(tmp_path, device).run({"image": picture(HEIGHT, WIDTH)})
    assert_same(found(result), objects(corners, scores, kept, cut))


def test_boxes_relative_to_cells_are_decoded(tmp_path: Path) -> None:
    """As of YOLOX: places within cells, logarithms of sizes, and an objectness."""
    values = values_of(1, 5 + CLASSES)
    cells = [np.mgrid[: SIZE // s, : SIZE // s][::-1].reshape(2, -1).T for s in LEVELS]
    places = np.concatenate(cells)
    strides = np.concatenate([np.full((len(c), 1), s) for c, s in zip(cells, LEVELS, strict=True)])
    raw = values.copy()
    raw[0, :, :2] = values[0, :, :2] / strides - places
    raw[0, :, 2:4] = np.log(values[0, :, 2:4] / strides)
    options = {
        "boxes": "cxcywh", "strides": list(LEVELS), "objectness": True, "threshold": 0.1,
        "labels": ["a", "b", "c"],
    }  # fmt: skip
    inputs = {"image": "pixels=bgr,pad=114,scale=1"}
    build(detector(raw), tmp_path, "wasm", inputs=inputs, outputs={"found": options})
    corners, scores = corners_of(values[0]), values[0, :, 5:] * values[0, :, 4:5]
    kept = suppressed(corners, scores, 0.1, 0.45)
    rows = objects(corners, scores, kept, padded)
    pixels = picture(HEIGHT, WIDTH)
    assert_same(found(load(tmp_path, "wasm").run({"image": pixels})), rows)
    job = {"package": str(tmp_path), "width": WIDTH, "height": HEIGHT}
    result = answer_once(SCRIPT, {**job, "data": pixels.ravel().tolist()})
    sides = ("xmin", "ymin", "xmax", "ymax")
    shown = [
        ("abc".index(o["label"]), o["score"], [o["box"][s] for s in sides])
        for o in result["objects"]
    ]
    assert_same(shown, rows)
    assert len(result["likely"][0]) == sum(score >= 0.5 for _, score, _ in rows)
    box = result["fractions"][0]["box"]
    np.testing.assert_allclose(
        [box[s] for s in sides], rows[0][2] / [WIDTH, HEIGHT, WIDTH, HEIGHT], atol=1e-4
    )


def test_two_outputs_and_a_class_of_no_object(tmp_path: Path) -> None:
    """As of DETR: boxes in fractions, logits, and no suppression."""
    values = values_of(2, 4 + CLASSES + 1)
    logits = np.ascontiguousarray(values[..., 4:] * 6)
    model = detector(np.ascontiguousarray(values[..., :4] / SIZE), logits=logits)
    options = "boxes=cxcywh,unit=fraction,classes=logits,activation=softmax,overlap=1,threshold=0.4"
    inputs = {"image": f"pixels=rgb,resize=[{SIZE},{SIZE}]"}
    build(model, tmp_path, "wasm", inputs=inputs, outputs={"found": options})
    scores = np.exp(logits[0]) / np.exp(logits[0]).sum(1, keepdims=True)
    scores = scores[:, :CLASSES]
    best = scores.argmax(1)
    kept = [(b, best[b]) for b in range(BOXES) if scores[b, best[b]] > 0.4]
    ratio = np.array([WIDTH / SIZE, HEIGHT / SIZE] * 2)
    rows = objects(corners_of(values[0]), scores, kept, lambda box: box * ratio)
    result = load(tmp_path, "wasm").run({"image": picture(HEIGHT, WIDTH)})
    assert set(result) == {"found_boxes", "found_scores", "found_classes"}
    assert_same(found(result), rows)


@pytest.mark.parametrize(
    ("inputs", "options", "message"),
    [
        ({}, "boxes=xyxy", "boxes need one input of pixels; there are none. Say input=NAME"),
        ({"image": "pixels=rgb"}, "boxes=xyxy,input=x", "boxes need one input of pixels"),
        ({"image": "pixels=rgb"}, "boxes=xyxy,classes=x", "the model has no output 'x'"),
        ({"image": "pixels=rgb"}, "boxes=polar", "boxes is xyxy or xywh or cxcywh, not 'polar'"),
        ({"image": "pixels=rgb"}, "boxes=xyxy,strides=[0]", "it is a list of sizes, such as"),
    ],
)
def test_mistakes_are_explained(
    tmp_path: Path, inputs: dict[str, str], options: str, message: str
) -> None:
    with pytest.raises(InputError) as error:
        build(
            detector(values_of(0, 7)), tmp_path, "wasm", inputs=inputs, outputs={"found": options}
        )
    assert message in str(error.value)

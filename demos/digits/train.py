"""Train the digits classifier of this demo and write it as ONNX.

In: scikit-learn's digits (1,797 images of 8×8 pixels, 0 to 16, shipped with the library). Out,
beside this file: `digits.onnx` (symbolic batch) and `held_out.npz` (the test images and their
labels, so that the demo needs neither scikit-learn nor a download).

    python demos/digits/train.py        # half a minute; same seed, same model

The network has three 3×3 convolutions, two poolings and one dense layer, in plain numpy. The
forward and the backward function of each layer stand side by side. Images are NHWC here and NCHW in
the ONNX file, as ONNX requires.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
import onnx
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

HERE = Path(__file__).parent
SEED = 20
EPOCHS = 80
BATCH = 64
CHANNELS = (1, 16, 32, 64)
"""The channels of the image and of the three convolutions."""
CLASSES = 10
HELD_OUT = 450
"""The images that are kept for the test."""
LEARNING_RATE = 3e-3

Array = NDArray[np.float32]
Parameters = dict[str, Array]


def initial_parameters(rng: np.random.Generator) -> Parameters:
    """He's initialisation: variance 2 / fan-in, so that rectified activations keep their scale."""
    parameters: Parameters = {}
    for i, (c, o) in enumerate(pairwise(CHANNELS), start=1):
        scale = np.sqrt(2 / (9 * c))
        parameters[f"conv{i}_weight"] = rng.normal(0, scale, (3, 3, c, o)).astype(np.float32)
        parameters[f"conv{i}_bias"] = np.zeros(o, np.float32)
    features = 2 * 2 * CHANNELS[-1]
    scale = np.sqrt(2 / features)
    parameters["dense_weight"] = rng.normal(0, scale, (features, CLASSES)).astype(np.float32)
    parameters["dense_bias"] = np.zeros(CLASSES, np.float32)
    return parameters


def convolve(x: Array, weight: Array) -> Array:
    """3×3, stride 1, zero padding: (N, H, W, C) by (3, 3, C, O) -> (N, H, W, O)."""
    padded = np.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)))
    windows = sliding_window_view(padded, (3, 3), axis=(1, 2))  # (N, H, W, C, 3, 3)
    return np.asarray(np.tensordot(windows, weight, axes=([4, 5, 3], [0, 1, 2])), np.float32)


def convolve_backward(x: Array, weight: Array, d_y: Array) -> tuple[Array, Array]:
    """Gradients of `convolve` with respect to its input and its weight."""
    padded = np.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)))
    windows = sliding_window_view(padded, (3, 3), axis=(1, 2))
    d_weight = np.tensordot(windows, d_y, axes=([0, 1, 2], [0, 1, 2]))  # (C, 3, 3, O)
    rotated = weight[::-1, ::-1].transpose(0, 1, 3, 2)
    return convolve(d_y, rotated), np.asarray(d_weight.transpose(1, 2, 0, 3), np.float32)


def pool(x: Array) -> Array:
    """2×2 maximum: (N, H, W, C) -> (N, H/2, W/2, C)."""
    n, h, w, c = x.shape
    return np.asarray(x.reshape(n, h // 2, 2, w // 2, 2, c).max(axis=(2, 4)), np.float32)


def pool_backward(x: Array, y: Array, d_y: Array) -> Array:
    """Pass the gradient to the maximum, in equal parts where several elements share it."""
    n, h, w, c = x.shape
    blocks = x.reshape(n, h // 2, 2, w // 2, 2, c)
    is_maximum = blocks == y[:, :, None, :, None, :]
    share = d_y[:, :, None, :, None, :] / is_maximum.sum(axis=(2, 4), keepdims=True)
    return np.asarray((is_maximum * share).reshape(x.shape), np.float32)


@dataclass(frozen=True, slots=True)
class Activations:
    """The inputs of every layer, which the backward pass needs."""

    image: Array
    conv1: Array
    conv2: Array
    pool2: Array
    conv3: Array
    pool3: Array
    probabilities: Array


def forward(p: Parameters, image: Array) -> Activations:
    """The output of every layer for images (N, 8, 8, 1) from 0 to 16, the class
    probabilities last.
    """
    x = image / np.float32(16)
    conv1 = np.maximum(convolve(x, p["conv1_weight"]) + p["conv1_bias"], 0)
    conv2 = np.maximum(convolve(conv1, p["conv2_weight"]) + p["conv2_bias"], 0)
    pool2 = pool(conv2)
    conv3 = np.maximum(convolve(pool2, p["conv3_weight"]) + p["conv3_bias"], 0)
    pool3 = pool(conv3)
    logits = pool3.reshape(len(x), -1) @ p["dense_weight"] + p["dense_bias"]
    exponent = np.exp(logits - logits.max(axis=1, keepdims=True))
    probabilities = exponent / exponent.sum(axis=1, keepdims=True)
    return Activations(x, conv1, conv2, pool2, conv3, pool3, probabilities)


def gradients(p: Parameters, image: Array, label: NDArray[np.int64]) -> Parameters:
    """Gradients of the mean cross-entropy, one per parameter."""
    a = forward(p, image)
    n = len(image)
    d_logits = (a.probabilities - np.eye(CLASSES, dtype=np.float32)[label]) / np.float32(n)
    g: Parameters = {
        "dense_weight": a.pool3.reshape(n, -1).T @ d_logits,
        "dense_bias": d_logits.sum(axis=0),
    }
    d_pool3 = np.asarray(d_logits @ p["dense_weight"].T, np.float32).reshape(a.pool3.shape)
    d_conv3 = pool_backward(a.conv3, a.pool3, d_pool3) * (a.conv3 > 0)
    d_pool2, g["conv3_weight"] = convolve_backward(a.pool2, p["conv3_weight"], d_conv3)
    d_conv2 = pool_backward(a.conv2, a.pool2, d_pool2) * (a.conv2 > 0)
    d_conv1, g["conv2_weight"] = convolve_backward(a.conv1, p["conv2_weight"], d_conv2)
    d_conv1 = d_conv1 * (a.conv1 > 0)
    _, g["conv1_weight"] = convolve_backward(a.image, p["conv1_weight"], d_conv1)
    for name, d in (("conv1", d_conv1), ("conv2", d_conv2), ("conv3", d_conv3)):
        g[f"{name}_bias"] = d.sum(axis=(0, 1, 2))
    return g


def adam(p: Parameters) -> Callable[[Parameters, float], None]:
    """Adam (Kingma and Ba, 2014). Returns a function of gradients and a rate that updates
    `p` in place.
    """
    mean = {k: np.zeros_like(v) for k, v in p.items()}
    square = {k: np.zeros_like(v) for k, v in p.items()}
    steps = 0

    def step(g: Parameters, rate: float) -> None:
        nonlocal steps
        steps += 1
        for k, gradient in g.items():
            mean[k] += np.float32(0.1) * (gradient - mean[k])
            square[k] += np.float32(0.001) * (gradient * gradient - square[k])
            corrected = mean[k] / (1 - 0.9**steps)
            spread = np.sqrt(square[k] / (1 - 0.999**steps)) + 1e-8
            p[k] -= (rate * corrected / spread).astype(np.float32)

    return step


def distort(image: Array, rng: np.random.Generator) -> Array:
    """Shift, rotate, slant and stretch each image a little, because handwriting varies."""
    n = len(image)
    angle = rng.normal(0, 0.12, n)
    slant = rng.normal(0, 0.12, n)
    stretch = np.exp(rng.normal(0, 0.07, (2, n)))
    shift = rng.normal(0, 0.4, (2, n))
    centre = 3.5
    row, column = np.meshgrid(np.arange(8) - centre, np.arange(8) - centre, indexing="ij")
    row, column = row[None], column[None]
    c, s = np.cos(angle)[:, None, None], np.sin(angle)[:, None, None]
    from_row = (c * row - s * column) / stretch[0][:, None, None] + shift[0][:, None, None] + centre
    from_column = (s * row + c * column) / stretch[1][:, None, None]
    from_column = from_column + slant[:, None, None] * row + shift[1][:, None, None] + centre
    r0, c0 = np.floor(from_row).astype(int), np.floor(from_column).astype(int)
    fr, fc = from_row - r0, from_column - c0
    padded = np.pad(image[..., 0], ((0, 0), (4, 4), (4, 4)))
    at = np.arange(n)[:, None, None]

    def pixel(dr: int, dc: int) -> Array:
        row, column = np.clip(r0 + dr + 4, 0, 15), np.clip(c0 + dc + 4, 0, 15)
        return np.asarray(padded[at, row, column], np.float32)

    top = pixel(0, 0) * (1 - fc) + pixel(0, 1) * fc
    bottom = pixel(1, 0) * (1 - fc) + pixel(1, 1) * fc
    return np.asarray((top * (1 - fr) + bottom * fr)[..., None], np.float32)


def batches(count: int, rng: np.random.Generator) -> Iterator[NDArray[np.int64]]:
    """The indices of each batch, in a random order."""
    order = rng.permutation(count)
    for start in range(0, count, BATCH):
        yield order[start : start + BATCH]


def train(image: Array, label: NDArray[np.int64]) -> Parameters:
    """Train with Adam and a cosine schedule down to zero."""
    rng = np.random.default_rng(SEED)
    p = initial_parameters(rng)
    step = adam(p)
    for epoch in range(EPOCHS):
        rate = LEARNING_RATE * 0.5 * (1 + np.cos(np.pi * epoch / EPOCHS))
        for batch in batches(len(image), rng):
            step(gradients(p, distort(image[batch], rng), label[batch]), rate)
        if epoch % 10 == 9:
            print(f"epoch {epoch + 1:3}  training accuracy {accuracy(p, image, label):.2%}")
    return p


def accuracy(p: Parameters, image: Array, label: NDArray[np.int64]) -> float:
    """The share of images that are classified correctly."""
    return float((forward(p, image).probabilities.argmax(axis=1) == label).mean())


def to_onnx(p: Parameters) -> onnx.ModelProto:
    """The network as ONNX: `image` (batch, 1, 8, 8), 0 to 16 -> `probabilities` (batch, 10)."""
    weights = {"scale": np.float32(1 / 16), "dense_bias": p["dense_bias"]}
    for i in (1, 2, 3):
        weights[f"conv{i}_weight"] = p[f"conv{i}_weight"].transpose(3, 2, 0, 1)
        weights[f"conv{i}_bias"] = p[f"conv{i}_bias"]
    # Flatten reads NCHW in ONNX, and NHWC above: reorder the rows of the dense layer.
    side = p["dense_weight"].reshape(2, 2, CHANNELS[-1], CLASSES)
    weights["dense_weight"] = side.transpose(2, 0, 1, 3).reshape(-1, CLASSES)

    def conv(i: int, source: str) -> list[onnx.NodeProto]:
        inputs = [source, f"conv{i}_weight", f"conv{i}_bias"]
        return [
            helper.make_node(
                "Conv", inputs, [f"conv{i}"], f"conv{i}", kernel_shape=[3, 3], pads=[1, 1, 1, 1]
            ),
            helper.make_node("Relu", [f"conv{i}"], [f"relu{i}"], f"relu{i}"),
        ]

    def max_pool(i: int) -> onnx.NodeProto:
        ends = [f"relu{i}"], [f"pool{i}"]
        return helper.make_node("MaxPool", *ends, f"pool{i}", kernel_shape=[2, 2], strides=[2, 2])

    nodes = [
        helper.make_node("Mul", ["image", "scale"], ["scaled"], "scale_to_one"),
        *conv(1, "scaled"),
        *conv(2, "relu1"),
        max_pool(2),
        *conv(3, "pool2"),
        max_pool(3),
        helper.make_node("Flatten", ["pool3"], ["features"], "flatten"),
        helper.make_node("Gemm", ["features", "dense_weight", "dense_bias"], ["logits"], "dense"),
        helper.make_node("Softmax", ["logits"], ["probabilities"], "softmax", axis=1),
    ]
    graph = helper.make_graph(
        nodes,
        "digits",
        [helper.make_tensor_value_info("image", TensorProto.FLOAT, ["batch", 1, 8, 8])],
        [helper.make_tensor_value_info("probabilities", TensorProto.FLOAT, ["batch", CLASSES])],
        [numpy_helper.from_array(np.ascontiguousarray(v), k) for k, v in weights.items()],
    )
    opset = [helper.make_opsetid("", 17)]
    model = helper.make_model(graph, opset_imports=opset, producer_name="webmlc demo")
    model.ir_version = 8
    onnx.checker.check_model(model, full_check=True)
    return model


def main() -> None:
    # The import is here because everything else in this file works without scikit-learn.
    from sklearn.datasets import load_digits

    digits = load_digits()
    image = digits.images.astype(np.float32)[..., None]
    label = digits.target.astype(np.int64)
    order = np.random.default_rng(SEED).permutation(len(label))
    test, training = order[:HELD_OUT], order[HELD_OUT:]
    p = train(image[training], label[training])
    print(f"held-out accuracy {accuracy(p, image[test], label[test]):.2%} of {len(test)}")
    onnx.save(to_onnx(p), HERE / "digits.onnx")
    np.savez_compressed(
        HERE / "held_out.npz",
        image=image[test, None, :, :, 0].astype(np.uint8),
        label=label[test].astype(np.uint8),
    )


if __name__ == "__main__":
    main()

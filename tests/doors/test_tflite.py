"""Files of TensorFlow's converter compute what TensorFlow Lite's own interpreter computes.

Each file is one model in one of the forms of the converter: floats, float16 weights, weights of
bytes, or integers of 8 or 16 bits. Integers must be equal, and floats within 1e-4 of the largest.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

import webmlc

Arrays = Mapping[str, np.ndarray]
RANDOM = np.random.default_rng(3)
TOLERANCE = 1e-4
"""The largest difference of floats, relative to the largest number of an output."""


def floats(*shape: int, low: float = -1, high: float = 1) -> np.ndarray:
    return RANDOM.uniform(low, high, shape).astype(np.float32)


IMAGE = {"image": floats(2, 16, 16, 3)}
NOISE = {"x": floats(2, 12, 8)}


def image_network(write: Callable[[Any], Any]) -> Callable[[], keras.Model]:
    """A network of an image."""

    def make() -> keras.Model:
        keras.utils.set_random_seed(1)
        image = keras.Input((16, 16, 3), name="image")
        return keras.Model(image, write(image))

    return make


def convolutions(x: Any) -> Any:
    x = layers.Conv2D(8, 3, padding="same", activation="relu")(x)
    x = layers.Conv2D(16, 3, strides=2, padding="same", activation="relu6")(x)
    x = layers.Conv2D(8, (1, 3), padding="valid")(x)
    x = layers.Conv2D(8, 3, dilation_rate=2, padding="same", activation="tanh")(x)
    return layers.Dense(5)(layers.Flatten()(x))


def separable(x: Any) -> Any:
    x = layers.Conv2D(8, 3, strides=2, padding="same", use_bias=False)(x)
    x = layers.ReLU(6.0)(layers.BatchNormalization()(x))
    x = layers.DepthwiseConv2D(3, padding="same", depth_multiplier=2)(x)
    x = layers.ReLU()(layers.BatchNormalization()(x))
    x = layers.SeparableConv2D(10, 5, strides=2, padding="same")(x)
    return layers.Dense(4, activation="softmax")(layers.GlobalAveragePooling2D()(x))


def hard_swish(x: Any) -> Any:
    return x * layers.ReLU(6.0)(x + 3.0) * (1 / 6)


def mobile_block(x: Any) -> Any:
    """A block of MobileNetV3: hard swish, squeeze and excitation, and a sum."""
    x = hard_swish(layers.Conv2D(8, 3, strides=2, padding="same")(x))
    y = hard_swish(layers.Conv2D(16, 1)(x))
    y = hard_swish(layers.DepthwiseConv2D(5, padding="same")(y))
    gate = layers.GlobalAveragePooling2D(keepdims=True)(y)
    gate = layers.Conv2D(4, 1, activation="relu")(gate)
    gate = layers.Conv2D(16, 1, activation="sigmoid")(gate)
    y = layers.Conv2D(8, 1)(layers.Multiply()([y, gate]))
    return layers.Add()([x, y])


def pools(x: Any) -> Any:
    x = layers.Conv2D(8, 1)(x)
    small = layers.AveragePooling2D(3, strides=2, padding="same")(x)
    large = layers.MaxPooling2D(2)(x)
    x = layers.Subtract()([small, large])
    return layers.Concatenate()(
        [layers.GlobalMaxPooling2D()(x), layers.GlobalAveragePooling2D()(x)]
    )


def residual(x: Any) -> Any:
    x = layers.Conv2D(8, 3, strides=2, padding="same", activation="relu")(x)
    y = layers.DepthwiseConv2D(3, padding="same", activation="relu6")(x)
    x = layers.Add()([x, layers.Conv2D(8, 1)(y)])
    x = layers.AveragePooling2D(2)(layers.ReLU()(x))
    return layers.Dense(6)(layers.Dense(10, activation="relu")(layers.Flatten()(x)))


def upsampling(x: Any) -> Any:
    x = layers.Conv2D(6, 3, strides=2, padding="same", activation="relu")(x)
    y = layers.Conv2DTranspose(6, 3, strides=2, padding="same")(x)
    z = layers.UpSampling2D(2, interpolation="bilinear")(x)
    w = layers.UpSampling2D(2, interpolation="nearest")(x)
    return layers.Concatenate()([y, z, w])


def branches(x: Any) -> Any:
    """Branches that are split, joined, scaled and added."""
    x = layers.Conv2D(8, 3, activation="relu")(x)
    left, right = x[..., :4], x[..., 4:]
    y = layers.Concatenate()([right * 0.5, layers.Add()([left, right])])
    y = layers.ZeroPadding2D(((0, 1), (1, 0)))(y)
    return layers.Conv2D(4, 1, activation="relu6")(layers.Maximum()([y, y * 0.25]))


def groups(x: Any) -> Any:
    x = layers.Conv2D(8, 3, padding="same")(x)
    return layers.Conv2D(8, 3, groups=4, padding="same", activation="sigmoid")(x)


def activations(x: Any) -> Any:
    x = layers.Conv2D(6, 1)(x)
    names = ("elu", "selu", "softplus", "swish", "gelu", "hard_sigmoid", "softsign", "exponential")
    results = [layers.Activation(name)(x) for name in names]
    results += [layers.LeakyReLU(0.1)(x), layers.PReLU(shared_axes=[1, 2])(x)]
    return layers.Concatenate()(results)


def sequence_network(write: Callable[[Any], Any]) -> Callable[[], keras.Model]:
    """A network of a sequence of vectors."""

    def make() -> keras.Model:
        keras.utils.set_random_seed(1)
        x = keras.Input((12, 8), name="x")
        return keras.Model(x, write(x))

    return make


def dense(x: Any) -> Any:
    x = layers.Dense(16, activation="relu")(layers.Flatten()(x))
    x = layers.Dense(12, activation="tanh")(x)
    return layers.Dense(5, activation="softmax")(layers.Dense(12, activation="sigmoid")(x))


def convolutions_1d(x: Any) -> Any:
    x = layers.Conv1D(8, 3, padding="causal", dilation_rate=2, activation="relu")(x)
    x = layers.MaxPooling1D(2)(layers.SeparableConv1D(8, 3, padding="same")(x))
    return layers.GlobalAveragePooling1D()(layers.Conv1DTranspose(4, 3, strides=2)(x))


def transformer_block(x: Any) -> Any:
    y = layers.MultiHeadAttention(2, 4)(x, x, use_causal_mask=True)
    x = layers.LayerNormalization()(x + y)
    y = layers.Dense(8)(layers.Dense(16, activation="gelu")(x))
    return layers.LayerNormalization()(x + y)


def unrolled_gru(x: Any) -> Any:
    return layers.GRU(6, unroll=True)(x)


def volume_network() -> keras.Model:
    keras.utils.set_random_seed(1)
    x = keras.Input((6, 8, 8, 2), name="x")
    y = layers.Conv3D(4, 3, strides=(1, 2, 2), padding="same", activation="relu")(x)
    return keras.Model(x, layers.Conv3DTranspose(3, 3, strides=2, padding="same")(y))


def two_inputs() -> keras.Model:
    keras.utils.set_random_seed(1)
    tokens, extra = keras.Input((7,), name="tokens", dtype="int32"), keras.Input((4,), name="extra")
    x = layers.GlobalAveragePooling1D()(layers.Embedding(20, 6)(tokens))
    features = layers.Concatenate()([x, layers.Dense(6)(extra)])
    return keras.Model([tokens, extra], {"scores": layers.Dense(3)(features), "features": features})


KERAS: Mapping[str, tuple[Callable[[], keras.Model], Arrays]] = {
    "convolutions": (image_network(convolutions), IMAGE),
    "separable convolutions": (image_network(separable), IMAGE),
    "mobile block": (image_network(mobile_block), IMAGE),
    "pools": (image_network(pools), IMAGE),
    "upsampling": (image_network(upsampling), IMAGE),
    "residual": (image_network(residual), IMAGE),
    "branches": (image_network(branches), IMAGE),
    "groups": (image_network(groups), IMAGE),
    "activations": (image_network(activations), IMAGE),
    "dense": (sequence_network(dense), NOISE),
    "convolutions of sequences": (sequence_network(convolutions_1d), NOISE),
    "transformer block": (sequence_network(transformer_block), NOISE),
    "unrolled GRU": (sequence_network(unrolled_gru), NOISE),
    "volumes": (volume_network, {"x": floats(1, 6, 8, 8, 2)}),
    "two inputs": (
        two_inputs,
        {"tokens": RANDOM.integers(0, 20, (2, 7)).astype(np.int32), "extra": floats(2, 4)},
    ),
}
"""The networks of Keras, and their inputs."""

X, Y = floats(3, 4, 6), floats(3, 1, 6, low=0.1, high=2)
WHOLE = RANDOM.integers(-9, 9, (3, 4)).astype(np.int32)

FUNCTIONS: Mapping[str, tuple[Callable[..., Any], Arrays]] = {
    "arithmetic": (lambda x, y: (x + y) * (x - y) / y - tf.minimum(x, y) ** 2, {"x": X, "y": Y}),
    "functions": (
        lambda x, y: tf.stack([
            tf.exp(x), tf.math.log(y) + x, tf.sin(x), tf.cos(x), tf.abs(x), tf.floor(x * 3),
            tf.math.ceil(x * 3), tf.round(x * 3), tf.math.rsqrt(y) + x, tf.sqrt(y) - x, tf.sign(x),
            tf.math.squared_difference(x, y), tf.pow(y, x),
        ]),
        {"x": X, "y": Y},
    ),
    "choices": (
        lambda x, y: tf.where((x > y) | (x <= -0.5) & ~tf.equal(y, 1), x, y), {"x": X, "y": Y},
    ),
    "reductions": (
        lambda x: tf.concat([
            tf.reduce_sum(x, 2), tf.reduce_mean(x, 2), tf.reduce_max(x, 2), tf.reduce_min(x, 2),
            tf.reduce_prod(x, 2), tf.cast(tf.reduce_any(x > 0.9, 2), tf.float32),
            tf.cast(tf.reduce_all(x > -0.9, 2), tf.float32), tf.math.reduce_std(x, 2),
        ], 1),
        {"x": X},
    ),
    "norms": (
        lambda x: tf.stack([
            tf.nn.softmax(x), tf.nn.log_softmax(x), tf.math.l2_normalize(x, -1), tf.cumsum(x, 1),
            tf.cumsum(x, 2, exclusive=True, reverse=True),
        ]),
        {"x": X},
    ),
    "slices": (
        lambda x: (x[1:, ::-2, tf.newaxis, -1],
                   tf.pad(x, [[0, 1], [2, 0], [1, 1]], constant_values=2),
                   tf.pad(x, [[0, 0], [1, 2], [2, 3]], "REFLECT"), tf.reverse(x, [1, 2]),
                   tf.tile(x[:1], [2, 1, 3]), tf.roll(x, 2, 1)),
        {"x": X},
    ),
    "splits": (
        lambda x: (*tf.split(x, [1, 3, 2], 2), tf.stack(tf.unstack(x, axis=1), 2),
                   tf.transpose(x, [2, 0, 1]), tf.squeeze(tf.reshape(x, [1, -1, 6]), 0)),
        {"x": X},
    ),
    "gathers": (
        lambda x, i: (tf.gather(x, i, axis=1), tf.gather_nd(x, tf.stack([i, i], 1)),
                      tf.one_hot(i, 5, 2.0, -1.0), tf.scatter_nd(i[:, None], x, [4, 4, 6]),
                      tf.tensor_scatter_nd_update(x, i[:, None], x * 2)),
        {"x": X, "i": np.array([2, 0, 1], np.int32)},
    ),
    "searches": (
        lambda x: (*tf.math.top_k(x, 3), tf.argmax(x, 1), tf.argmin(x, 2, tf.int32)), {"x": X},
    ),
    "segments": (
        lambda x, i: (tf.math.segment_sum(x, i // 2), tf.math.unsorted_segment_max(x, i, 4)),
        {"x": X, "i": np.array([0, 1, 2], np.int32)},
    ),
    "integers": (
        lambda a, b: (a + b, a * b - a, a // b, a % b, tf.maximum(a, b), tf.cast(a, tf.float32) / 4,
                      tf.bitwise.bitwise_xor(a, b), tf.bitwise.right_shift(a, b % 4)),
        {"a": WHOLE, "b": np.where(WHOLE[::-1] == 0, 3, WHOLE[::-1])},
    ),
    "products": (
        lambda x, w: (tf.einsum("bij,bkj->bik", x, w), tf.matmul(x, w, transpose_b=True),
                      tf.tensordot(x, w[0], [[2], [1]])),
        {"x": X, "w": floats(3, 5, 6)},
    ),
    "resizing": (
        lambda image: tf.concat([
            tf.image.resize(image, [11, 9], method) for method in ("bilinear", "nearest")
        ] + [tf.compat.v1.image.resize_bilinear(image, [11, 9], align_corners=True)], -1),
        {"image": floats(1, 7, 5, 4)},
    ),
    "blocks": (
        lambda image: (tf.nn.depth_to_space(image, 2), tf.nn.space_to_depth(image, 2),
                       tf.space_to_batch(image, [2, 2], [[1, 1], [0, 0]]),
                       tf.nn.lrn(image, 1, 1.0, 0.5, 0.6)),
        {"image": floats(1, 6, 4, 4)},
    ),
}  # fmt: skip
"""Functions of TensorFlow, and their inputs."""

QUANTISED = (
    *((name, "int8") for name in ("convolutions", "separable convolutions", "mobile block", "pools",
                                  "residual", "branches", "dense")),
    ("convolutions", "uint8 outside"), ("mobile block", "uint8 outside"),
    ("branches", "int16"),
    ("convolutions", "weights of bytes"), ("residual", "weights of bytes"),
    ("dense", "weights of bytes"),
    ("convolutions", "float16"), ("transformer block", "float16"),
)  # fmt: skip
"""The networks that are quantised, and how."""


def quantise(converter: Any, form: str, arrays: Arrays) -> None:
    """Set the form of a converter. The inputs are examples, each of one batch."""
    lite = tf.lite
    converter.optimizations = [lite.Optimize.DEFAULT]
    if form == "float16":
        converter.target_spec.supported_types = [tf.float16]
    if form not in ("int8", "uint8 outside", "int16"):
        return

    def examples() -> Iterator[list[np.ndarray]]:
        for _ in range(8):
            yield [floats(1, *array.shape[1:]) for array in arrays.values()]

    converter.representative_dataset = examples
    sets, element = [lite.OpsSet.TFLITE_BUILTINS_INT8], tf.int8
    if form == "int16":
        name = "EXPERIMENTAL_TFLITE_BUILTINS_ACTIVATIONS_INT16_WEIGHTS_INT8"
        sets, element = [getattr(lite.OpsSet, name)], tf.int16
    converter.target_spec.supported_ops = sets
    element = tf.uint8 if form == "uint8 outside" else element
    converter.inference_input_type = converter.inference_output_type = element


def key_of(port: str, arrays: Arrays) -> str:
    """The name in `arrays` of an input. The converter may write a prefix."""
    return next(name for name in arrays if port.removesuffix(":0").endswith(name))


def interpreted(content: bytes, arrays: Arrays) -> tuple[dict[str, np.ndarray], list[np.ndarray]]:
    """The inputs in the types of the file, by the names in `arrays`, and the interpreter's
    outputs.
    """
    interpreter = tf.lite.Interpreter(model_content=content)
    inputs = {}
    for port in interpreter.get_input_details():
        name = key_of(port["name"], arrays)
        array, (scale, zero) = arrays[name], port["quantization"]
        if scale:
            limits = np.iinfo(port["dtype"])
            array = np.clip(np.round(array / scale) + zero, limits.min, limits.max)
        inputs[name] = array.astype(port["dtype"])
        interpreter.resize_tensor_input(port["index"], array.shape)
    interpreter.allocate_tensors()
    for port in interpreter.get_input_details():
        name = key_of(port["name"], arrays)
        interpreter.set_tensor(port["index"], inputs[name])
    interpreter.invoke()
    return inputs, [
        interpreter.get_tensor(port["index"]) for port in interpreter.get_output_details()
    ]


def compare(content: bytes, arrays: Arrays, folder: Path) -> None:
    """Build the file, run it, and compare it with the interpreter."""
    path = folder / "model.tflite"
    path.write_bytes(content)
    inputs, expected = interpreted(content, arrays)
    manifest = webmlc.build(path, folder / "package", target="wasm")
    names = {port.name: key_of(port.name, arrays) for port in manifest.inputs}
    model = webmlc.load(folder / "package", device="wasm")
    try:
        outputs = model.run({port: inputs[name] for port, name in names.items()})
    finally:
        model.dispose()
    for port, wanted in zip(manifest.outputs, expected, strict=True):
        actual = outputs[port.name]
        assert (actual.dtype, actual.shape) == (wanted.dtype, wanted.shape), port.name
        if wanted.dtype.kind == "f":
            scale = max(float(np.abs(wanted).max()), 1e-6)
            np.testing.assert_allclose(actual, wanted, 0, TOLERANCE * scale, err_msg=port.name)
        else:
            np.testing.assert_array_equal(actual, wanted, err_msg=port.name)


@pytest.mark.parametrize("name", KERAS)
def test_a_network_of_floats(name: str, tmp_path: Path) -> None:
    make, arrays = KERAS[name]
    compare(tf.lite.TFLiteConverter.from_keras_model(make()).convert(), arrays, tmp_path)


@pytest.mark.parametrize(("name", "form"), QUANTISED)
def test_a_quantised_network(name: str, form: str, tmp_path: Path) -> None:
    make, arrays = KERAS[name]
    converter = tf.lite.TFLiteConverter.from_keras_model(make())
    quantise(converter, form, arrays)
    compare(converter.convert(), arrays, tmp_path)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_function(name: str, tmp_path: Path) -> None:
    function, arrays = FUNCTIONS[name]
    types = [tf.TensorSpec(a.shape, a.dtype, name=key) for key, a in arrays.items()]
    module = tf.Module()
    module.function = tf.function(function, input_signature=types)
    concrete = [module.function.get_concrete_function()]
    converter = tf.lite.TFLiteConverter.from_concrete_functions(concrete, module)
    compare(converter.convert(), arrays, tmp_path)

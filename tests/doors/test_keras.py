"""Models of Keras, SavedModels and TensorFlow Lite files compute what TensorFlow computes."""

from __future__ import annotations

from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow
from keras import layers

from tests.doors.built import build_and_run
from webmlc.core.errors import InputError, ModelError
from webmlc.frontend.doors.export_source import export_source

IMAGES = np.random.default_rng(0).standard_normal((3, 16, 16, 3)).astype(np.float32)


@pytest.fixture(scope="module")
def classifier() -> keras.Model:
    image = keras.Input((16, 16, 3), name="image")
    x = layers.Conv2D(8, 3, padding="same", use_bias=False, name="stem")(image)
    x = layers.ReLU()(layers.BatchNormalization()(x))
    x = layers.DepthwiseConv2D(3, strides=2, padding="same")(x)
    x = layers.GlobalAveragePooling2D()(x)
    scores = layers.Dense(5, activation="softmax", name="scores")(x)
    return keras.Model(image, scores, name="classifier")


def text_model() -> keras.Model:
    """A model of a text of any length, and of numbers beside it."""
    tokens = keras.Input((None,), name="tokens", dtype="int32")
    extra = keras.Input((4,), name="extra")
    x = layers.Embedding(10, 4)(tokens)
    x = layers.GRU(4)(x)
    x = layers.Add()([x, extra])
    outputs = {"scores": layers.Dense(3)(x), "features": x}
    return keras.Model({"tokens": tokens, "extra": extra}, outputs, name="text")


def test_a_model_and_its_file_equal_keras(classifier: keras.Model, tmp_path: Path) -> None:
    path = tmp_path / "saved.keras"
    classifier.save(path)
    wanted = classifier.predict(IMAGES, verbose=0)
    for source, name in ((classifier, "classifier"), (path, "saved")):
        built = build_and_run(source, {"image": IMAGES})
        built.assert_close({"scores": wanted})
        assert built.manifest.name == name
        assert built.types()["image"] == "float32[batch, 16, 16, 3]"
    assert "/scores" in str(built.manifest)


def test_a_model_of_two_inputs_of_any_length() -> None:
    model = text_model()
    tokens = np.array([[1, 2, 3, 4, 5], [5, 4, 3, 2, 1]], np.int32)
    extra = np.ones((2, 4), np.float32)
    inputs = {"tokens": tokens, "extra": extra}
    built = build_and_run(model, inputs, dynamic_shapes={"tokens": {1: "length"}})
    built.assert_close(model.predict(inputs, verbose=0))
    assert built.types()["tokens"] == "int32[batch, length]"
    with pytest.raises(InputError, match="no input is named 'words'"):
        export_source(model, dynamic_shapes={"words": {1: "length"}})


class Filter(tensorflow.Module):
    """A module of TensorFlow without Keras."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = tensorflow.Variable(
            np.random.default_rng(1).standard_normal((4, 2)), dtype="float32"
        )

    @tensorflow.function(input_signature=[tensorflow.TensorSpec([None, 4], name="signal")])
    def __call__(self, signal: tensorflow.Tensor) -> dict[str, tensorflow.Tensor]:
        return {"filtered": tensorflow.nn.tanh(signal @ self.weight)}


def test_a_saved_model_equals_tensorflow(tmp_path: Path) -> None:
    module = Filter()
    tensorflow.saved_model.save(module, tmp_path / "filter")
    signal = np.random.default_rng(0).standard_normal((5, 4)).astype(np.float32)
    built = build_and_run(tmp_path / "filter", {"signal": signal})
    built.assert_close({"filtered": module(signal)["filtered"]})
    assert built.types()["signal"] == "float32[batch, 4]"


def test_a_tflite_file_equals_its_interpreter(classifier: keras.Model, tmp_path: Path) -> None:
    path = tmp_path / "lite.tflite"
    path.write_bytes(tensorflow.lite.TFLiteConverter.from_keras_model(classifier).convert())
    interpreter = tensorflow.lite.Interpreter(str(path))
    wanted = interpreter.get_signature_runner()(image=IMAGES)
    built = build_and_run(path, {"image": IMAGES})
    built.assert_close(wanted)
    assert built.manifest.name == "lite"


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    path = tmp_path / "damaged.keras"
    path.write_bytes(b"no archive")
    with pytest.raises(ModelError, match=r"damaged\.keras: this is a text, which begins with"):
        export_source(path)

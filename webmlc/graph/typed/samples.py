"""Add nodes in front of a model that compute its input from a sound.

In: a function, and an input of type [length], [batch, length] or [batch, 1, length]. Out: the nodes
that compute it from float32 [channels, length], samples between -1 and 1 at the model's rate. The
channels become their mean:

    %audio: float32[batch, n]   ->   %audio: float32[audio_channels, n]
                                     ... = Mul(ReduceMean(%audio))

The runtime resamples the page's sound (`runtime_js/typed/samples.js`), because only the page knows
the sound's rate.
"""

from __future__ import annotations

from webmlc.core.dtypes import DType
from webmlc.core.errors import InputError
from webmlc.core.expr import Var, as_int
from webmlc.graph.builder import Builder, Value
from webmlc.graph.ir import TensorType
from webmlc.graph.typed.options import Samples

LEAST_VARIANCE = 1e-7
"""Added to the variance of samples, so that silence stays silence. From transformers."""


def read_samples(build: Builder, value: Value, type_: TensorType | None, options: Samples) -> Value:
    """Write the nodes that compute an input from `value`, which has the name of the input.

    Raises `InputError` if the input holds no sound of one channel.
    """
    if type_ is None or not 1 <= type_.rank <= 3 or not type_.dtype.is_float:
        raise InputError(f"input {value!r} is {type_}: it holds no sound")
    batch, middle = type_.shape[:-1][:1], type_.shape[1:-1]
    if any(as_int(size) != 1 and not isinstance(size, Var) for size in batch) or any(
        as_int(size) != 1 for size in middle
    ):
        raise InputError(
            f"input {value!r} is {type_}: "
            "a sound is [length], [batch, length] or [batch, 1, length]"
        )
    x = build("ReduceMean", value, [0], keepdims=int(type_.rank > 1))
    if options.scale != 1.0:
        x = x * options.scale
    if options.normalise:
        x = _normalised(build, x)
    if type_.dtype is not DType.float32:
        x = x.cast(type_.dtype)
    return x if type_.rank < 3 else x.unsqueeze(1)


def _normalised(build: Builder, x: Value) -> Value:
    """Samples of mean 0 and variance 1, as of `Wav2Vec2FeatureExtractor` with `do_normalize`."""
    centred = x - build("ReduceMean", x, [-1], keepdims=1)
    variance = build("ReduceMean", centred * centred, [-1], keepdims=1)
    spread = build("Sqrt", variance + LEAST_VARIANCE)
    return centred / spread

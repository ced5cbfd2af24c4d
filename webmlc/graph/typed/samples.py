"""Put in front of a model what makes its input of a sound.

In: a function, and an input of type [length], [batch, length] or [batch, 1, length]. Out: the nodes
that compute it from float32 [channels, length], samples between -1 and 1 at the model's rate. The
channels become their mean:

    %audio: float32[batch, n]   ->   %audio: float32[audio_channels, n]
                                     ... = Mul(ReduceMean(%audio))

The runtime resamples what the page has (`runtime_js/typed/samples.js`), because a sound's rate is
known only there.
"""

from __future__ import annotations

import numpy as np

from webmlc.core.dtypes import DType
from webmlc.core.errors import InputError
from webmlc.core.expr import Var, as_int
from webmlc.graph.builder import Builder
from webmlc.graph.ir import TensorType
from webmlc.graph.ops.operator import TYPE_NUMBERS
from webmlc.graph.typed.options import Samples

LEAST_VARIANCE = 1e-7
"""Added to the variance of samples, so that silence stays silence. From transformers."""


def read_samples(
    build: Builder, name: str, value: str, type_: TensorType | None, options: Samples
) -> str:
    """Write the nodes that compute the input `name` from the value `value`.

    Raises `InputError` if the input holds no sound of one channel.
    """
    if type_ is None or not 1 <= type_.rank <= 3 or not type_.dtype.is_float:
        raise InputError(f"input {name!r} is {type_}: it holds no sound")
    batch, middle = type_.shape[:-1][:1], type_.shape[1:-1]
    if any(as_int(size) != 1 and not isinstance(size, Var) for size in batch) or any(
        as_int(size) != 1 for size in middle
    ):
        raise InputError(
            f"input {name!r} is {type_}: a sound is [length], [batch, length] or [batch, 1, length]"
        )
    x = build("ReduceMean", value, build.constant(np.array([0])), keepdims=int(type_.rank > 1))
    if options.scale != 1.0:
        x = build("Mul", x, build.constant(np.float32(options.scale)))
    if options.normalise:
        x = _normalised(build, x)
    if type_.dtype is not DType.float32:
        x = build("Cast", x, to=TYPE_NUMBERS[type_.dtype])
    return x if type_.rank < 3 else build("Unsqueeze", x, build.constant(np.array([1])))


def _normalised(build: Builder, x: str) -> str:
    """Samples of mean 0 and variance 1, as of `Wav2Vec2FeatureExtractor` with `do_normalize`."""
    last = build.constant(np.array([-1]))
    centred = build("Sub", x, build("ReduceMean", x, last, keepdims=1))
    variance = build("ReduceMean", build("Mul", centred, centred), last, keepdims=1)
    spread = build("Sqrt", build("Add", variance, build.constant(np.float32(LEAST_VARIANCE))))
    return build("Div", centred, spread)

"""Add nodes behind a model that read a text from an output of scores, by greedy CTC decoding.

In: the value of an output, [batch, time, classes]. Out: the best class of each time step, without
repetitions and blanks, and the steps that it spans. Rows are as long as the time, and end with -1:

    %logits   ->   %logits_tokens: int32[batch, time]
                   %logits_frames: int32[batch, time, 2] (first step, end)
                   %logits_scores: float32[batch, time] (of the first step)

The best classes 0 3 3 0 3 5, where 0 is the blank, are the tokens 3 3 5 -1 -1 -1 with the frames
[1, 3] [4, 5] [5, 6]. A token's end is the step after its last one. All sizes follow from the
output's shape, so the decoding does not end a segment.

Source: Graves et al., "Connectionist Temporal Classification", 2006, best path decoding.
"""

from __future__ import annotations

import numpy as np

from webmlc.core.dtypes import DType
from webmlc.core.errors import InputError
from webmlc.core.expr import as_int
from webmlc.graph.builder import Builder, Value
from webmlc.graph.ir import TensorType
from webmlc.graph.typed.options import Transcript

_PERMUTATIONS = {"btc": (0, 1, 2), "tbc": (1, 0, 2), "bct": (0, 2, 1)}
_END = np.iinfo(np.int64).max


def read_transcript(
    build: Builder, name: Value, type_: TensorType, options: Transcript
) -> dict[str, Value]:
    """Write the nodes. Returns the tokens, the frames and the scores.

    Raises `InputError` if the output has neither two nor three axes, or no class of the blank.
    """
    count = None if type_.rank < 2 else as_int(type_.shape[options.axis])
    if count is not None and options.blank >= count:
        raise InputError(f"output {name!r}: blank={options.blank}, but there are {count} classes")
    classes = _classes_last(build, name, type_, options)
    path = build("ArgMax", classes, axis=-1, keepdims=0).cast(DType.int32)
    after_end = build("Pad", path, [0, 0, 0, 1], np.int32(-1))
    before_begin = build("Pad", path, [0, 1, 0, 0], np.int32(-1))
    is_token = ~path.op("Equal", options.blank)
    is_first = is_token & ~path.op("Equal", before_begin.slice(0, -1, 1))
    is_last = is_token & ~path.op("Equal", after_end.slice(1, _END, 1))
    number = is_first.cast(DType.int32).op("CumSum", np.int64(1)) - 1  # the token of each step
    first, last = (_steps(build, flags, number, after_end) for flags in (is_first, is_last))
    is_used = build("GreaterOrEqual", first, 0)
    indices = build("Max", first, 0)
    tokens = build("GatherElements", path, indices, axis=1)
    scores = build("GatherElements", _best_scores(build, classes, options), indices, axis=1)
    end = is_used.where(last + 1, first)
    frames = [step.unsqueeze(2) for step in (first, end)]
    return {
        "tokens": is_used.where(tokens, -1),
        "frames": build("Concat", *frames, axis=2),
        "scores": is_used.where(scores, 0),
    }


def _classes_last(build: Builder, name: Value, type_: TensorType, options: Transcript) -> Value:
    """The output as float32 [batch, time, classes]."""
    if type_.rank not in (2, 3):
        raise InputError(f"output {name!r} is {type_}: ctc reads [batch, time, classes]")
    x = name.cast(DType.float32)
    if type_.rank == 2:
        x = x.unsqueeze(1 if options.axes == "tbc" else 0)
    permutation = _PERMUTATIONS[options.axes]
    return x if options.axes == "btc" else x.transpose(*permutation)


def label_texts(options: Transcript, classes: int | None) -> list[str]:
    """The text of each class. The text of the blank is empty, whether or not it has a label."""
    texts = ["" if label in options.skip else label for label in options.labels]
    if options.space:
        texts = [text.replace(options.space, " ") for text in texts]
    if len(texts) + 1 == classes:
        texts.insert(options.blank, "")
    return texts


def _best_scores(build: Builder, classes: Value, options: Transcript) -> Value:
    """The largest score of each step, [batch, time]."""
    if options.scores == "softmax":
        classes = build("Softmax", classes, axis=-1)
    best = build("ReduceMax", classes, [-1], keepdims=0)
    return build("Sigmoid", best) if options.scores == "sigmoid" else best


def _steps(build: Builder, flags: Value, number: Value, longer: Value) -> Value:
    """The step of each token whose flag is true, and -1 after the last token: int32 [batch, time].

    `number` is the number of the token of each step. `longer` is int32 [batch, time + 1]. Steps
    without a flag are written to the last column, which is left out.
    """
    shape = build("Shape", flags)
    length = shape.element(1, 0)
    places = flags.where(number, length.cast(DType.int32))
    steps = build("Expand", build("Range", 0, length, 1).cast(DType.int32), shape)
    empty = build("Expand", np.int32(-1), build("Shape", longer))
    return build("ScatterElements", empty, places, steps, axis=1).slice(0, -1, 1)

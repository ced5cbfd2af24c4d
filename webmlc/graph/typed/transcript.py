"""Put behind a model what reads a text from an output of scores, by greedy CTC decoding.

In: the value of an output, [batch, time, classes]. Out: the best class of each time step, without
repetitions and blanks, and which steps it spans. Rows are as long as the time, and end with -1:

    %logits   ->   %logits_tokens: int32[batch, time]
                   %logits_frames: int32[batch, time, 2] (first step, end)
                   %logits_scores: float32[batch, time] (of the first step)

The best classes 0 3 3 0 3 5, of which 0 is the blank, are the tokens 3 3 5 -1 -1 -1 with the frames
[1, 3] [4, 5] [5, 6]. A token's end is the step after its last one. All sizes follow from the
output's shape, so the decoding does not end a segment.

Source: Graves et al., "Connectionist Temporal Classification", 2006, best path decoding.
"""

from __future__ import annotations

import numpy as np

from webmlc.core.dtypes import DType
from webmlc.core.errors import InputError
from webmlc.core.expr import as_int
from webmlc.graph.builder import Builder
from webmlc.graph.ir import TensorType
from webmlc.graph.ops.operator import TYPE_NUMBERS
from webmlc.graph.typed.options import Transcript

_PERMUTATIONS = {"btc": (0, 1, 2), "tbc": (1, 0, 2), "bct": (0, 2, 1)}
_END = np.iinfo(np.int64).max


def read_transcript(
    build: Builder, name: str, type_: TensorType, options: Transcript
) -> dict[str, str]:
    """Write the nodes. Returns the tokens, the frames and the scores.

    Raises `InputError` if the output has neither two nor three axes, or no class of the blank.
    """
    count = None if type_.rank < 2 else as_int(type_.shape[options.axis])
    if count is not None and options.blank >= count:
        raise InputError(f"output {name!r}: blank={options.blank}, but there are {count} classes")
    classes = _classes_last(build, name, type_, options)
    path = _int32(build, build("ArgMax", classes, axis=-1, keepdims=0))
    after_end = build("Pad", path, build.constant([0, 0, 0, 1]), build.constant(np.int32(-1)))
    before_begin = build("Pad", path, build.constant([0, 1, 0, 0]), build.constant(np.int32(-1)))
    is_token = _differ(build, path, build.constant(np.int32(options.blank)))
    is_first = build("And", is_token, _differ(build, path, _columns(build, before_begin, 0, -1)))
    is_last = build("And", is_token, _differ(build, path, _columns(build, after_end, 1, _END)))
    counts = build("CumSum", _int32(build, is_first), build.constant(1))
    number = build("Sub", counts, build.constant(np.int32(1)))  # the token of each step
    first, last = (_steps(build, flags, number, after_end) for flags in (is_first, is_last))
    is_used = build("GreaterOrEqual", first, build.constant(np.int32(0)))
    indices = build("Max", first, build.constant(np.int32(0)))
    tokens = build("GatherElements", path, indices, axis=1)
    scores = build("GatherElements", _best_scores(build, classes, options), indices, axis=1)
    end = build("Where", is_used, build("Add", last, build.constant(np.int32(1))), first)
    frames = [build("Unsqueeze", step, build.constant([2])) for step in (first, end)]
    return {
        "tokens": build("Where", is_used, tokens, build.constant(np.int32(-1))),
        "frames": build("Concat", *frames, axis=2),
        "scores": build("Where", is_used, scores, build.constant(np.float32(0))),
    }


def _classes_last(build: Builder, name: str, type_: TensorType, options: Transcript) -> str:
    """The output as float32 [batch, time, classes]."""
    if type_.rank not in (2, 3):
        raise InputError(f"output {name!r} is {type_}: ctc reads [batch, time, classes]")
    x = build("Cast", name, to=TYPE_NUMBERS[DType.float32])
    if type_.rank == 2:
        x = build("Unsqueeze", x, build.constant([1 if options.axes == "tbc" else 0]))
    permutation = _PERMUTATIONS[options.axes]
    return x if options.axes == "btc" else build("Transpose", x, perm=permutation)


def label_texts(options: Transcript, classes: int | None) -> list[str]:
    """What each class adds to the text. The blank adds nothing, whether or not it has a label."""
    texts = ["" if label in options.skip else label for label in options.labels]
    if options.space:
        texts = [text.replace(options.space, " ") for text in texts]
    if len(texts) + 1 == classes:
        texts.insert(options.blank, "")
    return texts


def _best_scores(build: Builder, classes: str, options: Transcript) -> str:
    """The largest score of each step, [batch, time]."""
    if options.scores == "softmax":
        classes = build("Softmax", classes, axis=-1)
    best = build("ReduceMax", classes, build.constant([-1]), keepdims=0)
    return build("Sigmoid", best) if options.scores == "sigmoid" else best


def _steps(build: Builder, flags: str, number: str, longer: str) -> str:
    """The step of each token whose flag is true, and -1 after the last token: int32 [batch, time].

    `number` is that of the token of each step. `longer` is int32 [batch, time + 1]. Steps without a
    flag are written to the last column, which is left out.
    """
    shape = build("Shape", flags)
    length = build("Gather", shape, build.constant(1), axis=0)
    places = build("Where", flags, number, _int32(build, length))
    zero, one = (build.constant(n) for n in (0, 1))
    steps = build("Expand", _int32(build, build("Range", zero, length, one)), shape)
    empty = build("Expand", build.constant(np.int32(-1)), build("Shape", longer))
    return _columns(build, build("ScatterElements", empty, places, steps, axis=1), 0, -1)


def _columns(build: Builder, rows: str, begin: int, end: int) -> str:
    return build("Slice", rows, *(build.constant([n]) for n in (begin, end, 1)))


def _differ(build: Builder, left: str, right: str) -> str:
    return build("Not", build("Equal", left, right))


def _int32(build: Builder, value: str) -> str:
    return build("Cast", value, to=TYPE_NUMBERS[DType.int32])

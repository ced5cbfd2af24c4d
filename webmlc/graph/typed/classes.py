"""Put behind a model what makes typed results of an output of scores.

In: the value of an output, [..., classes]. Out: the scores as probabilities, [..., classes]; or the
`topk` largest of them and the indices of their classes, both [..., topk]:

    %logits: float32[1, 1000]   ->   %logits_scores: float32[1, 5], %logits_classes: int32[1, 5]
"""

from __future__ import annotations

from webmlc.core.dtypes import DType
from webmlc.graph.builder import Builder, Value
from webmlc.graph.typed.options import Classes


def rank_classes(build: Builder, value: Value, options: Classes) -> dict[str, Value]:
    """Write the nodes. Returns the scores, and with `topk` the classes."""
    scores = value.cast(DType.float32)
    if options.scores == "softmax":
        scores = build("Softmax", scores, axis=-1)
    elif options.scores == "sigmoid":
        scores = build("Sigmoid", scores)
    if not options.topk:
        return {"scores": scores}
    best, places = build.many("TopK", scores, [options.topk], outputs=2, axis=-1)
    return {"scores": best, "classes": places.cast(DType.int32)}

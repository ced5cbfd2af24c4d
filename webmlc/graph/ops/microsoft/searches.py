"""Searches around a decoder: GreedySearch, Sampling, BeamSearch and WhisperBeamSearch.

In: a node whose attributes hold a decoder, and perhaps an encoder, as graphs. Out: a call of the
decoder for all tokens of the prompt, and a Loop over calls with one token, whose keys and values
grow. Each call is followed by a choice of tokens.

    %s = GreedySearch(%ids, %max) {decoder}
      ->  %l, %k = decoder(%ids, ..)
          %t = choose(%l)
          %s = Loop(%max - size of %ids - 1, ..) { %l, %k = decoder(%t, %k, ..); %t = choose(%l) }

The graphs have the inputs and outputs that onnxruntime's converter gives them
(`convert_generation.py`). They are recognised by their places, their types and their ranks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np

from webmlc.core.dtypes import DType
from webmlc.core.expr import as_int
from webmlc.graph.builder import Builder, Value
from webmlc.graph.ir import Function, TensorType
from webmlc.graph.ops.microsoft.rows import int64_scalar, row
from webmlc.graph.ops.microsoft.search_choices import (
    Beams,
    Chooser,
    Greedy,
    Nucleus,
    Sampling,
    numbers_below,
    sizes,
)
from webmlc.graph.ops.microsoft.search_scores import Places, Rules, rules_of
from webmlc.graph.ops.microsoft.search_timestamps import Timestamps
from webmlc.graph.ops.operator import Context, Missing, NotSupportedError, Operator, Result
from webmlc.graph.ops.shapes import check_shapes
from webmlc.graph.ops.subgraphs import splice

GPT, T5, WHISPER = range(3)
"""The kinds of models, as the attribute `model_type` numbers them."""


@dataclass(frozen=True, slots=True)
class Graph:
    """A graph of a node, whose constants are stored once for all its calls."""

    function: Function
    constants: Mapping[str, str]

    @staticmethod
    def of(context: Context, build: Builder, name: str) -> Graph:
        """The graph of an attribute."""
        function = context.attribute(name)
        if not isinstance(function, Function):
            raise NotSupportedError(f"it has no {name}: export the model again")
        constants = {key: build.constant(array) for key, array in function.constants.items()}
        return Graph(replace(function, constants={}), constants)

    def call(self, build: Builder, inputs: Sequence[Value]) -> list[Value]:
        """Add the nodes of the graph, and return its outputs."""
        names = self.function.inputs
        arguments = {**self.constants, **dict(zip(names, inputs, strict=True))}
        return [build.value(name) for name in splice(self.function, build, arguments)]

    def type(self, index: int) -> TensorType:
        """The declared type of an input."""
        name = self.function.inputs[index]
        if name not in self.function.types:
            raise NotSupportedError(f"the input {name!r} of its graph has no type: declare it")
        return self.function.types[name]

    def empty_past(self, index: int, axis: int, rows: Value) -> Value:
        """The keys or values of no token, for an input whose `axis` is the rows."""
        type_ = self.type(index)
        parts = [as_int(size) for size in type_.shape]
        heads, width = parts[-3], parts[-1]
        if heads is None or width is None:
            raise NotSupportedError("the heads of its decoder have no size that is a number")
        shape: tuple[int | Value, ...] = (*([2] * axis), rows, heads, 0, width)
        zero = np.zeros(1, type_.dtype.numpy)
        return rows.build("ConstantOfShape", sizes(rows.build, *shape), value=zero)


class Decoder(Protocol):
    """A decoder that is called again and again. Its states are the keys and values of its tokens,
    and what else depends on them.
    """

    @property
    def tokens(self) -> Value:
        """The tokens before the first choice, int32 [N, T]."""

    def start(self) -> tuple[Value, list[Value]]:
        """The logits after these tokens, [N, T, V], and the states."""

    def step(
        self, build: Builder, token: Value, tokens: Value, states: Sequence[Value]
    ) -> tuple[Value, list[Value]]:
        """The logits after one more token, and the new states."""

    def select(self, states: Sequence[Value], rows: Value) -> list[Value]:
        """The states of these rows."""


@dataclass(frozen=True, slots=True)
class Causal:
    """A decoder as of GPT-2. The states are the positions, the mask of tokens, and a tensor of keys
    and values for each layer, [2, N, heads, T, width].
    """

    first: Graph
    next: Graph
    tokens: Value
    mask: Value | None
    pad: int

    @staticmethod
    def of(context: Context, build: Builder, rows: Value | None, mask: Value | None) -> Causal:
        """The decoder of a node. `rows` holds the batch of each of N rows, or is `None`."""
        decoder = Graph.of(context, build, "decoder")
        has_first = "init_decoder" in context.node.attributes
        pasts = len(decoder.function.outputs) - 1
        if len(decoder.function.inputs) != 3 + pasts:
            raise NotSupportedError(
                "its decoder writes into buffers of CUDA (past_present_share_buffer): convert the "
                "model for the CPU"
            )
        return Causal(
            Graph.of(context, build, "init_decoder") if has_first else decoder,
            decoder,
            expanded(build.inputs[0], rows),
            None if mask is None else expanded(mask, rows),
            int(context.attribute("pad_token_id")),
        )

    def start(self) -> tuple[Value, list[Value]]:
        build, ids = self.tokens.build, self.tokens
        is_token = (~ids.op("Equal", self.pad)).cast(DType.int32)
        positions = build("CumSum", is_token, np.int64(1), exclusive=1) * is_token
        mask = is_token if self.mask is None else self.mask
        count = len(self.next.function.outputs) - 1
        pasts = [self.first.empty_past(3 + k, 1, ids.size(0)) for k in range(count)]
        logits, *presents = self.first.call(build, [ids, positions, mask, *pasts])
        next_positions = build("ReduceSum", is_token, [1], keepdims=1)
        return logits, [next_positions, mask, *presents]

    def step(
        self, build: Builder, token: Value, tokens: Value, states: Sequence[Value]
    ) -> tuple[Value, list[Value]]:
        positions, mask, *pasts = states
        ones = build("Expand", build.constant(1, DType.int32), token.op("Shape"))
        mask = build("Concat", mask, ones, axis=1)
        logits, *presents = self.next.call(build, [token, positions, mask, *pasts])
        return logits, [positions + 1, mask, *presents]

    def select(self, states: Sequence[Value], rows: Value) -> list[Value]:
        positions, mask, *pasts = states
        return [positions, mask, *(p.op("Gather", rows, axis=1) for p in pasts)]


@dataclass(frozen=True, slots=True)
class Encoded:
    """A decoder that attends to an encoder, as of T5 and Whisper. The states are the keys and
    values of the tokens, [N, heads, T, width]. `before` and `after` are the inputs before and after
    the states that do not change.
    """

    graph: Graph
    tokens: Value
    before: tuple[Value, ...]
    after: tuple[Value, ...]
    logits: Value | None
    first_states: tuple[Value, ...]

    @staticmethod
    def of(
        context: Context, build: Builder, rows: Value | None, mask: Value | None, start: Value
    ) -> Encoded:
        """The decoder of a node, after a call of its encoder. `start` are the first tokens."""
        encoder = Graph.of(context, build, "encoder")
        decoder = Graph.of(context, build, "decoder")
        states = len(decoder.function.outputs) - 1
        ranks = [decoder.type(k).rank for k in range(len(decoder.function.inputs))]
        first = ranks.index(4) if 4 in ranks else len(ranks)
        if ranks[first:] != [4] * (2 * states):
            raise NotSupportedError(
                "its decoder has inputs for kernels of CUDA: convert the model for the CPU"
            )
        features = build.inputs[0]
        inputs = [features] if mask is None else [features, mask]
        has_start = len(encoder.function.inputs) > len(inputs)
        results = encoder.call(build, [*inputs, start] if has_start else inputs)
        outputs = [expanded(value, rows) for value in results]
        hidden = [outputs.pop(1)] if has_start else []
        logits = outputs.pop(0) if has_start else None
        tokens = expanded(start, rows)
        before = [] if mask is None else [expanded(mask, rows)]
        before += hidden[: first - 1 - len(before)]
        pasts = tuple(outputs[: len(outputs) - states])
        if not has_start:
            pasts = tuple(decoder.empty_past(first + k, 0, tokens.size(0)) for k in range(states))
        after = tuple(outputs[len(outputs) - states :])
        return Encoded(decoder, tokens, tuple(before), after, logits, pasts)

    def start(self) -> tuple[Value, list[Value]]:
        if self.logits is not None:
            return self.logits, list(self.first_states)
        return self.step(self.tokens.build, self.tokens, self.tokens, self.first_states)

    def step(
        self, build: Builder, token: Value, tokens: Value, states: Sequence[Value]
    ) -> tuple[Value, list[Value]]:
        reads_one = as_int(self.graph.type(0).shape[1]) == 1
        ids = token if reads_one else tokens
        logits, *presents = self.graph.call(build, [ids, *self.before, *states, *self.after])
        return logits, presents

    def select(self, states: Sequence[Value], rows: Value) -> list[Value]:
        return [state.op("Gather", rows, axis=0) for state in states]


def expanded(value: Value, rows: Value | None) -> Value:
    """The value with a row for each beam."""
    return value if rows is None else value.op("Gather", rows, axis=0)


def extent(value: Value) -> Value:
    """A count as a size. If a run computes it, all sizes that depend on it have one symbol."""
    return numbers_below(value.build, int64_scalar(value)).size(0)


@dataclass(frozen=True, slots=True)
class Search:
    """A decoder, a chooser and their rules. Of the logits, the first `vocabulary` count: `None` for
    all.
    """

    decoder: Decoder
    chooser: Chooser
    rules: Rules
    length: Value
    vocabulary: int | None

    def last(self, logits: Value) -> Value:
        """The logits after the last token, [N, V]."""
        last = logits.element(-1, 1).cast(DType.float32)
        return last if self.vocabulary is None else last.slice(0, self.vocabulary, 1)

    def results(self, build: Builder, wants_scores: bool) -> tuple[Value, ...]:
        """The outputs of the chooser, and the scores of each step, [T, N, V], if wanted."""
        logits, states = self.decoder.start()
        tokens = self.decoder.tokens
        choice = self.chooser.choose(self.last(logits), tokens, self.chooser.start(), self.rules)
        if choice.rows is not None:
            states = self.decoder.select(states, choice.rows)
        carried = (choice.token, choice.tokens, *states, *choice.state)
        body = self.body(build, len(states), len(carried), wants_scores)
        steps = self.length - tokens.size(1) - 1
        outputs = len(carried) + wants_scores
        values = build.many("Loop", steps, choice.follows, *carried, outputs=outputs, body=body)
        results = self.chooser.results(values[1], values[2 + len(states) : len(carried)])
        if not wants_scores:
            return results
        scores = build("Concat", choice.scores.unsqueeze(0), values[-1], axis=0)
        return (*results, scores)

    def body(self, build: Builder, states: int, carried: int, wants_scores: bool) -> Function:
        """The body of the loop, which carries the last token, all tokens, the states of the decoder
        and the state of the chooser.
        """
        inner, expansion = build.inner("search")
        step, go, token, tokens, *values = (inner.fresh("carried") for _ in range(2 + carried))
        logits, new_states = self.decoder.step(inner, token, tokens, values[:states])
        rules = self.rules.without_first()
        choice = self.chooser.choose(self.last(logits), tokens, values[states:], rules)
        if choice.rows is not None:
            new_states = self.decoder.select(new_states, choice.rows)
        scans = (choice.scores,) if wants_scores else ()
        outputs = (choice.follows, choice.token, choice.tokens, *new_states, *choice.state, *scans)
        inputs = (step, go, token, tokens, *values)
        return Function("search", inputs, outputs, tuple(expansion.nodes), {}, expansion.constants)


GREEDY = Places(least_length=2, penalty=3, mask=4, first_mask=5, presence=7)
BEAMS = Places(least_length=2, penalty=6, mask=7, first_mask=8, temperature=14)
"""The inputs of the operators that hold rules."""


def _greedy(context: Context, build: Builder) -> tuple[Result, ...]:
    """Expand GreedySearch and Sampling."""
    if context.attribute("model_type", GPT) != GPT:
        raise NotSupportedError("model_type must be 0: only decoders as of GPT-2")
    check_shapes(context, "batch length", *[""] * 5, "batch length", "batch vocabulary")
    ids, length = build.inputs[0], extent(build.inputs[1])
    batch, pad = ids.size(0), int(context.attribute("pad_token_id"))
    chooser = Greedy(build, batch, length, pad)
    if context.node.op == "Sampling":
        chooser = Sampling(build, batch, length, pad, _nucleus(context), _seed(build))
    decoder = Causal.of(context, build, None, build.optional(6))
    rules = rules_of(context, build, GREEDY, None)
    search = Search(decoder, chooser, rules, length, _vocabulary(context))
    return (*search.results(build, False), Missing.RESULT)


def _nucleus(context: Context) -> Nucleus:
    return Nucleus(
        context.attribute("top_p", 0.0),
        context.attribute("filter_value", -1e20),
        int(context.attribute("min_tokens_to_keep", 0)),
        context.attribute("custom", 0) == 1,
    )


def _seed(build: Builder) -> Value:
    seed = build.optional(8)
    seed = build.constant(0, DType.int32) if seed is None else seed
    return seed.cast(DType.uint32).reshape(1)


def _vocabulary(context: Context) -> int | None:
    size = int(context.attribute("vocab_size", -1))
    return size if size > 0 else None


def _beams(context: Context, build: Builder) -> tuple[Result, ...]:
    """Expand BeamSearch and WhisperBeamSearch."""
    is_whisper = context.node.op == "WhisperBeamSearch"
    kind = int(context.attribute("model_type", WHISPER if is_whisper else GPT))
    _check_beams(context, kind)
    features = "batch features length" if kind == WHISPER else "batch length"
    check_shapes(context, features, *[""] * 8, "batch length", "batch start")
    length, beams = extent(build.inputs[1]), extent(build.inputs[3])
    batch, pad = build.inputs[0].size(0), int(context.attribute("pad_token_id"))
    rows = numbers_below(build, batch * beams) / beams
    returned, power = extent(build.inputs[4]), _power(context, build)
    stops_early = context.attribute("early_stopping", 0) == 1
    chooser = Beams(build, batch, beams, returned, length, pad, power, stops_early)
    decoder: Decoder
    if kind == GPT:
        decoder = Causal.of(context, build, rows, build.optional(9))
    else:
        mask = _encoder_mask(build, pad) if kind == T5 else None
        decoder = Encoded.of(context, build, rows, mask, _start(context, build, batch, kind))
    rules = rules_of(context, build, BEAMS, rows)
    rules = _with_timestamps(context, build, rules) if kind == WHISPER else rules
    search = Search(decoder, chooser, rules, length, _vocabulary(context))
    results = search.results(build, context.output_count > 2)
    if context.output_count > 2:
        *sequences, scores = results
        steps = length - decoder.tokens.size(1)
        pads = sizes(build, 0, 0, 0, steps - scores.size(0), 0, 0)
        whole = build("Pad", scores, pads)
        results = (*sequences, build("Reshape", whole, sizes(build, steps, batch, beams, -1)))
    return (*results, *[Missing.RESULT] * (5 - len(results)))


def _check_beams(context: Context, kind: int) -> None:
    if kind not in (GPT, T5, WHISPER):
        raise NotSupportedError(f"model_type is {kind}: it must be 0, 1 or 2")
    has_scores = context.attribute("decoder_output_cross_qk", 0) or context.has(12)
    if has_scores or context.has(13) or (kind == WHISPER and context.has(9)):
        raise NotSupportedError(
            "it returns the scores of cross attention, or has a mask of features, which only "
            "kernels of CUDA compute: convert the model without them"
        )


def _with_timestamps(context: Context, build: Builder, rules: Rules) -> Rules:
    """The rules of Whisper, with those of timestamps if `logits_processor` is 1."""
    value, processor = context.value(11), build.optional(11)
    if processor is None or (value is not None and value.reshape(-1)[0] != 1):
        return rules

    def tokens(*names: str) -> tuple[int, ...]:
        return tuple(int(context.attribute(name, -1)) for name in names)

    first = int(context.attribute("beginning_timestamp_token_id", -1))
    if first < 0:
        raise NotSupportedError("beginning_timestamp_token_id is missing: convert the model again")
    timestamps = Timestamps(
        first,
        rules.end,
        tokens("no_timestamps_token_id", "start_of_lm_token_id"),
        tokens("decoder_start_token_id", "translate_token_id", "transcribe_token_id"),
    )
    applies = None if value is not None else processor.reshape(1).op("Equal", 1)
    return replace(rules, timestamps=timestamps, has_timestamps=applies)


def _power(context: Context, build: Builder) -> Value | None:
    """The exponent of lengths; `None` for 1."""
    power, value = build.optional(5), context.value(5)
    if power is None or (value is not None and value.reshape(-1)[0] == 1):
        return None
    return power.cast(DType.float32).reshape(1)


def _encoder_mask(build: Builder, pad: int) -> Value:
    """The mask of the encoder's tokens. By default, it leaves out the padding before a text."""
    mask = build.optional(9)
    if mask is not None:
        return mask
    is_token = (~build.inputs[0].op("Equal", pad)).cast(DType.int32)
    count = build("CumSum", is_token, np.int64(1))
    return count.op("Greater", 0).cast(DType.int32)


def _start(context: Context, build: Builder, batch: Value, kind: int) -> Value:
    """The tokens with which the decoder begins, [B, T]."""
    tokens = build.optional(10)
    if tokens is not None and kind == WHISPER:
        return tokens
    token = int(context.attribute("decoder_start_token_id", -1))
    if token < 0:
        raise NotSupportedError("decoder_start_token_id is missing: convert the model with it")
    return build("ConstantOfShape", sizes(build, batch, 1), value=np.array([token], np.int32))


_COMMON = (
    "decoder init_decoder encoder decoder_start_token_id eos_token_id pad_token_id model_type "
    "no_repeat_ngram_size vocab_size "
)
_TIMESTAMPS = (
    "decoder_output_cross_qk beginning_timestamp_token_id no_speech_token_id transcribe_token_id "
    "no_timestamps_token_id start_of_lm_token_id translate_token_id"
)
"""The attributes of Whisper's tokens. Only the rules of timestamps read them."""

OPS: tuple[Operator, ...] = (
    row("GreedySearch", 7, _COMMON, _greedy),
    row("Sampling", 9, _COMMON + "custom filter_value min_tokens_to_keep presence_penalty"
        " temperature top_p", _greedy),
    row("BeamSearch", 12, _COMMON + "early_stopping", _beams),
    row("WhisperBeamSearch", 15, _COMMON + "early_stopping " + _TIMESTAMPS, _beams),
)  # fmt: skip

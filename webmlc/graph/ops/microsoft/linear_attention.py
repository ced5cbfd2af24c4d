"""Recurrent attention of linear cost, and the causal convolution in front of it.

LinearAttention carries a state [B, H, K, V] of each head from token to token, instead of all keys
and values. CausalConvWithState carries the last inputs of its taps.

Sizes in the comments: batch B, tokens T, heads H, key size K, value size V, channels C, length L.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from webmlc.core.dtypes import DType
from webmlc.core.expr import as_int, const
from webmlc.graph.builder import Builder, Value
from webmlc.graph.ir import Function
from webmlc.graph.ops.microsoft.rows import known_size, row
from webmlc.graph.ops.operator import Context, Missing, NotSupportedError, Operator, Result, case
from webmlc.graph.ops.shapes import check_shape, check_shapes

Step = Callable[[Builder, Value, Value], tuple[Value, ...]]
"""The state after a token, and the outputs of the token, from its position and the state before."""

RULES = ("gated_delta", "linear", "gated", "delta")


def over_tokens(build: Builder, count: Value, state: Value, step: Step) -> tuple[Value, ...]:
    """Run a step for each token. Return the last state, and the outputs of all tokens, stacked."""
    inner, expansion = build.inner("token")
    position, condition, before = (inner.fresh(n) for n in ("place", "going", "state"))
    results = step(inner, position, before)
    inputs, outputs = (position, condition, before), (condition, *results)
    body = Function("token", inputs, outputs, tuple(expansion.nodes), {}, expansion.constants)
    return build.many("Loop", count, "", state, outputs=len(results), body=body)


@dataclass(frozen=True, slots=True)
class _Sequences:
    """The inputs of all tokens, with the token first: queries [T, B, H, group, K], keys
    [T, B, H, K, 1] and values [T, B, H, 1, V]. `factors`, the decay of the state, and `rates`, of
    its updates, are None if the rule has none.
    """

    queries: Value
    keys: Value
    values: Value
    factors: Value | None
    rates: Value | None

    def step(self, inner: Builder, position: Value, state: Value) -> tuple[Value, Value]:
        """The state after a token, and its output, which is not scaled."""

        def at(sequence: Value) -> Value:
            return inner("Gather", sequence, position, axis=0)

        key, value = at(self.keys), at(self.values)
        if self.factors is not None:
            state = state * at(self.factors)
        if self.rates is not None:
            stored = inner("ReduceSum", state * key, [2], keepdims=1)
            value = (value - stored) * at(self.rates)
        state = state + key * value
        return state, at(self.queries) @ state


def _sequences(context: Context, build: Builder, size: int, value_size: int) -> _Sequences:
    """The inputs of LinearAttention as sequences, in float32."""
    rule, attributes = str(context.attribute("update_rule", RULES[0])), context.node.attributes
    queries, heads = int(attributes["q_num_heads"]), int(attributes["kv_num_heads"])
    q, k, v, _, decay, beta = (build.optional(i) for i in range(6))

    def sequence(x: Value | None, *shape: int) -> Value:
        if x is None:
            raise NotSupportedError(f"the rule {rule!r} without its decay or its beta")
        return x.cast(DType.float32).transpose(1, 0, 2).reshape(0, 0, *shape)

    if queries < heads:  # heads of keys share a head of the queries
        ones = build.constant(np.ones((1, 1, 1, heads // queries, 1, 1)), DType.float32)
        shared = sequence(q, queries, 1, 1, size) * ones
        q_tokens = shared.reshape(0, 0, heads, 1, size)
    else:
        q_tokens = sequence(q, heads, queries // heads, size)
    factors: Value | None = None
    rates: Value | None = None
    if rule in ("gated", "gated_delta"):
        width = known_size(context.shape(4)[2], "the width of the decay") if context.has(4) else 0
        factors = sequence(decay, heads, width // heads, 1).op("Exp")
    if rule in ("delta", "gated_delta"):
        rates = sequence(beta, -1, 1, 1)
    keys, values = sequence(k, heads, size, 1), sequence(v, heads, 1, value_size)
    return _Sequences(q_tokens, keys, values, factors, rates)


def _linear_attention(context: Context, build: Builder) -> tuple[Result, ...]:
    """Expand LinearAttention to a loop over the tokens:

        S = exp(decay) · S + k ⊗ beta · (v - exp(decay) · Sᵀ k)      and o = scale · qᵀ S

    The rules "linear" and "gated" add k ⊗ v; "linear" and "delta" have no decay.
    """
    queries, heads = context.count("q_num_heads"), context.count("kv_num_heads")
    q, past, window = build.inputs[0], build.optional(3), int(context.attribute("state_window", 0))
    size = known_size(context.shape(1)[2], "the width of the keys") // heads
    value_size = known_size(context.shape(2)[2], "the width of the values") // heads
    check_shapes(context, "batch tokens queries*size", "batch tokens heads*size",
                 "batch tokens heads*values", "", "batch tokens decays", "batch tokens betas",
                 queries=queries, heads=heads, size=size)  # fmt: skip
    _check_window(context, window)
    sequences = _sequences(context, build, size, value_size)

    def step(inner: Builder, position: Value, state: Value) -> tuple[Value, ...]:
        after, output = sequences.step(inner, position, state)
        return (after, output, after) if window else (after, output)

    count = q.size(1)
    dtype = context.dtype(3) if past is not None else context.dtype(0)
    before = _first_state(build, q, past, window, (heads, size, value_size))
    last, outputs, *states = over_tokens(build, count, before, step)
    scale = float(context.attribute("scale", 0.0)) or 1 / math.sqrt(size)
    y = (outputs * scale).transpose(1, 0, 2, 3, 4).reshape(0, 0, -1).cast(context.dtype(0))
    present = _slots(build, states[0], count, window) if window else last
    return y, present.cast(dtype)


def _first_state(
    build: Builder, q: Value, past: Value | None, window: int, sizes: tuple[int, ...]
) -> Value:
    """The state before the first token, in float32: the last slot of the past, or zeros."""
    if past is None:
        shape = build("Concat", q.op("Shape", start=0, end=1), list(sizes), axis=0)
        return build("ConstantOfShape", shape, value=np.zeros(1, np.float32))
    return (past.element(window - 1, 0) if window else past).cast(DType.float32)


def _check_window(context: Context, window: int) -> None:
    """Check that a past has as many states as the window, if there is a window."""
    if window and context.has(3):
        check_shape(context, 3, (const(window), *context.shape(3)[1:]))


def _slots(build: Builder, states: Value, count: Value, window: int) -> Value:
    """The last `window` of stacked states. Slots before the first token are zero."""
    places = count - window + np.arange(window)
    window_states = build("Gather", states, build("Max", places, 0), axis=0)
    return places.op("GreaterOrEqual", 0).reshape(-1, 1, 1, 1, 1).where(window_states, 0)


# -- CausalConvWithState ---------------------------------------------------------------------------


def _causal_conv(context: Context, build: Builder) -> tuple[Result, ...]:
    """Expand CausalConvWithState: a depthwise convolution of the past inputs and the new inputs.
    The present holds the last inputs.
    """
    attribute = context.attribute
    if attribute("ndim", 1) != 1:
        raise NotSupportedError("a causal convolution of several axes")
    cuda = ("input_channel_offset", "input_channels", "state_length", "state_update_capacity")
    if any(attribute(n, 0) for n in cuda) or attribute("state_channels_last", -1) != -1:
        raise NotSupportedError("the extended attributes, which only CUDA has")
    x, weights, bias, past = (build.optional(i) for i in range(4))
    assert x is not None and weights is not None
    channels, _, taps = (known_size(n, "the weights' shape") for n in context.shape(1))
    step, window = context.count("dilation", 1), int(attribute("state_window", 0))
    _check_window(context, window)
    length, is_last = (taps - 1) * step, bool(attribute("channels_last", 0))
    inner = [
        as_int(n) or -1 for n in context.shape(0)[2:]
    ]  # the axes of channels, if they are last

    def channels_first(value: Value) -> Value:
        return value.reshape(0, 0, channels).transpose(0, 2, 1) if is_last else value

    def restored(value: Value) -> Value:
        return value.transpose(0, 2, 1).reshape(0, 0, *inner) if is_last else value

    new = channels_first(x)
    if past is None:
        joined = build("Pad", new, [0, 0, length, 0, 0, 0])
    else:
        old = past.element(window - 1, 0) if window else past
        joined = build("Concat", channels_first(old), new, axis=2)
    y = build("Conv", joined, weights, bias, group=channels, dilations=(step,))
    if attribute("activation", "none") != "none":
        y = y.op("Swish")
    count = new.size(2)

    def state(end: Value) -> Value:
        """The last inputs before the position `end`, which is at least 0."""
        return restored(build("Gather", joined, end + np.arange(length), axis=2))

    if not window:
        return restored(y), state(count)
    slots = []
    for slot in range(window):
        end = count - (window - 1 - slot)
        last_inputs = state(build("Max", end, 0))
        slots.append(end.op("Greater", 0).where(last_inputs, 0).unsqueeze(0))
    return restored(y), build("Concat", *slots, axis=0), Missing.RESULT


X, KERNEL, STATE = "float32[2, 6, 5]", "float32[6, 1, 3]", "float32[2, 6, 2]"
Q, K, V = "float32[2, 5, 16]", "float32[2, 5, 8]", "float32[2, 5, 12]"
HEADS = {"q_num_heads": 4, "kv_num_heads": 2}
DECAY, BETA = "float32[2, 5, 2] in -1..0", "float32[2, 5, 2] in 0..1"
PAST = "float32[2, 2, 4, 6]"

OPS: tuple[Operator, ...] = (
    row("LinearAttention", 6, "chunk_size kv_num_heads q_num_heads scale state_window update_rule",
        _linear_attention,
        case(Q, K, V, PAST, DECAY, BETA, outputs=2, **HEADS),
        case(Q, K, V, None, None, None, update_rule="linear", outputs=2, **HEADS),
        case(Q, K, V, PAST, "float32[2, 5, 8] in -1..0", update_rule="gated", scale=0.7,
             outputs=2, **HEADS),
        case(K, K, V, PAST, None, "float32[2, 5, 1] in 0..1", update_rule="delta", outputs=2,
             q_num_heads=2, kv_num_heads=2),
        case("float32[2, 5, 4]", K, V, PAST, DECAY, BETA, outputs=2, q_num_heads=1,
             kv_num_heads=2),
        case(Q, K, V, "float32[3, 2, 2, 4, 6]", DECAY, BETA, outputs=2, state_window=3, **HEADS),
        update_rule=RULES),
    row("CausalConvWithState", 4, "activation channels_last dilation input_channel_offset"
        " input_channels ndim state_channels_last state_length state_update_capacity state_window",
        _causal_conv,
        case(X, KERNEL, "float32[6]", STATE, outputs=2),
        case(X, KERNEL, activation="silu", outputs=2),
        case(X, KERNEL, None, "float32[2, 6, 4]", dilation=2, outputs=2, activation="swish"),
        case("float32[2, 5, 6]", KERNEL, "float32[6]", "float32[2, 2, 6]", channels_last=1,
             outputs=2),
        case("float32[2, 5, 2, 3]", KERNEL, channels_last=1, outputs=2),
        case(X, KERNEL, None, "float32[3, 2, 6, 2]", state_window=3, outputs=2),
        activation=("none", "silu", "swish")),
)  # fmt: skip

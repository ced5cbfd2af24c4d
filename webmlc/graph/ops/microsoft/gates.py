"""Gates, routers and norms between the layers of newer language models.

Hyper-connections keep C streams of width H, as [..., C, H] or flat as [..., C·H].
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial

from webmlc.core.dtypes import DType
from webmlc.core.expr import Expr, const
from webmlc.graph.builder import Builder, Value
from webmlc.graph.ops.microsoft.rows import DOMAIN, known_size, row
from webmlc.graph.ops.operator import (
    Context,
    Missing,
    NotSupportedError,
    Operator,
    Result,
    case,
)
from webmlc.graph.ops.shapes import canonical, check_shape, check_shapes, same

PROBABILITY_FLOOR = 1e-20
"""The least score of which MoEGroupRouter takes the logarithm. From onnxruntime's schema."""


def _squared_relu(x: Value) -> Value:
    positive = x.op("Relu")
    return positive * positive


ACTIVATIONS: Mapping[str, Callable[[Value], Value]] = {
    "relu": lambda x: x.op("Relu"),
    "gelu": lambda x: x.op("Gelu"),
    "silu": lambda x: x.op("Swish"),
    "identity": lambda x: x,
    "relu2": _squared_relu,
}
"""The activations without parameters, by the names that operators of language models use."""


def swiglu(
    build: Builder, gate: Value, up: Value, *, alpha: float, beta: float, limit: float | None
) -> Value:
    """Compute G · sigmoid(alpha · G) · (L + beta): G is `gate`, at most `limit`, and L is `up`,
    between `-limit` and `limit`.
    """
    if limit is not None:
        gate = build("Clip", gate.cast(DType.float32), None, limit)
        up = build("Clip", up.cast(DType.float32), -limit, limit)
    return gate.op("Swish", alpha=alpha) * (up + beta if beta else up)


def _limited(context: Context, build: Builder, gate: Value, up: Value) -> Value:
    """Compute the SwiGLU of a node's attributes in float32. A limit of 0 is none."""
    attribute, dtype = context.attribute, context.dtype(0)
    limit = float(attribute("limit", 0.0))
    y = swiglu(
        build, gate.cast(DType.float32), up.cast(DType.float32),
        alpha=float(attribute("activation_alpha", 1.0)),
        beta=float(attribute("activation_beta", 0.0)),
        limit=limit if limit > 0 else None,
    )  # fmt: skip
    return y.cast(dtype)


def _swiglu(context: Context, build: Builder) -> Value:
    if context.attribute("round_activation", 0) and context.dtype(0) is not DType.float32:
        raise NotSupportedError("round_activation of small floats: activations are in float32")
    gate, up = build.inputs[0], build.optional(1)
    if up is None:
        gate, up = build.many("Split", gate, outputs=2, axis=-1, num_outputs=2)
    else:
        check_shape(context, 1, context.shape(0))
    return _limited(context, build, gate, up)


def _router_gate_up(context: Context, build: Builder) -> tuple[Value, ...]:
    x, weights = build.inputs
    columns = known_size(context.shape(1)[1], "the number of columns of the weights")
    routed = context.count("router_size")
    inner = (columns - routed) // 2
    parts = build.many("Split", x @ weights, [routed, inner, inner], outputs=3, axis=-1)
    return parts[0], _limited(context, build, *parts[1:])


def _linear_gate(context: Context, build: Builder) -> tuple[Result, ...]:
    """Compute decay_scale · softplus(a + dt_bias) and sigmoid(b), in float32."""
    tokens = "batch length heads"
    check_shapes(context, tokens, "heads", "heads", tokens)
    a, bias, scale, b = (build.optional(i) for i in range(4))
    assert a is not None and bias is not None and scale is not None
    decay = (a.cast(DType.float32) + bias).op("Softplus") * scale
    return decay.cast(context.dtype(0)), Missing.RESULT if b is None else b.op("Sigmoid")


# -- hyper-connections -----------------------------------------------------------------------------


def _streams(context: Context, x: Value) -> tuple[Value, int, Expr]:
    """The first input as streams [..., C, H] in float32, and C and H."""
    shape, count = context.shape(0), int(context.attribute("num_branches", 0))
    x = x.cast(DType.float32)
    if not count:
        return x, known_size(shape[-2], "the number of streams"), shape[-1]
    width = known_size(shape[-1], "the width of the streams")
    if width % count:
        raise NotSupportedError(f"{count} streams in {width} columns")
    return x.reshape(*[0] * (len(shape) - 1), count, width // count), count, const(width // count)


def _gate(context: Context, build: Builder, index: int, streams: int) -> Value:
    """A gate [..., C], [..., C, 1], [..., C, H] or [..., C·H], in the form [..., C, 1 or H]."""
    gate, rank = build.inputs[index].cast(DType.float32), context.rank(index)
    lead = context.rank(0) - 2 + bool(context.attribute("num_branches", 0))
    if rank == lead + 2:
        return gate
    return gate.reshape(*[0] * lead, streams, -1)


def _rms(build: Builder, x: Value, epsilon: float) -> Value:
    """Divide the rows of `x` by the root of their mean square."""
    mean = build("ReduceMean", x * x, [-1])
    return x / (mean + epsilon).op("Sqrt")


def _branchwise_norm(context: Context, build: Builder) -> Value:
    x, count, width = _streams(context, build.inputs[0])
    y = _rms(build, x, context.attribute("epsilon", 1e-5))
    scale = build.optional(1)
    if scale is not None:
        scale = scale.cast(DType.float32)
        columns = context.shape(1)[-1]
        is_flat = same(columns, canonical(width * count)) and not same(columns, width)
        y = y * (scale.reshape(count, -1) if is_flat else scale)
    return y.op("Reshape", build.inputs[0].op("Shape")).cast(context.dtype(0))


def _pre_mix(context: Context, build: Builder) -> Value:
    """Add the streams, each times its gate."""
    x, count, _ = _streams(context, build.inputs[0])
    mixed = build("ReduceSum", x * _gate(context, build, 1, count), [-2], keepdims=0)
    return (mixed * float(context.attribute("reduction_scale", 1.0))).cast(context.dtype(0))


def _post_mix(context: Context, build: Builder) -> Value:
    """Mix the streams by a matrix, and add the output of a block to each, times its gate."""
    x, count, _ = _streams(context, build.inputs[0])
    block = build.inputs[1].cast(DType.float32).unsqueeze(-2)
    mix = build.optional(3)
    if mix is not None:
        order = [*range(context.rank(3) - 2), context.rank(3) - 1, context.rank(3) - 2]
        x = mix.cast(DType.float32).transpose(*order) @ x
    y = x + _gate(context, build, 2, count) * block
    return y.op("Reshape", build.inputs[0].op("Shape")).cast(context.dtype(0))


def _low_rank_mix(context: Context, build: Builder) -> tuple[Value, ...]:
    """Expand HyperConnectionLowRankMix: post-mix of the previous block, norm of each stream, and
    gates from a network of low rank.
    """
    attribute = context.attribute
    streams, norm, down, up, inject, block, gate = (build.optional(i) for i in range(7))
    assert streams and norm and down and up and inject
    count = context.count("num_branches")
    if block is not None and gate is not None:
        streams = build("HyperConnectionPostMix", streams, block, gate, domain=DOMAIN,
                        num_branches=count)  # fmt: skip
    normed = build("BranchwiseRMSNorm", streams, norm, domain=DOMAIN, num_branches=count,
                   epsilon=attribute("epsilon", 1e-5))  # fmt: skip
    hidden = build("ScaledSiLU", normed @ down, domain=DOMAIN, alpha=attribute("silu_alpha", 1.0))
    gates = (hidden @ up).op("Sigmoid")
    output = build("HyperConnectionPreMix", normed, gates, domain=DOMAIN, num_branches=count,
                   reduction_scale=attribute("reduction_scale", 1.0))  # fmt: skip
    logits = (normed @ inject) / float(attribute("gate_div", 1.0))
    return output, logits.op("Sigmoid") * float(attribute("gate_mul", 1.0)), streams


def _engram_gate(context: Context, build: Builder) -> tuple[Result, ...]:
    """Gate a value by the product of a normed key and a normed query."""
    tokens, table = "batch length streams hidden", "streams hidden"
    check_shapes(context, tokens, tokens, "batch length hidden", table, table, table)
    key, query, value, key_scale, query_scale, scale = (build.optional(i) for i in range(6))
    assert key and query and value and key_scale and query_scale
    epsilon, dtype = context.attribute("epsilon", 1e-5), context.dtype(0)
    hidden = known_size(context.shape(0)[3], "the hidden size")
    normed = partial(_rms, build, epsilon=epsilon)
    key, query = (
        normed(x.cast(DType.float32)) * s.cast(DType.float32)
        for x, s in ((key, key_scale), (query, query_scale))
    )
    dot = build("ReduceSum", key * query, [-1]) / math.sqrt(hidden)
    root = build("Max", dot.op("Abs"), build.constant(1e-6, DType.float32)).op("Sqrt")
    gate = (dot.op("Sign") * root).op("Sigmoid")
    gated = gate * value.cast(DType.float32).unsqueeze(2)
    result: Result = Missing.RESULT
    if scale is not None:
        result = (normed(gated) * scale.cast(DType.float32)).cast(dtype)
    return gated.cast(dtype), result


# -- routers ---------------------------------------------------------------------------------------


def _largest(build: Builder, x: Value, count: int) -> Value:
    """The `count` largest elements of each row."""
    return build.many("TopK", x, [count], outputs=2, axis=-1)[0]


def _group_router(context: Context, build: Builder) -> tuple[Result, ...]:
    """Expand MoEGroupRouter: the logarithms of the scores of the experts that are selected within
    the best groups, and a sentinel for the others. Or the scores with and without bias.
    """
    attribute = context.attribute
    logits, bias, weights = (build.optional(i) for i in range(3))
    assert logits is not None and bias is not None
    experts = known_size(context.shape(1)[0], "the number of experts")
    values = logits.cast(DType.float32)
    if weights is not None:
        values = values @ weights.cast(DType.float32).transpose(1, 0)
    scores = values.op("Sigmoid").reshape(-1, experts)
    biased = scores + bias
    groups, active = context.count("n_group", 1), context.count("topk_group", 1)
    size, top = experts // groups, context.count("top_k")
    candidates, is_active = biased, None
    if groups > 1:
        grouped = biased.reshape(0, groups, size)
        leaders = _largest(build, grouped, min(context.count("group_topk", 2), size))
        totals = build("ReduceSum", leaders, [-1], keepdims=0)
        places = build.many("TopK", totals, [active], outputs=2, axis=-1)[1]
        is_active = _selected(build, places, groups).unsqueeze(2)
        lowest = float("-inf")
        candidates = is_active.where(grouped, lowest).reshape(0, experts)
    places = build.many("TopK", candidates, [top], outputs=2, axis=-1)[1]
    is_routed = _selected(build, places, experts)
    if is_active is not None:  # more experts are selected than the active groups have
        is_routed = (is_routed.reshape(0, groups, size) & is_active).reshape(0, experts)
    floor = build.constant(PROBABILITY_FLOOR, DType.float32)
    logarithms = build("Max", scores, floor).op("Log")
    sentinel = float(attribute("router_sentinel", -10000.0))
    routed = is_routed.where(logarithms, sentinel)
    return routed.cast(context.dtype(0)), biased, scores


def _selected(build: Builder, places: Value, count: int) -> Value:
    """A mask [rows, count], true at the `places` of each row."""
    hits = build("OneHot", places, count, build.constant([0.0, 1.0], DType.float32))
    return build("ReduceMax", hits, [-2], keepdims=0).op("Greater", 0.5)


X, GATE = "float32[2, 3, 8]", "float32[2, 3, 8] in -9..9"
STREAMS, FLAT = "float32[2, 3, 4, 8]", "float32[2, 3, 32]"
TABLE = "float32[4, 8]"
NETWORK = ("float32[32]", "float32[32, 5]", "float32[5, 32]", "float32[32, 4]")

OPS: tuple[Operator, ...] = (
    row("SwiGLU", 2, "activation_alpha activation_beta limit round_activation", _swiglu,
        case(GATE, GATE, activation_alpha=1.7, activation_beta=1.0, limit=3.0), case(GATE)),
    row("RouterGateUpProj", 2, "activation activation_alpha activation_beta limit router_size",
        _router_gate_up, case(X, "float32[8, 14]", router_size=4, limit=1.0, outputs=2),
        activation=("swiglu",)),
    row("LinearAttentionGate", 4, "", _linear_gate,
        case(X, "float32[8]", "float32[8] in -2..0", X, outputs=2),
        case(X, "float32[8]", "float32[8]")),
    row("BranchwiseRMSNorm", 2, "epsilon num_branches", _branchwise_norm,
        case(STREAMS, TABLE), case(STREAMS, "float32[8]", epsilon=0.1), case(STREAMS),
        case(FLAT, "float32[32]", num_branches=4), case(FLAT, "float32[8]", num_branches=4)),
    row("HyperConnectionPreMix", 2, "num_branches reduction_scale", _pre_mix,
        case(STREAMS, "float32[2, 3, 4]", reduction_scale=0.5), case(STREAMS, STREAMS),
        case(FLAT, FLAT, num_branches=4), case(FLAT, "float32[2, 3, 4]", num_branches=4)),
    row("HyperConnectionPostMix", 4, "num_branches", _post_mix,
        case(STREAMS, X, "float32[2, 3, 4]", "float32[2, 3, 4, 4]"),
        case(FLAT, X, STREAMS, num_branches=4), case(FLAT, X, "float32[2, 3, 4, 1]",
             num_branches=4)),
    row("HyperConnectionLowRankMix", 7,
        "epsilon gate_div gate_mul num_branches reduction_scale silu_alpha", _low_rank_mix,
        case(FLAT, *NETWORK, X, "float32[2, 3, 4]", num_branches=4, outputs=3, gate_div=2.0,
             gate_mul=1.5, reduction_scale=0.5, silu_alpha=0.7),
        case(FLAT, *NETWORK, num_branches=4, outputs=2)),
    row("EngramGate", 6, "epsilon", _engram_gate,
        case(STREAMS, STREAMS, X, TABLE, TABLE, TABLE, outputs=2),
        case(STREAMS, STREAMS, X, TABLE, TABLE)),
    row("MoEGroupRouter", 3, "group_topk n_group router_sentinel top_k topk_group", _group_router,
        case("float32[5, 12]", "float32[12]", top_k=3, n_group=4, topk_group=2),
        case("float32[5, 12]", "float32[12]", top_k=5, n_group=4, topk_group=1),
        case("float32[2, 3, 12]", "float32[12]", top_k=2)),
)  # fmt: skip
